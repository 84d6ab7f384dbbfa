"""Timer: the thread that runs a TimerHeap of backoff ends, redials, RDY rounds and touches.

Knows a heap, its lock and a thread. Must not know what a job does.

``after`` puts a job into the heap, and wakes the thread if the job is the first one.

Surprise: all jobs share one thread. A job that blocks delays each redial and touch, so ``behind``
shows it to the health page.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from gnsqsync.policy.timers import TimerHeap
from gnsqsync.runtime import Runtime, Task

__all__ = ["Timer"]

# Seconds within which jobs share a wake-up, because the timer of a group has the jobs of hundreds
# of Readers.
_TOGETHER_SECONDS = 0.002

log: logging.Logger = logging.getLogger("gnsqsync.timer")


class Timer:
    """Jobs at their time, one after the other, on one thread of its own.

    ``_lock`` guards the heap. A job runs outside the lock, must be short, and may add the next one.
    Its exceptions are logged, and the thread goes on.
    """

    def __init__(self, runtime: Runtime, name: str) -> None:
        self._runtime = runtime
        self._name = name
        # Planned jobs. ``_lock`` guards them.
        self._heap = TimerHeap()
        self._lock = runtime.lock()
        # Set when the thread must look at the heap, or end.
        self._changed = runtime.event()
        # True once no job may run any more.
        self._stopping = False
        self._task: Task | None = None
        # Time by which the thread must come round again; in the past while it runs jobs.
        self._round_due_at = math.inf

    def start(self) -> None:
        self._task = self._runtime.spawn(self._name, self._run)

    def after(self, seconds: float, job: Callable[[], None]) -> None:
        """Run ``job`` on the timer's thread in ``seconds``."""
        when = self._runtime.now() + seconds
        with self._lock:
            first = self._heap.next_at()
            self._heap.add(when, job)
        if first is None or when < first:
            self._changed.set()

    def behind(self) -> float:
        """Return the seconds that a job is late or runs; infinity if the thread has died.

        Takes no lock, so that it works even if a lock is never given back.
        """
        if self._stopping or self._task is None:
            return 0.0
        if not self._task.alive:
            return math.inf
        return max(0.0, self._runtime.now() - self._round_due_at)

    def stop(self, timeout: float | None = None) -> bool:
        """End the thread. Jobs that are not due are forgotten. False if a job still runs."""
        self._stopping = True
        self._changed.set()
        return self._task is None or self._task.is_current or self._task.join(timeout)

    def _run(self) -> None:
        while True:
            # Cleared before looking, so that a job added meanwhile wakes the wait below.
            self._changed.clear()
            if self._stopping:
                return
            now = self._runtime.now()
            with self._lock:
                due = self._heap.due(now)
                next_at = self._heap.next_at()
            if due:
                self._round_due_at = now
            else:
                self._round_due_at = math.inf if next_at is None else next_at
            for job in due:
                try:
                    job()
                except Exception:
                    log.exception("a timer job of %s failed", self._name)
            if not due:
                self._changed.wait(
                    None if next_at is None else max(_TOGETHER_SECONDS, next_at - now)
                )
