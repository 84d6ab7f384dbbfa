"""How much publish_async may have under way at a time. Knows sizes only, no connection."""

from __future__ import annotations

from gnsqsync.runtime import Runtime

__all__ = ["BACKLOG_BYTES", "BACKLOG_PUBLISHES", "AsyncWindow"]

# Bytes and number of publishes without an outcome: enough to keep a fast nsqd busy, small enough
# for a process that publishes to one that hangs.
BACKLOG_BYTES = 16 * 1024 * 1024
BACKLOG_PUBLISHES = 10_000


class AsyncWindow:
    """Admits publishes while there is room; the others wait until outcomes have made some.

    ``_lock`` guards the three numbers. A publish that is alone always fits, however large.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._now = runtime.now
        self._lock = runtime.lock()
        self._room = runtime.event()
        self._bytes = 0
        self._publishes = 0
        self._waiting = 0
        self._closed = False

    def enter(self, size: int, deadline: float) -> bool:
        """Take room for ``size`` bytes; False when there is none before ``deadline``.

        True also after ``close()``: the caller then finds the Writer closed.
        """
        while not self._try(size):
            left = deadline - self._now()
            came = left > 0 and self._room.wait(left)
            with self._lock:
                self._waiting -= 1
            if not came:
                return False
        return True

    def _try(self, size: int) -> bool:
        with self._lock:
            if self._publishes and not self._closed:
                too_many = self._publishes >= BACKLOG_PUBLISHES
                if too_many or self._bytes + size > BACKLOG_BYTES:
                    self._waiting += 1
                    # Under the lock, so that no leave() gets lost between look and wait.
                    self._room.clear()
                    return False
            self._publishes += 1
            self._bytes += size
            return True

    def leave(self, size: int) -> None:
        """A publish has an outcome. By reading threads; never blocks for long."""
        with self._lock:
            self._publishes -= 1
            self._bytes -= size
            if self._waiting:
                self._room.set()

    def close(self) -> None:
        """Wake all that wait."""
        with self._lock:
            self._closed = True
            self._room.set()
