"""Listening sockets for the address forms of nsqd's flags, and the limit of their connections.

Does not know what is served.
"""

from __future__ import annotations

import os
import resource
import socket as plain_socket
import stat
from collections.abc import Callable
from typing import Any

from gevent import socket

from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.options import OptionsError

# Upper bound of connections. Each takes about ten kilobytes.
_MOST_CONNECTIONS = 10_000
# File descriptors reserved for listeners, files and nsqlookupds.
_RESERVED_DESCRIPTORS = 64


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise OptionsError(f"listen ({address}) failed - listen tcp: address {address}: bad port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listen(address: str, backlog: int = 1024, *, unix: bool = True) -> Any:
    """Return a listening gevent socket for ``host:port``, ``:port``, ``[v6]:port`` or a path.

    ``unix``: True if the path of a unix socket is allowed: nsqd 1.3.0 takes one, nsqlookupd does
    not. Port 0 lets the kernel choose. Without a host the address is 0.0.0.0. OptionsError, in the
    Go program's form, if the socket cannot listen.
    """
    try:
        if ":" not in address:
            if not unix:
                raise OptionsError(
                    f"listen ({address}) failed - listen tcp: address {address}:"
                    " missing port in address"
                )
            return _listen_unix(address, backlog)
        host, port = _split(address)
        # Go reads ":4150" as all interfaces. A log line warns of an address that is not loopback.
        host = host or "0.0.0.0"  # nosec B104
        family, where = _resolve(host, port)
        sock = socket.socket(family, socket.SOCK_STREAM)
        return _bind(sock, where, backlog)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OptionsError(f"listen ({address}) failed - {reason}") from None


def _resolve(host: str, port: int) -> tuple[Any, Any]:
    """Return the family and the address to bind to."""
    kind = socket.SOCK_STREAM
    try:
        # A numeric address needs no resolver. gevent's takes a fifth of a start to import.
        number = plain_socket.AI_NUMERICHOST
        found = plain_socket.getaddrinfo(host.encode(), port, 0, kind, 0, number)
    except plain_socket.gaierror:
        found = socket.getaddrinfo(host, port, 0, kind)
    return found[0][0], found[0][4]


def _bind(sock: Any, where: Any, backlog: int) -> Any:
    try:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def _listen_unix(path: str, backlog: int) -> Any:
    return _bind(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), path, backlog)


def most_connections() -> int:
    """Return the number of connections that leave this process enough descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(16, min(_MOST_CONNECTIONS, soft - _RESERVED_DESCRIPTORS))


class Gate:
    """A limit of ``most`` connections on all listeners of one server."""

    def __init__(self, log: Log, most: int | None = None) -> None:
        self._log = log
        self._most = most_connections() if most is None else most
        self._open = 0
        self._told = False

    def serve(self, handle: Callable[[Any, Any], None], sock: Any, address: Any) -> None:
        """Call ``handle(sock, address)`` if there is room. Otherwise gevent closes the socket."""
        if self._open >= self._most:
            if not self._told:
                self._told = True
                self._log.warning("%d connections are open; more are closed at once", self._open)
            return
        self._open += 1
        try:
            handle(sock, address)
        finally:
            self._open -= 1
            self._told = self._told and self._open > self._most // 2


def remove_unix(address: str) -> None:
    """Remove the file of a unix socket that this process listened on, as Go does at close."""
    if ":" in address:
        return
    try:
        if stat.S_ISSOCK(os.stat(address).st_mode):
            os.unlink(address)
    except FileNotFoundError:
        return


def address_text(sock: Any) -> str:
    """Return the bound address of a listening socket, ``host:port`` or the path, for the log."""
    name = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return str(name)
    return f"[{name[0]}]:{name[1]}" if sock.family == socket.AF_INET6 else f"{name[0]}:{name[1]}"


def port_of(sock: Any) -> int:
    """Return the port of a listening socket; -1 for a unix one (docs/protocol/nsqd-http#info)."""
    return -1 if sock.family == socket.AF_UNIX else int(sock.getsockname()[1])
