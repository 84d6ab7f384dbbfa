"""Sockets and listeners of native threads, with time-outs in the kernel.

Knows one descriptor each; nothing of threads but that several use it.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import select
import socket
import struct
from collections import deque
from typing import Any

from gnsqsync.addresses import Address
from gnsqsync.runtime import base, dial, world
from gnsqsync.runtime.dial import LONGEST, SEND_FLAGS

__all__ = ["NativeListener", "NativeSocket"]

_TIMEVAL = struct.Struct("@ll")


class NativeSocket(dial.Connected):
    """A blocking socket; the read timeout is the kernel's, so that sends know nothing of it."""

    __slots__ = ("_read_timeout", "_recv")

    def __init__(self, sock: Any, peer: str) -> None:
        super().__init__(sock, peer)
        self._recv = sock.recv
        self._read_timeout: float | None = None

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self._sock.recv(size)
        except BlockingIOError:
            raise TimeoutError(
                f"nothing from {self.peer} for {self._read_timeout:g} seconds"
            ) from None
        return data

    def receive(self, chunks: deque[bytes], size: int) -> None:
        try:
            # From the system call into ``chunks`` all is C: no place where an interrupt is raised.
            chunks.extend(map(self._recv, (size,)))
        except BlockingIOError:
            raise TimeoutError(
                f"nothing from {self.peer} for {self._read_timeout:g} seconds"
            ) from None

    def send(self, data: bytes | memoryview) -> int:
        try:
            sent: int = self._sock.send(data, SEND_FLAGS)
        except BlockingIOError:
            return 0
        return sent

    def wait_writable(self, timeout: float | None) -> bool:
        return _wait(self._sock, select.POLLOUT, timeout)

    def set_read_timeout(self, seconds: float | None) -> None:
        if seconds is None:
            whole, micros = 0, 0  # which the kernel reads as "for ever"
        else:
            seconds = min(seconds, LONGEST)
            whole, micros = divmod(max(math.ceil(seconds * 1e6), 1), 1_000_000)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(whole, micros))
        self._read_timeout = seconds

    def abandon(self) -> None:
        self.close()


class NativeListener:
    def __init__(self, sock: Any, accepting: base.Lock) -> None:
        self._sock = sock
        # Held while accept() waits: close() may not free a descriptor number in use.
        self._accepting = accepting
        self._closed = False
        # Not blocking, because a connection can vanish between poll() and accept().
        sock.setblocking(False)
        self.address: Address = dial.address_of(sock.family, sock.getsockname())

    def accept(self, timeout: float | None = None) -> base.Socket:
        deadline = None if timeout is None else base.Runtime.now() + timeout
        while True:
            left = None if deadline is None else deadline - base.Runtime.now()
            with self._accepting:
                # Once closed the descriptor is -1, which _wait() refuses.
                if not _wait(self._sock, select.POLLIN, left):
                    raise TimeoutError(f"no connection to {self.address} for {timeout:g} seconds")
                try:
                    accepted, _ = self._sock.accept()
                except (BlockingIOError, ConnectionAbortedError):
                    continue
            native = type(self._sock)
            if type(accepted) is not native:  # gevent's, where only sockets are patched
                accepted = native(self._sock.family, socket.SOCK_STREAM, 0, accepted.detach())
            accepted.setblocking(True)
            if accepted.family != socket.AF_UNIX:
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return NativeSocket(accepted, dial.peer_of(accepted))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._sock.shutdown(socket.SHUT_RDWR)  # wakes accept()
        except OSError:
            pass
        with self._accepting:
            self._sock.close()
        if self.address.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.path)


def _wait(sock: Any, condition: int, timeout: float | None) -> bool:
    """Whether ``sock`` is ready, broken or shut down before ``timeout`` seconds are over."""
    descriptor = sock.fileno()
    if descriptor < 0:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    poll = world.native("select", "poll")()
    poll.register(descriptor, condition)
    milliseconds = None
    if timeout is not None:
        milliseconds = max(math.ceil(min(timeout, LONGEST) * 1000), 0)
    return bool(poll.poll(milliseconds))
