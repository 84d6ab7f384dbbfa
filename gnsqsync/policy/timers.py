"""Which function is due at which time: a heap with cancellation.

Knows the order of moments. Must not know what time it is, who waits for it, or what a job does.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

__all__ = ["Handle", "TimerHeap"]

Job = Callable[[], object]


class Handle:
    """The handle of one job; ``when`` is its time in seconds. Made by ``TimerHeap.add()``."""

    __slots__ = ("_job", "when")

    def __init__(self, when: float, job: Job) -> None:
        self.when: float = when
        self._job: Job | None = job

    @property
    def pending(self) -> bool:
        """Whether the job is still to come: neither due yet nor cancelled."""
        return self._job is not None


class TimerHeap:
    """Jobs in order of time; jobs of the same time come in the order they were added.

    A client has many handles that hardly ever fire (a touch per message, a redial per nsqd), and a
    heap cannot remove from its middle. So a cancelled job leaves an empty entry, which is skipped
    later; once the empty ones outnumber the others, the heap is rebuilt without them. Memory thus
    follows the number of pending jobs, and a cancelled job is let go at once.
    """

    # Below this many empty entries a rebuild costs more than it frees.
    _TOLERATED = 16

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Handle]] = []
        self._added = 0
        self._empty = 0

    def __len__(self) -> int:
        """The number of pending jobs."""
        return len(self._heap) - self._empty

    def add(self, when: float, fn: Job) -> Handle:
        """Have ``fn`` returned by the first ``due(now)`` with ``now >= when`` (seconds)."""
        handle = Handle(when, fn)
        self._added += 1
        heapq.heappush(self._heap, (when, self._added, handle))
        return handle

    def cancel(self, handle: Handle) -> bool:
        """Forget a job. False when there was nothing to forget: it was due or cancelled before."""
        if handle._job is None:
            return False
        handle._job = None
        self._empty += 1
        if self._empty > self._TOLERATED and 2 * self._empty > len(self._heap):
            self._heap = [entry for entry in self._heap if entry[2]._job is not None]
            heapq.heapify(self._heap)
            self._empty = 0
        return True

    def due(self, now: float) -> list[Job]:
        """Take out the jobs whose time has come, in order. The caller runs them."""
        heap = self._heap
        jobs: list[Job] = []
        while heap and heap[0][0] <= now:
            handle = heapq.heappop(heap)[2]
            job, handle._job = handle._job, None
            if job is None:
                self._empty -= 1
            else:
                jobs.append(job)
        return jobs

    def next_at(self) -> float | None:
        """When the next job is due, in seconds; None when there is none."""
        heap = self._heap
        while heap and heap[0][2]._job is None:
            heapq.heappop(heap)
            self._empty -= 1
        return heap[0][0] if heap else None
