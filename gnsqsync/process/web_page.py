"""A small web server on a thread of its own, for GET and HEAD of a few paths.

Knows WSGI and sockets. Must not know what its pages show.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from gnsqsync.daemon.http_connection import Limits
from gnsqsync.daemon.http_threads import ThreadServer, listen
from gnsqsync.daemon.wsgi import WSGI, from_wsgi

__all__ = ["Page", "served", "text_page"]

Page: TypeAlias = WSGI

# The visitors are a probe and Prometheus. The descriptors belong to the Readers and Writers.
_LIMITS = Limits(visitors=100, head_size=65536, patience=10.0, whole_body=10.0, keeps=False)
# Seconds for which the end waits for pages that are being answered.
_LAST_ANSWERS = 1.0


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
        return body

    return site


@contextlib.contextmanager
def served(host: str, port: int, pages: Mapping[str, Page]) -> Iterator[int]:
    """Serve ``pages`` by path inside of the block. Yield the port, which the kernel chooses for 0.

    OSError if the address cannot be bound.
    """
    listener = listen(host, port)
    here = listener.getsockname()[:2]
    server = ThreadServer(listener, from_wsgi(_site(pages), here), _LIMITS, "nsq-metrics")
    server.start()
    try:
        yield here[1]
    finally:
        server.stop(_LAST_ANSWERS)
