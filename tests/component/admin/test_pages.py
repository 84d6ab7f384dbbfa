"""The pages of nsqadmin as a browser gets them, over servers that say what they are told."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode
from wsgiref.util import setup_testing_defaults

import pytest

from gnsqsync import NsqdHTTP
from gnsqsync.admin import Admin, create_app
from gnsqsync.embedded import Nsqd
from tests.component.admin.test_cluster import Paths
from tests.support.waiting import eventually

EVIL = "<script>alert(1)</script>\"'&"
TOKEN = re.compile(r'name="token" value="([0-9a-f]{32})"')

Page = tuple[str, dict[str, str], str]


def get(admin: Admin, path: str, **environ: str) -> Page:
    return ask(admin, "GET", path, b"", **environ)


def post(admin: Admin, path: str, form: dict[str, str], **environ: str) -> Page:
    return ask(admin, "POST", path, urlencode(form).encode(), **environ)


def ask(admin: Admin, method: str, path: str, body: bytes, **environ: str) -> Page:
    path, _, query = path.partition("?")
    asked: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SERVER_PROTOCOL": "HTTP/1.1",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "REMOTE_ADDR": "127.0.0.1",
        "REMOTE_PORT": "5",
        "HTTP_HOST": "127.0.0.1:4171",
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
        **environ,
    }
    setup_testing_defaults(asked)
    found: list[Any] = []
    text = b"".join(admin(asked, lambda status, headers: found.extend((status, headers))))
    return found[0], dict(found[1]), text.decode()


@pytest.fixture
def made() -> Iterator[Callable[..., Admin]]:
    """Makes an application; all are closed, and no thread of theirs is left."""
    admins: list[Admin] = []

    def make(**options: Any) -> Admin:
        admins.append(create_app(log_level="error", **options))
        return admins[-1]

    yield make
    for admin in admins:
        admin.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("gnsqsync-admin")]


@pytest.fixture
def nsqd() -> Iterator[NsqdHTTP]:
    with Nsqd() as server, NsqdHTTP(server.http_address) as http:
        yield http


@pytest.fixture
def cluster(made: Callable[..., Admin], nsqd: NsqdHTTP) -> tuple[Admin, NsqdHTTP]:
    nsqd.create_topic("orders")
    nsqd.create_channel("orders", "archive")
    nsqd.pub("orders", b"one")
    return made(nsqd_http_address=[address(nsqd)]), nsqd


def address(nsqd: NsqdHTTP) -> str:
    return nsqd.url.partition("//")[2].rstrip("/")


PAGES = [
    "/",
    "/topics",
    "/topics/orders",
    "/topics/orders/archive",
    "/nodes",
    "/counter",
    "/lookup",
    "/publish/orders",
    "/confirm?verb=delete&topic=orders",
    "/confirm?verb=empty&topic=orders&channel=archive",
]


@pytest.mark.parametrize("path", PAGES)
def test_each_page_is_whole_and_safe(cluster: tuple[Admin, NsqdHTTP], path: str) -> None:
    status, headers, text = get(cluster[0], path)
    assert status == "200 OK"
    assert text.endswith("</html>")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["X-Frame-Options"] == "DENY"
    # Nothing from elsewhere, and nothing that the policy would stop.
    assert not re.findall(r"(?:src|href)=\"(?:https?:)?//", text)
    assert not re.findall(r"<script(?! src)|\son\w+=|\sstyle=", text)


def test_the_first_page_says_what_is_wrong(cluster: tuple[Admin, NsqdHTTP]) -> None:
    text = get(cluster[0], "/")[2]
    assert "1 of 1 topic needs a look" in text
    assert "archive has no consumers" in text
    assert "orders" not in get(cluster[0], "/?q=nothing")[2].split("</form>")[1]


def test_a_cluster_without_topics(made: Callable[..., Admin], nsqd: NsqdHTTP) -> None:
    admin = made(nsqd_http_address=[address(nsqd)])
    assert "There are no topics yet" in get(admin, "/")[2]


def test_a_cluster_that_does_not_answer(made: Callable[..., Admin]) -> None:
    admin = made(nsqd_http_address=["127.0.0.1:1"])
    status, _, text = get(admin, "/")
    assert status == "200 OK"
    assert "connection refused" in text
    assert get(admin, "/nodes")[0] == "502 Bad Gateway"


def acting(admin: Admin, **form: str) -> Page:
    """With the cookie and the token of a page that a visitor has seen."""
    _, headers, text = get(admin, "/confirm?verb=pause&topic=orders")
    cookie = headers["Set-Cookie"].partition(";")[0]
    token = TOKEN.search(text)
    assert token is not None
    return post(admin, "/do", {"token": token[1], **form}, HTTP_COOKIE=cookie)


def test_acting(cluster: tuple[Admin, NsqdHTTP]) -> None:
    admin, http = cluster
    status, _, text = acting(admin, verb="pause", topic="orders")
    assert (status, "Paused: topic orders." in text) == ("200 OK", True)
    assert http.stats("orders").topics[0].paused
    acting(admin, verb="unpause", topic="orders")
    assert not http.stats("orders").topics[0].paused
    acting(admin, verb="publish", topic="orders", node=address(http), body="by hand é")
    eventually(lambda: http.stats("orders").topics[0].channels[0].depth == 2)
    acting(admin, verb="empty", topic="orders", channel="archive")
    assert http.stats("orders").topics[0].channels[0].depth == 0
    acting(admin, verb="delete", topic="orders", channel="archive")
    assert http.stats("orders").topics[0].channels == ()
    acting(admin, verb="delete", topic="orders")
    assert http.stats().topics == ()


def test_publishing_goes_to_an_nsqd_of_the_topic(cluster: tuple[Admin, NsqdHTTP]) -> None:
    status, _, text = acting(
        cluster[0], verb="publish", topic="orders", node="127.0.0.1:1", body="x"
    )
    assert (status, "127.0.0.1:1 has no topic orders" in text) == ("400 Bad Request", True)


def test_a_name_that_is_none(cluster: tuple[Admin, NsqdHTTP]) -> None:
    status, _, text = acting(cluster[0], verb="create", topic="a b")
    assert (status, "A name has 1 to 64" in text) == ("400 Bad Request", True)


def test_a_form_without_its_token_does_nothing(cluster: tuple[Admin, NsqdHTTP]) -> None:
    admin, nsqd = cluster
    form = {"verb": "delete", "topic": "orders"}
    for given in ({}, {"token": ""}, {"token": "0" * 32}):
        status, _, text = post(admin, "/do", {**form, **given})
        assert (status, "too old" in text) == ("403 Forbidden", True)
    cookie = get(admin, "/")[1]["Set-Cookie"].partition(";")[0]
    assert post(admin, "/do", form, HTTP_COOKIE=cookie)[0] == "403 Forbidden"
    assert len(nsqd.stats().topics) == 1


def test_the_cookie_is_for_this_site_only(cluster: tuple[Admin, NsqdHTTP]) -> None:
    cookie = get(cluster[0], "/")[1]["Set-Cookie"]
    assert cookie.endswith("; Path=/; HttpOnly; SameSite=Strict")


ELSEWHERE = [
    {"REMOTE_ADDR": "10.0.0.5"},
    # A proxy on this machine, and a foreign name that leads here.
    {"HTTP_HOST": "nsq.example.com"},
    {"HTTP_HOST": "localhost.example.com:4171"},
    {"HTTP_X_FORWARDED_FOR": "10.0.0.5"},
    {"HTTP_SEC_FETCH_SITE": "cross-site"},
    {"HTTP_ORIGIN": "http://evil.example"},
    {"HTTP_ORIGIN": "null"},
]


@pytest.mark.parametrize("environ", ELSEWHERE)
def test_who_may_not_act(cluster: tuple[Admin, NsqdHTTP], environ: dict[str, str]) -> None:
    admin, nsqd = cluster
    _, headers, _ = get(admin, "/")
    cookie = headers["Set-Cookie"].partition(";")[0]
    form = {"token": cookie.partition("=")[2], "verb": "delete", "topic": "orders"}
    assert post(admin, "/do", form, HTTP_COOKIE=cookie, **environ)[0] == "403 Forbidden"
    body = b'{"action":"pause"}'
    status, _, text = ask(admin, "POST", "/api/topics/orders", body, **environ)
    assert (status, text) == ("403 Forbidden", '{"message":"FORBIDDEN"}')
    assert not nsqd.stats().topics[0].paused


def test_read_only(made: Callable[..., Admin], nsqd: NsqdHTTP) -> None:
    nsqd.create_topic("orders")
    admin = made(nsqd_http_address=[address(nsqd)], read_only=True)
    text = get(admin, "/topics/orders")[2]
    assert "Read only" in text
    assert "/confirm" not in text
    assert ask(admin, "DELETE", "/api/topics/orders", b"")[0] == "403 Forbidden"
    assert len(nsqd.stats().topics) == 1


def test_hostile_names_are_text(made: Callable[..., Admin]) -> None:
    """nsqlookupd checks no broadcast address, and an nsqd may be anybody's."""
    client = {
        "hostname": EVIL,
        "client_id": EVIL,
        "remote_address": EVIL,
        "user_agent": EVIL,
        "version": EVIL,
        "auth_identity": EVIL,
        "auth_identity_url": "javascript:alert(1)",
        "authed": True,
    }
    channel = {"channel_name": EVIL, "depth": 3, "client_count": 1, "clients": [client]}
    topic = {"topic_name": EVIL, "channels": [channel]}
    info = {
        "hostname": EVIL,
        "broadcast_address": "127.0.0.1",
        "http_port": 1,
        "tcp_port": 2,
        "version": EVIL,
    }
    server = Paths({"/stats": {"topics": [topic]}, "/info": info})
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        info["http_port"] = server.server_port
        admin = made(nsqd_http_address=[server.address])
        paths = ("/", "/nodes", f"/nodes/{server.address}", f"/topics/{EVIL}".replace("/s", "%2Fs"))
        for path in (*paths, "/confirm?verb=delete&topic=%3Cscript%3E", "/?q=%3Cscript%3E"):
            text = get(admin, path)[2]
            assert "<script>" not in text
            assert "javascript:" not in text
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_headers_take_no_lines_from_a_name(cluster: tuple[Admin, NsqdHTTP]) -> None:
    for path in ("/topics/a\r\nX: y", "/nodes/a\nSet-Cookie: b"):
        _, headers, _ = get(cluster[0], path)
        assert not [value for value in headers.values() if "\n" in value]


