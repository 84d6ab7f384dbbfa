"""The pages of nsqadmin as a browser gets them, over servers that say what they are told."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote, urlencode
from wsgiref.util import setup_testing_defaults

import pytest

from gnsqsync import NsqdHTTP
from gnsqsync.admin import Admin, create_app
from gnsqsync.embedded import Nsqd
from tests.component.admin.test_cluster import Paths
from tests.support.servers import Pool
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
    """Make an application; all are closed, and no thread of theirs is left."""
    admins: list[Admin] = []

    def make(**options: Any) -> Admin:
        admins.append(create_app(log_level="error", **options))
        return admins[-1]

    yield make
    for admin in admins:
        admin.close()

    def left() -> list[str]:
        names = [thread.name for thread in threading.enumerate()]
        return [name for name in names if name.startswith("gnsqsync-admin")]

    # A request that an nsqd on a busy machine answers late ends with its answer.
    eventually(lambda: not left(), describe=left)


@pytest.fixture
def nsqd(server_pool: Pool) -> Iterator[NsqdHTTP]:
    """Yield the nsqd that all tests of nsqadmin share: each finds it without a topic."""
    host, port = server_pool.get("embedded", "nsqd", (), "nsqadmin").http_address
    with NsqdHTTP(f"{host}:{port}") as http:
        yield http
        for topic in http.stats().topics:
            http.delete_topic(topic.topic_name)


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


def test_an_invalid_name(cluster: tuple[Admin, NsqdHTTP]) -> None:
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


def test_a_look_that_goes_on_while_nsqadmin_closes_leaves_nothing(
    cluster: tuple[Admin, NsqdHTTP], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fixture looks for threads of nsqadmin."""
    asked: Any = cluster[0]._cluster
    nodes, cut = asked.nodes, asked.cut
    looks, is_cut = threading.Event(), threading.Event()

    def nodes_until_it_closes() -> Any:
        found = nodes()
        looks.set()
        assert is_cut.wait(30)
        return found

    def cut_and_go_on() -> None:
        cut()
        is_cut.set()

    monkeypatch.setattr(asked, "nodes", nodes_until_it_closes)
    monkeypatch.setattr(asked, "cut", cut_and_go_on)
    visitor = threading.Thread(target=get, args=(cluster[0], "/"))
    visitor.start()
    assert looks.wait(30)
    cluster[0].close()
    visitor.join()
    assert "gnsqsync-admin" not in [thread.name for thread in threading.enumerate()]


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


@pytest.mark.parametrize("keeps", [True, False])
def test_below_a_base_path(made: Callable[..., Admin], nsqd: NsqdHTTP, keeps: bool) -> None:
    """A proxy keeps the base path, or cuts it off; every link leads to a page through it."""
    nsqd.create_topic("orders")
    nsqd.create_channel("orders", "archive")
    admin = made(nsqd_http_address=[address(nsqd)], base_path="adm/")

    def through(path: str) -> Page:
        assert path == "/adm" or path.startswith("/adm/")
        asked, mark, query = path.partition("?")
        asked = unquote(asked) if keeps else unquote(asked.removeprefix("/adm")) or "/"
        return get(admin, asked + mark + query)

    assert through("/adm")[0] == "200 OK"
    seen: set[str] = set()
    waiting = ["/adm/"]
    while waiting:
        path = waiting.pop()
        status, _, text = through(path)
        assert status == "200 OK", path
        seen.add(path)
        links = re.findall(r'(?:href|src|action|data-events)="([^"#]+)"', text)
        meant = {link.replace("&amp;", "&") for link in links if not link.startswith("/adm/do")}
        waiting += sorted(meant - seen - {*waiting} - {"/adm/watch/orders/events"})
    assert {"/adm/topics/orders/archive", "/adm/static/main.js", "/adm/publish/orders"} <= seen
    assert '"topics":["orders"]' in through("/adm/api/topics")[2]
    status, headers, _ = through("/adm/topics/orders/")
    assert (status, headers["Location"]) == ("301 Moved Permanently", "/adm/topics/orders")
    assert through("/adm/")[1]["Set-Cookie"].endswith("; Path=/adm; HttpOnly; SameSite=Strict")


