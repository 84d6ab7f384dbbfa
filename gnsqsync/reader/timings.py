"""Histograms of the age of messages when a handler begins and ends, and of its seconds.

Knows chunks. A chunk costs one look at the clocks. Messages of less than about a millisecond share
a chunk, and count with its mean time and with the age of its last message.

Each worker counts for itself, so no message needs a lock. ``forget`` keeps the counts of a worker
that ends.

Surprise: an age compares nsqd's clock with the clock here, so it may be negative.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from time import time
from typing import NamedTuple

from gnsqsync.message import Message
from gnsqsync.runtime import Runtime
from gnsqsync.stats import TIME_BOUNDS, Histogram

__all__ = ["Late", "Timings"]

# Upper bound of messages whose late handlers are remembered.
_MOST_LATE = 1000


class Late(NamedTuple):
    """Time of a handler that ended after the msg_timeout of its message."""

    seconds: float
    # Number of messages that the handler had in this time, one after the other.
    messages: int
    # Seconds that the message waited here before its handler began.
    waited: float


class _Counts:
    """Counts of one worker. Only that worker writes."""

    def __init__(self) -> None:
        self.begin, self.end, self.handler = ([0] * (len(TIME_BOUNDS) + 1) for _ in range(3))
        self.age = self.seconds = 0.0

    def merge(self, other: _Counts) -> None:
        for mine, its in (
            (self.begin, other.begin),
            (self.end, other.end),
            (self.handler, other.handler),
        ):
            mine[:] = map(int.__add__, mine, its)
        self.age += other.age
        self.seconds += other.seconds


class Timings:
    """Timings of one Reader. ``_mutex`` guards ``_past``, and workers' leaving ``_counts``."""

    def __init__(self, runtime: Runtime) -> None:
        self._mutex = runtime.mutex()
        # Sums of workers that have ended.
        self._past = _Counts()
        # Counts by worker. No lock: setting an item is atomic.
        self._counts: dict[int, _Counts] = {}
        # Late messages by id. No lock: only single items are set and taken.
        self._late: dict[bytes, Late] = {}

    def note(self, worker: int, messages: Sequence[Message], seconds: float) -> None:
        """Note messages that the worker has just handled, in ``seconds`` together."""
        counts = self._counts.get(worker)
        if counts is None:
            counts = self._counts[worker] = _Counts()
        # Runs for each chunk, and a chunk may be one message, so it makes few calls.
        count = len(messages)
        mean = seconds / count
        # The two times are of different clocks. A negative age falls into the first bucket.
        age = time() - messages[-1].timestamp * 1e-9
        counts.begin[bisect_left(TIME_BOUNDS, age - mean)] += count
        counts.end[bisect_left(TIME_BOUNDS, age)] += count
        counts.handler[bisect_left(TIME_BOUNDS, mean)] += count
        counts.seconds += seconds
        if age > 0.0:
            counts.age += age * count

    def note_late(self, messages: Sequence[Message], started: float, now: float) -> None:
        """Remember a chunk that ended after the msg_timeout: nsqd may refuse its answers."""
        for message in messages:
            waited = max(0.0, started - message._received_at)
            self._late[message._id] = Late(now - started, len(messages), waited)
        while len(self._late) > _MOST_LATE:
            self._late.pop(next(iter(self._late), b""), None)

    def late(self, message_id: bytes) -> Late | None:
        """Return the time of the late handler of this message, if its chunk has ended."""
        return self._late.pop(message_id, None)

    def forget(self, worker: int) -> None:
        """Add the counts of a worker that ends to ``_past``."""
        with self._mutex:
            counts = self._counts.pop(worker, None)
            if counts is not None:
                self._past.merge(counts)

    def histograms(self) -> tuple[Histogram, Histogram, Histogram]:
        """Return histograms of ages at begin and at end of the handler, and of its seconds."""
        total = _Counts()
        with self._mutex:
            for counts in (self._past, *list(self._counts.values())):
                total.merge(counts)
        return (
            Histogram(TIME_BOUNDS, tuple(total.begin), max(0.0, total.age - total.seconds)),
            Histogram(TIME_BOUNDS, tuple(total.end), total.age),
            Histogram(TIME_BOUNDS, tuple(total.handler), total.seconds),
        )
