"""HTTP over a unix socket: an adapter that requests sends through. Knows no URL and no endpoint."""

from __future__ import annotations

from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connectionpool import HTTPConnectionPool
from urllib3.exceptions import ConnectTimeoutError

from gnsqsync.http.limits import LimitedConnection
from gnsqsync.runtime.call import Call
from gnsqsync.runtime.dial import connect_unix

__all__ = ["UnixAdapter"]


class UnixAdapter(HTTPAdapter):
    """Sends every request to the server that listens at ``path``, whatever host the URL has."""

    def __init__(self, path: str, call: Call) -> None:
        super().__init__()
        self._pool = _Pool("localhost", unix_path=path, call=call)

    def get_connection_with_tls_context(self, *args: Any, **options: Any) -> HTTPConnectionPool:
        return self._pool

    # What requests before 2.32 calls.
    def get_connection(self, *args: Any, **options: Any) -> HTTPConnectionPool:
        return self._pool

    def close(self) -> None:
        self._pool.close()
        super().close()


class _Connection(LimitedConnection):
    def __init__(self, *args: Any, unix_path: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self._unix_path = unix_path

    def connect(self) -> None:
        try:
            self.sock = connect_unix(self._unix_path, self.timeout)
            self.call.hold(self.sock)
        except TimeoutError as error:
            raise ConnectTimeoutError(self, str(error)) from error


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection
