"""Rows 145 to 149: nsqd together with nsqlookupd."""

from __future__ import annotations

import queue
import socketserver
import struct
from typing import Any

import pytest

from tests.conformance.rows import create_channel, waiting
from tests.support.rawclient import channel_stats, get, post, topic_stats
from tests.support.servers import Address, Server, Site, unique
from tests.support.serving import Serving


def node(lookupd: Server, nsqd: Server) -> Any:
    """What /nodes says of this nsqd, or None."""
    for entry in get(lookupd.http_address, "/nodes").json["producers"]:
        if entry["tcp_port"] == nsqd.tcp_address[1]:
            return entry
    return None


def lookup(lookupd: Server, topic: str) -> Any:
    """The answer of /lookup, or None for an unknown topic."""
    reply = get(lookupd.http_address, f"/lookup?topic={topic}")
    assert reply.status in (200, 404)
    return reply.json if reply.status == 200 else None


def found_at(lookupd: Server, topic: str) -> list[Address]:
    found = lookup(lookupd, topic) or {"producers": []}
    return [(entry["broadcast_address"], entry["tcp_port"]) for entry in found["producers"]]


def channels(lookupd: Server, topic: str) -> list[str]:
    found = lookup(lookupd, topic) or {"channels": []}
    return sorted(found["channels"])


def peer_flag(lookupd: Server) -> str:
    host, port = lookupd.tcp_address
    return f"-lookupd-tcp-address={host}:{port}"


@pytest.fixture
def lookupd(site: Site) -> Server:
    return site.nsqlookupd()


@pytest.fixture
def nsqd(site: Site, lookupd: Server) -> Server:
    server = site.nsqd(peer_flag(lookupd))
    site.eventually(lambda: node(lookupd, server))
    return server


def test_145_registration(site: Site, lookupd: Server, nsqd: Server) -> None:
    topic = unique()
    site.client(nsqd).publish(topic, b"x")
    site.eventually(lambda: found_at(lookupd, topic) == [nsqd.tcp_address])
    entry = node(lookupd, nsqd)
    assert (entry["http_port"], entry["version"]) == (nsqd.http_address[1], "1.3.0")
    client = site.client(nsqd)
    client.subscribe(topic, "e#ephemeral")
    site.eventually(lambda: channels(lookupd, topic) == ["e#ephemeral"])
    client.close()
    site.eventually(lambda: channels(lookupd, topic) == [])


def test_146_known_channels(site: Site, lookupd: Server, nsqd: Server) -> None:
    topic = unique()
    for channel in ("one", "two", "e%23ephemeral"):
        target = f"/channel/create?topic={topic}&channel={channel}"
        assert post(lookupd.http_address, target).status == 200
    site.client(nsqd).publish(topic, b"x")
    found = topic_stats(nsqd.http_address, topic)
    assert [channel["channel_name"] for channel in found["channels"]] == ["one", "two"]
    for channel in ("one", "two"):
        client = site.client(nsqd)
        client.subscribe(topic, channel, 1)
        assert client.message().body == b"x"


def test_147_topic_deleted(site: Site, lookupd: Server, nsqd: Server) -> None:
    topic = unique()
    site.client(nsqd).publish(topic, b"x")
    site.eventually(lambda: found_at(lookupd, topic))
    assert post(nsqd.http_address, f"/topic/delete?topic={topic}").status == 200
    site.eventually(lambda: lookup(lookupd, topic) == {"channels": [], "producers": []})


def test_148_nsqd_restarted(site: Site, lookupd: Server) -> None:
    topics = sorted(unique() for _ in range(2))
    server = site.own_nsqd(peer_flag(lookupd))
    for topic in topics:
        create_channel(server, topic, "c")

    def registered() -> bool:
        entry = node(lookupd, server)
        return entry is not None and sorted(entry["topics"]) == topics

    site.eventually(registered)
    server.stop()
    site.eventually(lambda: node(lookupd, server) is None)
    assert found_at(lookupd, topics[0]) == []
    server.restart()
    site.eventually(registered)
    assert channels(lookupd, topics[0]) == ["c"]


class Recorder(Serving):
    """In place of an nsqlookupd: answers IDENTIFY with `info`, all else with OK; notes both."""

    def __init__(self, info: bytes) -> None:
        lines: queue.Queue[str] = queue.Queue()

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                assert self.rfile.read(4) == b"  V1"
                for line in self.rfile:
                    lines.put(line.decode().strip())
                    answer = b"OK"
                    if line == b"IDENTIFY\n":
                        self.rfile.read(*struct.unpack(">i", self.rfile.read(4)))
                        answer = info
                    self.wfile.write(struct.pack(">i", len(answer)) + answer)
                lines.put("the end")

        self.lines = lines
        server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        self.address = f"127.0.0.1:{server.server_address[1]}"
        super().__init__(server, "in place of nsqlookupd")


@pytest.mark.parametrize(
    ("info", "is_taken"),
    [
        (b"{}", True),
        (b"null", True),
        (b'{"http_port": 1}', True),
        (b'{"Broadcast_Address": "127.0.0.1", "HTTP_PORT": 1}', True),
        (b'{"broadcast_address": "127.0.0.1", "http_port": "1"}', False),
        (b'{"tcp_port": "x"}', False),
        (b"[]", False),
        (b"E_INVALID", False),
    ],
)
def test_148_odd_answers_to_identify(site: Site, info: bytes, is_taken: bool) -> None:
    with Recorder(info) as recorder:
        server = site.own_nsqd(f"-lookupd-tcp-address={recorder.address}")
        expected = ["IDENTIFY", *([] if is_taken else ["the end"])]
        assert [recorder.lines.get(timeout=60) for _ in expected] == expected
        assert post(server.http_address, "/topic/create?topic=t").status == 200
        # It says IDENTIFY again when the connection did not last.
        expected = ["REGISTER t"] if is_taken else ["IDENTIFY", "the end"]
        assert [recorder.lines.get(timeout=60) for _ in expected] == expected
        server.stop()


@waiting
def test_149_nsqlookupd_away(site: Site) -> None:
    lookupd = site.own_nsqlookupd()
    server = site.own_nsqd(peer_flag(lookupd))
    before, during = unique(), unique()
    create_channel(server, before, "c")
    site.eventually(lambda: channels(lookupd, before) == ["c"])
    lookupd.stop()
    client = site.client(server)
    client.subscribe(during, "d", 1)
    client.publish(during, b"x")
    assert client.message().body == b"x"
    lookupd.restart()
    # nsqd comes back with its next PING, 15 s after the last one at most.
    for topic, channel in ((before, "c"), (during, "d")):
        site.eventually(lambda topic=topic: found_at(lookupd, topic))  # type: ignore[misc]
        site.eventually(lambda topic=topic, want=channel: channels(lookupd, topic) == [want])  # type: ignore[misc]
    assert channel_stats(server.http_address, during, "d")["client_count"] == 1
