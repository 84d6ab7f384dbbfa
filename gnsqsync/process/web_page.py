"""A small web server on a thread of its own, for GET and HEAD of a few paths.

Knows WSGI and sockets. Must not know what its pages show.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, TypeAlias, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import WSGIApplication

from gnsqsync.daemon.framing import HeaderLines, fault

__all__ = ["Page", "served", "text_page"]

Page: TypeAlias = WSGIApplication

# Seconds for which a client may be silent.
_REQUEST_SECONDS = 10.0


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # HTTPServer's method would look up the host name, which may take long.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have left. wsgiref has answered errors of pages with 500."""


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_SECONDS

    def parse_request(self) -> bool:
        """Read the headers. Return False, after a 400, if they give the body's end twice."""
        connection = self.rfile
        headers = HeaderLines(connection)
        self.rfile = cast("Any", headers)
        try:
            found = super().parse_request()
        finally:
            self.rfile = connection
        why = fault(headers.lines, self.request_version) if found else ""
        if why:
            self.send_error(400, explain=why)
        return found and not why

    def address_string(self) -> str:
        return str(self.client_address[0])

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because a probe comes every few seconds."""


def _plain(
    start_response: Any, status: str, lines: Iterable[str], *headers: tuple[str, str]
) -> list[bytes]:
    """Answer lines of plain text."""
    body = "".join(f"{line}\n" for line in lines).encode()
    length = ("Content-Length", str(len(body)))
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), length, *headers])
    return [body]


def text_page(look: Callable[[], tuple[bool, Iterable[str]]]) -> Page:
    """Return a page of lines: 200 if ``look()`` returns True, else 503. No cache may keep it."""

    def page(environ: Any, start_response: Any) -> Iterable[bytes]:
        good, lines = look()
        status = "200 OK" if good else "503 Service Unavailable"
        return _plain(start_response, status, lines, ("Cache-Control", "no-store"))

    return page


def _site(pages: Mapping[str, Page]) -> Page:
    """Return a site of the pages by path: 404 for any other path, 405 for any other method."""

    def site(environ: Any, start_response: Any) -> Iterable[bytes]:
        method = environ["REQUEST_METHOD"]
        page = pages.get(environ["PATH_INFO"])
        if page is None:
            there = [f"there is only {', '.join(pages)}"]
            body: Iterable[bytes] = _plain(start_response, "404 Not Found", there)
        elif method not in ("GET", "HEAD"):
            allowed = ("Allow", "GET, HEAD")
            use = ["use GET or HEAD"]
            body = _plain(start_response, "405 Method Not Allowed", use, allowed)
        else:
            body = page({**environ, "REQUEST_METHOD": "GET"}, start_response)
        return [] if method == "HEAD" else body

    return site


@contextlib.contextmanager
def served(host: str, port: int, pages: Mapping[str, Page]) -> Iterator[int]:
    """Serve ``pages`` by path inside of the block. Yield the port, which the kernel chooses for 0.

    OSError if the address cannot be bound.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, _, _, _, address = found[0]
    kind = type("_Server", (_Server,), {"address_family": family})
    server: _Server = kind(address[:2], _Handler)
    server.set_app(_site(pages))
    thread = threading.Thread(target=server.serve_forever, name="nsq-metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
