"""What Go's HTTP server, and so nsqd and nsqlookupd, make of odd requests: the first line of each
answer, and whether the connection is kept. Observed."""

from __future__ import annotations

import re
import socket

import pytest

from tests.support.servers import Address, Site

PING = b"GET /ping HTTP/1.1\r\nHost: a\r\n"
LAST = PING + b"Connection: close\r\n\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"2\r\nab\r\n0\r\n\r\n"

OK = "200 OK"
BAD = "400 Bad Request"
FAILED = "500 Internal Server Error"
NO_ENCODING = "501 Not Implemented"
# A limit of Go: 1 MiB, and the 4 KiB of its buffer.
MOST = (1 << 20) + 4096


def answers(http: Address, request: bytes) -> tuple[list[str], bool]:
    """The first lines of the answers, without HTTP/1.1, and whether a ping behind them is answered.

    Each answer has the length that it says, and says so if it is the last one.
    """
    with socket.create_connection(http, timeout=20) as sock:
        sock.sendall(request + LAST)
        rest = sock.makefile("rb").read()
    found: list[tuple[str, bytes]] = []
    while rest:
        head, _, rest = rest.partition(b"\r\n\r\n")
        line, *headers = head.decode().split("\r\n")
        assert not found or "close" not in found[-1][0]
        fields = dict(header.lower().split(": ") for header in headers)
        if line.endswith("100 Continue"):
            length = 0
        else:
            length = int(fields.get("content-length", len(rest)))
        body, rest = rest[:length], rest[length:]
        closes = "close" if fields.get("connection") == "close" else "open"
        found.append((f"{closes} {line.removeprefix('HTTP/1.1 ')}", body))
    kept = found[-1] == ("close 200 OK", b"OK") and len(found) > 1
    if kept:
        found.pop()
    assert found[-1][0].startswith("open" if kept else "close")
    return [line.partition(" ")[2] for line, _ in found], kept


@pytest.fixture(params=["nsqd", "nsqlookupd"])
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def http(site: Site, program: str) -> Address:
    return (site.nsqd() if program == "nsqd" else site.nsqlookupd()).http_address


@pytest.fixture
def post(program: str) -> bytes:
    """A request that takes a body, without its end."""
    target = b"/pub" if program == "nsqd" else b"/topic/create"
    return b"POST " + target + b"?topic=t HTTP/1.1\r\nHost: a\r\n"


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /ping",
        b"GET  /ping HTTP/1.1",
        b"GET\t/ping HTTP/1.1",
        b"GET /ping a HTTP/1.1",
        b"G@T /ping HTTP/1.1",
        b"GET /ping HTTQ/1.1",
        b"GET /ping HTTP/x",
        b"GET /ping HTTP/1.10",
        b"GET /ping\x01 HTTP/1.1",
        b"GET /ping?\x7f HTTP/1.1",
        b"GET http://b:x/ping HTTP/1.1",
        b"  V2",
        b"",
    ],
)
def test_invalid_request_lines(http: Address, request_line: bytes) -> None:
    assert answers(http, request_line + b"\r\nHost: a\r\n\r\n") == ([BAD], False)


@pytest.mark.parametrize("version", [b"HTTP/0.9", b"HTTP/2.0", b"HTTP/3.0"])
def test_other_versions(http: Address, version: bytes) -> None:
    line = "505 HTTP Version Not Supported: unsupported protocol version"
    assert answers(http, b"GET /ping " + version + b"\r\nHost: a\r\n\r\n") == ([line], False)


@pytest.mark.parametrize(
    ("header", "line"),
    [
        (b"Host: a", BAD),
        (b"Host: b", BAD),
        (b"X : b", f"{BAD}: invalid header name"),
        (b"X@: b", BAD),
        (b"X", BAD),
        (b": b", BAD),
        (b"X: \x00", BAD),
        (b"X: a\rb", BAD),
        (b"X: \xff", OK),
        (b"X: a\r\n b", OK),
        (b"Connection: a, close", OK),
        (b"Transfer-Encoding: gzip", NO_ENCODING),
        (b"Transfer-Encoding:", NO_ENCODING),
        (b"Expect: a", "417 Expectation Failed"),
        (b"Expect: 100-continue", OK),
    ],
)
def test_headers(http: Address, header: bytes, line: str) -> None:
    kept = line == OK and b"close" not in header
    assert answers(http, PING + header + b"\r\n\r\n") == ([line], kept)


def test_a_header_goes_on_before_the_first(http: Address) -> None:
    assert answers(http, b"GET /ping HTTP/1.1\r\n Host: a\r\n\r\n") == ([BAD], False)


