"""One HTTP request under way: until when it may last, and how another task ends it.

Knows sockets and descriptors; knows nothing of requests, urllib3 and NSQ.
"""

from __future__ import annotations

import math
import os
import socket
import time
from typing import Any

from gnsqsync.addresses import Address
from gnsqsync.runtime import world
from gnsqsync.runtime.dial import Cutter, Net, connect

__all__ = ["Call"]


class Call:
    """The requests of one session, one at a time.

    It holds a duplicate of the descriptor of each connection that a request uses. So ``cut`` ends
    the connection, whichever object has its socket at the moment: TLS takes it over, responses keep
    it. ``_lock`` guards the duplicates. ``cut`` only tries the lock; its holder checks ``is_cut``
    afterwards.
    """

    def __init__(self) -> None:
        self.deadline: float = math.inf
        self.is_cut: bool = False
        # Native, because the request may run in another OS thread than the one that cuts it.
        new_lock = world.native("_thread", "allocate_lock")
        self._native_socket = world.native("socket", "socket")
        self._lock = new_lock()
        self._cutter = Cutter(new_lock(), self._wake_dial)
        self._held: list[Any] = []

    def begin(self, deadline: float) -> None:
        """A request that is over at ``deadline`` (monotonic seconds)."""
        self.deadline = deadline

    def end(self) -> None:
        """The request is over; its connections may live on."""
        with self._lock:
            while self._held:
                self._held.pop().close()

    def left(self, timeout: float | None) -> float:
        """How long it may wait now, ``timeout`` at most; TimeoutError after the deadline."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer does not end")
        return left if timeout is None else min(timeout, left)

    def connect(self, address: Address, timeout: float | None) -> Any:
        """A socket of the module, patched or not, whose time-out is ``timeout``."""
        net = Net(socket.socket, _look_up)
        sock = connect(net, address, self.left(timeout), None, self._cutter)
        sock.settimeout(timeout)
        self.hold(sock)
        return sock

    def hold(self, sock: Any) -> None:
        """The request uses this connection."""
        own = self._native_socket(fileno=os.dup(sock.fileno()))
        with self._lock:
            self._held.append(own)
        if self.is_cut:
            self.cut()

    def cut(self) -> None:
        """Make the request fail soon, and each later one. From any task; never raises or waits.

        A look-up of the host name that is under way ends first.
        """
        self.is_cut = True
        self._cutter.cut()
        if self._lock.acquire(False):
            try:
                for sock in self._held:
                    _shut(sock)
            finally:
                self._lock.release()

    def _wake_dial(self, sock: Any) -> None:
        if isinstance(sock, self._native_socket):
            _shut(sock)
        else:
            sock.close()  # which is what wakes a greenlet in connect()


def _shut(sock: Any) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # not connected yet, or no more


def _look_up(host: str, port: int, timeout: float) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
