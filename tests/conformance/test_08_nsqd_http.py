"""Rows 113 to 130: nsqd's HTTP API; at the end what is not in the list, observed."""

from __future__ import annotations

import re
import socket
import struct
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest

from tests.support.rawclient import (
    Reply,
    channel_stats,
    get,
    mpub_body,
    post,
    request,
    stats,
    topic_stats,
)
from tests.support.servers import Address, Server, Site, unique

NSQ_TYPE = "nsq; version=1.0"
JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"

E2E = {"count": 0, "percentiles": None}

TOPIC_KEYS = [
    "topic_name",
    "channels",
    "depth",
    "backend_depth",
    "message_count",
    "message_bytes",
    "paused",
    "e2e_processing_latency",
]
CHANNEL_KEYS = [
    "channel_name",
    "depth",
    "backend_depth",
    "in_flight_count",
    "deferred_count",
    "message_count",
    "requeue_count",
    "timeout_count",
    "client_count",
    "clients",
    "paused",
    "e2e_processing_latency",
]
CLIENT_KEYS = [
    "client_id",
    "hostname",
    "version",
    "remote_address",
    "state",
    "ready_count",
    "in_flight_count",
    "message_count",
    "finish_count",
    "requeue_count",
    "connect_ts",
    "sample_rate",
    "deflate",
    "snappy",
    "user_agent",
    "tls",
    "tls_cipher_suite",
    "tls_version",
    "tls_negotiated_protocol",
    "tls_negotiated_protocol_is_mutual",
]


@pytest.fixture
def server(site: Site) -> Server:
    return site.nsqd("-max-msg-size=1000", "-max-body-size=5000")


@pytest.fixture
def http(server: Server) -> Address:
    return server.http_address


def refused(reply: Reply, status: int, code: str) -> None:
    assert (reply.status, reply.json) == (status, {"message": code})
    assert reply.headers["Content-Type"] == JSON
    assert reply.headers["X-NSQ-Content-Type"] == NSQ_TYPE


def accepted(reply: Reply, body: bytes = b"") -> None:
    assert (reply.status, reply.body) == (200, body)


def test_113_ping(http: Address) -> None:
    reply = get(http, "/ping")
    accepted(reply, b"OK")
    assert reply.headers["Content-Type"] == TEXT
    assert "X-NSQ-Content-Type" not in reply.headers


def test_114_info(http: Address, server: Server) -> None:
    reply = get(http, "/info")
    assert reply.headers["X-NSQ-Content-Type"] == NSQ_TYPE
    assert reply.headers["Content-Type"] == JSON
    info = reply.json
    assert list(info) == [
        "version",
        "broadcast_address",
        "hostname",
        "http_port",
        "tcp_port",
        "start_time",
        "max_heartbeat_interval",
        "max_output_buffer_size",
        "max_output_buffer_timeout",
        "max_deflate_level",
    ]
    assert (info["version"], info["broadcast_address"]) == ("1.3.0", "127.0.0.1")
    assert (info["tcp_port"], info["http_port"]) == (server.tcp_address[1], http[1])
    assert info["max_heartbeat_interval"] == 60_000_000_000
    assert info["max_output_buffer_size"] == 65536
    assert info["max_output_buffer_timeout"] == 30_000_000_000
    assert info["max_deflate_level"] == 6


def test_115_unknown_paths(http: Address) -> None:
    refused(get(http, "/nowhere"), 404, "NOT_FOUND")
    refused(post(http, "/put?topic=t", b"x"), 404, "NOT_FOUND")
    reply = get(http, "/pub?topic=t")
    refused(reply, 405, "METHOD_NOT_ALLOWED")
    assert "POST" in reply.headers["Allow"]
    assert request(http, "HEAD", "/ping").status == 405


def test_115_options_and_redirects(http: Address) -> None:
    reply = request(http, "OPTIONS", "/pub")
    accepted(reply)
    assert "POST" in reply.headers["Allow"]
    for path in ("/ping/", "/PING", "//ping"):
        reply = get(http, path)
        assert (reply.status, reply.headers["Location"]) == (301, "/ping"), path
    reply = get(http, "/config/a%0d%0aSet-Cookie:%20b%3F=%C3%A9(%26/?x=%0a\"'<>&")
    assert "Set-Cookie" not in reply.headers
    location = "/config/a%0D%0ASet-Cookie:%20b%3F=%C3%A9%28&"
    assert reply.headers["Location"] == location + "?x=%0a\"'<>&"
    link = location.replace("&", "&amp;") + "?x=%0a&#34;&#39;&lt;&gt;&amp;"
    assert reply.body == f'<a href="{link}">Moved Permanently</a>.\n\n'.encode()


