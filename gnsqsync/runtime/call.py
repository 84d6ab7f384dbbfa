"""HTTP request under way: its deadline, and how another task ends it.

Knows sockets and descriptors. Must not know requests, urllib3 or NSQ.

``begin`` sets the deadline, ``hold`` notes each connection that the request uses, and ``cut`` ends
all of them.

Surprise: the noted sockets are duplicates of descriptors. The original may have been taken over by
TLS or by a response, and a shutdown of a duplicate ends the same connection.
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
    """Time and connections of the requests of one session, one request at a time.

    It holds a duplicate of the descriptor of each connection that a request uses. So ``cut`` ends
    the connection, whichever object holds its socket: TLS takes it over, and responses keep it.
    ``_lock`` guards the duplicates. ``cut`` only tries the lock, and its holder checks ``is_cut``
    afterwards.
    """

    def __init__(self) -> None:
        # Time (monotonic seconds) at which the request must be over.
        self.deadline: float = math.inf
        # True once ``cut`` was called.
        self.is_cut: bool = False
        # Native locks, because another OS thread than that of the request may cut it.
        new_lock = world.native("_thread", "allocate_lock")
        self._native_socket = world.native("socket", "socket")
        self._lock = new_lock()
        self._cutter = Cutter(new_lock(), self._wake_dial)
        # Duplicates of the sockets that the request uses.
        self._held: list[Any] = []

    def begin(self, deadline: float) -> None:
        """Begin a request that must be over at ``deadline`` (monotonic seconds)."""
        self.deadline = deadline

    def end(self) -> None:
        """End the request. Its connections may live on."""
        with self._lock:
            while self._held:
                self._held.pop().close()

    def left(self, timeout: float | None) -> float:
        """Return the seconds it may wait, at most ``timeout``. TimeoutError after the deadline."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer does not end")
        return left if timeout is None else min(timeout, left)

    def connect(self, address: Address, timeout: float | None) -> Any:
        """Return a connected socket of the socket module, patched or not, with this timeout."""
        net = Net(socket.socket, _look_up)
        sock = connect(net, address, self.left(timeout), None, self._cutter)
        sock.settimeout(timeout)
        self.hold(sock)
        return sock

    def hold(self, sock: Any) -> None:
        """Note a connection that the request uses."""
        own = self._native_socket(fileno=os.dup(sock.fileno()))
        with self._lock:
            self._held.append(own)
        if self.is_cut:
            self.cut()

    def cut(self) -> None:
        """Make the request fail soon, and later ones too. From any task; never raises or waits.

        A look-up of the host name that is under way is not interrupted.
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
            sock.close()  # wakes a greenlet in connect()


def _shut(sock: Any) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # not connected yet, or not any more


def _look_up(host: str, port: int, timeout: float) -> list[Any]:
    return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
