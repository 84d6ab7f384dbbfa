"""Messages that nsqd may deliver again although the log has them.

Pure: the counts of channels in, a verdict for each epoch and source out. Knows neither the log nor
nsqd.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from gnsqsync.spark.plan import Source

__all__ = ["Counts", "Look", "Returns"]


class Counts(Protocol):
    """The counts of a channel, as ``depths.Backlog`` has them."""

    @property
    def in_flight(self) -> int: ...
    @property
    def deferred(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def returned(self) -> int: ...
    @property
    def born(self) -> int: ...


class Look(NamedTuple):
    """A channel at one moment.

    ``born``: start of its nsqd, in seconds since 1970. ``returned``: requeues and timeouts since
    that start. ``held``: messages in flight or deferred. ``waiting``: all messages that are not
    finished.
    """

    born: int
    returned: int
    held: int
    waiting: int

    @classmethod
    def at(cls, counts: Counts) -> Look:
        held = counts.in_flight + counts.deferred
        return cls(counts.born, counts.returned, held, counts.waiting)

    def same_life(self, other: Look | None) -> bool:
        """Return True if no message came back to the channel between the two looks."""
        return other is not None and (self.born, self.returned) == (other.born, other.returned)


class Returns:
    """The epochs of which nsqd may deliver messages again, source by source.

    Rule 1: if nsqd held nothing before an epoch and holds nothing after it, and no message came
    back between the two looks, every message of the epoch is finished.
    Rule 2: if a channel is empty, and no message came back since the look before, every message of
    every epoch is finished.
    An epoch is in doubt until one of the rules holds. An unknown epoch is in doubt.
    """

    def __init__(self) -> None:
        # The last look at each source at which nsqd held nothing (rule 1).
        self._quiet: dict[Source, Look] = {}
        # The epochs of each source that were planned since that look.
        self._since: dict[Source, set[int]] = {}
        # The last look at each source (rule 2).
        self._before: dict[Source, Look] = {}
        # The epochs of each source that rule 1 has declared finished.
        self._finished: dict[Source, set[int]] = {}
        # The newest epoch of each source that rule 2 has declared finished, with all before it.
        self._drained: dict[Source, int] = {}
        # The sources of each epoch whose entries are kept.
        self._planned: dict[int, set[Source]] = {}

    def looked(self, epoch: int, looks: Mapping[Source, Look]) -> None:
        """Take in a look that came after all tasks of ``epoch`` and before those of the next."""
        for source, look in looks.items():
            unbroken = look.same_life(self._quiet.get(source))
            if unbroken and not look.held:
                self._finished.setdefault(source, set()).update(self._since.get(source, ()))
            if not look.held:
                self._quiet[source] = look
            elif not unbroken:
                self._quiet.pop(source, None)
            if not (unbroken and look.held):
                self._since[source] = set()
            if not look.waiting and look.same_life(self._before.get(source)):
                self._drained[source] = epoch
            self._before[source] = look

    def planned(self, epoch: int, sources: Iterable[Source]) -> None:
        """Note that the tasks of ``epoch`` will read these sources."""
        self._planned[epoch] = set(sources)
        for source in self._planned[epoch]:
            if source in self._quiet:
                self._since.setdefault(source, set()).add(epoch)

    def in_doubt(self, source: Source, epoch: int) -> bool:
        """Return True unless all messages of this source in ``epoch`` are finished for certain."""
        if epoch <= self._drained.get(source, -1):
            return False
        return epoch not in self._finished.get(source, ())

    def is_finished(self, epoch: int) -> bool:
        """Return True if the epoch is known and none of its sources is in doubt."""
        sources = self._planned.get(epoch)
        return sources is not None and not any(self.in_doubt(each, epoch) for each in sources)

    def drained(self) -> dict[Source, int]:
        """Return the last epoch of each source up to which all messages are certainly finished."""
        return dict(self._drained)

    def forget(self, below: int) -> None:
        """Drop the knowledge of epochs below ``below``: their entries are deleted."""
        for epochs in self._finished.values():
            epochs.difference_update([epoch for epoch in epochs if epoch < below])
        for epoch in [epoch for epoch in self._planned if epoch < below]:
            del self._planned[epoch]

    @staticmethod
    def stored(looks: Mapping[Source, Look]) -> list[list[Any]]:
        """Return the looks as JSON values, for the file of a plan."""
        return [[*source, *look] for source, look in sorted(looks.items())]

    @staticmethod
    def loaded(stored: Iterable[list[Any]]) -> dict[Source, Look]:
        return {Source(nsqd, topic): Look(*rest) for nsqd, topic, *rest in stored}