@pytest.mark.parametrize(
    ("target", "body", "status", "code"),
    [
        ("/pub?topic=t", None, 400, "MSG_EMPTY"),
        ("/pub?topic=t", b"", 400, "MSG_EMPTY"),
        ("/pub", b"x", 400, "MISSING_ARG_TOPIC"),
        ("/pub?topic=bad*", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=", b"x", 400, "INVALID_TOPIC"),
        ("/pub?topic=t", b"x" * 1001, 413, "MSG_TOO_BIG"),
        ("/pub?topic=%zz", b"x", 400, "INVALID_REQUEST"),
        ("/pub?topic=t;x=1", b"x", 400, "INVALID_REQUEST"),
        ("/pub", b"x" * 1001, 413, "MSG_TOO_BIG"),
        ("/pub?topic=%zz", b"", 400, "MSG_EMPTY"),
    ],
)
def test_116_pub_errors(
    http: Address, target: str, body: bytes | None, status: int, code: str
) -> None:
    refused(post(http, target, body), status, code)


def test_117_pub(http: Address) -> None:
    topic = unique()
    reply = post(http, f"/pub?topic={topic}&topic=other", b"x" * 1000)
    accepted(reply, b"OK")
    assert reply.headers["Content-Type"] == TEXT
    assert reply.headers["X-NSQ-Content-Type"] == NSQ_TYPE
    assert topic_stats(http, topic)["depth"] == 1


def test_117_pub_chunked(http: Address) -> None:
    topic = unique()
    headers = {"Transfer-Encoding": "chunked"}
    accepted(request(http, "POST", f"/pub?topic={topic}", b"1\r\nx\r\n0\r\n\r\n", headers), b"OK")
    big = b"3e9\r\n" + b"x" * 1001 + b"\r\n0\r\n\r\n"
    refused(request(http, "POST", f"/pub?topic={topic}", big, headers), 413, "MSG_TOO_BIG")
    found = topic_stats(http, topic)
    assert (found["message_count"], found["message_bytes"]) == (1, 1)


@pytest.mark.parametrize(
    ("defer", "is_accepted"),
    [
        ("0", True),
        ("-0", True),
        ("%2B10000", True),
        ("10001", False),
        ("-1", False),
        ("", False),
        ("1e3", False),
        ("9223372036854775807", False),
        ("9223372036854775808", False),
        ("1" * 400, False),
        ("1" * 5000, False),
        # As nanoseconds in 64 bits this is 448384.
        ("18446744073710", True),
    ],
    ids=lambda value: str(value)[:20],
)
def test_117_defer(site: Site, defer: str, is_accepted: bool) -> None:
    http = site.nsqd("-max-req-timeout=10s").http_address
    reply = post(http, f"/pub?topic={unique()}&defer={defer}", b"x")
    if is_accepted:
        accepted(reply, b"OK")
    else:
        refused(reply, 400, "INVALID_DEFER")


def published(site: Site, server: Server, topic: str) -> list[bytes]:
    """The bodies that wait in a topic."""
    client = site.client(server)
    client.subscribe(topic, "c", 100)
    messages = client.drain()
    client.fin(*messages)
    return [message.body for message in messages]


def test_118_mpub(site: Site, server: Server, http: Address) -> None:
    topic = unique()
    accepted(post(http, f"/mpub?topic={topic}", b"a\n\nb\r\nc\n"), b"OK")
    accepted(post(http, f"/mpub?topic={topic}", b""), b"OK")
    assert published(site, server, topic) == [b"a", b"b\r", b"c"]


@pytest.mark.parametrize("value", ["true", "1", "yes", ""])
def test_119_mpub_binary(site: Site, server: Server, http: Address, value: str) -> None:
    topic = unique()
    body = mpub_body([b"a\nb", b"\x00\n"]) + b"trailing"
    accepted(post(http, f"/mpub?topic={topic}&binary={value}", body), b"OK")
    assert published(site, server, topic) == [b"a\nb", b"\x00\n"]


@pytest.mark.parametrize("value", ["false", "0"])
def test_119_mpub_not_binary(site: Site, server: Server, http: Address, value: str) -> None:
    topic = unique()
    accepted(post(http, f"/mpub?topic={topic}&binary={value}", b"a\nb"), b"OK")
    assert published(site, server, topic) == [b"a", b"b"]


def test_120_mpub_errors(http: Address) -> None:
    topic = unique()
    target = f"/mpub?topic={topic}"
    refused(post(http, "/mpub", b"x"), 400, "MISSING_ARG_TOPIC")
    refused(post(http, "/mpub?topic=bad*", b"x"), 400, "INVALID_TOPIC")
    refused(post(http, target, b"a\n" + b"x" * 1001), 413, "MSG_TOO_BIG")
    refused(post(http, target, b"x\n" * 2501), 413, "BODY_TOO_BIG")
    for body, code in (
        (mpub_body([], 0), "BAD_BODY"),
        (mpub_body([b"a"], 1000), "BAD_BODY"),
        (b"\x00", "BAD_BODY"),
        (mpub_body([b"a", b""]), "BAD_MESSAGE"),
        (mpub_body([b"a", b"x" * 1001]), "BAD_MESSAGE"),
        (mpub_body([b"a"], 2), "BAD_MESSAGE"),
        (mpub_body([b"a"]) + struct.pack(">i", 4), "trailing"),
    ):
        reply = post(http, f"{target}&binary=true", body)
        if code == "trailing":
            accepted(reply, b"OK")
        else:
            refused(reply, 413, code)
    assert topic_stats(http, topic)["message_count"] == 1


def test_121_topic_create(http: Address) -> None:
    topic = unique()
    for _ in range(2):
        reply = post(http, f"/topic/create?topic={topic}")
        accepted(reply)
        assert reply.headers["X-NSQ-Content-Type"] == NSQ_TYPE
        assert "Content-Type" not in reply.headers
    assert topic_stats(http, topic)["depth"] == 0
    refused(post(http, "/topic/create"), 400, "MISSING_ARG_TOPIC")
    refused(post(http, "/topic/create?topic=bad*"), 400, "INVALID_TOPIC")
    refused(get(http, f"/topic/create?topic={topic}"), 405, "METHOD_NOT_ALLOWED")


@pytest.mark.parametrize("action", ["delete", "empty", "pause", "unpause"])
def test_122_unknown_topic(http: Address, action: str) -> None:
    refused(post(http, f"/topic/{action}?topic={unique()}"), 404, "TOPIC_NOT_FOUND")
    refused(post(http, f"/topic/{action}"), 400, "MISSING_ARG_TOPIC")
    # Only /topic/empty looks at the name.
    status, code = (400, "INVALID_TOPIC") if action == "empty" else (404, "TOPIC_NOT_FOUND")
    refused(post(http, f"/topic/{action}?topic=bad*"), status, code)


@pytest.mark.parametrize("action", ["create", "delete", "empty", "pause", "unpause"])
def test_123_channel(http: Address, action: str) -> None:
    path = f"/channel/{action}"
    topic = unique()
    accepted(post(http, f"/topic/create?topic={topic}"))
    refused(post(http, path), 400, "MISSING_ARG_TOPIC")
    refused(post(http, f"{path}?channel=c"), 400, "MISSING_ARG_TOPIC")
    refused(post(http, f"{path}?topic=bad*&channel=c"), 400, "INVALID_ARG_TOPIC")
    refused(post(http, f"{path}?topic={topic}"), 400, "MISSING_ARG_CHANNEL")
    refused(post(http, f"{path}?topic={topic}&channel=bad*"), 400, "INVALID_ARG_CHANNEL")
    refused(post(http, f"{path}?topic={unique()}&channel=c"), 404, "TOPIC_NOT_FOUND")
    if action == "create":
        for _ in range(2):
            accepted(post(http, f"{path}?topic={topic}&channel=c"))
        assert channel_stats(http, topic, "c")["depth"] == 0
    else:
        refused(post(http, f"{path}?topic={topic}&channel=c"), 404, "CHANNEL_NOT_FOUND")


def test_124_config(site: Site) -> None:
    http = site.nsqd().http_address
    for option, value in (
        ("max_rdy_count", b"2500"),
        ("msg_timeout", b"60000000000"),
        ("broadcast_address", b"127.0.0.1"),
        ("log_level", b"2"),
        ("nsqlookupd_tcp_addresses", b"[]"),
    ):
        accepted(get(http, f"/config/{option}"), value)
    refused(get(http, "/config/nonsense"), 400, "INVALID_OPTION")
    accepted(request(http, "PUT", "/config/log_level", b"DEBUG"), b"1")
    accepted(get(http, "/config/log_level"), b"1")
    accepted(request(http, "PUT", "/config/log_level", b"info"), b"2")
    refused(request(http, "PUT", "/config/log_level", b"bad"), 400, "INVALID_VALUE")
    refused(request(http, "PUT", "/config/log_level", b""), 413, "INVALID_VALUE")
    refused(request(http, "PUT", "/config/max_rdy_count", b"1"), 400, "INVALID_OPTION")
    accepted(request(http, "PUT", "/config/nsqlookupd_tcp_addresses", b"[]"), b"[]")
    refused(request(http, "PUT", "/config/nsqlookupd_tcp_addresses", b"x"), 400, "INVALID_VALUE")


def test_124_percentiles_in_config(site: Site) -> None:
    server = site.nsqd(
        *(f"-e2e-processing-latency-percentile={text}" for text in ("0.5,1.0", "0.9"))
    )
    accepted(get(server.http_address, "/config/e2e_processing_latency_percentiles"), b"[1,0.9,0.5]")


def test_125_stats(http: Address) -> None:
    found = stats(http)
    assert list(found) == ["version", "health", "start_time", "topics", "memory", "producers"]
    assert (found["version"], found["health"]) == ("1.3.0", "OK")
    assert list(found["memory"]) == [
        "heap_objects",
        "heap_idle_bytes",
        "heap_in_use_bytes",
        "heap_released_bytes",
        "gc_pause_usec_100",
        "gc_pause_usec_99",
        "gc_pause_usec_95",
        "next_gc_bytes",
        "gc_total_runs",
    ]
    assert all(type(value) is int for value in found["memory"].values())


def test_126_topic_and_channel(site: Site, server: Server, http: Address) -> None:
    topic = unique()
    client = site.client(server)
    client.subscribe(topic, "c", 1)
    client.publish(topic, b"xyz", b"12")
    client.message()
    found = topic_stats(http, topic)
    assert list(found) == TOPIC_KEYS
    assert (found["message_count"], found["message_bytes"], found["paused"]) == (2, 5, False)
    (channel,) = found["channels"]
    assert list(channel) == CHANNEL_KEYS
    assert found["e2e_processing_latency"] == channel["e2e_processing_latency"] == E2E
    assert channel["in_flight_count"] == channel["client_count"] == 1
    assert (channel["depth"], channel["message_count"]) == (1, 2)


def test_126_latency(site: Site) -> None:
    server = site.nsqd("-e2e-processing-latency-percentile=1.0,0.5,0.25,0.01")
    http = server.http_address
    topic = unique()
    client = site.client(server)
    client.subscribe(topic, "c", 10)
    for _ in range(5):
        client.publish(topic, b"x")
        site.sleep(0.1)
    messages = client.messages(5)
    client.fin(*messages)

    def finished() -> Any:
        found = channel_stats(http, topic, "c")["e2e_processing_latency"]
        return found if found["count"] == 5 else None

    found = site.eventually(finished)
    quantiles = [entry["quantile"] for entry in found["percentiles"]]
    assert (quantiles, type(quantiles[0])) == ([1, 0.5, 0.25, 0.01], int)
    # All were finished at once, so what the latencies differ by is the time between publishes.
    largest = found["percentiles"][0]["value"]
    ages = [largest - (m.timestamp - messages[0].timestamp) for m in reversed(messages)]
    ranks = [
        min(range(5), key=lambda rank: abs(ages[rank] - entry["value"]))
        for entry in found["percentiles"]
    ]
    # nsqd's estimate is above the true one: 4, 2, 1 and 0.
    assert ranks == [4, 4, 3, 2]
    assert topic_stats(http, topic)["e2e_processing_latency"] == found


def test_126_latency_of_many(site: Site) -> None:
    many = 10_500
    flags = ("-max-rdy-count=20000", "-e2e-processing-latency-percentile=0.5")
    server = site.nsqd(*flags)
    topic = unique()
    client = site.client(server)
    client.subscribe(topic, "c", many)
    client.command(f"MPUB {topic}", mpub_body([b"x"] * many))
    frames = [client.answer(30.0) for _ in range(many + 1)]
    client.send(b"".join(b"FIN %s\n" % frame.data[10:26] for frame in frames if frame.type))
    site.eventually(
        lambda: (
            channel_stats(server.http_address, topic, "c")["e2e_processing_latency"]["count"]
            == many
        )
    )


def test_127_client(site: Site, server: Server, http: Address) -> None:
    topic = unique()
    client = site.client(server)
    client.subscribe(
        topic, "c", 7, client_id="me", hostname="here", user_agent="test/1", sample_rate=99
    )
    host, port = client.socket.getsockname()
    site.eventually(lambda: channel_stats(http, topic, "c")["clients"][0]["ready_count"] == 7)
    (entry,) = channel_stats(http, topic, "c")["clients"]
    assert list(entry) == CLIENT_KEYS
    assert type(entry.pop("connect_ts")) is int
    assert entry == {
        "client_id": "me",
        "hostname": "here",
        "version": "V2",
        "remote_address": f"{host}:{port}",
        "state": 3,
        "ready_count": 7,
        "in_flight_count": 0,
        "message_count": 0,
        "finish_count": 0,
        "requeue_count": 0,
        "sample_rate": 99,
        "deflate": False,
        "snappy": False,
        "user_agent": "test/1",
        "tls": False,
        "tls_cipher_suite": "",
        "tls_version": "",
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": False,
    }


def test_128_producers(site: Site) -> None:
    server = site.own_nsqd()
    producer = site.client(server)
    producer.identify(client_id="producer")
    for topic in ("b", "a", "c"):
        post(server.http_address, f"/topic/create?topic={topic}")
    producer.publish("b", b"0", b"1")
    found = stats(server.http_address)
    assert [topic["topic_name"] for topic in found["topics"]] == ["a", "b", "c"]
    (entry,) = found["producers"]
    assert (entry["client_id"], entry["state"]) == ("producer", 0)
    assert entry["pub_counts"] == [{"topic": "b", "count": 2}]
    keys = list(CLIENT_KEYS)
    keys.insert(keys.index("tls"), "pub_counts")
    assert list(entry) == keys
    producer.close()
    site.eventually(lambda: stats(server.http_address)["producers"] is None)


def test_128_pub_counts_of_one_topic(site: Site) -> None:
    server = site.own_nsqd()
    client = site.client(server)
    client.subscribe("a", "c")
    client.publish("a", b"0")
    client.publish("b", b"0", b"1")
    client.publish("c", b"0")

    def pub_counts(**parameters: str) -> list[Any]:
        found = stats(server.http_address, **parameters)
        channels = [channel for topic in found["topics"] for channel in topic["channels"]]
        clients = [client for channel in channels for client in channel["clients"]]
        return [entry["pub_counts"] for entry in found["producers"] + clients]

    # One entry, whichever; the connection is listed as a producer and in its channel.
    assert [len(counts) for counts in pub_counts()] == [1, 1]
    assert pub_counts(topic="a") == [[{"topic": "a", "count": 1}]] * 2
    assert pub_counts(topic="b") == [[{"topic": "b", "count": 2}]]


def test_128_pub_counts_of_another_topic(site: Site) -> None:
    server = site.own_nsqd()
    client = site.client(server)
    client.subscribe("a", "c")
    client.publish("b", b"0")
    found = stats(server.http_address, topic="a")
    entries = [*found["producers"], *found["topics"][0]["channels"][0]["clients"]]
    assert [list(entry) for entry in entries] == [CLIENT_KEYS] * 2


def test_129_stats_parameters(site: Site, server: Server, http: Address) -> None:
    topic = unique()
    client = site.client(server)
    client.subscribe(topic, "c")
    client.publish(topic, b"x")

    def channel(found: Any) -> Any:
        return found["topics"][0]["channels"][0]

    for value in ("false", "0"):
        found = stats(http, topic=topic, include_clients=value)
        assert (found["producers"], channel(found)["clients"]) == (None, None)
        assert channel(found)["client_count"] == 1
        assert "memory" not in stats(http, include_mem=value)
    for value in ("true", "1", "nonsense"):
        found = stats(http, topic=topic, include_clients=value, include_mem=value)
        assert len(channel(found)["clients"]) == 1
        assert "memory" in found
    assert stats(http, topic=unique())["topics"] is None
    assert stats(http, topic=topic, channel="nonsense")["topics"] == []
    (only,) = stats(http, channel="c", topic=topic)["topics"]
    assert only["topic_name"] == topic


def test_130_text_stats(site: Site) -> None:
    server = site.own_nsqd()
    accepted(post(server.http_address, "/topic/create?topic=st"))
    accepted(post(server.http_address, "/channel/create?topic=st&channel=ch"))
    accepted(post(server.http_address, "/channel/pause?topic=st&channel=ch"))
    reply = get(server.http_address, "/stats")
    assert reply.headers["Content-Type"] == TEXT
    assert reply.text.startswith("nsqd v1.3.0")
    assert "[st             ]" in reply.text
    assert "[ch                       ]" in reply.text
    assert "*P" in reply.text


def test_130_text_stats_of_clients(site: Site) -> None:
    server = site.own_nsqd("-e2e-processing-latency-percentile=0.99,0.5")
    producer = site.client(server)
    producer.identify(hostname="p", user_agent="test/1")
    producer.publish("t", b"0", b"1", b"2")
    consumer = site.client(server)
    consumer.subscribe("t", "c", 1, hostname="c")
    consumer.message()
    text = re.sub(
        r"connected: \d+s\n", "connected\n", get(server.http_address, "/stats?include_mem=0").text
    )
    ports = [client.socket.getsockname()[1] for client in (producer, consumer)]
    assert text.partition("\nHealth: OK\n")[2] == (
        "\n"
        "Topics:\n"
        "   [t              ] depth: 0     be-depth: 0     msgs: 3        e2e%: 0.0ns, 0.0ns\n"
        "      [c                        ] depth: 2     be-depth: 0     inflt: 1    def: 0    "
        "re-q: 0     timeout: 0     msgs: 3        e2e%: 0.0ns, 0.0ns\n"
        f"        [V2 {f'c:{ports[1]} ':<21}] state: 3 inflt: 1    rdy: 1    fin: 0        "
        "re-q: 0        msgs: 1        connected\n"
        "\n"
        "Producers:\n"
        f"   [V2 {f'p:{ports[0]} test/1':<21}] msgs: 3        topics: t=3 connected\n"
    )


def test_130_text_stats_of_latency(site: Site) -> None:
    server = site.own_nsqd("-e2e-processing-latency-percentile=0.99,0.5")
    client = site.client(server)
    client.subscribe("t", "c", 1)
    client.publish("t", b"0")
    client.fin(client.message())
    site.eventually(
        lambda: channel_stats(server.http_address, "t", "c")["e2e_processing_latency"]["count"]
    )
    text = get(server.http_address, "/stats").text
    assert len(re.findall(r" e2e%: (\d+\.\d(?:s|ms|us)), \1\n", text)) == 2


def test_130_start_time_is_local(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.search(
        r"\nstart_time \S+\nuptime \S+s\n", get(site.nsqd().http_address, "/stats").text
    )
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    try:
        zone = ZoneInfo("Asia/Kolkata")
    except ZoneInfoNotFoundError:
        pytest.skip("this machine has no time zones")
    http = site.own_nsqd().http_address
    start = datetime.fromtimestamp(stats(http)["start_time"], zone).isoformat()
    assert f"\nstart_time {start}\n" in get(http, "/stats").text


def test_lookupd_addresses_may_be_null(site: Site) -> None:
    http = site.own_nsqd().http_address
    target = "/config/nsqlookupd_tcp_addresses"
    accepted(get(http, target), b"[]")
    for body, value in ((b"null", b"null"), (b"[]", b"[]"), (b"[null]", b'[""]')):
        accepted(request(http, "PUT", target, body), value)
        accepted(get(http, target), value)
    for body in (b"[1]", b"{}", b'"a"', b"[null, []]"):
        refused(request(http, "PUT", target, body), 400, "INVALID_VALUE")
    accepted(get(http, target), b'[""]')
    accepted(post(http, "/topic/create?topic=t"))


def test_free_memory(http: Address) -> None:
    # It does its work; then it has no answer.
    refused(post(http, "/debug/freememory"), 500, "INTERNAL_ERROR")
    refused(get(http, "/debug/freememory"), 405, "METHOD_NOT_ALLOWED")


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("rate=0", ""),
        ("rate=-1&rate=x", ""),
        ("rate=%2B9223372036854775807", ""),
        ("rate=9223372036854775808", '"9223372036854775808": value out of range'),
        ("rate=-9223372036854775809", '"-9223372036854775809": value out of range'),
        ("rate=" + "9" * 5000, '"' + "9" * 5000 + '": value out of range'),
        ("rate=x", '"x": invalid syntax'),
        ("rate=1_0", '"1_0": invalid syntax'),
        ("rate=%22%0a", r'"\"\n": invalid syntax'),
        ("rate=%zz", '"": invalid syntax'),
        ("rate=1;x", '"": invalid syntax'),
        ("rate=", '"": invalid syntax'),
        ("", '"": invalid syntax'),
    ],
)
def test_set_block_rate(http: Address, query: str, reason: str) -> None:
    reply = request(http, "PUT", f"/debug/setblockrate?{query}")
    if reason:
        text = f"invalid block rate : strconv.Atoi: parsing {reason}"
        assert (reply.status, reply.text) == (400, text)
        assert reply.headers["Content-Type"] == TEXT
        assert "X-NSQ-Content-Type" not in reply.headers
    else:
        refused(reply, 500, "INTERNAL_ERROR")


