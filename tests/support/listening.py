"""Listening sockets of a Runtime, for servers in tests."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import Any

from gnsqsync.addresses import Address
from gnsqsync.runtime import Runtime, Socket, dial
from gnsqsync.runtime.native_sockets import NativeSocket
from gnsqsync.runtime.threads import ThreadRuntime

__all__ = ["Listener", "listen"]


class Listener:
    """A listening socket. ``address`` has the port that the kernel chose."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        where = sock.getsockname()
        if sock.family == socket.AF_UNIX:
            self.address = Address("", 0, os.fsdecode(where))
        else:
            self.address = Address(where[0], where[1])

    def accept(self, timeout: float | None = None) -> Socket:
        """Accept a connection. TimeoutError after ``timeout`` seconds, OSError after a close."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop listening, and wake ``accept()``, which raises OSError. Idempotent."""
        if self._sock.fileno() < 0:
            return
        self._close()
        if self.address.path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.address.path)

    def _close(self) -> None:
        self._sock.close()  # A greenlet in accept() gets EBADF.


class _NativeListener(Listener):
    def __init__(self, sock: Any, accepting: Any) -> None:
        # The lock is held while accept() waits, because close() must not free a descriptor in use.
        self._accepting = accepting
        # The socket does not block, because a connection can vanish between poll() and accept().
        sock.setblocking(False)
        super().__init__(sock)

    def accept(self, timeout: float | None = None) -> Socket:
        deadline = None if timeout is None else Runtime.now() + timeout
        while True:
            left = None if deadline is None else deadline - Runtime.now()
            with self._accepting:
                # After a close the descriptor is -1, which wait_ready() refuses.
                if not dial.wait_ready(self._sock, select.POLLIN, left):
                    raise TimeoutError(f"no connection to {self.address} for {timeout:g} seconds")
                try:
                    accepted, _ = self._sock.accept()
                except (BlockingIOError, ConnectionAbortedError):
                    continue
            native = type(self._sock)
            if type(accepted) is not native:  # gevent's socket, if only sockets are patched.
                accepted = native(self._sock.family, socket.SOCK_STREAM, 0, accepted.detach())
            accepted.setblocking(True)
            return NativeSocket(_at_once(accepted), dial.peer_of(accepted))

    def _close(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)  # This wakes accept().
        except OSError:
            pass
        with self._accepting:
            self._sock.close()


class _GreenListener(Listener):
    def accept(self, timeout: float | None = None) -> Socket:
        self._sock.settimeout(None if timeout is None else max(min(timeout, dial.LONGEST), 1e-6))
        try:
            accepted, _ = self._sock.accept()
        except TimeoutError:
            raise TimeoutError(f"no connection to {self.address} for {timeout:g} seconds") from None
        accepted.settimeout(None)
        # The import is here, because tests use this module without gevent, too.
        from gnsqsync.runtime.greenlet_sockets import GreenletSocket

        return GreenletSocket(_at_once(accepted), dial.peer_of(accepted))


def _at_once(accepted: Any) -> Any:
    if accepted.family != socket.AF_UNIX:
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return accepted


def listen(runtime: Runtime, address: Address, backlog: int = 128) -> Listener:
    """Return a listening socket of the kind that ``runtime`` dials with. OSError."""
    runtime = getattr(runtime, "inner", runtime)
    net: dial.Net = runtime._net  # type: ignore[attr-defined]
    family, where = dial._resolve(net, address, 5.0)[0]
    sock = net.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from error
    if isinstance(runtime, ThreadRuntime):
        return _NativeListener(sock, runtime.lock())
    return _GreenListener(sock)
