"""Heap of jobs by the time at which they are due.

Knows the order of moments. Must not know what time it is, who waits for it, or what a job does.

``add`` puts a job in, and ``due`` takes the jobs out whose time has come.

Surprise: a job cannot be taken back. A job that may have become useless finds that out itself when
it runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["TimerHeap"]

# A function without arguments. Its result is ignored.
Job = Callable[[], object]


class TimerHeap:
    """Jobs in order of time. Jobs of the same time keep the order in which they were added."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Job]] = []
        self._added = 0

    def add(self, when: float, job: Job) -> None:
        """Have ``job`` returned by the first ``due(now)`` with ``now >= when`` (seconds)."""
        self._added += 1
        heapq.heappush(self._heap, (when, self._added, job))

    def due(self, now: float) -> list[Job]:
        """Take out the jobs whose time has come, in order. The caller runs them."""
        heap = self._heap
        jobs: list[Job] = []
        while heap and heap[0][0] <= now:
            jobs.append(heapq.heappop(heap)[2])
        return jobs

    def next_at(self) -> float | None:
        """Return the time in seconds at which the next job is due, or None without jobs."""
        return self._heap[0][0] if self._heap else None
