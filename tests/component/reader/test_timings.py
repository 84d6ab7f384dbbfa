"""The histograms of message ages and handler times."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gnsqsync.reader.timings import Timings
from gnsqsync.runtime import choose
from gnsqsync.stats import TIME_BOUNDS, Histogram


class Aged:
    def __init__(self, seconds: float) -> None:
        self.timestamp = time.time_ns() - int(seconds * 1e9)


def place(histogram: Histogram) -> list[tuple[float, int]]:
    """The upper bounds of what is counted."""
    bounds = (*histogram.bounds, float("inf"))
    return [(bound, count) for bound, count in zip(bounds, histogram.counts, strict=True) if count]


def test_counts_of_each_place() -> None:
    timings = Timings(choose("threads"))
    old: Any = [Aged(50.0), Aged(20.0)]
    timings.note(1, old, 4.0)
    future: Any = [Aged(-100.0)]
    timings.note(2, future, 0.0)
    ancient: Any = [Aged(90_000.0)]
    timings.note(2, ancient, 90_001.0)
    begin, end, handler = timings.histograms()
    assert place(begin) == [(0.001, 2), (30.0, 2)]
    assert place(end) == [(0.001, 1), (30.0, 2), (float("inf"), 1)]
    assert place(handler) == [(0.001, 1), (3.0, 2), (float("inf"), 1)]
    assert handler.total == 90_005.0
    assert end.total == pytest.approx(2 * 20 + 90_000, abs=5)
    assert begin.total == pytest.approx(end.total - handler.total)
    assert begin.count == end.count == handler.count == 4


def test_counts_of_a_worker_stay_when_it_ends() -> None:
    timings = Timings(choose("threads"))
    messages: Any = [Aged(0.0)]
    for worker in range(5):
        timings.note(worker, messages, 0.5)
        timings.forget(worker)
        timings.forget(worker)
    timings.note(9, messages, 0.5)
    assert [one.count for one in timings.histograms()] == [6, 6, 6]
    assert timings.histograms()[2].total == 3.0
    assert len(TIME_BOUNDS) + 1 == len(timings.histograms()[0].counts)
