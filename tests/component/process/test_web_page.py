"""The web server of health and metrics pages, and visitors that are slow, many or malicious."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from gnsqsync.daemon import http_threads
from gnsqsync.process import web_page
from gnsqsync.process.web_page import served, text_page
from tests.support.interpreter import run_script
from tests.support.waiting import LIMIT, eventually

REQUEST = b"GET /livez HTTP/1.1\r\nHost: a\r\n"
ALIVE = text_page(lambda: (True, ["alive"]))


def long_page(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [])
    return (b"x" * 65536 for _ in range(1000))


def broken_page(environ: Any, start_response: Any) -> Iterable[bytes]:
    raise OSError("the page is broken")


def breaking_page(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [])
    yield b"begun"
    raise OSError("the page breaks off")


def unsafe_page(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("X", "a\r\nSet-Cookie: b")])
    return [b""]


PAGES = {
    "/livez": ALIVE,
    "/readyz": text_page(lambda: (False, ["no nsqd"])),
    "/long": long_page,
    "/broken": broken_page,
    "/breaking": lambda environ, start: list(breaking_page(environ, start)),
    "/unsafe": unsafe_page,
}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with served("127.0.0.1", 0, PAGES) as port:
        yield port


@contextlib.contextmanager
def visitor(port: int, request: bytes = b"") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), LIMIT) as sock:
        # A server that has read enough may reset the connection.
        with contextlib.suppress(ConnectionError):
            sock.sendall(request)
        yield sock


def rest(sock: socket.socket) -> bytes:
    """Read until the server closes."""
    parts = []
    # A server that closes before it has read the whole request resets the connection.
    with contextlib.suppress(ConnectionError):
        while part := sock.recv(65536):
            parts.append(part)
    return b"".join(parts)


def said(port: int, request: bytes) -> bytes:
    with visitor(port, request) as sock:
        return rest(sock)


def threads() -> int:
    return sum(each.name == "nsq-metrics visitor" for each in threading.enumerate())


@pytest.mark.parametrize("headers", [b"", b"Content-Length: 0\r\n", b"X: y\r\n"])
def test_a_page(port: int, headers: bytes) -> None:
    head, _, body = said(port, REQUEST + headers + b"\r\n").partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nConnection: close" in head
    assert b"\r\nCache-Control: no-store" in head
    assert body == b"alive\n"


def test_the_answers_of_the_site(port: int) -> None:
    head, _, body = said(port, b"HEAD /livez HTTP/1.1\r\nHost: a\r\n\r\n").partition(b"\r\n\r\n")
    assert b"\r\nContent-Length: 6\r\n" in head
    assert body == b""
    assert said(port, b"GET /readyz HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.0 503 Service Unav")
    assert b" 404 Not Found\r\n" in said(port, b"GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
    posted = said(port, b"POST /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}")
    assert posted.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    assert b"\r\nAllow: GET, HEAD\r\n" in posted


@pytest.mark.parametrize(
    "headers",
    [
        b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 0\r\n",
        b"Content-Length: 0\r\nContent-Length: 0\r\n",
        b"Content-Length : 0\r\n",
        b"X: a\rContent-Length: 5\r\n",
        b"X: a\r\n Content-Length: 5\r\n",
    ],
)
def test_a_request_that_says_twice_where_its_body_ends(port: int, headers: bytes) -> None:
    assert said(port, REQUEST + headers + b"\r\n").startswith(b"HTTP/1.1 400 Bad Request")


def test_a_second_request_on_a_connection_is_not_answered(port: int) -> None:
    answer = said(port, (REQUEST + b"\r\n") * 2)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert said(port, REQUEST + b"Transfer-Encoding: chunked\r\n\r\nx\r\n").count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    "headers", [b"X: " + b"a" * 100_000, b"X: a\r\n" * 20_000, b"X: a\r\n" + b" b\r\n" * 20_000]
)
def test_a_head_of_enormous_size(port: int, headers: bytes) -> None:
    answer = said(port, REQUEST + headers + b"\r\n\r\n")
    # The kernel may drop the answer with the bytes that nobody has read.
    assert answer[8:12] in (b" 431", b"")
    assert said(port, REQUEST + b"\r\n").endswith(b"alive\n")


@pytest.mark.parametrize("path", [b"/broken", b"/breaking", b"/unsafe"])
def test_a_page_that_is_broken(port: int, path: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    answer = said(port, b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"Set-Cookie" not in answer
    assert capfd.readouterr().err.startswith("Traceback ")


def test_a_visitor_that_leaves_early(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    for request in (b"", b"GET /li", REQUEST, b"GET /long HTTP/1.1\r\nHost: a\r\n\r\n"):
        with visitor(port, request):
            pass
    eventually(lambda: threads() == 0)
    assert capfd.readouterr().err == ""


def limited(monkeypatch: pytest.MonkeyPatch, **limits: Any) -> None:
    monkeypatch.setattr(web_page, "_LIMITS", web_page._LIMITS._replace(**limits))


def test_a_visitor_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, patience=0.1)
    with served("127.0.0.1", 0, PAGES) as port:
        assert said(port, b"") == b""
        assert said(port, REQUEST) == b""


def test_a_head_that_drips_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, patience=0.3)
    with served("127.0.0.1", 0, PAGES) as port, visitor(port, REQUEST + b"X: ") as sock:
        sock.settimeout(0.02)
        # Each byte comes long before the patience ends.
        with contextlib.suppress(ConnectionError):
            while True:
                try:
                    assert sock.recv(1) == b""
                    return
                except TimeoutError:
                    sock.sendall(b"x")


def test_silent_visitors_give_way_to_a_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, visitors=5)
    with served("127.0.0.1", 0, PAGES) as port, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(visitor(port, b"GET /")) for _ in range(100)]
        assert said(port, REQUEST + b"\r\n").endswith(b"alive\n")
        assert threads() <= 5
        for sock in silent[:95]:
            assert rest(sock) == b""


def test_visitors_that_are_answered_do_not_give_way(monkeypatch: pytest.MonkeyPatch) -> None:
    limited(monkeypatch, visitors=2)
    begun, go = threading.Semaphore(0), threading.Event()

    def slow(environ: Any, start_response: Any) -> Iterable[bytes]:
        begun.release()
        go.wait(LIMIT)
        return ALIVE(environ, start_response)

    request = REQUEST.replace(b"livez", b"slow") + b"\r\n"
    with served("127.0.0.1", 0, {**PAGES, "/slow": slow}) as port, contextlib.ExitStack() as stack:
        visitors = []
        for _ in range(2):
            visitors.append(stack.enter_context(visitor(port, request)))
            assert begun.acquire(timeout=LIMIT)
        visitors.append(stack.enter_context(visitor(port, REQUEST + b"\r\n")))
        visitors[2].settimeout(0.1)
        with pytest.raises(TimeoutError):
            visitors[2].recv(1)
        visitors[2].settimeout(LIMIT)
        go.set()
        assert [rest(sock)[-6:] for sock in visitors] == [b"alive\n"] * 3


def test_the_end_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    listeners: list[socket.socket] = []

    def listen(host: str, port: int) -> socket.socket:
        listeners.append(http_threads.listen(host, port))
        return listeners[0]

    monkeypatch.setattr(web_page, "listen", listen)
    before = set(threading.enumerate())
    with contextlib.ExitStack() as stack:
        with served("127.0.0.1", 0, PAGES) as port:
            sock = stack.enter_context(visitor(port, b"GET /"))
            eventually(lambda: threads() == 1)
        assert set(threading.enumerate()) <= before
        assert rest(sock) == b""
    assert listeners[0].fileno() == -1


def test_a_page_that_hangs_does_not_hold_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_page, "_LAST_ANSWERS", 0.05)
    limited(monkeypatch, visitors=1)
    begun, go = threading.Event(), threading.Event()

    def hung(environ: Any, start_response: Any) -> Iterable[bytes]:
        begun.set()
        go.wait(LIMIT)
        return ALIVE(environ, start_response)

    with contextlib.ExitStack() as stack:
        with served("127.0.0.1", 0, {"/livez": hung}) as port:
            sock = stack.enter_context(visitor(port, REQUEST + b"\r\n"))
            assert begun.wait(LIMIT)
            # Nobody gives way to this one.
            waiting = stack.enter_context(visitor(port, REQUEST + b"\r\n"))
        assert rest(sock) == b""
        go.set()
        assert rest(waiting) == b""
        eventually(lambda: threads() == 0)


def test_a_system_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    with served("127.0.0.1", 0, PAGES) as port:
        start = threading.Thread.start

        def fails(thread: threading.Thread) -> None:
            if thread.name == "nsq-metrics visitor":
                raise RuntimeError("can't start new thread")
            start(thread)

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", fails)
            assert said(port, REQUEST + b"\r\n") == b""
        assert said(port, REQUEST + b"\r\n").endswith(b"alive\n")


def test_the_same_in_a_process_that_gevent_has_patched() -> None:
    out = run_script("""
        from gevent import monkey
        monkey.patch_all()
        import gc, socket, threading
        from gnsqsync.process import web_page
        from tests.support.waiting import eventually

        def visitor(request):
            sock = socket.create_connection(("127.0.0.1", port), 60)
            sock.sendall(request)
            return sock

        def rest(sock):
            with sock, sock.makefile("rb") as file:
                return file.read()

        REQUEST = b"GET /livez HTTP/1.1\\r\\nHost: a\\r\\n\\r\\n"
        pages = {"/livez": web_page.text_page(lambda: (True, ["alive"]))}
        web_page._LIMITS = web_page._LIMITS._replace(visitors=3, patience=0.2)
        with web_page.served("127.0.0.1", 0, pages) as port:
            silent = [visitor(b"") for _ in range(50)]
            print(rest(visitor(REQUEST))[-6:])
            # Three visitors are left, and their patience is over.
            print({rest(sock) for sock in silent})
            last = visitor(b"")
            eventually(lambda: threading.active_count() == 3)
        print(rest(last), threading.active_count())
        gc.collect()
        open = [each for each in gc.get_objects() if isinstance(each, socket.socket)]
        print([each for each in open if each.fileno() != -1])
    """)
    assert out.splitlines() == ["b'alive\\n'", "{b''}", "b'' 1", "[]"]
