"""The HTTP habits shared by the embedded nsqd and nsqlookupd, without a socket."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.web import (
    App,
    HTTPFault,
    Request,
    Response,
    parse_query,
    to_json,
    when_whole,
)


def _boom(request: Request) -> None:
    raise ZeroDivisionError


def _teapot(request: Request) -> None:
    raise HTTPFault(413, "MSG_TOO_BIG")


ROUTES = [
    ("GET", "/ping", lambda request: Response("OK", plain=True)),
    ("GET", "/info", lambda request: {"version": "1.3.0"}),
    ("GET", "/list", lambda request: ["a", "b"]),
    ("GET", "/number", lambda request: 60_000_000_000),
    ("POST", "/empty", lambda request: None),
    ("POST", "/pub", lambda request: b"OK"),
    ("GET", "/config/:opt", lambda request: request.path_values[0]),
    ("PUT", "/config/:opt", lambda request: request.read(5)),
    ("GET", "/names", lambda request: request.name("topic") + "/" + request.name("channel")),
    ("POST", "/whole", when_whole(lambda request: "done")),
    ("GET", "/boom", _boom),
    ("GET", "/teapot", _teapot),
]


def ask(
    method: str, target: str, body: bytes = b"", app: App | None = None, **extra: Any
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one request put to the application."""
    path, _, query = target.partition("?")
    environ = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "CONTENT_LENGTH": len(body),
        "wsgi.input": io.BytesIO(body),
        **extra,
    }
    status, headers, answer = (app or App(ROUTES))(environ)
    return int(status.split()[0]), dict(headers), answer


def message(body: bytes) -> str:
    found = json.loads(body)
    assert list(found) == ["message"]
    return str(found["message"])


def test_text_json_and_empty_answers() -> None:
    status, headers, body = ask("GET", "/info")
    assert (status, body) == (200, b'{"version":"1.3.0"}')
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert headers["X-Nsq-Content-Type"] == "nsq; version=1.0"
    status, headers, body = ask("POST", "/pub")
    assert (status, body) == (200, b"OK")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    status, headers, body = ask("POST", "/empty")
    assert (status, body, headers["Content-Length"]) == (200, b"", "0")
    assert "Content-Type" not in headers
    assert ask("GET", "/list")[2] == b'["a","b"]'
    assert ask("GET", "/number")[2] == b"60000000000"


def test_ping_has_no_nsq_header() -> None:
    status, headers, body = ask("GET", "/ping")
    assert (status, body) == (200, b"OK")
    assert "X-Nsq-Content-Type" not in headers


@pytest.mark.parametrize("path", ["/", "/nope", "/put", "/config", "/config/a/b", "/INFORMATION"])
def test_unknown_path(path: str) -> None:
    status, headers, body = ask("GET", path)
    assert (status, message(body)) == (404, "NOT_FOUND")
    assert headers["X-Nsq-Content-Type"] == "nsq; version=1.0"


def test_wrong_method() -> None:
    status, headers, body = ask("GET", "/pub")
    assert (status, message(body)) == (405, "METHOD_NOT_ALLOWED")
    assert headers["Allow"] == "OPTIONS, POST"
    assert ask("POST", "/config/x")[1]["Allow"] == "GET, OPTIONS, PUT"
    status, _, body = ask("HEAD", "/ping")
    assert (status, body) == (405, b"")


def test_options() -> None:
    status, headers, body = ask("OPTIONS", "/config/x")
    assert (status, body, headers["Allow"]) == (200, b"", "GET, OPTIONS, PUT")
    # Go answers this one before nsqd sees it.
    assert "Allow" not in ask("OPTIONS", "*")[1]
    assert ask("GET", "*")[1]["Allow"] == "GET, OPTIONS, POST, PUT"
    assert ask("OPTIONS", "/nope")[0] == 404


@pytest.mark.parametrize("path", ["/ping/", "/PING", "//ping", "/./ping", "/a/../Ping/"])
def test_redirects(path: str) -> None:
    status, headers, body = ask("GET", path)
    assert (status, headers["Location"]) == (301, "/ping")
    assert body == b'<a href="/ping">Moved Permanently</a>.\n\n'


def test_redirects_keep_query_value_and_method() -> None:
    assert ask("GET", "/Config/Opt/?a=1")[1]["Location"] == "/config/Opt?a=1"
    status, headers, body = ask("POST", "/pub/?topic=t")
    assert (status, headers["Location"], body) == (307, "/pub?topic=t", b"")
    assert ask("GET", "/pub/")[0] == 404


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/config/a\r\nSet-Cookie: x=1/", "/config/a%0D%0ASet-Cookie:%20x=1"),
        (
            "/config/a b?c\"<>&'()*!~$+,:;=@%#/",
            "/config/a%20b%3Fc%22%3C%3E&%27%28%29%2A%21~$+,:;=@%25%23",
        ),
        ("/config/\xc3\xa9/", "/config/%C3%A9"),
    ],
)
def test_a_redirect_is_a_url(path: str, location: str) -> None:
    status, headers, body = ask("GET", "", PATH_INFO=path)
    link = location.replace("&", "&amp;")
    assert (status, headers["Location"]) == (301, location)
    assert body == f'<a href="{link}">Moved Permanently</a>.\n\n'.encode()


