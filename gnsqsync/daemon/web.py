"""The HTTP behaviour that the daemons share (docs/protocol/nsqd-http#http-common).

Knows routing, query strings, error answers and headers. Knows neither topics nor registrations, no
gevent and no socket.
"""

from __future__ import annotations

import json
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote, unquote_to_bytes

from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.names import valid_name

_CHUNK = 65536
JSON_TYPE = "application/json; charset=utf-8"
TEXT_TYPE = "text/plain; charset=utf-8"
_NSQ_HEADER = ("X-Nsq-Content-Type", "nsq; version=1.0")
# Go's phrases, which differ from Python's.
_PHRASES = {
    200: "OK",
    301: "Moved Permanently",
    307: "Temporary Redirect",
    400: "Bad Request",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Request Entity Too Large",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
}
_BAD_ESCAPE = re.compile(rb"%(?![0-9a-fA-F]{2})")
# Characters that Go's json.Marshal escapes in addition to JSON's rules.
_GO_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
_HTML_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")


class HTTPFault(Exception):
    """An error answer: ``status``, and the code in ``message`` of its JSON."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(f"{status} {code}")
        self.status = status
        self.code = code


class Response(NamedTuple):
    """An answer of a handler for which a plain return value is not enough.

    ``plain`` leaves out the X-NSQ-Content-Type header, as on /ping. ``stream`` is a body in parts
    whose length is not known before.
    """

    body: bytes | str = b""
    status: int = 200
    content_type: str = TEXT_TYPE
    headers: Sequence[tuple[str, str]] = ()
    plain: bool = False
    stream: Iterable[bytes] | None = None


def to_json(value: object) -> bytes:
    """Return JSON in the form of Go's json.Marshal: no blanks, UTF-8, ``<>&`` escaped."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.translate(_GO_ESCAPES).encode("utf-8", "replace")


def parse_query(text: str) -> dict[str, str]:
    """Return the parameters of a query string. The first value of a name wins.

    ``text`` has one character for each byte, as in WSGI. HTTPFault 400 INVALID_REQUEST for a bad
    escape or a semicolon.
    """
    parameters: dict[str, str] = {}
    for part in text.encode("latin-1").split(b"&"):
        if b";" in part or _BAD_ESCAPE.search(part):
            raise HTTPFault(400, "INVALID_REQUEST")
        if part:
            name, _, value = (
                unquote_to_bytes(piece.replace(b"+", b" ")).decode("utf-8", "replace")
                for piece in part.partition(b"=")
            )
            parameters.setdefault(name, value)
    return parameters


class Request:
    """An HTTP request. ``path_values`` are the values of the route's ``:name`` parts."""

    def __init__(self, environ: Mapping[str, Any], path_values: tuple[str, ...] = ()) -> None:
        self.environ = environ
        self.method: str = environ["REQUEST_METHOD"]
        self.path_values: tuple[str, ...] = path_values
        self._parameters: dict[str, str] | None = None
        # Unread bytes of the body; None before the first read. A WSGI server may wait forever for
        # bytes beyond the announced ones.
        self._left: int | None = None

    def get(self, name: str) -> str | None:
        """Return the query parameter, or None if it is missing. HTTPFault for a broken query."""
        if self._parameters is None:
            self._parameters = parse_query(self.environ.get("QUERY_STRING", ""))
        return self._parameters.get(name)

    def required(self, name: str) -> str:
        """Return the query parameter. HTTPFault 400 MISSING_ARG_<NAME> if it is missing."""
        value = self.get(name)
        if value is None:
            raise HTTPFault(400, f"MISSING_ARG_{name.upper()}")
        return value

    def name(self, kind: str) -> str:
        """Return a topic's or channel's name. HTTPFault MISSING_ARG_ or INVALID_ARG_<KIND>."""
        value = self.required(kind)
        if not valid_name(value.encode()):
            raise HTTPFault(400, f"INVALID_ARG_{kind.upper()}")
        return value

    @property
    def content_length(self) -> int:
        """Announced bytes of the body: 0 without a body, -1 if it is chunked."""
        length = self.environ.get("CONTENT_LENGTH")
        if not length:
            return -1 if "HTTP_TRANSFER_ENCODING" in self.environ else 0
        return int(length)

    def finish(self) -> None:
        """Read and drop the body. HTTPFault 400 if the client breaks it off."""
        self.get("")
        try:
            while self.read(_CHUNK):
                pass
        except HTTPFault:
            raise HTTPFault(400, "INVALID_REQUEST") from None

    def read(self, limit: int) -> bytes:
        """Read at most ``limit`` bytes of the body. HTTPFault 500 if the client breaks it off."""
        source = self.environ["wsgi.input"]
        parts: list[bytes] = []
        if self._left is None:
            announced = self.content_length
            self._left = sys.maxsize if announced < 0 else announced
        limit = min(limit, self._left)
        try:
            while limit > 0 and (part := source.read(limit)):
                parts.append(part)
                limit -= len(part)
                self._left -= len(part)
        except (OSError, ValueError):  # The body ends too early, or a chunk is malformed.
            raise HTTPFault(500, "INTERNAL_ERROR") from None
        return b"".join(parts)


Answered = tuple[str, list[tuple[str, str]], bytes]
"""Status and phrase, headers, body."""
Answer = Response | bytes | str | Mapping[str, Any] | list[Any] | int | float | None
Handler = Callable[[Request], Answer]
Route = tuple[str, str, Handler]


def when_whole(handler: Handler) -> Handler:
    """Return a handler that checks the query and drops the body before it calls ``handler``."""

    def answer(request: Request) -> Answer:
        request.finish()
        return handler(request)

    return answer


