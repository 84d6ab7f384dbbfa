"""Requests that say twice, or unclearly, where their body ends."""

from __future__ import annotations

import pytest

from gnsqsync.daemon.framing import ends_twice, fault

LENGTH = b"Content-Length: 5\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def lines(*headers: bytes) -> list[bytes]:
    return [b"Host: a\r\n", *b"".join(headers).splitlines(keepends=True), b"\r\n"]


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (LENGTH,),
        (b"content-length:5\n",),
        (b"CONTENT-LENGTH: \t 5 \r\n",),
        (CHUNKED,),
        (b"Transfer-Encoding: Chunked\r\n",),
        (b"X: a:b\r\n", b"Y:\r\n"),
    ],
)
def test_one_end_or_none(headers: tuple[bytes, ...]) -> None:
    assert fault(lines(*headers), "HTTP/1.1") == ""


@pytest.mark.parametrize(
    "headers",
    [
        (LENGTH, LENGTH),
        (LENGTH, b"content-length: 6\r\n"),
        (LENGTH, CHUNKED),
        (CHUNKED, LENGTH),
        (CHUNKED, b"Content-Length: 0\r\n"),
        (CHUNKED, b"Content-Length:\r\n"),
        (CHUNKED, CHUNKED),
        (b"Transfer-Encoding: identity\r\n",),
        (b"Transfer-Encoding: gzip, chunked\r\n",),
        (b"Transfer-Encoding: xchunked\r\n",),
        (b"Transfer-Encoding:\x0bchunked\r\n",),
        (b"Transfer-Encoding:\r\n",),
        *((b"Content-Length: " + text + b"\r\n",) for text in (b"5, 5", b"+5", b"1_0", b"-1", b"")),
        (b"Content-Length : 5\r\n",),
        (b" Content-Length: 5\r\n",),
        (b"X: a\r\n", b" Content-Length: 5\r\n"),
        (b"Content-Length\r\n",),
        (b"Content-Length\0: 5\r\n",),
        (b"X\r\n", LENGTH),
    ],
)
def test_two_ends_or_an_unclear_one(headers: tuple[bytes, ...]) -> None:
    assert fault(lines(*headers), "HTTP/1.1")


@pytest.mark.parametrize("line", [b"X: a\rContent-Length: 5\r\n", b"X: a\0\r\n"])
def test_a_line_that_another_parser_would_split(line: bytes) -> None:
    assert fault([line, b"\r\n"], "HTTP/1.1").startswith("a header is no name and value: b'X: a")


def test_an_old_client_has_no_chunks() -> None:
    assert fault(lines(CHUNKED), "HTTP/1.0")
    assert not fault(lines(LENGTH), "HTTP/1.0")


def test_bytes_behind_the_headers_are_not_read() -> None:
    assert fault([LENGTH, b"\r\n", LENGTH], "HTTP/1.1") == ""


def test_each_pair_has_its_words() -> None:
    assert ends_twice(2, 0) == "it has two Content-Lengths"
    assert ends_twice(1, 1) == "it has Content-Length and Transfer-Encoding"
    assert ends_twice(0, 2) == "it has two Transfer-Encodings"
    assert not ends_twice(1, 0)
    assert not ends_twice(0, 1)