MISSING = [
    ("/topics/order", "/topics/orders"),
    ("/topics/ORDERS", "/topics/orders"),
    ("/topics/zzz", ""),
    ("/topics/orders/archive1", "/topics/orders/archive"),
    ("/topics/orders/zzz", "/topics/orders"),
    ("/topics/order/archive", "/topics/orders"),
    ("/nodes/zzz", ""),
    ("/publish/order", "/topics/orders"),
    ("/watch/order", "/topics/orders"),
    ("/confirm?verb=delete&topic=order", "/topics/orders"),
    ("/confirm?verb=pause&topic=orders&channel=archive1", "/topics/orders/archive"),
    ("/nothing/here", ""),
]


@pytest.mark.parametrize(("path", "near"), MISSING)
def test_missing_things_have_a_page(cluster: tuple[Admin, NsqdHTTP], path: str, near: str) -> None:
    status, headers, text = get(cluster[0], path, HTTP_ACCEPT="text/html,*/*")
    assert (status, headers["Content-Type"]) == ("404 Not Found", "text/html; charset=utf-8")
    assert "message" not in text
    assert f'<a href="{near}">' in text if near else "Do you mean" not in text


def test_nothing_is_said_to_be_done_to_what_is_not_there(cluster: tuple[Admin, NsqdHTTP]) -> None:
    for form in (
        {"verb": "pause", "topic": "order"},
        {"verb": "empty", "topic": "orders", "channel": "archive1"},
        {"verb": "delete", "topic": "order"},
    ):
        status, _, text = acting(cluster[0], **form)
        assert (status, "Do you mean" in text) == ("404 Not Found", True)


def test_names_that_differ_in_case_alone_are_all_suggested(cluster: tuple[Admin, NsqdHTTP]) -> None:
    cluster[1].create_topic("Orders")
    text = get(cluster[0], "/topics/order")[2]
    assert '<a href="/topics/orders">' in text and '<a href="/topics/Orders">' in text


def test_names_of_dots_have_links_that_a_browser_keeps(cluster: tuple[Admin, NsqdHTTP]) -> None:
    """A browser takes "/topics/.." for "/", and "%2e%2e" as well."""
    admin, http = cluster
    http.create_topic("..")
    http.create_channel("..", ".")
    assert 'href="/topics/%252E%252E"' in get(admin, "/")[2]
    # A server decodes a path once.
    text = get(admin, "/topics/%2E%2E")[2]
    assert "<title>.. · nsqadmin" in text and 'href="/topics/%252E%252E/%252E"' in text
    assert "<title>. of .. · nsqadmin" in get(admin, "/topics/%2E%2E/%2E")[2]


def test_the_question_names_all_messages_that_are_lost(cluster: tuple[Admin, NsqdHTTP]) -> None:
    """Deferred messages and those in flight go with a channel, as nsqd empties it whole."""
    admin, http = cluster
    http.pub("orders", b"later", defer=60)
    eventually(lambda: http.stats("orders").topics[0].channels[0].deferred_count == 1)
    lost = "<b>1</b> waiting, <b>0</b> in flight, <b>1</b> deferred"
    assert lost in get(admin, "/confirm?verb=empty&topic=orders&channel=archive")[2]
    assert lost in get(admin, "/confirm?verb=delete&topic=orders&channel=archive")[2]
    assert f"archive: {lost}" in get(admin, "/confirm?verb=delete&topic=orders")[2]


