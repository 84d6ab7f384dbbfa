"""HTTP requests as bytes; tests/conformance has what the real servers do with the same."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gnsqsync.daemon.http_request import BadBody, Body, Head, Refused, Source, read_head

CHUNKED = b"Transfer-Encoding: chunked\r\n"


def source(*parts: bytes) -> Source:
    left = list(parts)
    return Source(lambda size: left.pop(0) if left else b"")


def head(data: bytes) -> Head:
    found = read_head(source(data))
    assert found is not None
    return found


def pieces(data: bytes) -> Iterable[list[bytes]]:
    """Whole, and byte by byte."""
    return ([data], [data[place : place + 1] for place in range(len(data))])


def read(body: Body, limit: int = 10) -> bytes:
    found = b""
    while part := body.read(limit):
        found += part
    return found


def test_requests_in_turn() -> None:
    data = (
        b"POST /a?b=c HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        b"\r\nPUT http://x:1/d%2f%e9 HTTP/1.1\r\nHost: x\r\n" + CHUNKED + b"\r\n"
        b"2;x\r\nde\r\n1\r\nf\r\n0\r\nX: y\r\n\r\nGET * HTTP/1.0\r\n\r\n"
    )
    for parts in pieces(data):
        here = source(*parts)
        first = read_head(here)
        lengths = {b"host": [b"x"], b"content-length": [b"3"]}
        assert first == Head("POST", "/a", "b=c", False, 3, False, False, "", lengths)
        assert read(Body(here, 3, None)) == b"abc"
        second = read_head(here, after_post=True)
        chunks = {b"host": [b"x"], b"transfer-encoding": [b"chunked"]}
        assert second == Head("PUT", "/d/\xe9", "", False, -1, False, False, "", chunks)
        body = Body(here, -1, None)
        assert (read(body), body.is_whole) == (b"def", True)
        assert read_head(here) == Head("GET", "*", "", True, 0, False, True, "", {})
        assert read_head(here) is None


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 2\r\n" * 2,
        CHUNKED + b"Content-Length: 2\r\n",
        b"Content-Length: 0\r\n" + CHUNKED,
    ],
)
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_a_body_whose_end_is_said_twice(headers: bytes, version: bytes) -> None:
    with pytest.raises(Refused, match="400 Bad Request"):
        head(b"POST / HTTP/" + version + b"\r\nHost: x\r\n" + headers + b"\r\n")


def test_requests_that_keep_a_connection() -> None:
    def kept(version: str, connection: str) -> tuple[bool, bool]:
        lines = f"GET / HTTP/{version}\r\nHost: x\r\nConnection: {connection}\r\n\r\n"
        found = head(lines.encode())
        return found.keeps_alive, found.closes

    assert kept("1.1", "") == (False, False)
    assert kept("1.1", "a, Close") == (False, True)
    assert kept("1.0", "close") == (False, True)
    assert kept("1.0", "Keep-Alive") == (True, False)


def test_a_line_of_a_header_that_goes_on() -> None:
    found = head(b"GET / HTTP/1.1\r\nHost: x\r\nExpect: 100-\r\n\t CONTINUE \r\n\r\n")
    assert found.expects == "100- continue"


@pytest.mark.parametrize("name", [b"Content-Length: 2", b"transfer-encoding : chunked"])
def test_a_line_that_goes_on_and_looks_like_the_end_of_a_body(name: bytes) -> None:
    """A proxy that strips blanks takes such a line for a header."""
    with pytest.raises(Refused, match="400 Bad Request"):
        head(b"POST / HTTP/1.1\r\nHost: x\r\nX: y\r\n " + name + b"\r\n\r\n")


def test_a_header_of_twenty_thousand_lines() -> None:
    """The lines are joined once: a join for each line would copy 800 megabytes."""
    lines = b" abc\r\n" * 20_000
    found = head(b"GET / HTTP/1.1\r\nHost: x\r\nX: y\r\n" + lines + b"\r\n")
    assert found.headers[b"x"] == [b"y" + b" abc" * 20_000]


def test_chunks_of_an_old_client_end_the_connection() -> None:
    """The chunks would be the next request."""
    old = b"POST / HTTP/1.0\r\nConnection: keep-alive\r\n"
    assert head(old + b"\r\n").keeps_alive
    found = head(old + CHUNKED + b"\r\n")
    assert (found.keeps_alive, found.closes, found.length) == (False, True, 0)


def test_a_head_has_the_size_that_its_server_allows() -> None:
    data = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    assert read_head(source(data), most=len(data)) is not None
    with pytest.raises(Refused, match="431"):
        read_head(source(data), most=len(data) - 2)


def test_refused_as_soon_as_it_is_known() -> None:
    def more(size: int) -> bytes:
        raise AssertionError("it waits for more")

    for data in (b"GET /\r\n", b"GET / HTTP/1.1\r\nX\r\n", b"GET / HTTP/1.1\r\n X: y\r\n"):
        parts = [data]
        with pytest.raises(Refused) as refused:
            read_head(Source(lambda size, parts=parts: parts.pop() if parts else more(size)))  # type: ignore[misc]
        assert refused.value.text == "400 Bad Request"


def test_an_end_within_a_request() -> None:
    with pytest.raises(Refused):
        read_head(source(b"GET / HTTP/1.1\r\nHost: x\r\n"))


def test_headers_of_enormous_length() -> None:
    endless = Source(lambda size: b"a" * size)
    with pytest.raises(Refused) as refused:
        read_head(endless)
    assert (refused.value.line[:3], refused.value.is_long) == ("431", True)
    assert len(endless._data) < 1 << 21


def test_a_body_that_breaks_off() -> None:
    for data, length in ((b"ab", 3), (b"2\r\na", -1), (b"2\r\nab\r\n", -1), (b"0\r\nX: y", -1)):
        body = Body(source(data), length, None)
        for _ in range(2):
            with pytest.raises(BadBody):
                read(body)
        assert not body.is_whole


def test_a_byte_in_each_chunk_is_not_too_much() -> None:
    chunks = b"1\r\na\r\n" * 10_000 + b"0\r\n\r\n"
    assert len(read(Body(source(chunks), -1, None))) == 10_000
    extended = (b"1;" + b"a" * 2000 + b"\r\na\r\n") * 10
    with pytest.raises(BadBody, match="too much overhead"):
        read(Body(source(extended), -1, None))


def test_a_trailer_of_enormous_length() -> None:
    with pytest.raises(BadBody, match="trailer"):
        read(Body(Source(lambda size: b"0\r\n" + b"a" * size), -1, None))


def test_an_invitation_is_sent_once_and_before_the_body() -> None:
    said: list[str] = []
    body = Body(source(b"abc"), 3, lambda: said.append("continue"))
    assert not said
    assert read(body, 1) == b"abc"
    assert said == ["continue"]
