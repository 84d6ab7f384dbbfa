"""The check of a request's end: servers refuse requests that give the end of the body twice.

Knows header lines. If a proxy and a server read two different ends, the server takes the rest of
one visitor's body for the next visitor's request.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Protocol

__all__ = ["HeaderLines", "ends_twice", "fault"]

_TOKEN = re.compile(rb"[0-9A-Za-z!#$%&'*+\-.^_`|~]+")


class _Lines(Protocol):
    def readline(self, limit: int = ..., /) -> bytes: ...


class HeaderLines:
    """A wrapper of a connection's file that keeps the lines that a parser of headers reads."""

    def __init__(self, file: _Lines) -> None:
        self._file = file
        self.lines: list[bytes] = []

    def readline(self, limit: int = -1, /) -> bytes:
        """Read one line, as the file does."""
        line = self._file.readline(limit)
        self.lines.append(line)
        return line


def ends_twice(lengths: int, encodings: int) -> str:
    """Return why a request with this number of Content-Lengths and Transfer-Encodings is refused.

    Return "" if the request gives the end of its body once, or not at all.
    """
    if lengths > 1:
        return "it has two Content-Lengths"
    if encodings > 1:
        return "it has two Transfer-Encodings"
    if lengths and encodings:
        return "it has Content-Length and Transfer-Encoding"
    return ""


def fault(lines: Sequence[bytes], version: str) -> str:
    """Return why the headers of a request of ``version`` (``HTTP/1.1``) are refused, or "".

    A tolerant parser may see another header than the proxy. So each line must be a name, a colon
    and a value.
    """
    lengths: list[bytes] = []
    encodings: list[bytes] = []
    for line in lines:
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if not text:
            break
        name, colon, value = text.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or b"\r" in value or b"\0" in value:
            return f"a header is no name and value: {text[:40]!r}"
        if name.lower() == b"content-length":
            lengths.append(value.strip(b" \t"))
        elif name.lower() == b"transfer-encoding":
            encodings.append(value.strip(b" \t").lower())
    why = ends_twice(len(lengths), len(encodings))
    if why:
        return why
    if lengths and not lengths[0].isdigit():
        return f"its Content-Length is {lengths[0][:40]!r}, not a number"
    if encodings and (encodings[0] != b"chunked" or version != "HTTP/1.1"):
        return "its Transfer-Encoding is another than chunked, or it is older than HTTP/1.1"
    return ""
