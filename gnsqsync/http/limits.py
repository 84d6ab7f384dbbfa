"""Limits of an HTTP server: how long an answer may take, and where a redirect may lead.

Knows requests and urllib3. Must not know NSQ, or what an answer says.
"""

from __future__ import annotations

import http.client
import io
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError
from urllib3.poolmanager import pool_classes_by_scheme

from gnsqsync.addresses import Address
from gnsqsync.errors import ProtocolError
from gnsqsync.runtime.call import Call

__all__ = [
    "SLOWEST_ANSWER",
    "LimitedAdapter",
    "watch_redirects",
    "watch_session",
]

# Read timeouts that a whole answer may take. Each byte restarts the timeout of the socket, so a
# server that sends one byte a second would hold a poll thread for ever.
SLOWEST_ANSWER = 10


class _Dated(io.RawIOBase):
    """A socket's file whose reads end at the deadline of its call."""

    def __init__(self, raw: Any, sock: Any, call: Call) -> None:
        self._raw = raw
        self._sock = sock
        # Seconds of each read.
        self._timeout = sock.gettimeout()
        self._call = call

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:
        self._sock.settimeout(self._call.left(self._timeout))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, call: Call, sock: Any, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        fp: Any = self.fp
        self.fp = io.BufferedReader(_Dated(fp.detach(), sock, call))


class _Limited:
    """Mixin for a connection of urllib3 that uses the socket and the deadline of a Call.

    Dial, status line, headers and body together end at the deadline of ``call``, or when it is cut.
    ``path``: the unix socket to dial, whatever the host is.
    """

    sock: Any
    response_class: Any
    _dns_host: str
    port: Any
    timeout: Any

    def __init__(self, *args: Any, call: Call, path: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.call = call
        self.path = path
        self.response_class = partial(_Response, call)

    def _new_conn(self) -> Any:
        connection: Any = self
        if (
            connection.source_address
            or connection.socket_options != connection.default_socket_options
        ):
            # The adapter of a user wants its own sockets.
            sock = super()._new_conn()  # type: ignore[misc]
            self.call.hold(sock)
            return sock
        # Dialled by the Call, so that the dial can be cut, too.
        try:
            return self.call.connect(Address(self._dns_host, self.port, self.path), self.timeout)
        except TimeoutError as error:
            raise ConnectTimeoutError(connection, str(error)) from error
        except OSError as error:
            raise NewConnectionError(connection, str(error)) from error

    def request(self, *args: Any, **options: Any) -> None:
        if self.sock is not None:
            self.call.hold(self.sock)
        super().request(*args, **options)  # type: ignore[misc]


class _HTTPConnection(_Limited, HTTPConnection):
    pass


class _HTTPSConnection(_Limited, HTTPSConnection):
    pass


class _Pool(HTTPConnectionPool):
    ConnectionCls = _HTTPConnection


class _HTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _HTTPSConnection


def _pools(call: Call, path: str = "") -> dict[str, Any]:
    return {"http": partial(_Pool, call=call, path=path), "https": partial(_HTTPSPool, call=call)}


class LimitedAdapter(HTTPAdapter):
    """Adapter that sends over such connections, even through a proxy.

    ``call``: the call of its session. ``path``: the unix socket that answers all http URLs.
    """

    def __init__(self, call: Call, path: str = "") -> None:
        self._pools = _pools(call, path)
        super().__init__()

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = self._pools

    def close(self) -> None:
        # urllib3 leaves the connections of a pool to the pool's finalizer. That may run late after
        # an error, which refers to the pool in a circle.
        for manager in (self.poolmanager, *self.proxy_manager.values()):
            pools = manager.pools
            for pool in [pools.get(key) for key in pools.keys()]:  # noqa: SIM118 - no iteration
                if pool is not None:
                    pool.close()
        super().close()

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = self._pools
        return manager


def watch_session(session: requests.Session, call: Call) -> None:
    """Make a user's session keep to ``call``, one call at a time.

    This has no effect where an adapter has its own pools, or for a proxy.
    """
    for adapter in session.adapters.values():
        manager: Any = getattr(adapter, "poolmanager", None)
        if getattr(manager, "pool_classes_by_scheme", None) is pool_classes_by_scheme:
            manager.pool_classes_by_scheme = _pools(call)


def watch_redirects(deadline: float, shown: str) -> Callable[..., None]:
    """Return a hook for responses that reads no body of a redirect, and follows none to http.

    It raises TimeoutError for a redirect after ``deadline`` (monotonic), and ProtocolError for one
    from https to http: a question to a verified server must not go to any other.
    """

    def watch(response: requests.Response, *args: Any, **options: Any) -> None:
        if not response.is_redirect:
            return
        response.close()
        if time.monotonic() > deadline:
            raise TimeoutError("redirect after redirect")
        try:
            there = urlsplit(urljoin(response.url, response.headers["Location"]))
            _ = there.port  # requests reads it later, and its error would then be a ValueError
        except ValueError:
            raise ProtocolError(f"{shown}: the answer is a redirect to what is no URL") from None
        if urlsplit(response.url).scheme == "https" and there.scheme != "https":
            raise ProtocolError(f"{shown}: the answer is a redirect away from https")

    return watch
