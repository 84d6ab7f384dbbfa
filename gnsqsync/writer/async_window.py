"""Limit of what publish_async may have under way. Knows sizes only, no connection.

``enter`` takes room for a publish, and ``leave`` gives it back when the publish has an outcome.

Surprise: after ``close`` each publish is admitted. It finds the Writer closed, so callers that wait
for room need no case of their own.
"""

from __future__ import annotations

from gnsqsync.runtime import Runtime

__all__ = ["BACKLOG_BYTES", "BACKLOG_PUBLISHES", "AsyncWindow"]

# Upper bound in bytes of publishes without an outcome. It keeps a fast nsqd busy, and is small
# enough for a process that publishes to an nsqd that hangs.
BACKLOG_BYTES = 16 * 1024 * 1024
# Upper bound of the number of publishes without an outcome.
BACKLOG_PUBLISHES = 10_000


class AsyncWindow:
    """Admission of publishes while there is room. The others wait until outcomes make some.

    ``_lock`` guards all counts and ``_closed``. A lone publish always fits, however large.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._now = runtime.now
        self._lock = runtime.lock()
        # Set when there may be room.
        self._room = runtime.event()
        # Bytes of publishes that were admitted and have no outcome.
        self._bytes = 0
        # Number of those publishes.
        self._publishes = 0
        # Number of callers in ``enter`` that wait for room.
        self._waiting = 0
        # True after ``close``: each publish is admitted, and finds the Writer closed.
        self._closed = False

    def enter(self, size: int, deadline: float) -> bool:
        """Take room for ``size`` bytes. Return False if there is none before ``deadline``.

        Returns True after ``close()``, too: the caller then finds the Writer closed.
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
                    # Cleared under the lock, so that no leave() falls between the look and the
                    # wait.
                    self._room.clear()
                    return False
            self._publishes += 1
            self._bytes += size
            return True

    def leave(self, size: int) -> None:
        """Give room back when a publish has an outcome. By reading threads; never blocks long."""
        with self._lock:
            self._publishes -= 1
            self._bytes -= size
            if self._waiting:
                self._room.set()

    def close(self) -> None:
        """Wake all callers that wait."""
        with self._lock:
            self._closed = True
            self._room.set()
