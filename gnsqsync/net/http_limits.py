"""What an HTTP server may do to a caller: how long an answer may take, and where it may send us.

Knows requests and urllib3. Knows nothing of NSQ, and not what an answer says.
"""

from __future__ import annotations

import http.client
import io
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from gnsqsync.errors import ProtocolError

__all__ = ["SLOWEST_ANSWER", "LimitedAdapter", "LimitedConnection", "watch_redirects"]

# A whole answer may take this many read time-outs: each byte restarts the time-out of the socket,
# and a server that sends one byte a second must not hold a poll thread for ever.
SLOWEST_ANSWER = 10


class _Dated(io.RawIOBase):
    """A socket's file that gives nothing more behind a deadline; each read has its own time-out."""

    def __init__(self, raw: Any, deadline: float) -> None:
        self._raw = raw
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> Any:
        if time.monotonic() > self._deadline:
            raise TimeoutError("the answer does not end")
        return self._raw.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: Any, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        timeout = sock.gettimeout()
        if timeout is not None:
            fp: Any = self.fp
            raw = _Dated(fp.detach(), time.monotonic() + SLOWEST_ANSWER * timeout)
            self.fp = io.BufferedReader(raw)


class LimitedConnection(HTTPConnection):
    """Status line, headers and body together take SLOWEST_ANSWER read time-outs at most."""

    response_class = _Response


class _LimitedHTTPSConnection(HTTPSConnection):
    response_class = _Response


class _Pool(HTTPConnectionPool):
    ConnectionCls = LimitedConnection


class _HTTPSPool(HTTPSConnectionPool):
    ConnectionCls = _LimitedHTTPSConnection


_POOLS = {"http": _Pool, "https": _HTTPSPool}


class LimitedAdapter(HTTPAdapter):
    """Sends over such connections, through a proxy, too."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = _POOLS
        return manager


def watch_redirects(deadline: float, shown: str) -> Callable[..., None]:
    """A hook for responses: a redirect's body is not read, however long it is, TLS is not left.

    TimeoutError for one that comes behind ``deadline`` (monotonic), ProtocolError for one from
    https to http: what is asked there was to be asked of a server that had been verified.
    """

    def watch(response: requests.Response, *args: Any, **options: Any) -> None:
        if not response.is_redirect:
            return
        response.close()
        if time.monotonic() > deadline:
            raise TimeoutError("redirect after redirect")
        try:
            there = urlsplit(urljoin(response.url, response.headers["Location"]))
            _ = there.port  # read by requests later, and there the error would be a ValueError
        except ValueError:
            raise ProtocolError(f"{shown}: the answer is a redirect to what is no URL") from None
        if urlsplit(response.url).scheme == "https" and there.scheme != "https":
            raise ProtocolError(f"{shown}: the answer is a redirect away from https")

    return watch