@pytest.mark.parametrize(
    ("size", "line"), [(MOST - 200, OK), (MOST, "431 Request Header Fields Too Large")]
)
def test_the_size_of_headers(http: Address, size: int, line: str) -> None:
    assert answers(http, PING + b"X: " + b"a" * size + b"\r\n\r\n") == ([line], line == OK)


def test_many_headers(http: Address) -> None:
    many = b"".join(b"X%d: a\r\n" % number for number in range(5000))
    assert answers(http, PING + many + b"\r\n") == ([OK], True)


@pytest.mark.parametrize(
    ("headers", "line"),
    [
        (b"Content-Length: 2\r\n", OK),
        (b"Content-Length: 00000000000000000000000000002\r\n", OK),
        (b"Content-Length: 2\r\nContent-Length: 3\r\n", BAD),
        (b"Content-Length: 2, 2\r\n", BAD),
        (b"Content-Length: 9223372036854775808\r\n", BAD),
        (b"Transfer-Encoding: gzip\r\nContent-Length: 2\r\n", NO_ENCODING),
        (b"Transfer-Encoding: identity\r\nContent-Length: 2\r\n", NO_ENCODING),
        (b"Transfer-Encoding: gzip, chunked\r\n", NO_ENCODING),
        (b"Transfer-Encoding: chunked, chunked\r\n", NO_ENCODING),
        (CHUNKED + CHUNKED, NO_ENCODING),
        (CHUNKED + b"Content-Length: x\r\n", BAD),
        (CHUNKED + b"Content-Length: 2\r\nContent-Length: 3\r\n", BAD),
        (CHUNKED + b"Trailer: Content-Length\r\n", BAD),
    ],
)
def test_the_size_of_a_body(http: Address, post: bytes, headers: bytes, line: str) -> None:
    assert answers(http, post + headers + b"\r\nab") == ([line], line == OK)


@pytest.mark.parametrize("headers", [CHUNKED, b"Transfer-Encoding: CHUNKED\r\n"])
@pytest.mark.parametrize(
    "chunks",
    [
        CHUNKS,
        b"2;a=b\r\nab\r\n0\r\n\r\n",
        b"2;" + b"a" * 3000 + b"\r\nab\r\n0\r\n\r\n",
        b"2 \r\nab\r\n0\r\n\r\n",
        b"0000000000000002\r\nab\r\n0\r\n\r\n",
        b"2\r\nab\r\n0\r\nX: y\r\n\r\n",
    ],
)
def test_chunks(http: Address, post: bytes, headers: bytes, chunks: bytes) -> None:
    assert answers(http, post + headers + b"\r\n" + chunks) == ([OK], True)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (b"Content-Length: 2\r\n" * 2, b"ab"),
        (CHUNKED + b"Content-Length: 7\r\n", CHUNKS),
        (b"Content-Length: 7\r\n" + CHUNKED, CHUNKS),
    ],
)
def test_bodies_whose_end_is_said_twice(
    http: Address, site: Site, post: bytes, headers: bytes, body: bytes
) -> None:
    """Go takes them. The embedded servers do not: a proxy may read the other end."""
    taken = ([OK], True) if site.kind == "real" else ([BAD], False)
    assert answers(http, post + headers + b"\r\n" + body) == taken


@pytest.mark.parametrize(
    "chunks",
    [
        b"x\r\nab\r\n0\r\n\r\n",
        b"\r\nab\r\n0\r\n\r\n",
        b" 2\r\nab\r\n0\r\n\r\n",
        b"2 ;a\r\nab\r\n0\r\n\r\n",
        b"0x2\r\nab\r\n0\r\n\r\n",
        b"-2\r\nab\r\n0\r\n\r\n",
        b"00000000000000002\r\nab\r\n0\r\n\r\n",
        b"2\nab\r\n0\r\n\r\n",
        b"2;a\rb\r\nab\r\n0\r\n\r\n",
        b"2\r\nabc\r\n0\r\n\r\n",
        b"2\r\nab\r\n0\r\nX@ y\r\n\r\n",
    ],
)
def test_invalid_chunks(http: Address, post: bytes, program: str, chunks: bytes) -> None:
    line = FAILED if program == "nsqd" else BAD
    assert answers(http, post + CHUNKED + b"\r\n" + chunks) == ([line], False)


def exact(http: Address, *parts: bytes) -> bytes:
    """The whole answer to exactly these bytes, after which the server closes."""
    with socket.create_connection(http, timeout=20) as sock:
        for part in parts:
            sock.sendall(part)
        return sock.makefile("rb").read()


