"""Dialling, the same for native and gevent sockets, and what these share.

Knows addresses, socket options and the sharing of a deadline; knows no thread and no greenlet.
"""

from __future__ import annotations

import errno
import math
import os
import select
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from gnsqsync.addresses import Address
from gnsqsync.runtime import world
from gnsqsync.runtime.base import Lock

__all__ = [
    "LONGEST",
    "SEND_FLAGS",
    "Connected",
    "Cutter",
    "Net",
    "connect",
    "name_of",
    "peer_of",
    "wait_ready",
]

# MSG_NOSIGNAL: an application may have set SIGPIPE back to its deadly default.
SEND_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)

# What Linux tells of a TCP connection begins with its state; this is that of one that the peer has
# ended and we have not.
_TELLS_STATE = sys.platform == "linux"
_CLOSE_WAIT = b"\x08"
# Whether shutdown() ends a connect() that waits in another thread. Where not, as on macOS, the
# dialler looks this often (seconds) whether it was cut short.
_SHUTDOWN_WAKES = sys.platform == "linux"
_SLICE_SECONDS = 0.1

# Seconds that a socket waits at most, in one wait: a kernel takes no infinity, and not all numbers.
LONGEST = 86400.0

# (family, address as the socket module wants it)
Target = tuple[int, Any]


class Net(NamedTuple):
    """A socket class, and its getaddrinfo bound to a time limit in seconds where it can be."""

    socket: Callable[[int, int], Any]
    getaddrinfo: Callable[[str, int, float], list[Any]]


class Cutter:
    """The socket of a dial under way, and how another task wakes the one that waits.

    ``wake(sock)`` is given that socket. ``lock`` keeps it from being closed meanwhile.
    """

    def __init__(self, lock: Lock, wake: Callable[[Any], None]) -> None:
        self.is_cut: bool = False
        self._lock = lock
        self._wake = wake
        self._sock: Any = None

    def cut(self) -> None:
        self.is_cut = True
        # The dial takes it only to change the socket, and checks is_cut afterwards.
        if self._lock.acquire(False):
            try:
                if self._sock is not None:
                    self._wake(self._sock)
            finally:
                self._lock.release()

    def watch(self, sock: Any) -> None:
        """This is the socket now, or None; OSError when the dial was cut short."""
        with self._lock:
            self._sock = sock
        if self.is_cut and sock is not None:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))


