"""The web server of health and metrics pages."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gnsqsync.process.web_page import served, text_page


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served("127.0.0.1", 0, {"/livez": text_page(lambda: (True, ["alive"]))}) as port:
        yield port


def said(port: int, headers: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 10) as visitor:
        visitor.sendall(b"GET /livez HTTP/1.1\r\nHost: a\r\n" + headers + b"\r\n")
        return visitor.makefile("rb").read()


@pytest.mark.parametrize("headers", [b"", b"Content-Length: 0\r\n", b"X: y\r\n"])
def test_a_page(port: int, headers: bytes) -> None:
    answer = said(port, headers)
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nalive\n")


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 0\r\nContent-Length: 0\r\n",
        b"Content-Length : 0\r\n",
        b"X: a\rContent-Length: 5\r\n",
    ],
)
def test_a_request_that_says_twice_where_its_body_ends(port: int, headers: bytes) -> None:
    assert said(port, headers).startswith(b"HTTP/1.0 400 Bad Request\r\n")
