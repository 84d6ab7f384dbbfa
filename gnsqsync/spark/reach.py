"""Judges of a run: whether nsqds with waiting messages were reached, and whether anything was read.

Pure: results of dials, depths and counts in, an error or a warning out. Knows no nsqd, no log and
no Spark.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Protocol

from gnsqsync.errors import ConnectionLost, NSQError
from gnsqsync.spark.plan import Source

__all__ = ["FAIL_ON", "Depth", "NothingRead", "Progress", "Reach"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")

# Values of option 'failOnUnreachable': it is an error when this many nsqds were not reached.
FAIL_ON = ("never", "all", "any")

_WHAT_TO_SET = (
    "what waits stays in nsqd for the next run. The TCP addresses are those that nsqlookupd lists"
    " (each nsqd's --broadcast-address and TCP port), or of option 'nsqdTcpAddresses': executors"
    " must reach them, with the TLS and AUTH that nsqd asks for"
)


class Reach:
    """Which nsqds one run, or one batch of it, reached. ``fail_on``: one of FAIL_ON.

    ``waiting``: how many messages waited at its start. ``silent``: nsqds whose HTTP API did not
    answer, so that this is not known, with the error. A run that reaches none of them reads
    nothing; that is a success only if every nsqd said that nothing waits.
    """

    def __init__(
        self, waiting: Mapping[Source, int], silent: Mapping[str, str], fail_on: str
    ) -> None:
        self._fail_on = fail_on
        self._waiting = {source: count for source, count in waiting.items() if count}
        self._silent = dict(silent)
        self._reached: set[Source] = set()
        # Why the others were not reached.
        self._problems: dict[Source, str] = {}
        self._told = False

    def met(self, source: Source, problem: str) -> None:
        """A task has tried to reach it; ``problem`` is empty when it did."""
        if problem and source not in self._reached:
            # One line: it goes through Spark as the last line of a traceback.
            self._problems[source] = " ".join(problem.split())
        elif not problem:
            self._reached.add(source)
            self._problems.pop(source, None)

    @property
    def missed(self) -> list[Source]:
        """Those that were tried and not reached."""
        return sorted(self._problems)

    def judge(self) -> None:
        """At the end: ConnectionLost or a warning that names the nsqds not reached."""
        missed = self._tell_missed()
        if not missed:
            return
        told = f"part of what waits was not read: {missed}; {_WHAT_TO_SET}"
        if not self._reached:
            why = "not every nsqd could be asked what waits"
            if self._problems:
                why = "none of the nsqds with waiting messages could be reached"
            told = f"nothing was read, as {why}: {missed}; {_WHAT_TO_SET}"
        if self._fail_on == "any" or (self._fail_on == "all" and not self._reached):
            raise ConnectionLost(f"{told} (option 'failOnUnreachable' is {self._fail_on!r})")
        if not self._told:
            self._told = True
            log.warning("%s", told)

    def _tell_missed(self) -> str:
        """Each nsqd that was not reached, with what was tried, in one line."""
        counts: dict[tuple[str, str], int] = {}
        for source, problem in sorted(self._problems.items()):
            key = source.nsqd, problem
            counts[key] = counts.get(key, 0) + self._waiting.get(source, 0)
        found = [
            f"nsqd {nsqd}, where {count:,} message{'s wait' if count != 1 else ' waits'}: {problem}"
            for (nsqd, problem), count in counts.items()
        ]
        found += [
            f"nsqd {nsqd}, where nobody knows what waits, as its HTTP API does not answer:"
            f" {problem}"
            for nsqd, problem in sorted(self._silent.items())
        ]
        return "; ".join(found)


class NothingRead(NSQError):
    """A run with an end read nothing, although messages waited all the time."""


class Depth(Protocol):
    """Counts of a channel of one nsqd: see ``depths.Backlog``."""

    @property
    def unread(self) -> int: ...
    @property
    def behind_pause(self) -> int: ...


class Progress:
    """A run with an end that must take messages if any waited in its channel.

    ``before``: the depths when it began. In-flight and deferred messages do not count, as nobody
    can read them now.
    """

    def __init__(self, channel: str, before: Mapping[Source, Depth | None]) -> None:
        self._channel = channel
        self._before = {s: depth.unread for s, depth in before.items() if depth and depth.unread}
        # True if a task read something, or if it is not known what a task read.
        self.took_any: bool = False

    def took(self, messages: float | None) -> None:
        """Note what one task read; None if Spark did not want its rows."""
        self.took_any = self.took_any or messages is None or messages > 0

    def judge(
        self,
        after: Mapping[Source, Depth | None],
        left_out: Collection[Source] = (),
        hint: str = "",
    ) -> None:
        """At the end: NothingRead if nothing was read and messages still wait.

        ``left_out``: sources that were not reached, for which ``Reach`` is the judge. ``hint``: the
        end of the error's text.
        """
        left = {
            source: depth
            for source, depth in after.items()
            if depth and depth.unread and source in self._before and source not in left_out
        }
        if self.took_any or not left:
            return
        paused = [depth for depth in left.values() if depth.behind_pause]
        reason = "the channel is paused: unpause it"
        if len(paused) < len(left):
            reason = (
                "nsqd did not send them: look for other consumers of the channel, which have it to"
                " themselves by their RDY, for a proxy before the TCP port of nsqd, and at option"
                " 'maxInFlight'"
            )
        places = ", ".join(
            f"{depth.unread:,} of {source.topic} on nsqd {source.nsqd}"
            f"{' (paused)' if depth.behind_pause else ''}"
            for source, depth in sorted(left.items(), key=lambda item: item[0])
        )
        began = sum(self._before[source] for source in left)
        raise NothingRead(
            f"nothing was read of channel {self._channel!r}, where messages waited at the start"
            f" ({began:,}) and at the end of this run ({places}); {reason}{hint}"
        )