class _Pattern:
    """A path such as ``/topic/create`` or ``/api/topics/:topic/:channel``."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._parts = text.split("/")
        self._is_fixed = ":" not in text

    def match(self, path: str) -> tuple[str, ...] | None:
        """Return the values of the ``:name`` parts, or None if the path does not match."""
        if self._is_fixed:
            return () if path == self._text else None
        parts = path.split("/")
        if len(parts) != len(self._parts):
            return None
        values = []
        for own, part in zip(self._parts, parts, strict=True):
            if own.startswith(":") and part:
                values.append(part)
            elif own != part:
                return None
        return tuple(values)

    def corrected(self, path: str) -> str | None:
        """Return the right path if only case, or a slash at the end, differs; else None."""
        parts = path.rstrip("/").split("/") if path != "/" else ["", ""]
        if len(parts) != len(self._parts):
            return None
        meant = [
            part if own.startswith(":") else part.lower()
            for own, part in zip(self._parts, parts, strict=True)
        ]
        found = "/".join(meant)
        return found if self.match(found) is not None else None


def _clean_path(path: str) -> str:
    """Return the path without double slashes and dot segments."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


class App:
    """An application of routes ``(method, path, handler)``.

    A handler takes a Request. It returns str or bytes for text, None for an empty answer, a
    Response, or any other value for JSON. It raises HTTPFault for an error. With ``https_port``
    every request is refused with 403 TLS_REQUIRED and that port.
    """

    def __init__(
        self, routes: Iterable[Route], log: Log | None = None, *, https_port: int | None = None
    ) -> None:
        self._routes = [(method, _Pattern(path), handler) for method, path, handler in routes]
        self._log = log
        self._https_port = https_port

    def __call__(self, environ: Mapping[str, Any]) -> Answered:
        """Return status with phrase, headers and body of the answer to one request."""
        response = self.respond(environ)
        status, headers, body = rendered(response)
        if self._log is not None:
            self._log.debug(
                "%d %s %s (%s:%s)",
                response.status,
                environ["REQUEST_METHOD"],
                environ["PATH_INFO"],
                environ.get("REMOTE_ADDR", ""),
                environ.get("REMOTE_PORT", ""),
            )
        if environ["REQUEST_METHOD"] == "HEAD":
            # After HEAD a client would take a body for the next answer.
            body = b""
        return status, headers, body

    def respond(self, environ: Mapping[str, Any]) -> Response:
        """Return the answer to one request. Never raises."""
        try:
            if self._https_port is not None:
                text = f'{{"message": "TLS_REQUIRED", "https_port": {self._https_port}}}'
                return Response(text, 403, JSON_TYPE)
            return self._route(environ)
        except HTTPFault as fault:
            return Response(to_json({"message": fault.code}), fault.status, JSON_TYPE)
        except Exception:  # noqa: BLE001
            # A broken handler must not end the server. nsqd gives the same answer.
            if self._log is not None:
                self._log.error("panic in HTTP handler - %s", traceback.format_exc())
            return Response(to_json({"message": "INTERNAL_ERROR"}), 500, JSON_TYPE)

    def _route(self, environ: Mapping[str, Any]) -> Response:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        allowed = set()
        for its_method, pattern, handler in self._routes:
            values = pattern.match(path)
            if values is not None:
                if its_method == method:
                    return _as_response(handler(Request(environ, values)))
                allowed.add(its_method)
            elif path == "*":
                allowed.add(its_method)
        for its_method, pattern, _ in self._routes:
            meant = pattern.corrected(_clean_path(path)) if its_method == method else None
            if meant is not None:
                return _redirect(environ, meant)
        if not allowed:
            raise HTTPFault(404, "NOT_FOUND")
        allow = [("Allow", ", ".join(sorted(allowed | {"OPTIONS"})))]
        if method == "OPTIONS":
            return Response(headers=() if path == "*" else allow, plain=True)
        return Response(to_json({"message": "METHOD_NOT_ALLOWED"}), 405, JSON_TYPE, allow)


def rendered(response: Response) -> Answered:
    """Return status with phrase, headers and body."""
    body = response.body.encode() if isinstance(response.body, str) else response.body
    headers = list(response.headers)
    if response.stream is None:
        headers.insert(0, ("Content-Length", str(len(body))))
    if body or response.stream is not None:
        headers.append(("Content-Type", response.content_type))
    if not response.plain:
        headers.append(_NSQ_HEADER)
    # Another status comes from a server that was asked in turn. Go writes a status without a phrase
    # in this form.
    phrase = _PHRASES.get(response.status, f"status code {response.status}")
    return f"{response.status} {phrase}", headers, body


def _as_response(answer: Answer) -> Response:
    if isinstance(answer, Response):
        return answer
    if answer is None or isinstance(answer, (str, bytes)):
        return Response(answer or b"")
    return Response(to_json(answer), content_type=JSON_TYPE)


def url_path(path: str) -> str:
    """Return a decoded path (one character for each byte) in the form of Go's URLs."""
    return quote(path.encode("latin-1"), safe="/$&+,:;=@")


def _redirect(environ: Mapping[str, Any], path: str) -> Response:
    """Redirect to ``path`` below the same application.

    The URL is escaped as in Go, so that no raw character of the path reaches a header.
    """
    location = url_path(environ.get("SCRIPT_NAME", "") + path)
    if query := environ.get("QUERY_STRING", ""):
        location += f"?{query}"
    link = location.translate(_HTML_ESCAPES)
    headers = [("Location", _NOT_ASCII.sub(lambda found: f"%{ord(found[0]):02x}", location))]
    if environ["REQUEST_METHOD"] != "GET":
        return Response(status=307, headers=headers, plain=True)
    body = f'<a href="{link}">Moved Permanently</a>.\n\n'.encode("latin-1")
    return Response(body, 301, "text/html; charset=utf-8", headers, plain=True)
