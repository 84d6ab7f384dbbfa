"""Sockets of greenlets: one descriptor each, whose readiness gevent's hub reports.

Knows gevent's hub and loop. Must not know what runs in the greenlets.

A receive waits in the hub, and one ``_ReadLimit`` ends it when its time is over.

Surprise: a receive that finds data never switches. With a fast peer it yields now and then, or no
other greenlet would run.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from typing import Any

import gevent
import gevent.socket

from gnsqsync.runtime import dial
from gnsqsync.runtime.base import Runtime
from gnsqsync.runtime.dial import LONGEST, SEND_FLAGS

__all__ = ["GreenletSocket"]

_now = Runtime.now
# Longest seconds that other greenlets wait for one whose receives find data at once.
_YIELD_SECONDS = 0.01


class _ReadLimit:
    """Time limit of receives, with one timer for all receives of a socket.

    A receive does not restart the timer. When the timer ends, it is set to the rest of the last
    receive's time. A timer for each receive would cost 7 us.
    """

    __slots__ = ("_peer", "_timer", "began", "seconds", "waiter")

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.seconds: float | None = None
        # Greenlet that receives, or None, and the time at which it began.
        self.waiter: Any = None
        self.began = 0.0
        # The timer, while it runs.
        self._timer: Any = None

    def set(self, seconds: float | None) -> None:
        """Set the limit from the next receive on. By the greenlet that receives."""
        self.seconds = None if seconds is None else min(seconds, LONGEST)
        # A timer that runs may end too late for the new limit.
        self.close()

    def begin(self) -> None:
        """Begin a receive of the running greenlet, which lasts until ``waiter`` is None again."""
        if self.seconds is not None:
            self.began = _now()
            self.waiter = gevent.getcurrent()
            if self._timer is None:
                self._run(self.seconds)

    def _run(self, seconds: float) -> None:
        # ref=False: the timer alone must not keep an event loop running.
        self._timer = gevent.get_hub().loop.timer(max(seconds, 0.0), ref=False)
        self._timer.start(self._look)

    def _look(self) -> None:
        """End the receive if its time is over. By the hub."""
        self.close()
        waiter, seconds = self.waiter, self.seconds
        if waiter is None or seconds is None:
            return
        left = self.began + seconds - _now()
        if left > 0:
            self._run(left)
        else:
            waiter.throw(TimeoutError(f"nothing from {self._peer} for {seconds:g} seconds"))

    def close(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()
            timer.close()


class GreenletSocket(dial.Connected):
    """A socket of gevent, for the greenlets of one OS thread."""

    __slots__ = ("_ended", "_limit", "_more", "_yielded_at")

    def __init__(self, sock: Any, peer: str) -> None:
        super().__init__(sock, peer)
        # True once ``shutdown`` was called.
        self._ended = False
        self._limit = _ReadLimit(peer)
        # True if the last receive was large, so that more data is likely.
        self._more = False
        self._yielded_at = 0.0

    def recv(self, size: int) -> bytes:
        if self._more:
            # With a peer faster than we are, no receive ever waits, and no other greenlet would
            # run. So yield here, before the receive, where an exception that is thrown in loses no
            # data.
            now = _now()
            if now - self._yielded_at > _YIELD_SECONDS:
                self._yielded_at = now
                gevent.sleep(0)
        limit = self._limit
        limit.begin()
        try:
            data: bytes = self._sock.recv(size)
        except TimeoutError:
            raise
        except OSError:
            # shutdown() cancels the wait with EBADF. A later recv() would find EOF.
            if self._ended:
                return b""
            raise
        finally:
            limit.waiter = None
        self._more = len(data) > size // 4
        return data

    def receive(self, chunks: deque[bytes], size: int) -> None:
        # gevent throws into a greenlet only where it waits, which is before any data came.
        chunks.append(self.recv(size))

    def send(self, data: bytes | memoryview) -> int:
        try:
            sent: int = self._sock.send(data, SEND_FLAGS, 0.0)
        except BlockingIOError:
            return 0
        return sent

    def wait_writable(self, timeout: float | None) -> bool:
        descriptor = self._sock.fileno()
        if descriptor < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        limit = None if timeout is None else min(max(timeout, 0.0), LONGEST)
        try:
            gevent.socket.wait_write(descriptor, limit)
        except TimeoutError:
            return False
        return True

    def set_read_timeout(self, seconds: float | None) -> None:
        self._limit.set(seconds)

    def shutdown(self) -> None:
        self._ended = True
        super().shutdown()

    def close(self) -> None:
        self._limit.close()
        super().close()

    def abandon(self) -> None:
        descriptor = self._sock.fileno()
        if descriptor >= 0:
            # gevent closes later, when its hub runs, which in a child may be never. Until then, a
            # copied greenlet must not reach the parent's connection.
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, descriptor, inheritable=False)
            os.close(null)
        self._sock.close()