def test_large_bodies(cluster: tuple[Admin, NsqdHTTP]) -> None:
    status, _, text = ask(cluster[0], "POST", "/api/topics", b"x" * 10_000_000)
    assert (status, "TOO_LARGE" in text) == ("413 Request Entity Too Large", True)
    assert ask(cluster[0], "POST", "/do", b"x" * 10_000_000)[0] == "403 Forbidden"


def test_assets(cluster: tuple[Admin, NsqdHTTP]) -> None:
    admin = cluster[0]
    for path, kind in (
        ("/static/base.css", "text/css; charset=utf-8"),
        ("/fonts/base.css", "text/css; charset=utf-8"),
        ("/static/main.js", "text/javascript; charset=utf-8"),
        ("/static/favicon.svg", "image/svg+xml"),
    ):
        status, headers, _ = get(admin, path)
        assert (status, headers["Content-Type"]) == ("200 OK", kind)
    for path in ("/static/none.js", "/static/..", "/static/../views.py", "/static/.css"):
        assert get(admin, path)[0].startswith("404")


def test_mounted_in_another_application(cluster: tuple[Admin, NsqdHTTP]) -> None:
    text = get(cluster[0], "/topics/orders", SCRIPT_NAME="/inner")[2]
    links = re.findall(r'href="([^"#][^"]*)"', text)
    assert links
    assert all(link.startswith("/inner/") for link in links)


