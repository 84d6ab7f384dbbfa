"""A parser of HTTP/1.x requests that accepts and refuses what Go's net/http does, in Go's words.
It is stricter in one thing: a request must say only once, and clearly, where its body ends. If a
proxy and a server read two different ends, the server takes the rest of one visitor's body for the
next visitor's request.

Knows bytes and ``recv``. Routes and answers are elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

__all__ = ["MOST_HEAD", "BadBody", "Body", "Head", "Refused", "Source", "read_head"]

# Go's limit for request line and headers, in bytes: a megabyte and the size of its read buffer.
MOST_HEAD = (1 << 20) + 4096
_MAX_CHUNK_LINE = 4096
_MAX_TRAILER = 4096
# Go's limit for overhead in a chunked body, in bytes. 16 bytes a chunk and twice the data are free.
_MAX_EXCESS = 16 * 1024
_MAX_LENGTH = 2**63 - 1

# Sets of allowed bytes, which translate() takes away: any byte left is bad. Regular expressions
# would take longer to compile than this module to import.
_DIGITS = b"0123456789"
_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_HEX = _DIGITS + b"abcdefABCDEF"
_TOKEN = _DIGITS + _LETTERS + b"!#$%&'*+-.^_`|~"
_NAME = _TOKEN + b" "
_HOST = _DIGITS + _LETTERS + b"!$%&'()*+,-.:;=[]_~"
_SCHEME = _DIGITS + _LETTERS + b"+-."
_CONTROL = bytes((*range(32), 127))
# Beginnings of headers that say where a body ends.
_FRAMING = (b"content-length", b"transfer-encoding")
_AUTHORITY = (
    rb"(?:[A-Za-z0-9\-._~:!$&'()*+,;=%@]*@)?"
    rb"(?:\[[^\[\]/@]*\]|[A-Za-z0-9\-._~!$&'()*+,;=\x80-\xff]*)(?::[0-9]*)?"
)


class Refused(Exception):
    """The answer of Go's net/http to a bad request, after which the connection is closed.

    ``line`` follows HTTP/1.1 in the first line, ``text`` is the body. ``is_long``: True if the
    client may still be sending.
    """

    def __init__(self, line: str, text: str = "", *, is_long: bool = False) -> None:
        super().__init__(line)
        self.line: str = line
        self.text: str = text or line
        self.is_long: bool = is_long


class BadBody(ValueError):
    """The body breaks off, or its chunks are malformed."""


class Source:
    """A buffered reader of one connection. ``recv`` is a method of its socket."""

    def __init__(self, recv: Callable[[int], bytes]) -> None:
        self._recv = recv
        self._data = bytearray()

    def _fill(self) -> bool:
        part = self._recv(65536)
        self._data += part
        return bool(part)

    def peek(self, size: int) -> bytes:
        """Return the next ``size`` bytes without taking them; fewer if the client has closed."""
        while len(self._data) < size and self._fill():
            pass
        return bytes(self._data[:size])

    def take(self, size: int) -> bytes:
        """Take between 1 and ``size`` bytes. Return b"" if the client has closed."""
        if not self._data:
            self._fill()
        part = bytes(self._data[:size])
        del self._data[:size]
        return part

    def line(self, limit: int) -> bytes | None:
        """Take the bytes up to and with a line feed, or up to the end of the connection.

        Return None, and take nothing, if the line is longer than ``limit``.
        """
        searched = 0
        while (end := self._data.find(b"\n", searched)) < 0:
            searched = len(self._data)
            if searched >= limit:
                return None
            if not self._fill():
                end = searched
                break
        return None if end >= limit else self.take(end + 1)


class Head(NamedTuple):
    """A request without its body."""

    method: str
    path: str
    """Decoded, one character for each byte."""
    query: str
    is_old: bool
    """True for HTTP/1.0."""
    length: int
    """Bytes of the body; -1 if it is chunked."""
    keeps_alive: bool
    """True if an HTTP/1.0 client asked for keep-alive; the answer must confirm it."""
    closes: bool
    """True if the connection ends after this request."""
    expects: str
    headers: dict[bytes, list[bytes]]
    """Lists of values by name in lower case."""


def read_head(source: Source, *, after_post: bool = False, most: int = MOST_HEAD) -> Head | None:
    """Read the next request. Return None if the client has closed. Refused, and errors of ``recv``.

    ``after_post``: skip line ends before the request, which some clients send after a body.
    ``most``: upper bound of the head in bytes.
    """
    left = most
    if after_post:
        # Go skips line ends within the next four bytes only.
        peeked = source.peek(4)
        source.take(len(peeked) - len(peeked.lstrip(b"\r\n")))

    def line() -> bytes:
        nonlocal left
        found = source.line(left)
        if found is None:
            raise Refused("431 Request Header Fields Too Large", is_long=True)
        left -= len(found)
        return found

    first = line()
    if not first:
        return None
    method, target, version = _request_line(_without_end(first))
    path, query = _target(target, is_connect=method == b"CONNECT")
    headers = _read_headers(line)
    _check(len(headers.get(b"host", [])) <= 1)
    is_chunked = _is_chunked(headers, version)
    # Go accepts two equal lengths, and a length beside chunks. Here both are refused.
    encodings = headers.get(b"transfer-encoding", [])
    _check(len(headers.get(b"content-length", [])) + len(encodings) <= 1)
    length = _content_length(headers)
    if is_chunked:
        length = -1
        _check_trailers(headers)
    is_upgrade = (method, target, version) == (b"PRI", b"*", (2, 0))
    if version[0] != 1 and not is_upgrade:
        raise Refused("505 HTTP Version Not Supported: unsupported protocol version")
    needs_host = version >= (1, 1) and not is_upgrade and method != b"CONNECT"
    _check_host(headers.get(b"host"), is_needed=needs_host)
    if any(b" " in name for name in headers):
        raise Refused("400 Bad Request: invalid header name")
    connection = _tokens(headers.get(b"connection", []))
    is_old = version < (1, 1)
    # Chunks are no body to Go if the client is old. A proxy may read them as one, so the connection
    # ends.
    keeps_alive = is_old and b"keep-alive" in connection and not encodings
    return Head(
        method.decode(),
        path.decode("latin-1"),
        query.decode("latin-1"),
        is_old,
        length,
        keeps_alive,
        not keeps_alive and (is_old or is_upgrade or b"close" in connection),
        headers.get(b"expect", [b""])[0].decode("latin-1").lower(),
        headers,
    )


def _check_host(hosts: list[bytes] | None, *, is_needed: bool) -> None:
    if is_needed and not hosts:
        raise Refused("400 Bad Request: missing required Host header")
    if hosts and hosts[0] and not _is_of(hosts[0], _HOST):
        raise Refused("400 Bad Request: malformed Host header")


def _check(is_good: object) -> None:
    if not is_good:
        raise Refused("400 Bad Request")


def _is_of(text: bytes, allowed: bytes) -> bool:
    """Return True if the text is not empty and has only allowed bytes."""
    return bool(text) and not text.translate(None, allowed)


def _has(text: bytes, unwanted: bytes) -> bool:
    return len(text.translate(None, unwanted)) != len(text)


def _without_end(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def _request_line(line: bytes) -> tuple[bytes, bytes, tuple[int, int]]:
    words = line.split(b" ", 2)
    _check(len(words) == 3)
    method, target, proto = words
    _check(_is_of(method, _TOKEN))
    _check(len(proto) == 8 and proto.startswith(b"HTTP/") and proto[6:7] == b".")
    major, minor = proto[5:6], proto[7:]
    _check(_is_of(major + minor, _DIGITS))
    return method, target, (int(major), int(minor))


def _target(target: bytes, *, is_connect: bool) -> tuple[bytes, bytes]:
    """Return the decoded path and the query of a path, of ``*``, or of a whole URL."""
    _check(target and not _has(target, _CONTROL + b" "))
    if target == b"*":
        return target, b""
    if is_connect and not target.startswith(b"/"):
        target = b"http://" + target
    rest, _, query = target.partition(b"?")
    if not target.startswith(b"/"):
        scheme, colon, rest = rest.partition(b":")
        _check(colon and _is_of(scheme, _SCHEME) and scheme[:1].isalpha())
        if not rest.startswith(b"/"):
            return b"", query
        if rest.startswith(b"//"):
            authority, slash, rest = rest[2:].partition(b"/")
            _check(re.fullmatch(_AUTHORITY, authority))
            rest = slash + rest
    escapes = rest.split(b"%")[1:]
    _check(all(len(escape) >= 2 and _is_of(escape[:2], _HEX) for escape in escapes))
    return unquote_to_bytes(rest), query


def _read_headers(line: Callable[[], bytes]) -> dict[bytes, list[bytes]]:
    """Read the headers up to the empty line. Return lists of values by name in lower case."""
    headers: dict[bytes, list[bytes]] = {}
    values: list[bytes] | None = None
    # Further lines of the last header. They are joined at its end, because a join for each line
    # would take the square of the time.
    more: list[bytes] = []
    while True:
        raw = line()
        _check(raw)
        value = text = _without_end(raw)
        goes_on = text.startswith((b" ", b"\t"))
        if more and values and not goes_on:
            values[-1] = b" ".join(filter(None, [values[-1], *more]))
            more = []
        if not text:
            return headers
        if goes_on:
            # A proxy may take such a line for a header of its own.
            if values is None or text.strip(b" \t").lower().startswith(_FRAMING):
                raise Refused("400 Bad Request")
            more.append(text.strip(b" \t"))
        else:
            name, colon, value = text.partition(b":")
            _check(colon and _is_of(name, _NAME))
            values = headers.setdefault(name.lower(), [])
            values.append(value.strip(b" \t"))
        _check(not _has(value.replace(b"\t", b""), _CONTROL))


def _is_chunked(headers: dict[bytes, list[bytes]], version: tuple[int, int]) -> bool:
    found = headers.get(b"transfer-encoding")
    if found is None or version < (1, 1):
        return False
    if len(found) != 1 or found[0].lower() != b"chunked":
        raise Refused("501 Not Implemented", "Unsupported transfer encoding")
    return True


def _content_length(headers: dict[bytes, list[bytes]]) -> int:
    found = headers.get(b"content-length", [b""])
    if not found[0]:
        # Go accepts a Content-Length without a value, in the way nsqd is built.
        return 0
    _check(found[0].isdigit())
    digits = found[0].lstrip(b"0")
    _check(len(digits) <= len(str(_MAX_LENGTH)))
    length = int(digits or b"0")
    _check(length <= _MAX_LENGTH)
    return length


def _check_trailers(headers: dict[bytes, list[bytes]]) -> None:
    named = _tokens(headers.get(b"trailer", []))
    _check(not named & {b"transfer-encoding", b"trailer", b"content-length"})


def _tokens(values: list[bytes]) -> set[bytes]:
    return {token.strip().lower() for value in values for token in value.split(b",")}


class Body:
    """The body of one request.

    ``invite`` is called before the first byte is read, unless it is None by then. ``unread``: bytes
    that the length, or the current chunk, still announces. ``is_whole``: True after the last byte.
    """

    def __init__(self, source: Source, length: int, invite: Callable[[], None] | None) -> None:
        self.is_chunked: bool = length < 0
        self.invite: Callable[[], None] | None = invite
        self.unread: int = max(0, length)
        self.is_whole: bool = length == 0
        self._source = source
        self._excess = 0
        self._is_bad = False

    def read(self, limit: int) -> bytes:
        """Read at most ``limit`` bytes; b"" at the end. BadBody, then and at each later call."""
        if self.invite is not None:
            self.invite()
            self.invite = None
        if self._is_bad:
            raise BadBody("the body was bad before")
        try:
            if self.is_chunked and not self.unread and not self.is_whole:
                self._begin_chunk()
            return b"" if self.is_whole else self._read(limit)
        except (BadBody, OSError):
            self._is_bad = True
            raise

    def _read(self, limit: int) -> bytes:
        part = self._source.take(min(limit, self.unread))
        if not part:
            raise BadBody("the body breaks off")
        self.unread -= len(part)
        if not self.unread:
            if not self.is_chunked:
                self.is_whole = True
            elif self._take(2) != b"\r\n":
                raise BadBody("a chunk is longer than its size")
        return part

    def _take(self, size: int) -> bytes:
        found = self._source.peek(size)
        self._source.take(size)
        return found

    def _begin_chunk(self) -> None:
        line = self._source.line(_MAX_CHUNK_LINE)
        if line is None or not line.endswith(b"\r\n") or line.count(b"\r") > 1:
            raise BadBody("the line of a chunk is too long, or does not end with CR LF")
        size = line[:-2].rstrip(b" \t").partition(b";")[0]
        if len(size) > 16 or not _is_of(size, _HEX):
            raise BadBody("the size of a chunk is no hexadecimal number")
        self.unread = int(size, 16)
        self._excess = max(0, self._excess + len(line) - 16 - 2 * self.unread)
        if self._excess > _MAX_EXCESS:
            raise BadBody("the chunks have too much overhead")
        if not self.unread:
            self._read_trailer()
            self.is_whole = True

    def _read_trailer(self) -> None:
        size = 2
        while not (seen := self._source.peek(size)).endswith(b"\r\n\r\n"):
            if seen == b"\r\n":
                break
            if len(seen) < size or size == _MAX_TRAILER:
                raise BadBody("the trailer breaks off, or is too long")
            size += 1
        try:
            _read_headers(lambda: self._source.line(_MAX_TRAILER) or b"")
        except Refused:
            raise BadBody("the trailer is malformed") from None
