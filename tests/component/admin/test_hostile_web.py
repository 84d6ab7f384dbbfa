"""Requests to nsqadmin that mean no good, or that no browser sends."""

from __future__ import annotations

import contextlib
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gnsqsync.admin import AdminOptions, create_app
from gnsqsync.admin.actions import Notifications, Visitor
from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.options import OptionsError
from tests.support.ports import REFUSED_PORT
from tests.support.serving import fake_server
from tests.support.waiting import eventually

ORDERS = json.dumps({"topic": "orders"}).encode()


class Answer(dict[str, Any]):
    """``status`` as a number, headers by their names, ``body``."""


def ask(app: Any, method: str, path: str, body: bytes = b"", **environ: str) -> Answer:
    """As a browser on this machine does it; ``environ`` says what differs."""
    found = Answer()

    def start(status: str, headers: list[tuple[str, str]]) -> None:
        found.update(headers, status=int(status[:3]))

    asked = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "CONTENT_LENGTH": str(len(body)),
        "REMOTE_ADDR": "127.0.0.1",
        "REMOTE_PORT": "5",
        "HTTP_HOST": "127.0.0.1:4171",
        "wsgi.input": io.BytesIO(body),
        **environ,
    }
    found["body"] = b"".join(app(asked, start))
    return found


@contextlib.contextmanager
def admin(**options: Any) -> Iterator[Any]:
    """Of a cluster that takes everything."""
    with fake_server() as server:
        server.answer({"producers": [], "topics": []})
        app = create_app(lookupd_http_address=[server.address], **options)
        try:
            yield app
        finally:
            app.close()


@pytest.mark.parametrize(
    ("status", "environ"),
    [
        (200, {}),
        (200, {"HTTP_HOST": "localhost"}),
        (200, {"HTTP_HOST": "[::1]:4171", "REMOTE_ADDR": "::1"}),
        (200, {"HTTP_ORIGIN": "http://127.0.0.1:4171"}),
        (200, {"HTTP_REFERER": "http://localhost:4171/topics"}),
        (200, {"HTTP_SEC_FETCH_SITE": "none"}),
        # A proxy has changed the Host, and who sent it is on another machine.
        (403, {"HTTP_SEC_FETCH_SITE": "same-origin", "HTTP_ORIGIN": "https://nsq.example"}),
        (403, {"HTTP_SEC_FETCH_SITE": "same-origin", "HTTP_REFERER": "https://nsq.example/"}),
        (403, {"HTTP_X_FORWARDED_FOR": "127.0.0.1"}),
        (403, {"HTTP_X_FORWARDED_PROTO": "https"}),
        (403, {"HTTP_X_FORWARDED_USER": ""}),
        (403, {"HTTP_X_REAL_IP": "127.0.0.1"}),
        (403, {"HTTP_CF_CONNECTING_IP": "127.0.0.1"}),
        (403, {"SERVER_PROTOCOL": "HTTP/1.0"}),
        (403, {"HTTP_SEC_FETCH_SITE": "same-site"}),
        (403, {"HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_ORIGIN": "http://127.0.0.1:4171"}),
        (403, {"HTTP_ORIGIN": "http://127.0.0.1:8000"}),
        (403, {"HTTP_ORIGIN": "null"}),
        (403, {"HTTP_ORIGIN": "http://[evil"}),
        # The name of a foreign page has the address 127.0.0.1.
        (403, {"HTTP_HOST": "evil.example:4171", "HTTP_SEC_FETCH_SITE": "same-origin"}),
        (403, {"HTTP_HOST": ""}),
        (403, {"REMOTE_ADDR": "10.0.0.1"}),
        (403, {"REMOTE_ADDR": ""}),
    ],
)
def test_who_may_act_without_admin_user(status: int, environ: dict[str, str]) -> None:
    with admin() as app:
        assert ask(app, "POST", "/api/topics", ORDERS, **environ)["status"] == status


@pytest.mark.parametrize(
    ("status", "user"),
    [(200, "Zoë"), (403, "zoë"), (403, ""), (403, "Zoë,x"), (403, "Zoë\t"), (403, "*")],
)
def test_who_may_act_with_admin_user(status: int, user: str) -> None:
    with admin(admin_user=["Zoë"]) as app:
        header = user.encode().decode("latin-1")
        answer = ask(
            app, "POST", "/api/topics", ORDERS, HTTP_X_FORWARDED_USER=header, REMOTE_ADDR="10.0.0.1"
        )
        assert answer["status"] == status


