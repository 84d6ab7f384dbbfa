"""Sockets of native threads, with timeouts in the kernel.

Knows one descriptor each, and that several threads use it. Must not know more of threads.

A receive blocks in the kernel, up to the socket's read timeout. A send never waits, by a flag of
its own.

Surprise: ``receive`` is one call into C. A signal can therefore not strike between the receive and
the place where the bytes are kept.
"""

from __future__ import annotations

import math
import select
import socket
import struct
from collections import deque
from typing import Any

from gnsqsync.runtime import dial
from gnsqsync.runtime.dial import LONGEST, SEND_FLAGS, wait_ready

__all__ = ["NativeSocket"]

# The kernel's form of a timeout: seconds and microseconds.
_TIMEVAL = struct.Struct("@ll")


class NativeSocket(dial.Connected):
    """A blocking socket. The kernel keeps the read timeout, so sends are not affected by it."""

    __slots__ = ("_read_timeout", "_recv", "_send")

    def __init__(self, sock: Any, peer: str) -> None:
        super().__init__(sock, peer)
        self._recv = sock.recv
        self._send = sock.send
        self._read_timeout: float | None = None

    def recv(self, size: int) -> bytes:
        try:
            data: bytes = self._recv(size)
        except BlockingIOError:
            raise TimeoutError(
                f"nothing from {self.peer} for {self._read_timeout:g} seconds"
            ) from None
        return data

    def receive(self, chunks: deque[bytes], size: int) -> None:
        try:
            # A single call in C, so that no interrupt strikes between the receive and
            # ``chunks``.
            chunks.extend(map(self._recv, (size,)))
        except BlockingIOError:
            raise TimeoutError(
                f"nothing from {self.peer} for {self._read_timeout:g} seconds"
            ) from None

    def send(self, data: bytes | memoryview) -> int:
        try:
            sent: int = self._send(data, SEND_FLAGS)
        except BlockingIOError:
            return 0
        return sent

    def wait_writable(self, timeout: float | None) -> bool:
        return wait_ready(self._sock, select.POLLOUT, timeout)

    def set_read_timeout(self, seconds: float | None) -> None:
        if seconds is None:
            whole, micros = 0, 0  # means "for ever" to the kernel
        else:
            seconds = min(seconds, LONGEST)
            whole, micros = divmod(max(math.ceil(seconds * 1e6), 1), 1_000_000)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(whole, micros))
        self._read_timeout = seconds

    def abandon(self) -> None:
        self.close()