def test_a_channel_that_one_nsqd_alone_has_is_paused_there(
    made: Callable[..., Admin], nsqd: NsqdHTTP
) -> None:
    """The answer 404 of the other nsqd is no failure of the action."""
    with Nsqd() as server, NsqdHTTP(server.http_address) as other:
        for each in (nsqd, other):
            each.create_topic("orders")
        other.create_channel("orders", "audit")
        admin = made(nsqd_http_address=[address(nsqd), server.http_address])
        text = acting(admin, verb="pause", topic="orders", channel="audit")[2]
        assert "Paused: channel audit of orders." in text
        assert "Not everything" not in text
        assert other.stats("orders").topics[0].channels[0].paused
    # The first nsqd has done it, and the second one has ended.
    text = acting(admin, verb="pause", topic="orders")[2]
    assert "Servers that are not named here have done it." in text
    text = acting(admin, verb="publish", topic="orders", node=address(nsqd), body="")[2]
    assert "MSG_EMPTY" in text and "have done it" not in text


def test_links_of_the_api_stay_json(cluster: tuple[Admin, NsqdHTTP]) -> None:
    status, _, text = get(cluster[0], "/api/nothing", HTTP_ACCEPT="text/html")
    assert (status, text) == ("404 Not Found", '{"message":"NOT_FOUND"}')
    assert get(cluster[0], "/nothing")[2] == '{"message":"NOT_FOUND"}'
    status, _, text = get(cluster[0], "/confirm?verb=x", HTTP_ACCEPT="text/html")
    assert (status, "This link is not complete" in text) == ("400 Bad Request", True)


LISTED = {
    "hostname": "box",
    "broadcast_address": "127.0.0.1",
    "tcp_port": 2,
    "http_port": 1,
    "version": "1.3.0",
    "topics": ["away"],
    "tombstones": [False],
}


@pytest.fixture
def lookupd() -> Iterator[Paths]:
    """Lists the topic ``away`` of an nsqd that cannot be reached, and ``made`` of none."""
    server = Paths({"/nodes": {"producers": [LISTED]}, "/topics": {"topics": ["away", "made"]}})
    server.answers["/lookup"] = {"channels": [], "producers": [LISTED]}
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_topic_whose_nsqd_is_away_is_listed(made: Callable[..., Admin], lookupd: Paths) -> None:
    admin = made(lookupd_http_address=[lookupd.address])
    text = get(admin, "/")[2]
    assert 'href="/topics/away"' in text
    assert "nsqd 127.0.0.1:1 cannot be reached" in text
    assert "--broadcast-address" in text
    assert "no registered nsqd has it" in text and 'href="/topics/made"' in text
    for wrong in ("There are no topics", "Create one", ">good<", "Nothing is wrong"):
        assert wrong not in text
    status, _, text = get(admin, "/topics/away")
    assert (status, "--broadcast-address" in text) == ("502 Bad Gateway", True)


def test_a_topic_that_nsqlookupd_alone_knows(made: Callable[..., Admin], lookupd: Paths) -> None:
    lookupd.answers["/lookup"] = {"channels": [], "producers": []}
    admin = made(lookupd_http_address=[lookupd.address])
    status, _, text = get(admin, "/topics/made")
    assert (status, "its first message makes it" in text) == ("404 Not Found", True)
    # A stopped nsqd unregisters, and its messages are still on its disk.
    assert "If an nsqd that had it has stopped" in text
    status, _, text = get(admin, "/confirm?verb=delete&topic=made")
    assert (status, "The nsqlookupds forget it" in text) == ("200 OK", True)
    assert "Some requests failed" not in text


def test_an_nsqlookupd_without_an_nsqd(made: Callable[..., Admin], lookupd: Paths) -> None:
    """The likely cause is on the pages, and nothing is called good."""
    lookupd.answers |= {"/nodes": {"producers": []}, "/topics": {"topics": []}}
    admin = made(lookupd_http_address=[lookupd.address])
    for path in ("/", "/nodes", "/counter"):
        assert "start each nsqd with --lookupd-tcp-address" in get(admin, path)[2], path
    text = get(admin, "/")[2]
    for wrong in ("There are no topics", "Nothing is wrong", "Create one", "0 topics"):
        assert wrong not in text


