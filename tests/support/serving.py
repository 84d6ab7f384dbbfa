"""Servers of the standard library in threads of their own, and a server with a fixed answer."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseServer
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from tests.support import ground

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


class Answers:
    """The answer of a fake server, and the requests that it got."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.connections = 0
        self.status = 200
        self.headers: dict[str, str] = {"Content-Type": "application/json; charset=utf-8"}
        self.body = b""
        # Guards ``answer``, so that a request gets the old one or the new one as a whole.
        self.changing = threading.Lock()

    def answer(self, body: object, status: int = 200, kind: str = "application/json") -> None:
        with self.changing:
            self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.status = status
            self.headers = {"Content-Type": kind}


class SocketServer(Answers, ThreadingHTTPServer):
    """A fake server whose listening socket a test changes."""

    daemon_threads = True

    def __init__(self) -> None:
        ThreadingHTTPServer.__init__(self, ("127.0.0.1", 0), _Handler)
        Answers.__init__(self)

    def get_request(self) -> Any:
        self.connections += 1
        return super().get_request()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class FakeServer(Answers):
    """Answers every request with ``answer``, on the ground of the test; keeps ``requests``."""

    def __init__(self) -> None:
        super().__init__()
        self._ground = ground.current()
        # While it is not set, the server accepts connections and answers nothing.
        self.serves = self._ground.event()
        self.serves.set()
        self._listener = self._ground.listener(self._accept)
        self._served: list[tuple[Any, ground.Thread]] = []
        self._listener.open()

    @property
    def server_port(self) -> int:
        return self._listener.address[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def close(self) -> None:
        """Listen no more, and end each connection."""
        self._listener.close()
        self.serves.set()
        for sock, thread in self._served:
            try:
                sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the client has ended it
            thread.join()

    def _accept(self, sock: Any) -> None:
        self.connections += 1
        self._served.append((sock, self._ground.spawn("fake server", self._serve, sock)))

    def _serve(self, sock: Any) -> None:
        try:
            self.serves.wait()
            _Handler(sock, sock.getpeername(), self)  # type: ignore[arg-type]
        except OSError:
            pass  # the client has ended it
        finally:
            sock.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

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
    try:
        yield server
    finally:
        server.close()
