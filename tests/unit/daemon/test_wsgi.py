"""WSGI applications on one connection: the environ, bodies in parts, and ends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from gnsqsync.daemon.http_connection import Connection, Limits
from gnsqsync.daemon.http_request import BadBody
from gnsqsync.daemon.wsgi import WSGI, from_wsgi

LIMITS = Limits(visitors=1, head_size=65536, patience=60.0, whole_body=60.0, keeps=True)
LAST = b"GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


class Sock:
    """A socket with these parts to receive. Its client leaves after ``most`` parts of answers."""

    def __init__(self, parts: Iterable[bytes], most: int = 1000) -> None:
        self._parts = list(parts)
        self._most = most
        self.sent: list[bytes] = []
        self.timeouts: list[float] = []

    def settimeout(self, seconds: float) -> None:
        self.timeouts.append(seconds)

    def recv(self, size: int) -> bytes:
        return self._parts.pop(0) if self._parts else b""

    def sendall(self, data: bytes) -> None:
        if len(self.sent) >= self._most:
            raise BrokenPipeError
        self.sent.append(data)

    def shutdown(self, how: int) -> None:
        return


def answers(app: WSGI, *parts: bytes, most: int = 1000, limits: Limits = LIMITS) -> bytes:
    """Return everything that the server sends, without the dates."""
    sock = Sock(parts, most)
    made = from_wsgi(app, ("127.0.0.1", 4171))
    Connection(sock, ("10.0.0.9", 5000), made, limits, lambda seconds: None).run()
    return re.sub(rb"Date: [^\r]*\r\n", b"", b"".join(sock.sent))


class Parts:
    """The answer of an application, which notes how it ends."""

    def __init__(self, parts: Callable[[], Iterator[bytes]]) -> None:
        self._parts = parts
        self.closed = 0

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Parts:
        start_response("200 OK", [])
        return self

    def __iter__(self) -> Iterator[bytes]:
        return self._parts()

    def close(self) -> None:
        self.closed += 1


def two() -> Iterator[bytes]:
    yield b"ab"
    yield b""
    yield b"c" * 20


def environ_of(request: bytes) -> dict[str, Any]:
    found: list[dict[str, Any]] = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        found.append(environ)
        environ["body"] = environ.pop("wsgi.input").read(10)
        start_response("200 OK", [])
        return []

    answers(app, request)
    return found[0]


def test_the_environ_of_a_request() -> None:
    environ = environ_of(
        b"POST /a%2fb?c=d HTTP/1.1\r\nHost: x:1\r\nContent-Type: text/a\r\nContent-Length: 2\r\n"
        b"Cookie: a=b\r\nCookie: c=d\r\nX-Forwarded-User: eve\r\nX-Forwarded-User: \xe9\r\n"
        b"X-Empty:\r\n\r\nab"
    )
    del environ["wsgi.errors"]
    assert environ == {
        "body": b"ab",
        "REQUEST_METHOD": "POST",
        "SCRIPT_NAME": "",
        "PATH_INFO": "/a/b",
        "QUERY_STRING": "c=d",
        "CONTENT_TYPE": "text/a",
        "CONTENT_LENGTH": "2",
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "4171",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "10.0.0.9",
        "REMOTE_PORT": "5000",
        "HTTP_HOST": "x:1",
        "HTTP_COOKIE": "a=b; c=d",
        "HTTP_X_FORWARDED_USER": "eve,\xe9",
        "HTTP_X_EMPTY": "",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


def test_a_name_that_would_pass_for_a_header_of_a_proxy() -> None:
    environ = environ_of(
        b"GET / HTTP/1.0\r\nX_Forwarded_User: root\r\nX-Forwarded_User: root\r\n\r\n"
    )
    assert not [name for name in environ if name.startswith("HTTP_")]
    assert environ["SERVER_PROTOCOL"] == "HTTP/1.0"


def test_a_body_without_a_length() -> None:
    environ = environ_of(
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"
    )
    assert "CONTENT_LENGTH" not in environ
    assert environ["body"] == b"ab"
    assert environ["HTTP_TRANSFER_ENCODING"] == "chunked"


def test_an_answer_in_parts() -> None:
    app = Parts(two)
    assert answers(app, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + LAST) == (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nab\r\n14\r\ncccccccccccccccccccc\r\n0\r\n\r\n"
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nab\r\n14\r\ncccccccccccccccccccc\r\n0\r\n\r\n"
    )
    assert app.closed == 2


def test_an_answer_in_parts_to_an_old_client_ends_with_the_connection() -> None:
    app = Parts(two)
    old = b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
    assert answers(app, old * 2) == b"HTTP/1.0 200 OK\r\n\r\nab" + b"c" * 20
    assert app.closed == 1


def test_the_head_of_an_answer_in_parts() -> None:
    app = Parts(two)
    answer = answers(app, b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", b"")
    assert answer == b"HTTP/1.1 200 OK\r\n\r\n"
    assert app.closed == 1


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_visitor_that_leaves_within_an_answer(most: int) -> None:
    app = Parts(two)
    answers(app, LAST, most=most)
    assert app.closed == 1


def test_an_answer_that_breaks_off(capsys: pytest.CaptureFixture[str]) -> None:
    def breaks() -> Iterator[bytes]:
        yield b"ab"
        raise OSError("the disk is gone")

    app = Parts(breaks)
    # The missing end tells the visitor.
    answer = answers(app, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" + LAST)
    assert answer.endswith(b"\r\n\r\n2\r\nab\r\n")
    assert app.closed == 1
    assert "the disk is gone" in capsys.readouterr().err


def test_requests_in_one_part_are_answered_in_turn() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("200 OK", [])
        return [environ["PATH_INFO"].encode()]

    first = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"
    answer = answers(app, b"".join(first % number for number in range(50)) + LAST)
    assert re.findall(rb"\r\n\r\n(/[0-9a-z]+)", answer) == [
        *(b"/%d" % number for number in range(50)),
        b"/last",
    ]


def test_a_body_that_comes_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The visitor still gets the answer."""

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        with pytest.raises(TimeoutError, match="too slow"):
            environ["wsgi.input"].read(1)
        with pytest.raises(BadBody):
            environ["wsgi.input"].read(1)
        start_response("408 Request Timeout", [])
        return []

    request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n"
    answer = answers(app, request, b"ab", limits=LIMITS._replace(whole_body=0.0))
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"\r\nConnection: close" in answer


def test_a_body_that_nobody_reads_comes_too_late() -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("404 Not Found", [])
        return []

    request = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n"
    answer = answers(app, request, b"ab", limits=LIMITS._replace(whole_body=0.0))
    assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert b"\r\nConnection: close" in answer