def test_a_proxy_that_changes_the_host_keeps_named_users() -> None:
    page = {"HTTP_SEC_FETCH_SITE": "same-origin", "HTTP_ORIGIN": "https://nsq.example"}
    with admin(admin_user=["ann"]) as app:
        answer = ask(app, "POST", "/api/topics", ORDERS, HTTP_X_FORWARDED_USER="ann", **page)
        assert answer["status"] == 200


LOOKUPDS = "/config/nsqlookupd_http_addresses"
PROXIED = {"HTTP_X_FORWARDED_FOR": "203.0.113.9"}


@pytest.mark.parametrize(
    ("options", "environ", "look", "change"),
    [
        ({}, {}, 200, 200),
        ({}, PROXIED, 403, 403),
        ({}, {"REMOTE_ADDR": "10.0.0.1"}, 403, 403),
        ({"allow_config_from_cidr": ""}, PROXIED, 403, 403),
        ({"allow_config_from_cidr": "10.0.0.0/8"}, {}, 403, 403),
        # The proxy of this machine names its users.
        ({"admin_user": ["ann"]}, PROXIED, 403, 403),
        ({"admin_user": ["ann"]}, {"HTTP_X_FORWARDED_USER": ""}, 403, 403),
        ({"admin_user": ["ann"]}, {"HTTP_X_FORWARDED_USER": "bob"}, 403, 403),
        ({"admin_user": ["ann"]}, {"HTTP_X_FORWARDED_USER": "ann", **PROXIED}, 200, 200),
        (
            {"admin_user": ["ann"]},
            {"HTTP_X_FORWARDED_USER": "ann", "REMOTE_ADDR": "10.0.0.1"},
            403,
            403,
        ),
        ({"read_only": True}, {}, 200, 403),
        ({"read_only": True, "admin_user": ["ann"]}, {"HTTP_X_FORWARDED_USER": "ann"}, 200, 403),
        ({}, {"gnsqsync.admin.may_act": True, "REMOTE_ADDR": "10.0.0.1"}, 200, 200),
        ({}, {"gnsqsync.admin.may_act": False}, 403, 403),
    ],
)
def test_config_needs_the_rights_of_an_action(
    options: dict[str, Any], environ: dict[str, Any], look: int, change: int
) -> None:
    with admin(**options) as app:
        assert ask(app, "GET", LOOKUPDS, **environ)["status"] == look
        assert ask(app, "PUT", LOOKUPDS, b'["h:1"]', **environ)["status"] == change


