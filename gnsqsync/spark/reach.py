"""Judges of a run: were nsqds with waiting messages reached, and was anything read?

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

# Values of option 'failOnUnreachable': nsqds that were not reached are no error, an error if they
# are all, or an error if there is one.
FAIL_ON = ("never", "all", "any")

_WHAT_TO_SET = (
    "what waits stays in nsqd for the next run. The TCP addresses are those that nsqlookupd lists"
    " (each nsqd's --broadcast-address and TCP port), or of option 'nsqdTcpAddresses': executors"
    " must reach them, with the TLS and AUTH that nsqd asks for"
)


class Reach:
    """The nsqds that one run, or one batch of it, reached. ``fail_on``: one of FAIL_ON.

    ``waiting``: number of messages of each source at the start. ``silent``: the error of each nsqd
    whose HTTP API did not answer, so that its number is unknown. A run that reaches no nsqd reads
    nothing. It is a success only if every nsqd said that nothing waits.
    """

    def __init__(
        self, waiting: Mapping[Source, int], silent: Mapping[str, str], fail_on: str
    ) -> None:
        self._fail_on = fail_on
        self._waiting = {source: count for source, count in waiting.items() if count}
        self._silent = dict(silent)
        # Sources that some task reached.
        self._reached: set[Source] = set()
        # The error of each source that no task reached.
        self._problems: dict[Source, str] = {}
        # True once the warning is logged.
        self._told = False

    def met(self, source: Source, problem: str) -> None:
        """Note that a task tried to reach a source. ``problem``: the error, empty at success."""
        if problem and source not in self._reached:
            # The text goes through Spark as the last line of a traceback, so it is one line.
            self._problems[source] = " ".join(problem.split())
        elif not problem:
            self._reached.add(source)
            self._problems.pop(source, None)

    @property
    def missed(self) -> list[Source]:
        """Sources that were tried and not reached."""
        return sorted(self._problems)

    def judge(self) -> None:
        """Raise ConnectionLost, or log a warning once, if nsqds were not reached. At the end."""
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
        """Return one line that names each nsqd that was not reached, with its error."""
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
    """Counts of a channel on one nsqd, as ``depths.Backlog`` has them."""

    @property
    def unread(self) -> int: ...
    @property
    def behind_pause(self) -> int: ...


class Progress:
    """A run with an end. It must take messages if any waited in its channel.

    ``before``: the depths when the run began. Messages in flight and deferred messages do not
    count, because nsqd sends them to nobody now.
    """

    def __init__(self, channel: str, before: Mapping[Source, Depth | None]) -> None:
        self._channel = channel
        self._before = {s: depth.unread for s, depth in before.items() if depth and depth.unread}
        # True if a task read something, or if a task's count is unknown.
        self.took_any: bool = False

    def took(self, messages: float | None) -> None:
        """Note the number of messages that one task read; None if Spark did not pull its rows."""
        self.took_any = self.took_any or messages is None or messages > 0

    def judge(
        self,
        after: Mapping[Source, Depth | None],
        left_out: Collection[Source] = (),
        hint: str = "",
    ) -> None:
        """Raise NothingRead if nothing was read and messages still wait. Called at the end.

        ``after``: the depths now. ``left_out``: sources that were not reached, which ``Reach``
        judges. ``hint``: the end of the error's text.
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
