"""The data of the first page. While somebody watches, all nsqds are asked every few seconds.

A look asks all nsqds once. This module owns the thread that looks, and the results of the last
looks. troubles.py knows the meaning of the figures.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial

from gnsqsync.admin.cluster import AllFailed, Cluster, Place, http_address, told
from gnsqsync.admin.figures import (
    NodeFigures,
    Span,
    node_figures,
    rates_between,
    rates_over,
)
from gnsqsync.admin.shapes import Shape
from gnsqsync.admin.troubles import ChannelRow, Level, TopicRow, letters_of, topic_row
from gnsqsync.admin.turns import in_turns
from gnsqsync.admin.upstream import Failed
from gnsqsync.cluster.asking import Calls
from gnsqsync.cluster.totals import TopicTotal, add_up

__all__ = ["Overview", "Picture"]

# Seconds from one look to the next. After a slow look the pause is longer: a multiple of its time,
# so that looks take a fifth of the time at most.
_INTERVAL = 2.0
_SHARE = 4.0
# Seconds without a call of ``picture`` after which the looks end.
_WATCHED = 30.0
# Seconds for which a look waits for slow nsqds. A later answer is part of the next look.
_PATIENCE = 2.0
# Number of looks in a sparkline.
_POINTS = 60
# Number of looks over which rates are averaged. Between two looks at a busy topic they jump.
_RATED = 5
# Upper bound of the requests for RDY in one look (one for each channel and nsqd), and seconds for
# all of their answers.
_MOST_ASKED = 200
_PATIENCE_FOR_READY = 1.0
# The figures of a topic for which no nsqd has answered.
_NOTHING = TopicTotal()


@dataclass(frozen=True, slots=True)
class Picture:
    """One look at the cluster.

    Attributes:
        rows: All topics. Topics with troubles come first.
        waiting: Messages that waited in each topic at the last looks, oldest first.
        nodes: Number of nsqds that answered.
        errors: The failures, a line each.
        seconds: Seconds over which rates are averaged; 0 at the first look, which has no rates.
        at: Unix seconds of the look; 0 if there was no look yet.
        away: nsqds that nsqlookupd lists and that have not answered.
    """

    rows: tuple[TopicRow, ...] = ()
    waiting: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: int = 0
    errors: tuple[str, ...] = ()
    seconds: float = 0.0
    at: float = 0.0
    away: tuple[str, ...] = ()

    @property
    def has_rates(self) -> bool:
        """True after the first look."""
        return self.seconds > 0

    def topic(self, name: str) -> TopicRow | None:
        return next((row for row in self.rows if row.name == name), None)

    def channel(self, topic: str, name: str) -> ChannelRow | None:
        row = self.topic(topic)
        return row and next((one for one in row.channels if one.name == name), None)

    def count(self, level: Level) -> int:
        return sum(row.level == level for row in self.rows)


class Overview:
    """A thread that looks at a cluster from the first ``picture`` until nobody asks any more.

    Threads:
        Any thread may call.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        # Guards the next five fields. Notified after each look and by ``close``.
        self._changed = threading.Condition()
        # The last look, and the monotonic time of its end.
        self._picture = Picture()
        self._looked_at = -_WATCHED
        # Monotonic time of the last call of ``picture``.
        self._asked_at = 0.0
        # The thread that looks, if it runs.
        self._thread: threading.Thread | None = None
        # True after ``close``.
        self._is_closed = False
        # The looking thread alone uses the fields below.
        self._asked: set[str] = set()
        self._latest: dict[str, NodeFigures] = {}
        self._totals: dict[str, TopicTotal] = {}
        self._spans: deque[Span] = deque(maxlen=_RATED)
        self._waiting: dict[str, deque[int]] = {}

    def picture(self, timeout: float = _PATIENCE + 1.0) -> Picture:
        """Return the last look, unless it is old. Then wait ``timeout`` seconds for the next one.

        Return an empty Picture if no look ends in that time, because an old look would mislead.
        """
        with self._changed:
            self._asked_at = self._clock()
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(
                    target=self._run, name="gnsqsync-admin-overview", daemon=True
                )
                self._thread.start()
            self._changed.wait_for(lambda: self._is_closed or self._is_fresh(), timeout)
            return self._picture if self._is_fresh() else Picture()

    def _is_fresh(self) -> bool:
        return self._clock() - self._looked_at < _WATCHED

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        try:
            self._look_around()
        except BaseException:  # The next call of ``picture`` starts another thread.
            with self._changed:
                self._thread = None
            raise

    def _look_around(self) -> None:
        while True:
            began = self._clock()
            picture = self._look()
            with self._changed:
                now = self._clock()
                self._picture, self._looked_at = picture, now
                self._changed.notify_all()
                pause = max(_INTERVAL - (now - began), _SHARE * (now - began))
                self._changed.wait_for(lambda: self._is_closed, pause)
                if self._is_closed or self._clock() - self._asked_at >= _WATCHED:
                    # Rates over the time in which nobody watched would mislead.
                    self._latest, self._totals, self._waiting = {}, {}, {}
                    self._spans.clear()
                    self._thread = None
                    return

    def _look(self) -> Picture:
        before = self._latest
        try:
            nodes, errors = self._cluster.nodes()
        except AllFailed as error:
            return Picture(errors=(str(error),), at=time.time())
        addresses = [http_address(node) for node in nodes]
        latest, more = self._figures(addresses)
        totals = add_up(node.topics for node in latest.values())
        pairs = [(before[key], now) for key, now in latest.items() if key in before]
        pairs = [(old, new) for old, new in pairs if new.at > old.at]
        if pairs:
            seconds = max(new.at - old.at for old, new in pairs)
            self._spans.append(Span(seconds, rates_between(pairs)))
        idle = self._idle(latest, totals)
        away = self._away(nodes, latest)
        listed, unlisted = self._listed()
        rows: list[TopicRow] = []
        for name in in_turns(dict.fromkeys([*totals, *away, *listed])):
            rows.append(
                topic_row(
                    name,
                    totals.get(name, _NOTHING),
                    rates_over(self._spans, name) if self._spans else None,
                    self._totals.get(name),
                    idle=idle.get(name, ()),
                    away=away.get(name, ()),
                    letters_of=letters_of(name, totals),
                )
            )
        rows.sort(key=lambda row: (-row.level, -row.waiting, row.name))
        self._waiting = {
            row.name: self._waiting.get(row.name) or deque(maxlen=_POINTS) for row in rows
        }
        for row in rows:
            self._waiting[row.name].append(row.waiting)
        self._latest, self._totals = latest, totals
        return Picture(
            tuple(rows),
            {name: tuple(points) for name, points in self._waiting.items()},
            len(latest),
            tuple(dict.fromkeys([*errors, *more, *unlisted])),
            sum(span.seconds for span in self._spans),
            time.time(),
            tuple(address for address in addresses if address not in latest),
        )

    def _listed(self) -> tuple[list[str], list[str]]:
        """Return the topics that nsqlookupds know, even if no nsqd has them, and the failures."""
        if not self._cluster.lookupds:
            return [], []
        try:
            names, errors = self._cluster.topics()
        except AllFailed as error:
            return [], str(error).splitlines()
        return names or [], errors

    @staticmethod
    def _away(nodes: list[Shape], latest: Mapping[str, NodeFigures]) -> dict[str, list[str]]:
        """Return, by topic, the nsqds that nsqlookupd lists for it and that have not answered."""
        found: dict[str, list[str]] = {}
        for node in nodes:
            address = http_address(node)
            for topic in (node["topics"] or ()) if address not in latest else ():
                if not topic["tombstoned"]:
                    found.setdefault(topic["topic"], []).append(address)
        return found

    def _idle(
        self, latest: Mapping[str, NodeFigures], totals: Mapping[str, TopicTotal]
    ) -> dict[str, set[str]]:
        """Return, by topic, the channels where messages wait and all consumers have RDY 0.

        Only channels that seem stuck are asked for, as an answer with all consumers may be large.
        """
        stuck = [
            (topic, channel)
            for topic, figures in totals.items()
            for channel, one in figures.channels.items()
            if one.is_stuck
        ]
        asked: list[Place] = []
        for topic, channel in stuck:
            places = [
                (topic, channel, address)
                for address, node in latest.items()
                if topic in node.topics and channel in node.topics[topic].channels
            ]
            if len(asked) + len(places) > _MOST_ASKED:
                # The next look shows the other channels as stuck if nothing leaves them.
                break
            asked += places
        ready = self._cluster.ready_of(asked, _PATIENCE_FOR_READY)
        # Consumers of an nsqd that does not answer may have RDY.
        taking = {place[:2] for place in asked if ready.answers.get(place, 1)}
        found: dict[str, set[str]] = {}
        for topic, channel in {place[:2] for place in asked} - taking:
            found.setdefault(topic, set()).add(channel)
        return found

    @cached_property
    def _calls(self) -> Calls[str, NodeFigures]:
        return self._cluster.calls()

    def _figures(self, addresses: list[str]) -> tuple[dict[str, NodeFigures], list[str]]:
        """Return the figures of all nsqds that answer in time, and the failures.

        An nsqd with an unanswered request gets no second request.
        """
        for address in addresses:
            if address not in self._asked:
                self._asked.add(address)
                self._calls.begin(address, partial(self._cluster.stats_of, address, self._read))
        found: dict[str, NodeFigures] = {}
        errors = []
        missing = set(addresses)
        for address, outcome in self._calls.within(_PATIENCE) if missing else ():
            self._asked.discard(address)
            if address not in missing:
                continue  # Nobody lists this nsqd any more.
            missing.discard(address)
            try:
                found[address] = outcome.result()
                errors += told(f"nsqd {address}", found[address].left_out)
            except Failed as error:
                errors.append(str(error))
            if not missing:
                break
        errors += [f"nsqd {address} has not answered for {_PATIENCE:g} s" for address in missing]
        return found, sorted(errors)

    def _read(self, stats: Shape) -> NodeFigures:
        return node_figures(stats, self._clock())