def test_below_a_path_of_flask(cluster: tuple[Admin, NsqdHTTP]) -> None:
    """As the guide has it."""
    flask = pytest.importorskip("flask")
    from werkzeug.middleware.dispatcher import DispatcherMiddleware
    from werkzeug.test import Client

    app = flask.Flask(__name__)
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/nsq": cluster[0]})
    browser = Client(app)
    environ = {"REMOTE_ADDR": "127.0.0.1"}
    page = browser.get("/nsq/confirm?verb=pause&topic=orders", environ_base=environ)
    assert page.headers["Set-Cookie"].endswith("Path=/nsq; HttpOnly; SameSite=Strict")
    token = TOKEN.search(page.text)
    assert token is not None
    form = {"token": token[1], "verb": "pause", "topic": "orders"}
    done = browser.post("/nsq/do", data=form, environ_base=environ)
    assert (done.status_code, "Paused: topic orders." in done.text) == (200, True)
    assert browser.get("/nsq", environ_base=environ).status_code == 200
    assert cluster[1].stats("orders").topics[0].paused


def test_below_a_base_path(made: Callable[..., Admin]) -> None:
    admin = made(nsqd_http_address=["127.0.0.1:1"], base_path="adm/")
    assert get(admin, "/adm")[0] == "200 OK"
    status, headers, _ = get(admin, "/adm/")
    assert (status, headers["Location"]) == ("301 Moved Permanently", "/adm")
    assert 'href="/adm/static/base.css"' in get(admin, "/adm")[2]


def test_looks_end_when_nobody_watches(
    cluster: tuple[Admin, NsqdHTTP], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsqsync.admin.overview._INTERVAL", 0.05)
    get(cluster[0], "/")

    def looks() -> bool:
        return any(t.name == "gnsqsync-admin-overview" for t in threading.enumerate())

    assert looks()
    # Now the page was asked for too long ago.
    monkeypatch.setattr("gnsqsync.admin.overview._WATCHED", 0.0)
    eventually(lambda: not looks())
    monkeypatch.undo()
    assert "orders" in get(cluster[0], "/")[2]