def test_a_redirect_stays_within_what_the_application_is_mounted_on() -> None:
    assert ask("GET", "/ping/", SCRIPT_NAME="/nsq")[1]["Location"] == "/nsq/ping"


def test_query_strings() -> None:
    assert parse_query("a=1&a=2&b&c=%41+x&&d=a%23b=c") == {
        "a": "1",
        "b": "",
        "c": "A x",
        "d": "a#b=c",
    }
    assert parse_query("t=%C3%A9&u=\xc3\xa9&v=%ff") == {"t": "é", "u": "é", "v": "\ufffd"}
    for bad in ("a=%zz", "a=%", "a=%4", "a;b", "a=1;b=2", "%zz=1"):
        with pytest.raises(HTTPFault, match="400 INVALID_REQUEST"):
            parse_query(bad)


def test_topic_and_channel_arguments() -> None:
    assert ask("GET", "/names?topic=t&channel=c%23ephemeral")[2] == b"t/c#ephemeral"
    for query, code in (
        ("", "MISSING_ARG_TOPIC"),
        ("channel=c", "MISSING_ARG_TOPIC"),
        ("topic=", "INVALID_ARG_TOPIC"),
        ("topic=a%0a", "INVALID_ARG_TOPIC"),
        ("topic=t", "MISSING_ARG_CHANNEL"),
        ("topic=t&channel=*", "INVALID_ARG_CHANNEL"),
        ("topic=%zz", "INVALID_REQUEST"),
    ):
        status, _, body = ask("GET", f"/names?{query}")
        assert (status, message(body)) == (400, code), query


def test_body_is_read_up_to_the_limit() -> None:
    assert ask("PUT", "/config/x", b"1234567")[2] == b"12345"
    assert ask("PUT", "/config/x", b"12")[2] == b"12"


def test_a_body_that_breaks_off_is_an_internal_error() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise OSError("unexpected end of file")

    status, _, body = ask("PUT", "/config/x", CONTENT_LENGTH=2, **{"wsgi.input": Broken()})
    assert (status, message(body)) == (500, "INTERNAL_ERROR")


def test_the_body_comes_before_the_arguments() -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            raise ValueError("no chunk")

    for target, code in (("/whole", "INVALID_REQUEST"), ("/whole?a=%zz", "INVALID_REQUEST")):
        status, _, body = ask("POST", target, CONTENT_LENGTH=-1, **{"wsgi.input": Broken()})
        assert (status, message(body)) == (400, code)
    body = io.BytesIO(b"x" * 100_000)
    assert ask("POST", "/whole", CONTENT_LENGTH=-1, **{"wsgi.input": body})[2] == b"done"
    assert body.read() == b""


def test_no_more_is_read_than_was_announced() -> None:
    """A WSGI server may hand out the socket itself, on which nothing more comes."""
    body = io.BytesIO(b"12the next request")
    assert ask("PUT", "/config/x", CONTENT_LENGTH="2", **{"wsgi.input": body})[2] == b"12"
    assert ask("PUT", "/config/x", CONTENT_LENGTH="", **{"wsgi.input": body})[2] == b""
    assert body.read() == b"the next request"


def test_faults_and_panics() -> None:
    status, headers, body = ask("GET", "/teapot")
    assert (status, message(body)) == (413, "MSG_TOO_BIG")
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    stream = io.StringIO()
    status, _, body = ask("GET", "/boom", app=App(ROUTES, Log("[x] ", stream=stream)))
    assert (status, message(body)) == (500, "INTERNAL_ERROR")
    assert "ERROR: panic in HTTP handler" in stream.getvalue()
    assert "ZeroDivisionError" in stream.getvalue()


def test_requests_are_logged_at_debug_only() -> None:
    stream = io.StringIO()
    log = Log("[x] ", stream=stream)
    app = App(ROUTES, log)
    ask("GET", "/ping", app=app)
    assert stream.getvalue() == ""
    log.level = "debug"
    ask("GET", "/ping", app=app, REMOTE_ADDR="1.2.3.4", REMOTE_PORT="5")
    assert stream.getvalue().endswith("DEBUG: 200 GET /ping (1.2.3.4:5)\n")


def test_tls_required_refuses_every_path() -> None:
    app = App(ROUTES, https_port=4152)
    for path in ("/ping", "/nope"):
        status, headers, body = ask("GET", path, app=app)
        assert (status, body) == (403, b'{"message": "TLS_REQUIRED", "https_port": 4152}')
        assert headers["X-Nsq-Content-Type"] == "nsq; version=1.0"


def test_json_is_written_as_go_does() -> None:
    assert to_json({"a": [1, None, "é<&>\u2028"]}) == (
        '{"a":[1,null,"é\\u003c\\u0026\\u003e\\u2028"]}'.encode()
    )