class Connected:
    """A connected socket, but for what waits: reading, writing, and time limits."""

    __slots__ = ("_sock", "_tells_state", "local", "peer")

    def __init__(self, sock: Any, peer: str) -> None:
        self._sock = sock
        self._tells_state = _TELLS_STATE and sock.family != socket.AF_UNIX
        self.peer: str = peer
        self.local: str = name_of(sock.family, sock.getsockname())

    def peer_has_ended(self) -> bool:
        # Unlike a poll this call keeps the GIL: a send that follows it does so at once.
        return (
            self._tells_state
            and self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) == _CLOSE_WAIT
        )

    def end_sending(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # closed or reset before: the peer waits for nothing

    def shutdown(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # closed or reset before: nobody waits in recv() then

    def close(self) -> None:
        self._sock.close()

    def fileno(self) -> int:
        descriptor: int = self._sock.fileno()
        return descriptor

    def __repr__(self) -> str:
        return f"<socket {self.local} to {self.peer}>"


def connect(
    net: Net,
    address: Address,
    timeout: float,
    local: Address | None,
    cutter: Cutter | None = None,
) -> Any:
    """A connected, blocking socket of ``net``; the rules are those of ``Runtime.connect``."""
    timeout = min(timeout, LONGEST)
    deadline = time.monotonic() + timeout
    targets = _resolve(net, address, timeout)
    failures: list[tuple[str, OSError]] = []
    for index, (family, where) in enumerate(targets):
        # An equal share for each that is left: one address that swallows packets must not
        # eat the time of the others.
        share = (deadline - time.monotonic()) / (len(targets) - index)
        if share <= 0:
            break
        try:
            return _connect_one(net, family, where, share, local, cutter)
        except OSError as error:
            if cutter is not None and cutter.is_cut:
                text = f"the dial of {address} was cut short"
                raise OSError(errno.ECANCELED, text) from error
            failures.append((name_of(family, where), error))
    try:
        raise _failure(address, timeout, failures)
    finally:
        # The errors refer to this frame, and the frame to them: end that circle.
        failures.clear()


def _resolve(net: Net, address: Address, timeout: float) -> list[Target]:
    if address.path:
        return [(socket.AF_UNIX, address.path)]
    # A number needs no look-up, which under gevent is a trip through a native thread.
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, address.host)
        except OSError:
            continue
        return [(family, (address.host, address.port))]
    try:
        found = net.getaddrinfo(address.host, address.port, timeout)
    except socket.gaierror as error:
        text = f"cannot look up the host of {address}: {error.strerror or error}"
        raise socket.gaierror(error.errno, text) from error
    except UnicodeError as error:
        text = f"cannot look up the host of {address}: {error}"
        raise socket.gaierror(socket.EAI_NONAME, text) from error
    return [(family, where) for family, _type, _proto, _name, where in found]


def _connect_one(
    net: Net,
    family: int,
    where: Any,
    timeout: float,
    local: Address | None,
    cutter: Cutter | None,
) -> Any:
    deadline = time.monotonic() + timeout
    sock = net.socket(family, socket.SOCK_STREAM)
    try:
        try:
            if cutter is not None:
                cutter.watch(sock)
            if local is not None:
                _bind(net, sock, family, local, timeout)
            if (
                cutter is None
                or _SHUTDOWN_WAKES
                or type(sock) is not world.native("socket", "socket")
            ):
                sock.settimeout(max(deadline - time.monotonic(), 1e-6))
                sock.connect(where)
            else:
                _connect_in_slices(sock, where, deadline, cutter)
        finally:
            if cutter is not None:
                cutter.watch(None)
        if family != socket.AF_UNIX:
            if sock.getsockname() == sock.getpeername():
                # A dial to a free port of the ephemeral range can meet itself.
                raise ConnectionRefusedError(errno.ECONNREFUSED, "connected to itself")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.settimeout(None)
    except BaseException:  # also one from outside: nobody else knows the socket
        sock.close()
        raise
    return sock


def _connect_in_slices(sock: Any, where: Any, deadline: float, cutter: Cutter) -> None:
    sock.setblocking(False)
    code = sock.connect_ex(where)
    while code in (errno.EINPROGRESS, errno.EALREADY):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if cutter.is_cut:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
        if wait_ready(sock, select.POLLOUT, min(left, _SLICE_SECONDS)):
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))


def _bind(net: Net, sock: Any, family: int, local: Address, timeout: float) -> None:
    wheres = [where for kind, where in _resolve(net, local, timeout) if kind == family]
    if not wheres:
        raise OSError(errno.EADDRNOTAVAIL, f"{local} is not of the same address family")
    if family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(wheres[0])
    except OSError as error:
        raise OSError(error.errno, f"cannot bind {local}: {error.strerror}") from error


def _failure(address: Address, timeout: float, failures: list[tuple[str, OSError]]) -> OSError:
    """One error for all attempts, of the class of the first that was not a time-out."""
    known = [error for _, error in failures if error.errno is not None]
    if not known:
        return TimeoutError(f"no connection to {address} within {timeout:g} seconds")
    if len(failures) == 1 and failures[0][0] == str(address):
        text = known[0].strerror or str(known[0])
    else:
        text = "; ".join(f"{name}: {error.strerror or error}" for name, error in failures)
    # OSError() chooses its subclass by the number.
    return OSError(known[0].errno, f"cannot connect to {address}: {text}")


def name_of(family: int, where: Any) -> str:
    """A socket address as text: ``host:port``, ``[ipv6]:port`` or ``unix:///path``."""
    if family == socket.AF_UNIX:
        return f"unix://{os.fsdecode(where)}"
    return str(Address(where[0], where[1]))


def peer_of(sock: Any, address: Address | None = None) -> str:
    """The other end of ``sock`` as text; ``address`` where the kernel does not know it any more.

    At the accepting end of a unix socket it is ``unix://``: the other end is seldom bound.
    """
    try:
        return name_of(sock.family, sock.getpeername())
    except OSError:
        return "a peer that is gone" if address is None else str(address)


def wait_ready(sock: Any, condition: int, timeout: float | None) -> bool:
    """Whether a native socket is ready, broken or shut down before ``timeout`` seconds are over."""
    descriptor = sock.fileno()
    if descriptor < 0:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    poll = world.native("select", "poll")()
    poll.register(descriptor, condition)
    milliseconds = None
    if timeout is not None:
        milliseconds = max(math.ceil(min(timeout, LONGEST) * 1000), 0)
    return bool(poll.poll(milliseconds))