@pytest.mark.parametrize(
    "chunks",
    [
        # Not a byte more than the real ones read: it would reset the connection.
        (b"2;" + b"a" * 4094,),
        (b"1;" + b"a" * 3000 + b"\r\na\r\n",) * 5 + (b"1;" + b"a" * 3000 + b"\r\n",),
    ],
    ids=["one", "many"],
)
def test_extensions_that_are_too_long(
    http: Address, post: bytes, program: str, chunks: tuple[bytes, ...]
) -> None:
    answer = exact(http, post + CHUNKED + b"\r\n", *chunks)
    assert answer.startswith(f"HTTP/1.1 {FAILED if program == 'nsqd' else BAD}\r\n".encode())
    assert re.search(rb"\r\nConnection: close\r\n", answer)


def test_old_clients(http: Address, post: bytes, program: str) -> None:
    old = post.replace(b"HTTP/1.1", b"HTTP/1.0")
    answer = exact(http, old + b"Content-Length: 2\r\n\r\nab")
    assert answer.startswith(b"HTTP/1.0 200 OK\r\n")
    assert b"Connection" not in answer
    # Without a length they have no body, and chunks are none to them.
    answer = exact(http, old + CHUNKED + b"\r\n")
    line = BAD if program == "nsqd" else OK
    assert answer.startswith(b"HTTP/1.0 " + line.encode() + b"\r\n")
    kept = b"GET /ping HTTP/1.0\r\nConnection: a, Keep-Alive\r\n\r\n"
    first, _, second = exact(http, kept + b"GET /ping HTTP/1.0\r\n\r\n").partition(b"\r\n\r\nOK")
    assert b"\r\nConnection: keep-alive" in first
    assert second.startswith(b"HTTP/1.0 200 OK\r\n")


def test_bodies_that_nobody_wants(http: Address) -> None:
    nowhere = b"POST /x HTTP/1.1\r\nHost: a\r\n"
    lost = "404 Not Found"
    assert answers(http, nowhere + b"Content-Length: 2\r\n\r\nab") == ([lost], True)
    assert answers(http, nowhere + CHUNKED + b"\r\n" + CHUNKS) == ([lost], True)
    assert answers(http, nowhere + CHUNKED + b"\r\nx\r\n") == ([lost], False)
    body = b"Content-Length: 100000\r\n\r\n" + b"a" * 100_000
    assert answers(http, nowhere + body) == ([lost], True)
    # More than 256 KiB is not read, and not waited for.
    assert answers(http, nowhere + b"Content-Length: 9223372036854775807\r\n\r\n") == (
        [lost],
        False,
    )


@pytest.mark.parametrize("how", [b"100-continue", b"100-Continue, a"])
@pytest.mark.parametrize("body", [b"Content-Length: 2\r\n\r\nab", CHUNKED + b"\r\n" + CHUNKS])
def test_a_body_that_waits_for_leave(http: Address, post: bytes, how: bytes, body: bytes) -> None:
    request = post + b"Expect: " + how + b"\r\n" + body
    assert answers(http, request) == (["100 Continue", OK], True)


def test_a_body_that_gets_no_leave(http: Address) -> None:
    request = b"POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nab"
    assert answers(http, request) == (["404 Not Found"], False)


@pytest.mark.parametrize(
    "path", [b"/topic/delete?topic=none", b"/channel/create?topic=t&channel=c"]
)
def test_the_body_comes_before_the_arguments(http: Address, path: bytes) -> None:
    request = b"POST " + path + b" HTTP/1.1\r\nHost: a\r\n" + CHUNKED + b"\r\nx\r\n"
    assert answers(http, request) == ([BAD], False)


def test_the_whole_server(http: Address) -> None:
    assert answers(http, b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n") == ([OK], True)
    line = "405 Method Not Allowed"
    assert answers(http, b"GET * HTTP/1.1\r\nHost: a\r\n\r\n") == ([line], True)


def test_a_request_without_an_end(http: Address) -> None:
    for text in (b"GET /ping HTT", PING):
        with socket.create_connection(http, timeout=20) as sock:
            sock.sendall(text)
            sock.shutdown(socket.SHUT_WR)
            assert sock.makefile("rb").read().startswith(b"HTTP/1.1 400 Bad Request\r\n")


def test_http_where_tls_is_spoken(site: Site) -> None:
    server = site.nsqd(*site.certificates.flags)
    assert exact(server.https_address, LAST) == (
        b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"
    )
