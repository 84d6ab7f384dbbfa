"""Sockets of greenlets: one descriptor each, of which gevent's hub says when it is ready.

Knows gevent's hub and loop, and nothing of what runs in the greenlets.
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
# Seconds that other greenlets wait at most for one whose receives find data at once.
_YIELD_SECONDS = 0.01


class _ReadLimit:
    """How long a receive may wait, with one timer for all receives of a socket.

    The timer is not set anew by each of them: when it ends it is set for what is left of the last
    one. A timer for each receive costs 7 us.
    """

    __slots__ = ("_peer", "_timer", "began", "seconds", "waiter")

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.seconds: float | None = None
        # The greenlet that receives, and since when.
        self.waiter: Any = None
        self.began = 0.0
        # While it runs.
        self._timer: Any = None

    def set(self, seconds: float | None) -> None:
        """From the next receive on; by the greenlet that receives."""
        self.seconds = None if seconds is None else min(seconds, LONGEST)
        # It may end too late.
        self.close()

    def begin(self) -> None:
        """The running greenlet receives from now on, until ``waiter`` is None again."""
        if self.seconds is not None:
            self.began = _now()
            self.waiter = gevent.getcurrent()
            if self._timer is None:
                self._run(self.seconds)

    def _run(self, seconds: float) -> None:
        # ref: it keeps no event loop running that has nothing else to do.
        self._timer = gevent.get_hub().loop.timer(max(seconds, 0.0), ref=False)
        self._timer.start(self._look)

    def _look(self) -> None:
        """By the hub: end the receive when its time is over."""
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
        self._ended = False
        self._limit = _ReadLimit(peer)
        # Whether the last receive was large, so that there is probably more.
        self._more = False
        self._yielded_at = 0.0

    def recv(self, size: int) -> bytes:
        if self._more:
            # A receive from a peer that is faster than we are never waits, and no other greenlet
            # would run. So yield here. It comes before the receive: an exception that is thrown in
            # here loses nothing.
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
            # shutdown() cancels the wait with EBADF; the next recv() would find EOF.
            if self._ended:
                return b""
            raise
        finally:
            limit.waiter = None
        self._more = len(data) > size // 4
        return data

    def receive(self, chunks: deque[bytes], size: int) -> None:
        # A greenlet is thrown into only where it waits, and that is before anything is received.
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
            # gevent closes later, when its hub runs, which in a fork's child may be never; and
            # a copied greenlet must not reach the parent's connection until then.
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, descriptor, inheritable=False)
            os.close(null)
        self._sock.close()
