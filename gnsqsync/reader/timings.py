"""How old messages are when a handler begins and ends, and how long it takes, as histograms.

Knows chunks, of which each is one look at the clocks: messages that take less than about a
millisecond are counted as the mean of a few, and with the age of the last of them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence

from gnsqsync.message import Message
from gnsqsync.runtime import Runtime
from gnsqsync.stats import TIME_BOUNDS, Histogram

__all__ = ["Timings"]


class _Counts:
    """One histogram as it grows."""

    def __init__(self) -> None:
        self._counts = [0] * (len(TIME_BOUNDS) + 1)
        self._total = 0.0

    def add(self, seconds: float, count: int) -> None:
        self._counts[bisect_left(TIME_BOUNDS, seconds)] += count
        self._total += seconds * count

    def histogram(self) -> Histogram:
        return Histogram(TIME_BOUNDS, tuple(self._counts), self._total)


class Timings:
    """Of one Reader. ``_mutex`` guards the counts."""

    def __init__(self, runtime: Runtime) -> None:
        self._mutex = runtime.mutex()
        self._begin, self._end, self._handler = _Counts(), _Counts(), _Counts()

    def note(self, messages: Sequence[Message], seconds: float) -> None:
        """A worker has handled these, in ``seconds`` together. By the worker, now."""
        count = len(messages)
        mean = seconds / count
        # By two clocks, ours and nsqd's: it may be negative.
        age = max(0.0, time.time() - messages[-1].timestamp * 1e-9)
        with self._mutex:
            self._handler.add(mean, count)
            self._begin.add(max(0.0, age - mean), count)
            self._end.add(age, count)

    def histograms(self) -> tuple[Histogram, Histogram, Histogram]:
        """Ages at the begin and at the end of the handler; its seconds."""
        with self._mutex:
            return self._begin.histogram(), self._end.histogram(), self._handler.histogram()
