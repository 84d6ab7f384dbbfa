"""nsqadmin's own web server, against visitors that are slow or write nonsense."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from tests.support.servers import Server
from tests.support.waiting import LIMIT


@pytest.fixture(scope="module")
def nsqadmin() -> Iterator[Server]:
    server = Server("embedded", "nsqadmin", ["-nsqd-http-address=127.0.0.1:1"])
    try:
        yield server.start()
    finally:
        server.discard()


def said(server: Server, request: bytes) -> bytes:
    """Whatever comes until the server closes."""
    with socket.create_connection(server.http_address, LIMIT) as visitor:
        parts = []
        # A server that closes before it has read all of a request resets the connection.
        with contextlib.suppress(ConnectionError):
            visitor.sendall(request)
            while part := visitor.recv(65536):
                parts.append(part)
    return b"".join(parts)


POST = b"POST /api/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"2\r\n{}\r\n0\r\n\r\n"
PING = b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /ping HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /ping HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", b"400"),
        (b"POST /do HTTP/9.9\r\n\r\n", b"505"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /ping HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 20_000 + b"\r\n", b"431"),
        (b"GET /ping HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 100_000 + b"\r\n\r\n", b"431"),
        (b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n", b"431"),
    ],
)
def test_invalid_requests(nsqadmin: Server, request_: bytes, status: bytes) -> None:
    # The kernel may drop the answer with the bytes of a long request that nobody has read.
    assert said(nsqadmin, request_)[9:12] in (status, b"" if status == b"431" else status)
    assert "Traceback" not in nsqadmin.log
    assert said(nsqadmin, PING).endswith(b"OK")


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"Content-Length: 2\r\n" + CHUNKED, CHUNKS),
        (CHUNKED + b"Content-Length: 2\r\n", CHUNKS),
        (b"Content-Length: 2\r\n" * 2, b"{}"),
        (b"Content-Length: 2\r\nContent-Length: 5\r\n", b"{}   "),
        (b"Content-Length: +2\r\n", b"{}"),
        (b"Content-Length : 2\r\n", b""),
        (b"X: y\rContent-Length: 2\r\n", b"{}"),
        (b"Transfer-Encoding: xchunked\r\n", CHUNKS),
    ],
)
def test_a_request_that_says_twice_where_its_body_ends(
    nsqadmin: Server, headers: bytes, body: bytes
) -> None:
    """A proxy may take the rest of such a body for the next visitor's request."""
    answer = said(nsqadmin, POST + headers + b"\r\n" + body + PING)
    assert answer[9:12] == (b"501" if b"xchunked" in headers else b"400")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (CHUNKED, CHUNKS),
        (b"Content-Length: 2\r\n", b"{}"),
        # An upgrade that the server does not know changes nothing.
        (b"Content-Length: 2\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n", b"{}"),
        (b"Upgrade: websocket\r\n" + CHUNKED, CHUNKS),
    ],
)
def test_the_next_request_begins_where_the_body_ends(
    nsqadmin: Server, headers: bytes, body: bytes
) -> None:
    answer = said(nsqadmin, POST + headers + b"\r\n" + body + PING)
    assert answer.count(b"HTTP/1.1 ") == 2
    assert answer.endswith(b"OK")
