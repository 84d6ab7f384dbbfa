"""nsqadmin's own web server, against visitors that are slow or write nonsense."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import gevent
import pytest

from gnsqsync.admin import serving
from tests.support.servers import Server


@pytest.fixture(scope="module")
def nsqadmin() -> Iterator[Server]:
    server = Server("embedded", "nsqadmin", ["-nsqd-http-address=127.0.0.1:1"])
    try:
        yield server.start()
    finally:
        server.discard()


def said(server: Server, request: bytes) -> bytes:
    """Whatever comes until the server closes."""
    with socket.create_connection(server.http_address, 10) as visitor:
        visitor.sendall(request)
        parts = []
        # A server that closes before it has read all of a request resets the connection.
        with contextlib.suppress(ConnectionResetError):
            while part := visitor.recv(65536):
                parts.append(part)
    return b"".join(parts)


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /ping HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"GET /ping HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /ping HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /do HTTP/9.9\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_requests_that_are_none(nsqadmin: Server, request_: bytes) -> None:
    is_long = len(request_) > 8192
    assert said(nsqadmin, request_)[8:12] in (b" 400", b" 414", b"" if is_long else b" 400")
    assert "Traceback" not in nsqadmin.log
    ping = b"GET /ping HTTP/1.1\r\nConnection: close\r\n\r\n"
    assert said(nsqadmin, ping).endswith(b"OK")


POST = b"POST /api/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"2\r\n{}\r\n0\r\n\r\n"
PING = b"GET /ping HTTP/1.1\r\nConnection: close\r\n\r\n"


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
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (CHUNKED, CHUNKS),
        (b"Content-Length: 2\r\n", b"{}"),
        # gevent hands such a connection to its application as it is.
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


def test_a_body_has_to_come_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_PATIENCE_OF_BODY", 0.2)

    class Slow:
        def read(self, size: int) -> bytes:
            gevent.sleep(0.05)
            return b"x"

    body = serving._Body(Slow())
    assert body.read(1) == b"x"
    with pytest.raises(TimeoutError, match="too slow"):
        for _ in range(100):
            body.read(1)
