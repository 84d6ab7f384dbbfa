"""Servers of the standard library in threads of their own, and a server with a fixed answer."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

_Served = TypeVar("_Served", bound="Serving")


class Serving:
    """A thread in which ``server`` answers from ``start()`` to ``close()``, or in a ``with``."""

    def __init__(self, server: BaseServer, name: str = "server") -> None:
        self._server = server
        self._thread = threading.Thread(
            target=server.serve_forever, args=(0.01,), name=name, daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        # This also waits for the threads of requests, if they are no daemons.
        self._server.server_close()
        self._thread.join()

    def __enter__(self: _Served) -> _Served:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class FakeServer(ThreadingHTTPServer):
    """A server that answers every request with ``answer`` and records ``requests``."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[dict[str, Any]] = []
        self.connections = 0
        self.status = 200
        self.headers: dict[str, str] = {"Content-Type": "application/json; charset=utf-8"}
        self.body = b""
        # Guards ``answer``, so that a request gets the old one or the new one as a whole.
        self.changing = threading.Lock()

    def get_request(self) -> Any:
        self.connections += 1
        return super().get_request()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def answer(self, body: object, status: int = 200, kind: str = "application/json") -> None:
        with self.changing:
            self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.status = status
            self.headers = {"Content-Type": kind}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        self.server.requests.append(
            {
                "method": self.command,
                "path": parts.path,
                "params": dict(parse_qsl(parts.query, keep_blank_values=True)),
                "headers": dict(self.headers),
                "body": self.rfile.read(length),
            }
        )
        server = self.server
        with server.changing:
            status, headers, body = server.status, dict(server.headers), server.body
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PUT = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextlib.contextmanager
def fake_server() -> Iterator[FakeServer]:
    server = FakeServer()
    with Serving(server):
        yield server
