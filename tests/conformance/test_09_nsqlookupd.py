"""Rows 131 to 144: nsqlookupd, TCP and HTTP."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conformance.rows import waiting
from tests.support.rawclient import LookupClient, Reply, get, lookup_identity, post
from tests.support.servers import Address, Server, Site, unique

NSQ_TYPE = "nsq; version=1.0"
JSON = "application/json; charset=utf-8"
HTTP_PORTS = iter(range(20000, 30000))


@pytest.fixture
def lookupd(site: Site) -> Server:
    return site.nsqlookupd()


@pytest.fixture
def http(lookupd: Server) -> Address:
    return lookupd.http_address


def nsqd(site: Site, lookupd: Server) -> tuple[LookupClient, int]:
    """A connection that says it is an nsqd, and the HTTP port that makes it unique."""
    client = site.lookup_client(lookupd)
    port = next(HTTP_PORTS)
    client.identify(http_port=port)
    return client, port


def ok(answer: bytes) -> None:
    assert answer == b"OK"


def lookup(http: Address, topic: str) -> Any:
    reply = get(http, f"/lookup?topic={topic.replace('#', '%23')}")
    assert reply.status == 200, reply
    return reply.json


def node(http: Address, port: int) -> Any:
    """The entry of /nodes with this HTTP port, or None."""
    for entry in get(http, "/nodes").json["producers"]:
        if entry["http_port"] == port:
            return entry
    return None


def refused(reply: Reply, status: int, code: str) -> None:
    assert (reply.status, reply.json) == (status, {"message": code})


def test_131_before_identify(site: Site, lookupd: Server) -> None:
    client = site.lookup_client(lookupd, magic=b"  V2")
    assert client.answer() == b"E_BAD_PROTOCOL"
    client.closed()
    client = site.lookup_client(lookupd)
    ok(client.command("PING"))
    client.fatal("FOO", "E_INVALID invalid command FOO")


@pytest.mark.parametrize("command", ["REGISTER", "UNREGISTER"])
def test_132_identify_first(site: Site, lookupd: Server, command: str) -> None:
    client = site.lookup_client(lookupd)
    client.fatal(f"{command} t c", "E_INVALID client must IDENTIFY")


def test_133_identify(site: Site, lookupd: Server) -> None:
    client = site.lookup_client(lookupd)
    answer = client.identify()
    hostname = answer.pop("hostname")
    assert isinstance(hostname, str)
    assert answer == {
        "broadcast_address": "127.0.0.1",
        "http_port": lookupd.http_address[1],
        "tcp_port": lookupd.tcp_address[1],
        "version": "1.3.0",
    }
    client.fatal("IDENTIFY", "E_INVALID cannot IDENTIFY again", lookup_identity())


@pytest.mark.parametrize("field", ["broadcast_address", "tcp_port", "http_port", "version"])
def test_134_missing_fields(site: Site, lookupd: Server, field: str) -> None:
    client = site.lookup_client(lookupd)
    body = lookup_identity(**{field: None})
    client.fatal("IDENTIFY", "E_BAD_BODY IDENTIFY missing fields", body)


@pytest.mark.parametrize("body", [b"x", b'{"tcp_port": "1", "tcp_port": 1}'])
def test_134_not_json(site: Site, lookupd: Server, body: bytes) -> None:
    client = site.lookup_client(lookupd)
    client.fatal("IDENTIFY", "E_BAD_BODY IDENTIFY failed to decode JSON body", body)


def test_134_port_twice(site: Site, lookupd: Server, http: Address) -> None:
    port = next(HTTP_PORTS)
    body = lookup_identity(http_port=1)[:-1] + b', "http_port": %d, "http_port": null}' % port
    site.lookup_client(lookupd).command("IDENTIFY", body)
    assert node(http, port)["broadcast_address"] == "127.0.0.1"


@pytest.mark.parametrize("command", ["REGISTER", "UNREGISTER"])
@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ("", "E_INVALID {} insufficient number of params"),
        (" bad*", "E_BAD_TOPIC {} topic name 'bad*' is not valid"),
        (" t bad*", "E_BAD_CHANNEL {} channel name 'bad*' is not valid"),
    ],
)
def test_135_register_errors(
    site: Site, lookupd: Server, command: str, parameters: str, text: str
) -> None:
    client, _ = nsqd(site, lookupd)
    client.fatal(command + parameters, text.format(command))


def test_136_register(site: Site, lookupd: Server, http: Address) -> None:
    topic = unique()
    client, port = nsqd(site, lookupd)
    for _ in range(2):
        ok(client.command(f"REGISTER {topic} c"))
    reply = get(http, f"/lookup?topic={topic}")
    assert reply.headers["Content-Type"] == JSON
    assert reply.headers["X-NSQ-Content-Type"] == NSQ_TYPE
    host, source_port = client.socket.getsockname()
    assert reply.json == {
        "channels": ["c"],
        "producers": [
            {
                "remote_address": f"{host}:{source_port}",
                "hostname": "testhost",
                "broadcast_address": "127.0.0.1",
                "tcp_port": 4150,
                "http_port": port,
                "version": "1.3.0",
            }
        ],
    }


def test_137_unregister(site: Site, lookupd: Server, http: Address) -> None:
    topic = unique()
    client, _ = nsqd(site, lookupd)
    for channel in ("c", "e#ephemeral"):
        ok(client.command(f"REGISTER {topic} {channel}"))
    ok(client.command(f"UNREGISTER {topic} c"))
    found = lookup(http, topic)
    assert (sorted(found["channels"]), len(found["producers"])) == (["c", "e#ephemeral"], 1)
    ok(client.command(f"UNREGISTER {topic} e#ephemeral"))
    assert lookup(http, topic)["channels"] == ["c"]
    ok(client.command(f"UNREGISTER {topic}"))
    assert lookup(http, topic) == {"channels": ["c"], "producers": []}
    ok(client.command(f"UNREGISTER {topic} never_registered"))


def test_137_unregister_ephemeral_topic(site: Site, lookupd: Server, http: Address) -> None:
    topic = unique() + "#ephemeral"
    client, _ = nsqd(site, lookupd)
    ok(client.command(f"REGISTER {topic}"))
    assert len(lookup(http, topic)["producers"]) == 1
    ok(client.command(f"UNREGISTER {topic}"))
    assert topic not in get(http, "/topics").json["topics"]


def test_138_unknown_topic(http: Address) -> None:
    refused(get(http, "/lookup"), 400, "MISSING_ARG_TOPIC")
    refused(get(http, f"/lookup?topic={unique()}"), 404, "TOPIC_NOT_FOUND")
    refused(get(http, "/channels"), 400, "MISSING_ARG_TOPIC")
    reply = get(http, f"/channels?topic={unique()}")
    assert (reply.status, reply.json) == (200, {"channels": []})


def test_139_nodes(site: Site, lookupd: Server, http: Address) -> None:
    topics = sorted(unique() for _ in range(2))
    client, port = nsqd(site, lookupd)
    for topic in topics:
        ok(client.command(f"REGISTER {topic} c"))
    entry = node(http, port)
    assert set(entry) == {
        "remote_address",
        "hostname",
        "broadcast_address",
        "tcp_port",
        "http_port",
        "version",
        "tombstones",
        "topics",
    }
    assert (sorted(entry["topics"]), entry["tombstones"]) == (topics, [False, False])
    _, port = nsqd(site, lookupd)
    assert (node(http, port)["topics"], node(http, port)["tombstones"]) == ([], [])


@waiting
def test_140_tombstone(site: Site) -> None:
    lookupd = site.nsqlookupd("-tombstone-lifetime=3s")
    http = lookupd.http_address
    topic = unique()
    client, port = nsqd(site, lookupd)
    ok(client.command(f"REGISTER {topic}"))
    refused(post(http, f"/topic/tombstone?topic={topic}"), 400, "MISSING_ARG_NODE")
    refused(post(http, f"/topic/tombstone?node=127.0.0.1:{port}"), 400, "MISSING_ARG_TOPIC")
    began = time.monotonic()
    assert post(http, f"/topic/tombstone?topic={topic}&node=127.0.0.1:{port}").status == 200
    assert lookup(http, topic)["producers"] == []
    assert node(http, port)["tombstones"] == [True]
    ok(client.command(f"REGISTER {topic}"))
    assert lookup(http, topic)["producers"] == []
    site.eventually(lambda: lookup(http, topic)["producers"])
    assert time.monotonic() - began >= 3.0
    assert node(http, port)["tombstones"] == [False]
    assert post(http, f"/topic/tombstone?topic={topic}&node=nobody:1").status == 200
    # UNREGISTER and REGISTER clear it at once.
    assert post(http, f"/topic/tombstone?topic={topic}&node=127.0.0.1:{port}").status == 200
    ok(client.command(f"UNREGISTER {topic}"))
    ok(client.command(f"REGISTER {topic}"))
    assert len(lookup(http, topic)["producers"]) == 1


def test_140_any_topic(site: Site) -> None:
    lookupd = site.own_nsqlookupd()
    http = lookupd.http_address
    refused(get(http, "/lookup?topic=*"), 404, "TOPIC_NOT_FOUND")
    client, port = nsqd(site, lookupd)
    for line in ("a c", "b c", "b d"):
        ok(client.command(f"REGISTER {line}"))
    other, _ = nsqd(site, lookupd)
    ok(other.command("REGISTER a"))
    found = lookup(http, "*")
    assert (sorted(found["channels"]), len(found["producers"])) == (["c", "c", "d"], 2)
    assert sorted(get(http, "/channels?topic=*").json["channels"]) == ["c", "c", "d"]
    # A node under two topics is hidden under one of them.
    assert post(http, f"/topic/tombstone?topic=*&node=127.0.0.1:{port}").status == 200
    assert sorted(node(http, port)["tombstones"]) == [False, True]
    refused(post(http, "/topic/create?topic=*"), 400, "INVALID_ARG_TOPIC")
    refused(post(http, "/channel/delete?topic=*&channel=c"), 400, "INVALID_ARG_TOPIC")
    assert post(http, "/topic/delete?topic=*").status == 200
    assert get(http, "/topics").json == {"topics": []}
    assert get(http, "/channels?topic=b").json == {"channels": []}
    assert node(http, port)["topics"] == []
    ok(client.command("REGISTER b"))
    assert [len(found) for found in lookup(http, "b").values()] == [0, 1]


@waiting
def test_141_inactive(site: Site) -> None:
    lookupd = site.nsqlookupd("-inactive-producer-timeout=2s")
    http = lookupd.http_address
    topic = unique()
    client, port = nsqd(site, lookupd)
    ok(client.command(f"REGISTER {topic} c"))
    assert len(lookup(http, topic)["producers"]) == 1
    site.eventually(lambda: not lookup(http, topic)["producers"])
    # The two requests look at the clock one after the other.
    site.eventually(lambda: node(http, port) is None)
    ok(client.command(f"REGISTER {topic} c"))
    assert lookup(http, topic)["producers"] == []
    ok(client.command("PING"))
    assert len(lookup(http, topic)["producers"]) == 1
    assert node(http, port) is not None


def test_142_connection_closed(site: Site, lookupd: Server, http: Address) -> None:
    topic = unique() + "#ephemeral"
    client, port = nsqd(site, lookupd)
    ok(client.command(f"REGISTER {topic} c#ephemeral"))
    client.close()
    site.eventually(lambda: node(http, port) is None)
    assert lookup(http, topic) == {"channels": ["c#ephemeral"], "producers": []}
    assert topic in get(http, "/topics").json["topics"]


def test_143_create_and_delete(http: Address) -> None:
    topic, other = unique(), unique()
    assert post(http, f"/topic/create?topic={topic}").status == 200
    assert lookup(http, topic) == {"channels": [], "producers": []}
    for _ in range(2):
        assert post(http, f"/channel/create?topic={other}&channel=c").status == 200
    assert get(http, f"/channels?topic={other}").json == {"channels": ["c"]}
    assert {topic, other} <= set(get(http, "/topics").json["topics"])
    refused(post(http, "/topic/create?topic=bad*"), 400, "INVALID_ARG_TOPIC")
    refused(post(http, "/topic/create"), 400, "MISSING_ARG_TOPIC")
    refused(post(http, "/topic/delete"), 400, "MISSING_ARG_TOPIC")
    assert post(http, f"/topic/delete?topic={unique()}").status == 200
    assert post(http, f"/channel/delete?topic={other}&channel=c").status == 200
    refused(post(http, f"/channel/delete?topic={other}&channel=c"), 404, "CHANNEL_NOT_FOUND")
    assert post(http, f"/channel/create?topic={other}&channel=c").status == 200
    assert post(http, f"/topic/delete?topic={other}").status == 200
    refused(get(http, f"/lookup?topic={other}"), 404, "TOPIC_NOT_FOUND")
    assert get(http, f"/channels?topic={other}").json == {"channels": []}


@pytest.mark.parametrize("action", ["create", "delete"])
def test_143_channel_arguments(http: Address, action: str) -> None:
    path = f"/channel/{action}"
    refused(post(http, path), 400, "MISSING_ARG_TOPIC")
    refused(post(http, f"{path}?topic=bad*&channel=c"), 400, "INVALID_ARG_TOPIC")
    refused(post(http, f"{path}?topic=t"), 400, "MISSING_ARG_CHANNEL")
    refused(post(http, f"{path}?topic=t&channel=bad*"), 400, "INVALID_ARG_CHANNEL")


def test_144_ping_and_info(http: Address) -> None:
    reply = get(http, "/ping")
    assert (reply.status, reply.body) == (200, b"OK")
    assert "X-NSQ-Content-Type" not in reply.headers
    reply = get(http, "/info")
    assert (reply.status, reply.json) == (200, {"version": "1.3.0"})
    refused(get(http, "/nowhere"), 404, "NOT_FOUND")
    refused(post(http, "/lookup"), 405, "METHOD_NOT_ALLOWED")
