"""Dialling, and the parts of a connected socket that native and gevent sockets share.

Knows addresses, socket options and the division of a deadline. Must not know threads or greenlets.

``connect`` looks the name up, and tries one address after the other with an equal share of the time
that is left. A Cutter ends it from another task.

Surprise: a dial to a free port of this machine can connect to itself. That counts as a refusal.
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

# MSG_NOSIGNAL: an application may have set SIGPIPE back to its default, which kills the process.
SEND_FLAGS = socket.MSG_DONTWAIT | getattr(socket, "MSG_NOSIGNAL", 0)

# True if the kernel tells the state of a connection: on Linux, it is the first byte of TCP_INFO.
_TELLS_STATE = sys.platform == "linux"
# State of a connection that the peer has ended and we have not.
_CLOSE_WAIT = b"\x08"
# True if shutdown() ends a connect() that waits in another thread.
_SHUTDOWN_WAKES = sys.platform == "linux"
# Seconds between two looks of a dialler whether it was cut, where shutdown() does not wake it, as
# on macOS.
_SLICE_SECONDS = 0.1

# Upper bound in seconds of one wait of a socket: a kernel takes no infinity, nor all numbers.
LONGEST = 86400.0

# (family, address in the form of the socket module)
Target = tuple[int, Any]


class Net(NamedTuple):
    """A socket class, and its getaddrinfo, with a limit in seconds where one is possible."""

    socket: Callable[[int, int], Any]
    getaddrinfo: Callable[[str, int, float], list[Any]]


class Cutter:
    """Holder of the socket of a dial under way, through which another task wakes the dialler.

    ``wake(sock)`` is called with that socket. ``lock`` keeps the socket open meanwhile.
    """

    def __init__(self, lock: Lock, wake: Callable[[Any], None]) -> None:
        # True once the connect() must end, or must not begin.
        self.is_cut: bool = False
        self._lock = lock
        self._wake = wake
        # Socket of the connect() under way, which ``_lock`` keeps open.
        self._sock: Any = None

    def cut(self) -> None:
        self.is_cut = True
        # The dialler takes the lock only to change the socket, and checks is_cut afterwards.
        if self._lock.acquire(False):
            try:
                if self._sock is not None:
                    self._wake(self._sock)
            finally:
                self._lock.release()

    def watch(self, sock: Any) -> None:
        """Set the socket of the dial, or None. Raises OSError if the dial was cut."""
        with self._lock:
            self._sock = sock
        if self.is_cut and sock is not None:
            raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))


class Connected:
    """A connected socket without the calls that wait: reading, writing and time limits."""

    __slots__ = ("_sock", "_tells_state", "local", "peer")

    def __init__(self, sock: Any, peer: str) -> None:
        self._sock = sock
        self._tells_state = _TELLS_STATE and sock.family != socket.AF_UNIX
        self.peer: str = peer
        self.local: str = name_of(sock.family, sock.getsockname())

    def peer_has_ended(self) -> bool:
        # Unlike a poll, getsockopt keeps the GIL, so that a send after it follows at once.
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
            pass  # closed or reset before: no recv() waits then

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
    """Return a connected, blocking socket of ``net``, by the rules of ``Runtime.connect``."""
    timeout = min(timeout, LONGEST)
    deadline = time.monotonic() + timeout
    targets = _resolve(net, address, timeout)
    failures: list[tuple[str, OSError]] = []
    for index, (family, where) in enumerate(targets):
        # Each address left gets an equal share, so that one that swallows packets does not use up
        # the time of the others.
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
        # The errors refer to this frame and the frame to them; this ends the circle.
        failures.clear()


def _resolve(net: Net, address: Address, timeout: float) -> list[Target]:
    if address.path:
        return [(socket.AF_UNIX, address.path)]
    # An IP needs no look-up, which under gevent is a trip through a native thread.
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
                # A dial to a free port of the ephemeral range can connect to itself.
                raise ConnectionRefusedError(errno.ECONNREFUSED, "connected to itself")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.settimeout(None)
    except BaseException:  # even a kill: no other code knows the socket
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
    """Return one error for all attempts, of the class of the first that was no timeout."""
    known = [error for _, error in failures if error.errno is not None]
    if not known:
        return TimeoutError(f"no connection to {address} within {timeout:g} seconds")
    if len(failures) == 1 and failures[0][0] == str(address):
        text = known[0].strerror or str(known[0])
    else:
        text = "; ".join(f"{name}: {error.strerror or error}" for name, error in failures)
    # OSError() chooses its subclass by the error number.
    return OSError(known[0].errno, f"cannot connect to {address}: {text}")


def name_of(family: int, where: Any) -> str:
    """Return a socket address as text: ``host:port``, ``[ipv6]:port`` or ``unix:///path``."""
    if family == socket.AF_UNIX:
        return f"unix://{os.fsdecode(where)}"
    return str(Address(where[0], where[1]))


def peer_of(sock: Any, address: Address | None = None) -> str:
    """Return the other end of ``sock`` as text; ``address`` if the kernel has forgotten it.

    At the accepting end of a unix socket this is ``unix://``, as the other end is seldom bound.
    """
    try:
        return name_of(sock.family, sock.getpeername())
    except OSError:
        return "a peer that is gone" if address is None else str(address)


def wait_ready(sock: Any, condition: int, timeout: float | None) -> bool:
    """Wait up to ``timeout`` seconds. Return True if a native socket is ready, broken or shut."""
    descriptor = sock.fileno()
    if descriptor < 0:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    poll = world.native("select", "poll")()
    poll.register(descriptor, condition)
    milliseconds = None
    if timeout is not None:
        milliseconds = max(math.ceil(min(timeout, LONGEST) * 1000), 0)
    return bool(poll.poll(milliseconds))