def test_no_answer_and_no_line_of_the_log_shows_a_secret(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("DEBUG", "gnsqsync.admin")
    dead = f"127.0.0.1:{REFUSED_PORT}"
    with fake_server() as server:
        server.answer({"producers": [], "topics": []})
        app = create_app(
            lookupd_http_address=[f"pa55@{server.address}", f"pa55@{dead}"],
            graphite_url=f"http://ann:pa55@{dead}/?token=tok3n",
            notification_http_endpoint=f"http://ann:pa55@{dead}/T0/tok3n",
            log_level="debug",
        )
        with contextlib.closing(app):
            bodies = [
                ask(app, "GET", path)["body"]
                for path in (
                    "/",
                    "/lookup",
                    "/api/topics",
                    "/api/nodes",
                    "/api/topics/t",
                    LOOKUPDS,
                    "/config/graphite_url",
                    "/config/notification_http_endpoint",
                )
            ]
            bodies.append(ask(app, "POST", "/api/topics", ORDERS)["body"])
            target = "metric=rate&target=a"
            bodies.append(ask(app, "GET", "/api/graphite", QUERY_STRING=target)["body"])
            eventually(lambda: "failed to POST notification" in caplog.text)
        assert b"127.0.0.1" in b"".join(bodies)
    for text in (b"".join(bodies).decode(), caplog.text, repr(app.options)):
        assert "pa55" not in text
        assert "tok3n" not in text


def test_nobody_acts_on_a_read_only_nsqadmin() -> None:
    with admin(read_only=True, admin_user=["ann"]) as app:
        for method, path in (
            ("POST", "/api/topics"),
            ("POST", "/api/topics/t"),
            ("POST", "/api/topics/t/c"),
            ("DELETE", "/api/topics/t"),
            ("DELETE", "/api/topics/t/c"),
            ("DELETE", "/api/nodes/n:1"),
            ("PUT", "/config/nsqlookupd_http_addresses"),
        ):
            answer = ask(app, method, path, b"{}", HTTP_X_FORWARDED_USER="ann")
            assert answer["status"] == 403, path


@pytest.mark.parametrize(
    "environ",
    [
        {"HTTP_ORIGIN": "http://evil.example"},
        {"HTTP_HOST": "evil.example", "HTTP_SEC_FETCH_SITE": "same-origin"},
    ],
)
def test_a_foreign_page_does_not_configure(environ: dict[str, str]) -> None:
    with admin() as app:
        body = b'["evil.example:80"]'
        answer = ask(app, "PUT", "/config/nsqlookupd_http_addresses", body, **environ)
        assert answer["status"] == 403
        assert b"evil" not in ask(app, "GET", "/config/nsqlookupd_http_addresses")["body"]


def test_addresses_that_are_none_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    with admin() as app:
        body = json.dumps(["", "a b", "x\r\ny:1", "u:p@h:1", ":1", "h:99999999"]).encode()
        answer = ask(app, "PUT", "/config/nsqlookupd_http_addresses", body)
        assert answer["status"] == 200
        for path in ("/api/topics", "/api/nodes", "/api/topics/t"):
            assert ask(app, "GET", path)["status"] == 502
    assert "panic" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"topic":"\\ud800"}', 400),
        (b'{"topic":"t","channel":"\\udfff"}', 400),
        (b"[" * 100_000, 400),
        (b'{"topic":' + b"9" * 5000 + b"}", 400),
        (b'{"topic":NaN}', 400),
        (b"\xff\xfe", 400),
        (b'{"topic":"' + b"x" * 10_000_000 + b'"}', 413),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_hostile_bodies(body: bytes, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    with admin() as app:
        for path in ("/api/topics", "/api/topics/t"):
            assert ask(app, "POST", path, body)["status"] == status
    assert "panic" not in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/api/topics/a\r\nSet-Cookie: x=1/", "/ping\r\nX: y"])
def test_a_path_writes_no_header_and_no_line_of_the_log(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with admin() as app:
        answer = ask(app, "GET", path)
        assert not any(
            "\n" in value for name, value in answer.items() if name not in ("status", "body")
        )
        ask(app, "GET", "/nope\nFATAL: forged")
        ask(app, "POST", "/api/topics/x\nFATAL: forged", HTTP_ORIGIN="http://evil.example")
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("[nsqadmin] 2") for line in lines)


@pytest.mark.parametrize(
    "path", ["/", "/ping", "/api/topics", "/nope", "/static/base.css", "/api/"]
)
def test_every_answer_is_safe_in_a_browser(path: str) -> None:
    with admin() as app:
        answer = ask(app, "GET", path)
    policy = answer["Content-Security-Policy"].split("; ")
    assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(policy)
    assert "unsafe" not in answer["Content-Security-Policy"]
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("status", [204, 304, 401, 302, 418, 504])
def test_each_status_of_graphite_is_passed_on(status: int) -> None:
    with fake_server() as graphite:
        graphite.answer(b"" if status in (204, 304) else b"x", status)
        url = f"http://{graphite.address}"
        with admin(graphite_url=url, proxy_graphite=True) as app:
            assert ask(app, "GET", "/render")["status"] == status


def test_a_graphite_that_never_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsqsync.admin.api.GRAPHITE_LIMIT", 1000)
    with fake_server() as graphite:
        graphite.answer(b"x" * 1001)
        url = f"http://{graphite.address}"
        with admin(graphite_url=url, proxy_graphite=True) as app:
            assert ask(app, "GET", "/render")["status"] == 502
            asked = "metric=rate&target=a"
            assert ask(app, "GET", "/api/graphite", QUERY_STRING=asked)["status"] == 500


def test_an_endpoint_that_is_silent_keeps_nobody_from_ending() -> None:
    log = Log("", "fatal")
    visitor = Visitor("", "127.0.0.1:5", "", "http://127.0.0.1:4171/")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        notifications = Notifications(
            f"http://127.0.0.1:{silent.getsockname()[1]}",
            log,
            timeout=(1.5, 1.5),
            verify=True,
            cert=None,
        )
        for _ in range(1100):
            notifications.send("pause_topic", visitor, topic="t")
        began = time.monotonic()
        notifications.close(0.1)
        assert time.monotonic() - began < 1.2
        eventually(lambda: "gnsqsync-admin-notify" not in [t.name for t in threading.enumerate()])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"http_client_tls_root_ca_file": "/nope"}, "failed to read TLS root CA file /nope - "),
        (
            {"http_client_tls_cert": "/c", "http_client_tls_key": "/k"},
            "failed to LoadX509KeyPair /c, /k - ",
        ),
        (
            {"lookupd_http_address": ["http://x:4161"]},
            "failed to resolve --lookupd-http-address (http://x:4161) - address http://x:4161:"
            " too many colons in address",
        ),
    ],
)
def test_options_that_nsqadmin_refuses_at_the_start(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionsError) as caught:
        create_app(AdminOptions(**{"lookupd_http_address": ["h:1"], **options}))
    assert str(caught.value).startswith(text)
