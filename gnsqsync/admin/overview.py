"""The first page's data: all nsqds are looked at every few seconds, while somebody watches.

Owns the thread of these looks and what the last ones have shown. What the figures mean is in
troubles.py.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass, field

from gnsqsync.admin.cluster import AllFailed, Cluster, http_address, told
from gnsqsync.admin.figures import (
    NodeFigures,
    TopicFigures,
    TopicRates,
    add_up,
    node_figures,
    rates_between,
)
from gnsqsync.admin.troubles import ChannelRow, Level, TopicRow, topic_row
from gnsqsync.admin.upstream import Failed

__all__ = ["Overview", "Picture"]

# Seconds between two looks; more where a look itself takes long, so that it is a fifth at most.
_INTERVAL = 2.0
_SHARE = 4.0
# Nobody has asked for so long: nobody watches.
_WATCHED = 30.0
# A look waits so long for nsqds that are slow; what they answer later is in the next one.
_PATIENCE = 2.0
# Topics after which other greenlets of this process get a turn.
_TURN = 100
# How many looks a line shows.
_POINTS = 60


@dataclass(frozen=True, slots=True)
class Picture:
    """One look at the cluster.

    Attributes:
        rows: All topics, those that need a look first.
        waiting: What each topic had waiting at the last looks, oldest first.
        nodes: How many nsqds have answered.
        errors: What failed, a line each.
        has_rates: False at the first look.
        at: Unix seconds; 0 when there was no look yet.
    """

    rows: tuple[TopicRow, ...] = ()
    waiting: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: int = 0
    errors: tuple[str, ...] = ()
    has_rates: bool = False
    at: float = 0.0

    def topic(self, name: str) -> TopicRow | None:
        return next((row for row in self.rows if row.name == name), None)

    def channel(self, topic: str, name: str) -> ChannelRow | None:
        row = self.topic(topic)
        return row and next((one for one in row.channels if one.name == name), None)

    def count(self, level: Level) -> int:
        return sum(row.level == level for row in self.rows)


class Overview:
    """Looks at a cluster on a thread of its own, from ``picture`` on until nobody asks any more.

    Threads:
        Any thread may call.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._clock = clock
        # Guards what is below, but for what the look's thread alone uses.
        self._changed = threading.Condition()
        self._picture = Picture()
        self._looked_at = -_WATCHED
        self._asked_at = 0.0
        self._thread: threading.Thread | None = None
        self._is_closed = False
        # The thread's own.
        self._asked: dict[str, Future[NodeFigures]] = {}
        self._latest: dict[str, NodeFigures] = {}
        self._totals: dict[str, TopicFigures] = {}
        self._rates: dict[str, TopicRates] = {}
        self._waiting: dict[str, deque[int]] = {}

    def picture(self, timeout: float = _PATIENCE + 1.0) -> Picture:
        """The last look, if it is not old; else the next one, waited for ``timeout`` seconds."""
        with self._changed:
            self._asked_at = self._clock()
            if self._thread is None and not self._is_closed:
                self._thread = threading.Thread(
                    target=self._run, name="gnsqsync-admin-overview", daemon=True
                )
                self._thread.start()
            self._changed.wait_for(
                lambda: self._is_closed or self._clock() - self._looked_at < _WATCHED, timeout
            )
            return self._picture

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
        except BaseException:  # whoever asks next starts another thread
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
                    # Rates over the time in which nobody watched would say nothing.
                    self._latest, self._rates, self._totals = {}, {}, {}
                    self._waiting = {}
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
        totals = add_up(latest.values())
        pairs = [(before[key], now) for key, now in latest.items() if key in before]
        newest = rates_between([(old, new) for old, new in pairs if new.at > old.at])
        rates = {name: self._followed(name, newest.get(name)) for name in totals} if pairs else {}
        rows: list[TopicRow] = []
        for name, one in totals.items():
            rows.append(topic_row(name, one, rates.get(name), self._totals.get(name)))
            if len(rows) % _TURN == 0:
                time.sleep(0)
        rows.sort(key=lambda row: (-row.level, -row.waiting, row.name))
        self._waiting = {
            row.name: self._waiting.get(row.name) or deque(maxlen=_POINTS) for row in rows
        }
        for row in rows:
            self._waiting[row.name].append(row.waiting)
        self._latest, self._totals, self._rates = latest, totals, rates
        return Picture(
            tuple(rows),
            {name: tuple(points) for name, points in self._waiting.items()},
            len(latest),
            (*errors, *more),
            bool(pairs),
            time.time(),
        )

    def _followed(self, name: str, newest: TopicRates | None) -> TopicRates:
        """The rates of a topic, smoothed."""
        known = self._rates.get(name)
        newest = newest or TopicRates()
        if known is None:
            return newest
        known.own.follow(newest.own)
        for channel, rates in newest.channels.items():
            if channel in known.channels:
                known.channels[channel].follow(rates)
            else:
                known.channels[channel] = rates
        return known

    def _figures(self, addresses: list[str]) -> tuple[dict[str, NodeFigures], list[str]]:
        """Of all that answer in time. One that has not answered yet is not asked once more."""
        for address in addresses:
            if address not in self._asked:
                self._asked[address] = self._cluster.stats_of(
                    address, lambda stats: node_figures(stats, self._clock())
                )
        for gone in self._asked.keys() - set(addresses):
            self._asked.pop(gone).cancel()
        done, _ = wait(self._asked.values(), _PATIENCE)
        found: dict[str, NodeFigures] = {}
        errors = []
        for address, future in list(self._asked.items()):
            if future not in done:
                errors.append(f"nsqd {address} has not answered for {_PATIENCE:g} s")
                continue
            del self._asked[address]
            try:
                found[address] = future.result()
                errors += told(f"nsqd {address}", found[address].left_out)
            except Failed as error:
                errors.append(str(error))
        return found, errors
