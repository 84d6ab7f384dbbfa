"""NsqdHTTP and LookupdHTTP against servers that lie, stay silent or send garbage."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter

from gnsqsync.addresses import Address
from gnsqsync.errors import ClosedError, ConfigError, ConnectionLost, HTTPError, ProtocolError
from gnsqsync.http.clients import LookupdHTTP, NsqdHTTP, Producer
from gnsqsync.http.user_session import SessionLookupd
from gnsqsync.runtime.call import Call
from gnsqsync.runtime.threads import ThreadRuntime
from tests.support.ports import REFUSED_PORT
from tests.support.serving import Serving, SocketServer

PRODUCER = {
    "remote_address": "10.0.0.7:51234",
    "hostname": "worker",
    "broadcast_address": "10.0.0.7",
    "tcp_port": 4150,
    "http_port": 4151,
    "version": "1.3.0",
}


@pytest.fixture
def fake() -> Iterator[SocketServer]:
    server = SocketServer()
    with Serving(server):
        yield server


@contextlib.contextmanager
def raw_server(behave: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that hands its first connection, after the request arrived, to ``behave``."""

    def run() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(30)
            connection.recv(65536)
            with contextlib.suppress(OSError):
                behave(connection)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


# What is sent


def test_headers_and_parameters(fake: SocketServer) -> None:
    fake.answer({"channels": [], "producers": []})
    with LookupdHTTP(fake.address) as lookupd:
        lookupd.lookup("orders#ephemeral")
    (request,) = fake.requests
    assert (request["method"], request["path"]) == ("GET", "/lookup")
    assert request["params"] == {"topic": "orders#ephemeral"}
    assert request["headers"]["Accept"] == "application/vnd.nsq; version=1.0"
    assert request["headers"]["User-Agent"].startswith("gnsqsync/")
    assert "Authorization" not in request["headers"]


def test_path_query_and_user_info_of_the_url_are_kept(fake: SocketServer) -> None:
    fake.answer({"topics": ["a"]})
    with LookupdHTTP(f"http://ann:secret@{fake.address}/nsq/?key=k%2F1#part") as lookupd:
        assert lookupd.topics() == ("a",)
        assert "secret" not in repr(lookupd)
        assert "key" not in lookupd.url
    (request,) = fake.requests
    assert request["path"] == "/nsq/topics"
    assert request["params"] == {"key": "k/1"}
    assert request["headers"]["Authorization"] == "Basic YW5uOnNlY3JldA=="


def test_authorization_is_sent_as_a_bearer_token(fake: SocketServer) -> None:
    fake.answer({"topics": []})
    with LookupdHTTP(fake.address, authorization="t0k3n") as lookupd:
        lookupd.topics()
        assert "t0k3n" not in repr(lookupd)
    assert fake.requests[0]["headers"]["Authorization"] == "Bearer t0k3n"