def raw(http: Address, text: bytes) -> bytes:
    """What comes back until the server closes the connection."""
    with socket.create_connection(http, timeout=10) as sock:
        sock.sendall(text)
        return sock.makefile("rb").read()


@pytest.mark.parametrize(
    ("host", "reason"),
    [(b"", b"missing required Host header"), (b"Host: a b\r\n", b"malformed Host header")],
)
def test_host(http: Address, host: bytes, reason: bytes) -> None:
    answer = raw(http, b"GET /ping HTTP/1.1\r\n" + host + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 400 Bad Request: " + reason + b"\r\n")
    assert answer.endswith(b"\r\n\r\n400 Bad Request: " + reason)


@pytest.mark.parametrize("path", [b"/ping%zz", b"/ping%", b"/%", b"ping"])
def test_invalid_paths(http: Address, path: bytes) -> None:
    answer = raw(http, b"GET " + path + b" HTTP/1.1\r\nHost: a\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert answer.endswith(b"\r\n\r\n400 Bad Request")


@pytest.mark.parametrize("path", [b"/%70ing", b"http://a/ping", b"/ping?%zz"])
def test_paths_that_are_odd(http: Address, path: bytes) -> None:
    answer = raw(http, b"GET " + path + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert answer.endswith(b"\r\n\r\nOK")


@pytest.mark.parametrize("head", [b"HTTP/1.0\r\n", b"HTTP/1.1\r\nHost:\r\nConnection: close\r\n"])
def test_no_host_needed(http: Address, head: bytes) -> None:
    assert raw(http, b"GET /ping " + head + b"\r\n").endswith(b"\r\n\r\nOK")


@pytest.mark.parametrize(
    ("length", "status"),
    [
        # Go takes two equal lengths.
        ("2\r\nContent-Length: 2", {"real": 200, "embedded": 400}),
        ("2\r\nContent-Length: 3", 400),
        ("+2", 400),
        ("0_2", 400),
        ("0x2", 400),
        ("2, 2", 400),
        ("9" * 20, 400),
    ],
)
def test_the_length_of_a_body(site: Site, length: str, status: int | dict[str, int]) -> None:
    if isinstance(status, dict):
        status = status[site.kind]
    head = f"POST /pub?topic=t HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n"
    with socket.create_connection(site.nsqd().http_address, 10) as sock:
        sock.sendall(f"{head}Connection: close\r\n\r\nab".encode())
        assert sock.recv(1000).startswith(f"HTTP/1.1 {status} ".encode())