def test_a_tombstone_names_the_messages_of_its_nsqd(
    made: Callable[..., Admin], lookupd: Paths, nsqd: NsqdHTTP
) -> None:
    nsqd.create_topic("orders")
    nsqd.mpub("orders", [b"1", b"2"])
    where = address(nsqd)
    listed = {**LISTED, "http_port": int(where.rpartition(":")[2]), "tcp_port": 3}
    lookupd.answers["/nodes"] = {"producers": [LISTED, listed]}
    admin = made(lookupd_http_address=[lookupd.address])
    asked = "/confirm?verb=tombstone&topic=orders&node="
    assert "<b>2</b> waiting in the topic itself" in get(admin, asked + where)[2]
    status, _, text = get(admin, f"{asked}127.0.0.1:1")
    assert (status, "are not counted here" in text) == ("200 OK", True)
    assert get(admin, f"{asked}127.0.0.1:2")[0] == "404 Not Found"
    assert get(admin, asked)[0] == "400 Bad Request"


def test_an_nsqlookupd_that_fails_hides_no_topic_in_silence(
    made: Callable[..., Admin], lookupd: Paths
) -> None:
    """A list of topics without an nsqd has a button to delete them."""
    lookupd.answers["/lookup"] = {"producers": 5}
    text = get(made(lookupd_http_address=[lookupd.address]), "/lookup")[2]
    assert "Not known: a request to an nsqlookupd failed." in text
    assert "None." not in text and "verb=delete" not in text


def test_an_nsqd_that_is_silent_makes_nothing_good(
    made: Callable[..., Admin], nsqd: NsqdHTTP, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnsqsync.admin.overview._INTERVAL", 0.05)
    monkeypatch.setattr("gnsqsync.admin.overview._SHARE", 0.0)
    nsqd.create_topic("orders")
    admin = made(nsqd_http_address=[address(nsqd), "127.0.0.1:1"])
    eventually(lambda: "good as far as seen" in get(admin, "/")[2])
    text = get(admin, "/")[2]
    assert ">good<" not in text
    assert "does --nsqd-http-address name its HTTP port" in text


def test_the_first_look_knows_consumers_with_rdy_0(made: Callable[..., Admin]) -> None:
    channel: dict[str, Any] = {"channel_name": "c", "depth": 4394, "client_count": 1}
    channel["clients"] = [{"hostname": "box", "ready_count": 0}]
    quiet = {"topic_name": "quiet", "channels": []}
    info = {"hostname": "box", "broadcast_address": "127.0.0.1", "tcp_port": 2, "version": "1.3.0"}
    server = Paths({"/stats": {"topics": [{"topic_name": "t", "channels": [channel]}, quiet]}})
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        server.answers["/info"] = {**info, "http_port": server.server_port}
        text = get(made(nsqd_http_address=[server.address]), "/")[2]
        assert "c: consumers take nothing (RDY 0 or backoff)" in text
        # Time-outs and requeues of the other topic are not known yet.
        assert ">good<" not in text and "first look" in text
        channel["clients"][0]["ready_count"] = 1
        assert "take nothing" not in get(made(nsqd_http_address=[server.address]), "/")[2]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_dead_letters_on_the_first_page(made: Callable[..., Admin], nsqd: NsqdHTTP) -> None:
    nsqd.create_topic("sales.made")
    nsqd.mpub("sales.made.dead", [b"1", b"2", b"3"])
    text = get(made(nsqd_http_address=[address(nsqd)]), "/")[2]
    assert "3 dead letters of sales.made" in text
    assert "there is no channel" not in text


@pytest.mark.parametrize(
    ("form", "level"), [({"verb": "empty"}, "WARNING"), ({"verb": "pause"}, "INFO")]
)
def test_the_log_says_who(
    nsqd: NsqdHTTP, caplog: pytest.LogCaptureFixture, form: dict[str, str], level: str
) -> None:
    nsqd.create_topic("orders")
    admin = create_app(nsqd_http_address=[address(nsqd)])
    with caplog.at_level("INFO", "gnsqsync.admin"):
        acting(admin, topic="orders", **form)
    admin.close()
    (line,) = [each for each in caplog.records if "topic orders" in each.message]
    assert (line.levelname, "by 127.0.0.1:5" in line.message) == (level, True)


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