def test_proxies_of_the_environment_are_ignored_unless_asked_for(
    fake: SocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{REFUSED_PORT}")
    fake.answer(b"OK", kind="text/plain")
    with LookupdHTTP(fake.address) as lookupd:
        assert lookupd.ping() == "OK"
    with LookupdHTTP(fake.address, trust_env=True) as lookupd, pytest.raises(ConnectionLost):
        lookupd.ping()


def test_every_nsqd_endpoint(fake: SocketServer) -> None:
    fake.answer(b"OK", kind="text/plain")
    with NsqdHTTP(fake.address) as nsqd:
        nsqd.ping()
        nsqd.stats_text("t", "c", include_clients=False, include_mem=False)
        nsqd.pub("t", "zwölf")
        nsqd.pub("t", b"later", defer=1.5)
        nsqd.mpub("t", [b"a\nb", "c"])
        for act in ("create", "delete", "empty", "pause", "unpause"):
            getattr(nsqd, f"{act}_topic")("t")
            getattr(nsqd, f"{act}_channel")("t", "c")
        nsqd.set_config("log_level", "debug")
        nsqd.pprof("heap")
        nsqd.set_block_rate(5)
        nsqd.free_memory()
    asked = [(r["method"], r["path"], r["params"]) for r in fake.requests]
    both = {"topic": "t", "channel": "c"}
    expected: list[tuple[str, str, dict[str, str]]] = [
        ("GET", "/ping", {}),
        ("GET", "/stats", {**both, "include_clients": "false", "include_mem": "false"}),
        ("POST", "/pub", {"topic": "t"}),
        ("POST", "/pub", {"topic": "t", "defer": "1500"}),
        ("POST", "/mpub", {"topic": "t", "binary": "true"}),
    ]
    for act in ("create", "delete", "empty", "pause", "unpause"):
        expected.append(("POST", f"/topic/{act}", {"topic": "t"}))
        expected.append(("POST", f"/channel/{act}", both))
    expected += [
        ("PUT", "/config/log_level", {}),
        ("GET", "/debug/pprof/heap", {"debug": "1"}),
        ("PUT", "/debug/setblockrate", {"rate": "5"}),
        ("POST", "/debug/freememory", {}),
    ]
    assert asked == expected
    bodies = [r["body"] for r in fake.requests if r["body"]]
    mpub = struct.pack(">ii3si1s", 2, 3, b"a\nb", 1, b"c")
    assert bodies == ["zwölf".encode(), b"later", mpub, b"debug"]


def test_every_lookupd_endpoint_that_changes_something(fake: SocketServer) -> None:
    with LookupdHTTP(fake.address) as lookupd:
        lookupd.create_topic("t")
        lookupd.delete_topic("t")
        lookupd.tombstone_topic("t", "10.0.0.7:4151")
        lookupd.tombstone_topic("t", Producer.parse(PRODUCER))
        lookupd.create_channel("t", "c")
        lookupd.delete_channel("t", "c")
    asked = [(r["method"], r["path"], r["params"]) for r in fake.requests]
    assert asked == [
        ("POST", "/topic/create", {"topic": "t"}),
        ("POST", "/topic/delete", {"topic": "t"}),
        ("POST", "/topic/tombstone", {"topic": "t", "node": "10.0.0.7:4151"}),
        ("POST", "/topic/tombstone", {"topic": "t", "node": "10.0.0.7:4151"}),
        ("POST", "/channel/create", {"topic": "t", "channel": "c"}),
        ("POST", "/channel/delete", {"topic": "t", "channel": "c"}),
    ]


@pytest.mark.parametrize(
    "call",
    [
        lambda nsqd: nsqd.pub("no spaces", b"x"),
        lambda nsqd: nsqd.pub("t\n", b"x"),
        lambda nsqd: nsqd.pub("t", b""),
        lambda nsqd: nsqd.pub("t", b"x" * 101),
        lambda nsqd: nsqd.pub("t", 7),
        lambda nsqd: nsqd.pub("t", b"x", defer=-1),
        lambda nsqd: nsqd.pub("t", b"x", defer=math.inf),
        lambda nsqd: nsqd.mpub("t", []),
        lambda nsqd: nsqd.pub("t", "caf\udce9"),
        lambda nsqd: nsqd.mpub("t", b"one body"),
        lambda nsqd: nsqd.mpub("t", [b"x", b""]),
        lambda nsqd: nsqd.mpub("t", [b"x" * 100, b"y" * 100]),
        lambda nsqd: nsqd.create_channel("t", "no/slash"),
        lambda nsqd: nsqd.stats("t?"),
        lambda nsqd: nsqd.get_config("../info"),
        lambda nsqd: nsqd.set_block_rate(-1),
        lambda nsqd: nsqd.pprof("../../topic/delete"),
    ],
)
def test_nothing_is_sent_of_what_nsqd_would_refuse(
    fake: SocketServer, call: Callable[[NsqdHTTP], None]
) -> None:
    with NsqdHTTP(fake.address, max_msg_size=100, max_body_size=200) as nsqd:
        with pytest.raises(ConfigError):
            call(nsqd)
    assert fake.connections == 0


@pytest.mark.parametrize(
    ("address", "options", "words"),
    [
        ("unix:///run/nsqlookupd.sock", {}, "nsqlookupd has none"),
        ("ftp://127.0.0.1", {}, "http://host:port"),
        ("127.0.0.1:99999", {}, "65535"),
        ("127.0.0.1:1,127.0.0.1:2", {}, "not valid"),
        (4151, {}, "host:port"),
        ("127.0.0.1", {"timeout": 0}, "timeout"),
        ("127.0.0.1", {"connect_timeout": float("nan")}, "connect_timeout"),
        ("127.0.0.1", {"authorization": "a\r\nX: y"}, "token"),
        ("http://ann@127.0.0.1", {"authorization": "token"}, "user info"),
        ("127.0.0.1", {"session": object()}, "Session"),
        ("127.0.0.1", {"tls_key_file": "key.pem"}, "tls_cert_file"),
        ("https://127.0.0.1", {"tls_ca_file": "/does/not/exist"}, "not a file"),
    ],
)
def test_wrong_options_fail_in_the_constructor(
    address: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        LookupdHTTP(address, **options)


@pytest.mark.parametrize(
    ("address", "options", "words"),
    [
        ("unix://run/nsqd.sock", {}, "no absolute path"),
        ("/run/nsqd.sock", {}, "unix:///path"),
        ("unix:///run/nsqd.sock", {"session": requests.Session()}, "session goes over TCP"),
    ],
)
def test_wrong_unix_sockets_fail_in_the_constructor(
    address: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        NsqdHTTP(address, **options)


class _UnixServer(SocketServer):
    """SocketServer on a unix socket."""

    address_family = socket.AF_UNIX

    def __init__(self, path: str) -> None:
        self.path = path
        super().__init__()

    def server_bind(self) -> None:
        self.server_address = self.path  # type: ignore[assignment]
        self.socket.bind(self.path)


@pytest.fixture
def unix_fake(tmp_path: Path) -> Iterator[_UnixServer]:
    server = _UnixServer(str(tmp_path / "http.sock"))
    with Serving(server):
        yield server


@pytest.mark.parametrize("runtime", [None, "threads", "gevent"])
def test_a_unix_socket(
    unix_fake: _UnixServer, runtime: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not even trust_env leads to a proxy.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("no_proxy", "")
    unix_fake.answer(b"OK", kind="text/plain")
    url = f"unix://{unix_fake.path}"
    with NsqdHTTP(url, runtime=runtime, authorization="token", trust_env=True) as nsqd:
        assert (nsqd.url, repr(nsqd)) == (url, f"<NsqdHTTP {url}>")
        assert nsqd.ping() == "OK"
        nsqd.pub("t", b"x", defer=1.5)
        unix_fake.answer({"message": "TOPIC_NOT_FOUND"}, 404)
        with pytest.raises(HTTPError, match=rf"404 from {url}/topic/delete\?topic=t"):
            nsqd.delete_topic("t")
    assert unix_fake.connections == 1
    ping, pub, _ = unix_fake.requests
    assert (ping["path"], ping["headers"]["Host"]) == ("/ping", "localhost")
    assert ping["headers"]["Authorization"] == "Bearer token"
    assert (pub["params"], pub["body"]) == ({"topic": "t", "defer": "1500"}, b"x")


@pytest.mark.parametrize("seconds", [math.inf, 1e11])
def test_no_time_is_too_long(fake: SocketServer, unix_fake: _UnixServer, seconds: float) -> None:
    times = {"timeout": seconds, "connect_timeout": seconds}
    for server, where in ((fake, fake.address), (unix_fake, f"unix://{unix_fake.path}")):
        server.answer(b"OK", kind="text/plain")
        with NsqdHTTP(where, **times) as nsqd:
            assert nsqd.ping() == "OK"


def test_a_unix_socket_as_an_address(unix_fake: _UnixServer) -> None:
    unix_fake.answer(b"OK", kind="text/plain")
    with NsqdHTTP(Address("", 0, unix_fake.path)) as nsqd:
        assert nsqd.ping() == "OK"


def test_a_unix_socket_where_nobody_is(tmp_path: Path) -> None:
    url = f"unix://{tmp_path}/none.sock"
    with NsqdHTTP(url) as nsqd, pytest.raises(ConnectionLost) as caught:
        nsqd.ping()
    assert f"GET {url}/ping: cannot connect to {url}: No such file" in str(caught.value)


def test_a_unix_socket_that_is_silent(tmp_path: Path) -> None:
    path = str(tmp_path / "silent.sock")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with (
            NsqdHTTP(f"unix://{path}", timeout=0.2) as nsqd,
            pytest.raises(ConnectionLost, match=r"no answer within 0\.2 s"),
        ):
            nsqd.ping()


# What comes back


def test_broken_entries_do_not_hide_the_others(
    fake: SocketServer, caplog: pytest.LogCaptureFixture
) -> None:
    broken: list[Any] = [
        None,
        7,
        [],
        {},
        {**PRODUCER, "tcp_port": -1},
        {**PRODUCER, "tcp_port": "4150"},
        {**PRODUCER, "tcp_port": True},
        {**PRODUCER, "broadcast_address": ""},
        {**PRODUCER, "broadcast_address": "a b"},
        {**PRODUCER, "hostname": 5},
    ]
    fake.answer({"channels": ["c", "bad name", 3], "producers": [*broken, PRODUCER], "more": 1})
    with LookupdHTTP(fake.address) as lookupd, caplog.at_level(logging.WARNING, "gnsqsync"):
        found = lookupd.lookup("t")
        texts = [record.getMessage() for record in caplog.records]
        lookupd.lookup("t")
    assert found.channels == ("c",)
    assert [str(p.tcp_address) for p in found.producers] == ["10.0.0.7:4150"]
    # Each text once: {} and the empty address have the same, and a poll asks again and again.
    assert len(texts) == len(set(texts)) == len(broken) + 1
    assert len(caplog.records) == len(texts)


def test_null_lists_are_empty(fake: SocketServer) -> None:
    fake.answer({"channels": None, "producers": None, "topics": None, "version": None})
    with LookupdHTTP(fake.address) as lookupd:
        assert lookupd.lookup("t").producers == ()
        assert lookupd.nodes() == lookupd.topics() == lookupd.channels("t") == ()
    with NsqdHTTP(fake.address) as nsqd:
        stats = nsqd.stats()
    assert (stats.topics, stats.producers, stats.memory) == ((), (), None)


def test_nodes_with_tombstones_of_the_wrong_length(fake: SocketServer) -> None:
    node = {**PRODUCER, "topics": ["a", 5, "b"], "tombstones": [True]}
    fake.answer({"producers": [node]})
    with LookupdHTTP(fake.address) as lookupd:
        (found,) = lookupd.nodes()
    assert (found.topics, found.tombstones) == (("a", "b"), (True, False))
    assert found.http_address == "10.0.0.7:4151"


def test_ipv6_producer() -> None:
    producer = Producer.parse({**PRODUCER, "broadcast_address": "fd00::1"})
    assert str(producer.tcp_address) == "[fd00::1]:4150"
    assert producer.http_address == "[fd00::1]:4151"


class _From(HTTPAdapter):
    """Dials from another address than the kernel would choose."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, source_address=("127.0.0.3", 0), **options)


@pytest.mark.parametrize(
    ("adapter", "host", "dials"), [(HTTPAdapter, "127.0.0.1", 1), (_From, "127.0.0.3", 0)]
)
def test_a_session_of_the_user_is_dialled_so_that_it_can_be_cut(
    fake: SocketServer,
    monkeypatch: pytest.MonkeyPatch,
    adapter: type[HTTPAdapter],
    host: str,
    dials: int,
) -> None:
    """Unless an adapter wants sockets of its own."""
    dialled: list[Address] = []
    peers: list[str] = []
    connect, accept = Call.connect, fake.get_request

    def count(call: Call, *args: Any) -> Any:
        dialled.append(args[0])
        return connect(call, *args)

    def note() -> Any:
        sock, peer = accept()
        peers.append(peer[0])
        return sock, peer

    monkeypatch.setattr(Call, "connect", count)
    monkeypatch.setattr(fake, "get_request", note)
    session = requests.Session()
    session.mount("http://", adapter())
    fake.answer(b"OK", kind="text/plain")
    with SessionLookupd(f"http://{fake.address}", lambda: session) as lookupd:
        assert lookupd.ping() == "OK"
    assert (peers, len(dialled)) == ([host], dials)


def test_the_envelope_of_old_servers(fake: SocketServer) -> None:
    data = {"channels": ["c"], "producers": [PRODUCER]}
    fake.answer({"status_code": 200, "status_txt": "OK", "data": data})
    with LookupdHTTP(fake.address) as lookupd:
        assert lookupd.lookup("t").channels == ("c",)
        fake.answer({"status_code": 404, "status_txt": "TOPIC_NOT_FOUND", "data": None})
        with pytest.raises(HTTPError) as caught:
            lookupd.lookup("t")
        assert (caught.value.status, caught.value.code) == (404, "TOPIC_NOT_FOUND")
        fake.answer({"status_code": 500, "status_txt": "INVALID_ARG_TOPIC", "data": None}, 500)
        with pytest.raises(HTTPError) as caught:
            lookupd.lookup("t")
        assert (caught.value.status, caught.value.code) == (500, "INVALID_ARG_TOPIC")


def test_stats_are_typed(fake: SocketServer) -> None:
    client = {
        "client_id": "w1",
        "ready_count": 7,
        "connect_ts": 1700000000,
        "tls": True,
        "pub_counts": [{"topic": "t", "count": 3}],
    }
    channel = {
        "channel_name": "c",
        "depth": 5,
        "in_flight_count": 2,
        "clients": [client],
        "e2e_processing_latency": {
            "count": 4,
            "percentiles": [{"quantile": 0.99, "value": 1.5e9}],
        },
    }
    topic = {"topic_name": "t", "channels": [channel], "message_count": 9, "paused": True}
    fake.answer({"health": "OK", "topics": [topic], "memory": {"heap_objects": 1}})
    with NsqdHTTP(fake.address) as nsqd:
        stats = nsqd.stats()
    assert fake.requests[0]["params"]["format"] == "json"
    (found,) = stats.topics
    assert (found.topic_name, found.message_count, found.paused) == ("t", 9, True)
    assert found.channels[0].client_count == 1
    assert found.channels[0].e2e_processing_latency.percentiles == ((0.99, 1.5),)
    assert found.channels[0].clients[0].pub_counts == (("t", 3),)
    assert stats.memory is not None
    assert stats.memory.heap_objects == 1


@pytest.mark.parametrize(
    "answer",
    [
        [],
        None,
        "text",
        {"topics": {}},
        {"topics": [None]},
        {"topics": [{"depth": "many"}]},
        {"topics": [{"depth": 1.5}]},
        {"topics": [{"channels": [{"paused": 1}]}]},
        {"topics": [{"e2e_processing_latency": []}]},
    ],
)
def test_json_of_a_wrong_shape(fake: SocketServer, answer: object) -> None:
    fake.answer(answer)
    with NsqdHTTP(fake.address) as nsqd, pytest.raises(ProtocolError):
        nsqd.stats()


@pytest.mark.parametrize("answer", [b"", b"<html>", b"{", b"\xff\xfe", b"[" * 200_000])
def test_a_body_that_is_not_json(fake: SocketServer, answer: bytes) -> None:
    fake.answer(answer)
    with LookupdHTTP(fake.address) as lookupd:
        with pytest.raises(ProtocolError, match="not JSON"):
            lookupd.nodes()


def test_an_answer_that_claims_to_be_compressed(fake: SocketServer) -> None:
    fake.answer(b"not gzip at all")
    fake.headers["Content-Encoding"] = "gzip"
    with LookupdHTTP(fake.address) as lookupd, pytest.raises(ProtocolError, match="decompress"):
        lookupd.nodes()


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (404, b'{"message":"TOPIC_NOT_FOUND"}', "TOPIC_NOT_FOUND"),
        (500, b"NOK - disk full", "NOK - disk full"),
        (502, b"<html>\n<body>a proxy</body></html>", "Bad Gateway"),
        (503, b"", "Service Unavailable"),
        (500, b"[1]", "Internal Server Error"),
        (400, b'{"message": 7}', "Bad Request"),
        (301, b"", "Moved Permanently"),
    ],
)
def test_answers_that_are_no_success(
    fake: SocketServer, status: int, body: bytes, code: str
) -> None:
    fake.answer(body, status)
    with NsqdHTTP(f"http://ann:secret@{fake.address}/?key=hidden") as nsqd:
        with pytest.raises(HTTPError) as caught:
            nsqd.create_topic("t")
    assert (caught.value.status, caught.value.code) == (status, code)
    assert caught.value.url == f"http://{fake.address}/topic/create?topic=t"


def test_a_post_is_not_redirected_because_it_would_become_a_get(fake: SocketServer) -> None:
    fake.answer(b"", 301)
    fake.headers["Location"] = "/elsewhere"
    with NsqdHTTP(fake.address) as nsqd, pytest.raises(HTTPError, match="Moved"):
        nsqd.pub("t", b"x")
    assert len(fake.requests) == 1


@pytest.mark.parametrize("port", [0, 65536, True, "4152", None])
def test_a_403_without_a_port_is_an_error(fake: SocketServer, port: object) -> None:
    fake.answer({"message": "TLS_REQUIRED", "https_port": port}, 403)
    with NsqdHTTP(fake.address) as nsqd, pytest.raises(HTTPError, match="TLS_REQUIRED"):
        nsqd.ping()


def test_a_403_with_the_port_of_https_is_followed_there(fake: SocketServer) -> None:
    """The port is one where nobody speaks TLS, so the error names what was asked."""
    _, _, port = fake.address.rpartition(":")
    fake.answer({"message": "TLS_REQUIRED", "https_port": int(port)}, 403)
    with (
        NsqdHTTP(f"http://user:geheim@{fake.address}/kept") as nsqd,
        pytest.raises(ConnectionLost, match=rf"GET https://{fake.address}/kept/ping: ") as caught,
    ):
        nsqd.ping()
    assert "geheim" not in str(caught.value)


def test_500_after_work_that_was_done(fake: SocketServer) -> None:
    fake.answer({"message": "INTERNAL_ERROR"}, 500)
    with NsqdHTTP(fake.address) as nsqd:
        nsqd.free_memory()
        nsqd.set_block_rate(1)
        fake.answer({"message": "NOT_FOUND"}, 404)
        with pytest.raises(HTTPError):
            nsqd.free_memory()


def test_config_values_are_text_or_json(fake: SocketServer) -> None:
    with NsqdHTTP(fake.address) as nsqd:
        fake.answer(b"123", kind="text/plain; charset=utf-8")
        assert nsqd.get_config("broadcast_address") == "123"
        fake.answer(b"123", kind="application/json; charset=utf-8")
        assert nsqd.get_config("max_msg_size") == 123
        fake.answer(b'["a:1"]', kind="application/json; charset=utf-8")
        assert nsqd.set_config("nsqlookupd_tcp_addresses", ["a:1"]) == ["a:1"]
    assert fake.requests[-1]["body"] == b'["a:1"]'


# What goes wrong on the way


def causes(error: BaseException) -> str:
    found: BaseException | None = error
    texts = []
    while found is not None:
        texts.append(repr(found))
        found = found.__cause__
    return " ".join(texts)


def test_nobody_listens() -> None:
    port = REFUSED_PORT
    with LookupdHTTP(f"http://ann:secret@127.0.0.1:{port}/?key=hidden") as lookupd:
        try:
            raise KeyError("an earlier error of the caller")
        except KeyError:
            with pytest.raises(ConnectionLost, match="refused") as caught:
                lookupd.lookup("t")
    assert f"http://127.0.0.1:{port}/lookup?topic=t" in str(caught.value)
    for word in ("secret", "hidden", "KeyError"):
        assert word not in causes(caught.value)


def test_silence() -> None:
    done = threading.Event()
    with raw_server(lambda _: done.wait(30) and None) as address:
        with LookupdHTTP(address, timeout=0.1) as lookupd:
            with pytest.raises(ConnectionLost, match=r"no answer within 0\.1 s"):
                lookupd.topics()
        done.set()


def test_an_answer_that_drips_for_ever() -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        pause = threading.Event()
        while True:
            connection.sendall(b" ")
            pause.wait(0.02)

    with raw_server(drip) as address, LookupdHTTP(address, timeout=0.1) as lookupd:
        with pytest.raises(ConnectionLost, match="no answer within"):
            lookupd.topics()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\x00\x00\x06\x00\x00\x00\x01E_BAD_PROTOCOL",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 banana\r\n\r\n",
    ],
)
def test_connections_that_break(answer: bytes) -> None:
    with raw_server(lambda connection: connection.sendall(answer)) as address:
        with LookupdHTTP(address) as lookupd:
            with pytest.raises((ConnectionLost, ProtocolError)) as caught:
                lookupd.topics()
    assert address in str(caught.value)


def test_https_with_an_unknown_certificate_authority_is_refused(fake: SocketServer) -> None:
    with LookupdHTTP(f"https://{fake.address}") as lookupd, pytest.raises(ConnectionLost):
        lookupd.ping()


# Sessions


def test_a_connection_is_kept_and_calls_side_by_side_have_their_own(fake: SocketServer) -> None:
    fake.answer({"topics": []})
    with LookupdHTTP(fake.address) as lookupd:
        for _ in range(5):
            lookupd.topics()
        assert fake.connections == 1
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: lookupd.topics(), range(40)))
    assert len(fake.requests) == 45
    assert fake.connections <= 4


def test_after_close_nothing_is_sent(fake: SocketServer) -> None:
    lookupd = LookupdHTTP(fake.address)
    lookupd.close()
    with pytest.raises(ClosedError):
        lookupd.ping()
    assert fake.connections == 0


def test_a_session_of_the_caller_is_used_and_left_open(fake: SocketServer) -> None:
    fake.answer({"topics": []})
    with requests.Session() as session:
        session.headers["X-Mine"] = "yes"
        with LookupdHTTP(fake.address, session=session) as lookupd:
            lookupd.topics()
        assert session.get(f"http://{fake.address}/").status_code == 200
    assert fake.requests[0]["headers"]["X-Mine"] == "yes"
    assert fake.connections == 1


def test_requests_run_where_the_runtime_says(fake: SocketServer) -> None:
    class Elsewhere(ThreadRuntime):
        def call_blocking(self, fn: Callable[..., Any], *args: Any) -> Any:
            with ThreadPoolExecutor(1) as pool:
                threads.append(pool.submit(threading.get_ident).result())
                return pool.submit(fn, *args).result()

    threads: list[int] = []
    fake.answer({"topics": ["t"]})
    with LookupdHTTP(fake.address, runtime=Elsewhere()) as lookupd:
        assert lookupd.topics() == ("t",)
    assert len(threads) == 1
    with LookupdHTTP(fake.address, runtime="threads") as lookupd:
        assert lookupd.topics() == ("t",)
    with pytest.raises(ConfigError, match="runtime"):
        LookupdHTTP(fake.address, runtime="fibers").topics()


UNPATCHED = """
import sys, time
import gevent
from gnsqsync import LookupdHTTP
from gnsqsync.errors import ConnectionLost

ticks = 0

def tick():
    global ticks
    while True:
        ticks += 1
        gevent.sleep(0.01)

gevent.spawn(tick)
try:
    LookupdHTTP(sys.argv[1], runtime="gevent", timeout=0.5).topics()
except ConnectionLost:
    sys.exit(0 if ticks > 5 else 3)
"""


def test_other_greenlets_run_while_an_unpatched_one_waits() -> None:
    done = threading.Event()
    with raw_server(lambda _: done.wait(30) and None) as address:
        result = subprocess.run([sys.executable, "-c", UNPATCHED, address], timeout=60, check=False)
        done.set()
    assert result.returncode == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_does_not_use_the_connection_of_its_parent(fake: SocketServer) -> None:
    fake.answer({"topics": []})
    with LookupdHTTP(fake.address) as lookupd:
        lookupd.topics()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                lookupd.topics()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(pid, 0)[1] == 0
        assert fake.connections == 2
        lookupd.topics()
    assert fake.connections == 2


def test_a_failed_call_leaves_nothing_for_the_garbage_collector() -> None:
    address = f"127.0.0.1:{REFUSED_PORT}"
    gc.collect()
    gc.disable()
    try:
        with LookupdHTTP(address) as lookupd:
            # A log or an observer may keep the error.
            with pytest.raises(ConnectionLost, match="refused") as caught:
                lookupd.ping()
            manager: Any = lookupd._idle[0].session.get_adapter("http://").poolmanager
            pool = weakref.ref(manager.pools[next(iter(manager.pools.keys()))])
            del manager
        assert pool() is None
        assert "refused" in str(caught.value)
    finally:
        gc.enable()
