"""The watch of a topic: what its page gets, and what it costs others."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from gnsqsync import NsqdHTTP
from gnsqsync.admin import Admin
from gnsqsync.admin.watch import _most_watches, decoded
from gnsqsync.embedded import Nsqd
from gnsqsync.envelope import MAGIC, encode
from tests.component.admin.test_pages import address, ask, cluster, get, made, nsqd
from tests.support.waiting import eventually

__all__ = ["cluster", "made", "nsqd"]


class Watch:
    """A page that watches, as the web server sees it."""

    def __init__(self, admin: Admin, topic: str, **environ: str) -> None:
        asked: dict[str, Any] = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": f"/watch/{topic}/events",
            "QUERY_STRING": "",
            "REMOTE_ADDR": "127.0.0.1",
            "HTTP_HOST": "127.0.0.1:4171",
            "HTTP_ACCEPT_ENCODING": "gzip",
            **environ,
        }
        self.head: list[Any] = []
        self._parts = iter(admin(asked, lambda *head: self.head.extend(head)))

    def until(self, kind: str) -> Any:
        """The data of the next event of this kind."""
        for part in self._parts:
            name, data = part.decode().strip().split("\n")
            if name == f"event: {kind}":
                return json.loads(data.removeprefix("data: "))
        raise AssertionError(f"the watch ended without {kind}")

    def messages(self) -> list[dict[str, Any]]:
        """The next messages."""
        while not (found := self.until("messages")["messages"]):
            pass
        return list(found)

    def close(self) -> None:
        self._parts.close()  # type: ignore[attr-defined]


@pytest.fixture
def watching() -> Iterator[Callable[..., Watch]]:
    watches: list[Watch] = []

    def watch(*arguments: Any, **environ: str) -> Watch:
        watches.append(Watch(*arguments, **environ))
        return watches[-1]

    yield watch
    for each in watches:
        each.close()
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("gnsqsync") and "admin" not in name]


Watching = Callable[..., Watch]
Cluster = tuple[Admin, NsqdHTTP]


def channels(http: NsqdHTTP, topic: str = "orders") -> list[str]:
    return [each.channel_name for each in http.stats(topic).topics[0].channels]


def test_new_messages_are_shown_and_others_get_them_as_before(
    cluster: Cluster, watching: Watching
) -> None:
    admin, http = cluster
    watch = watching(admin, "orders")
    assert watch.until("began") == {"sample": 100}
    http.pub("orders", b'{"id": 5}')
    (message,) = watch.messages()
    assert (message["kind"], message["text"]) == ("json", '{\n  "id": 5\n}')
    assert (message["size"], message["attempts"], message["is_cut"]) == (9, 1, False)
    assert dict(watch.head[1])["Content-Type"].startswith("text/event-stream")
    assert "Content-Encoding" not in dict(watch.head[1])
    archive = http.stats("orders", "archive").topics[0].channels[0]
    assert (archive.depth, archive.requeue_count) == (2, 0)


def test_headers_are_shown_beside_the_body(cluster: Cluster, watching: Watching) -> None:
    admin, http = cluster
    lookalike = MAGIC + b"\0\5hello world"
    watch = watching(admin, "orders")
    watch.until("began")
    http.pub("orders", encode({"key": "7", "note": "a\nb"}, b'{"id": 5}'))
    (message,) = watch.messages()
    assert (message["kind"], message["text"]) == ("json", '{\n  "id": 5\n}')
    assert (message["headers"], message["size"]) == ("key: 7\nnote: a\\nb", 9)
    http.pub("orders", lookalike)
    (message,) = watch.messages()
    assert (message["kind"], message["headers"], message["size"]) == ("hex", "", len(lookalike))
    watch.close()
    raw = watching(admin, "orders", QUERY_STRING="raw=1")
    raw.until("began")
    http.pub("orders", encode({"key": "7"}, b'{"id": 5}'))
    (message,) = raw.messages()
    assert (message["kind"], message["headers"]) == ("hex", "")


def test_the_page_leads_to_the_bytes_and_back(cluster: Cluster) -> None:
    assert 'href="/watch/orders?raw=1"' in get(cluster[0], "/watch/orders")[2]
    raw = ask(cluster[0], "GET", "/watch/orders", b"", QUERY_STRING="raw=1")[2]
    assert 'data-events="/watch/orders/events?raw=1"' in raw
    assert 'href="/watch/orders"' in raw


def test_the_channel_ends_with_the_watch(cluster: Cluster, watching: Watching) -> None:
    admin, http = cluster
    watch = watching(admin, "orders")
    watch.until("messages")
    assert len(channels(http)) == 2
    watch.close()
    eventually(lambda: channels(http) == ["archive"])


def test_many_messages_are_counted_and_not_all_shown(cluster: Cluster, watching: Watching) -> None:
    admin, http = cluster
    watch = watching(admin, "orders")
    watch.until("messages")
    http.mpub("orders", [b"x" * 10_000] * 500)
    shown = passed = 0
    while shown + passed < 500:
        found = watch.until("messages")
        assert len(found["messages"]) <= 10
        assert all(len(each["text"]) == 4096 and each["is_cut"] for each in found["messages"])
        shown += len(found["messages"])
        passed += found["passed"]
    assert shown + passed == 500
    assert passed > 400


def test_a_topic_without_channels_keeps_its_messages(cluster: Cluster, watching: Watching) -> None:
    admin, http = cluster
    http.pub("jobs", b"waits for the first channel")
    assert "the topic has no channel there" in watching(admin, "jobs").until("end")
    (topic,) = http.stats("jobs").topics
    assert (topic.depth, topic.channels) == (1, ())


def test_a_watch_ends_when_its_channel_would_be_the_only_one(
    cluster: Cluster, watching: Watching
) -> None:
    admin, http = cluster
    watch = watching(admin, "orders")
    watch.until("messages")
    http.delete_channel("orders", "archive")
    assert "the topic has no channel there" in watch.until("end")


def test_a_watch_does_not_create_a_deleted_topic(cluster: Cluster, watching: Watching) -> None:
    admin, http = cluster
    watch = watching(admin, "orders")
    watch.until("messages")
    http.delete_topic("orders")
    watch.until("end")
    assert http.stats().topics == ()


def test_no_such_topic(cluster: Cluster, watching: Watching) -> None:
    admin, http = cluster
    assert watching(admin, "none").until("end")
    assert [topic.topic_name for topic in http.stats().topics] == ["orders"]


def test_an_invalid_name(cluster: Cluster) -> None:
    assert get(cluster[0], "/watch/a b/events")[0] == "400 Bad Request"


@pytest.mark.parametrize(
    "environ",
    [
        {"REMOTE_ADDR": "10.0.0.5"},
        {"HTTP_SEC_FETCH_SITE": "cross-site"},
        {"HTTP_ORIGIN": "http://evil.example"},
    ],
)
def test_who_may_not_act_may_not_watch(cluster: Cluster, environ: dict[str, str]) -> None:
    admin, http = cluster
    assert ask(admin, "GET", "/watch/orders/events", b"", **environ)[0] == "403 Forbidden"
    assert channels(http) == ["archive"]


def test_an_nsqd_that_lets_nobody_in(made: Callable[..., Admin], watching: Watching) -> None:
    server = Nsqd(auth_http_address=["127.0.0.1:1"])
    with server, NsqdHTTP(server.http_address) as http:
        http.create_topic("orders")
        http.create_channel("orders", "archive")
        admin = made(nsqd_http_address=[address(http)])
        assert "AUTH" in watching(admin, "orders").until("end")


def test_a_watch_never_takes_the_last_thread(
    cluster: Cluster, made: Callable[..., Admin], watching: Watching
) -> None:
    first = watching(cluster[0], "orders")
    first.until("began")
    refused = "A page watches already. Close it first."
    assert watching(cluster[0], "orders").until("end") == refused
    # Another nsqadmin in the same process has the same threads.
    assert watching(made(nsqd_http_address=[address(cluster[1])]), "orders").until("end") == refused
    first.close()
    watching(cluster[0], "orders").until("began")


def test_a_server_with_one_thread_has_no_watch(cluster: Cluster, watching: Watching) -> None:
    environ: dict[str, Any] = {"wsgi.multithread": False}
    assert "has one thread" in watching(cluster[0], "orders", **environ).until("end")
    assert channels(cluster[1]) == ["archive"]


@pytest.mark.parametrize(("is_patched", "most"), [(True, 20), (False, 1)])
def test_greenlets_take_more_watches(
    monkeypatch: pytest.MonkeyPatch, is_patched: bool, most: int
) -> None:
    monkey = SimpleNamespace(is_module_patched=lambda name: is_patched)
    monkeypatch.setitem(sys.modules, "gevent.monkey", monkey)
    assert _most_watches({}) == most


def test_closing_nsqadmin_ends_its_watches(cluster: Cluster, watching: Watching) -> None:
    watch = watching(cluster[0], "orders")
    watch.until("messages")
    cluster[0].close()
    assert watch.until("end") == "This nsqadmin ends."


def test_bodies_as_text_json_and_hex() -> None:
    assert decoded(b"plain\ttext\n") == ("text", "plain\ttext\n")
    assert decoded("über".encode()) == ("text", "über")
    assert decoded(b"[1, 2]") == ("json", "[\n  1,\n  2\n]")
    assert decoded(b"[1, 2") == ("text", "[1, 2")
    assert decoded(b"[" * 2000) == ("text", "[" * 2000)
    kind, text = decoded(bytes(range(20)))
    assert kind == "hex"
    assert text.splitlines()[1].split() == ["000010", "10", "11", "12", "13", "...."]
    # A body that is cut may end within a character; a whole one may not.
    assert decoded("aé".encode()[:-1], is_whole=False) == ("text", "a")
    assert decoded("aé".encode()[:-1])[0] == "hex"
    # What could turn the text around on the page, or hide in it.
    assert decoded("a\u202eb".encode())[0] == "hex"
