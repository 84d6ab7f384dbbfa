"""WSGI applications of gnsqsync on its own HTTP server. Knows the environ, and no socket."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, TypeAlias

from gnsqsync.daemon.http_connection import HEAD, Application, Broken, Reply
from gnsqsync.daemon.http_request import Head
from gnsqsync.daemon.web import TEXT_TYPE

__all__ = ["WSGI", "from_wsgi"]

WSGI: TypeAlias = Callable[[dict[str, Any], Any], Iterable[bytes]]
"""A WSGI application. It calls ``start_response`` before it returns, and uses no ``write``."""

_FAULT = b"Internal Server Error\n"


def from_wsgi(app: WSGI, address: tuple[str, int]) -> Application:
    """Return ``app`` in the form of the HTTP server, which listens at ``address``.

    If ``app`` raises, stderr gets the traceback and the visitor 500.
    """

    def answer(asked: dict[str, Any]) -> Reply:
        try:
            return _answered(app, _environ(asked, address))
        except Exception:  # noqa: BLE001
            # A broken page must not end the server.
            traceback.print_exc()
            length = ("Content-Length", str(len(_FAULT)))
            headers = [("Content-Type", TEXT_TYPE), length]
            body = b"" if asked["REQUEST_METHOD"] == "HEAD" else _FAULT
            return "500 Internal Server Error", headers, body

    return answer


def _environ(asked: dict[str, Any], address: tuple[str, int]) -> dict[str, Any]:
    head: Head = asked.pop(HEAD)
    environ = {
        **asked,
        "REMOTE_PORT": str(asked["REMOTE_PORT"]),
        "SCRIPT_NAME": "",
        "SERVER_NAME": address[0],
        "SERVER_PORT": str(address[1]),
        "SERVER_PROTOCOL": "HTTP/1.0" if head.is_old else "HTTP/1.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    del environ["CONTENT_LENGTH"]
    for name, values in head.headers.items():
        # A name with an underscore would pass for the name with hyphens that a proxy sets.
        if b"_" not in name:
            text = (b"; " if name == b"cookie" else b",").join(values).decode("latin-1")
            environ["HTTP_" + name.decode().upper().replace("-", "_")] = text
    if "HTTP_CONTENT_TYPE" in environ:
        environ["CONTENT_TYPE"] = environ.pop("HTTP_CONTENT_TYPE")
    if environ.pop("HTTP_CONTENT_LENGTH", ""):
        environ["CONTENT_LENGTH"] = str(head.length)
    return environ


def _answered(app: WSGI, environ: dict[str, Any]) -> Reply:
    started: list[tuple[str, list[tuple[str, str]]]] = []

    def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
        started[:] = [(status, list(headers))]

    with contextlib.ExitStack() as stack:
        parts = _Parts(app(environ, start_response))
        stack.callback(parts.close)
        ((status, headers),) = started
        for text in chain([status], *headers):
            if any(each in text.encode("latin-1") for each in b"\r\n\0"):
                raise ValueError(f"a header has a character that is not allowed: {text!r}")
        has_length = any(name.lower() == "content-length" for name, _ in headers)
        is_stream = not has_length and not isinstance(parts.found, list)
        is_head = environ["REQUEST_METHOD"] == "HEAD"
        if is_stream and not is_head:
            stack.pop_all()
            return status, headers, parts
        body = b"" if is_stream else b"".join(parts.found)
    if not has_length and not is_stream:
        headers.append(("Content-Length", str(len(body))))
    return status, headers, b"" if is_head else body


class _Parts:
    """The body of an answer whose length is not known before."""

    def __init__(self, found: Iterable[bytes]) -> None:
        self.found = found

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self.found
        except Exception:  # noqa: BLE001
            # The visitor sees the missing end.
            traceback.print_exc()
            raise Broken from None

    def close(self) -> None:
        """End the application's part of the answer, as WSGI asks for."""
        close = getattr(self.found, "close", None)
        if close is not None:
            close()
