"""A small web server on a thread of its own: GET and HEAD of a few paths, and nothing else.

Knows WSGI and sockets; must not know what its pages show.
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

# Seconds for a client that says nothing.
_REQUEST_SECONDS = 10.0


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # Not HTTPServer's, which looks the name of the host up; that may take long.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has left is no news; what a page raises wsgiref has answered with 500."""


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_SECONDS

    def parse_request(self) -> bool:
        """Read the headers. Return False, after a 400, if they say twice where the body ends."""
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
        """A probe each few seconds is no news."""


def _plain(
    start_response: Any, status: str, lines: Iterable[str], *headers: tuple[str, str]
) -> list[bytes]:
    """An answer of lines."""
    body = "".join(f"{line}\n" for line in lines).encode()
    length = ("Content-Length", str(len(body)))
    start_response(status, [("Content-Type", "text/plain; charset=utf-8"), length, *headers])
    return [body]


def text_page(look: Callable[[], tuple[bool, Iterable[str]]]) -> Page:
    """A page of lines: 200 where ``look()`` says True, else 503. Nobody may keep it."""

    def page(environ: Any, start_response: Any) -> Iterable[bytes]:
        good, lines = look()
        status = "200 OK" if good else "503 Service Unavailable"
        return _plain(start_response, status, lines, ("Cache-Control", "no-store"))

    return page


def _site(pages: Mapping[str, Page]) -> Page:
    """The pages by their paths; 404 for any other path, 405 for any other method."""

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
    """Serve ``pages`` by path while it is entered; its port, which for 0 is one of the kernel's.

    OSError when the address cannot be had.
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
