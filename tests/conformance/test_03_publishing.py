"""Rows 38 to 50: PUB, MPUB, DPUB."""

from __future__ import annotations

import struct

import pytest

from tests.support.rawclient import mpub_body, topic_stats
from tests.support.servers import Server, Site, unique


def test_038_pub_creates_topic(site: Site, small: Server) -> None:
    topic = unique()
    site.client(small).publish(topic, b"x")
    assert topic_stats(small.http_address, topic)["depth"] == 1


def test_039_largest_message(site: Site, small: Server) -> None:
    client = site.client(small)
    client.publish(unique(), b"x" * 1000)
    client.command(f"PUB {unique()}", b"x" * 1001)
    client.fatal("E_BAD_MESSAGE PUB message too big 1001 > 1000")


@pytest.mark.parametrize("size", [0, -1])
@pytest.mark.parametrize("name", ["PUB", "DPUB"])
def test_040_pub_size(site: Site, small: Server, name: str, size: int) -> None:
    client = site.client(small)
    delay = b" 1" if name == "DPUB" else b""
    client.send(b"%s %s%s\n" % (name.encode(), unique().encode(), delay) + struct.pack(">i", size))
    client.fatal(f"E_BAD_MESSAGE {name} invalid message body size {size}")


def test_041_pub_topic(site: Site, small: Server) -> None:
    client = site.client(small)
    client.command("PUB", b"x")
    client.fatal("E_INVALID PUB insufficient number of parameters")
    client = site.client(small)
    client.command("PUB bad*", b"x")
    client.fatal('E_BAD_TOPIC PUB topic name "bad*" is not valid')


def test_042_names(site: Site, small: Server) -> None:
    client = site.client(small)
    for name in ("n" * 64, "n" * 54 + "#ephemeral", ".", "A-b_c.9", "n"):
        client.publish(name, b"x")
    for name in ("n" * 65, "n" * 55 + "#ephemeral", "#ephemeral", "a#eph", "tö", "a#ephemeralx"):
        client = site.client(small)
        client.command(f"PUB {name}", b"x")
        client.fatal(f'E_BAD_TOPIC PUB topic name "{name}" is not valid')


def test_043_mpub(site: Site, small: Server) -> None:
    topic = unique()
    client = site.client(small)
    client.command(f"MPUB {topic}", mpub_body([b"a", b"b", b"c"]))
    client.ok()
    client.silent(0.1)
    assert topic_stats(small.http_address, topic)["message_count"] == 3


def test_043_timestamps_rise(site: Site, small: Server) -> None:
    topic = unique()
    client = site.client(small)
    client.subscribe(topic, "c", 50)
    client.command(f"MPUB {topic}", mpub_body([b"x"] * 50))
    frames = [client.answer() for _ in range(51)]
    heads = sorted(struct.unpack_from(">qH16s", frame.data) for frame in frames if frame.type)
    timestamps, _, ids = zip(*heads, strict=True)
    assert len(set(timestamps)) == 50
    assert list(ids) == sorted(ids)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (mpub_body([], 0), "E_BAD_BODY MPUB invalid message count 0"),
        (mpub_body([b"a"], -1), "E_BAD_BODY MPUB invalid message count -1"),
        (mpub_body([b"a"], 1000), "E_BAD_BODY MPUB invalid message count 1000"),
        (b"", "E_BAD_BODY MPUB invalid body size 0"),
        (b"x" * 5001, "E_BAD_BODY MPUB body too big 5001 > 5000"),
        (mpub_body([b"a", b""]), "E_BAD_MESSAGE MPUB invalid message(1) body size 0"),
        (mpub_body([b"a", b"x" * 1001]), "E_BAD_MESSAGE MPUB message too big 1001 > 1000"),
    ],
    ids=["count0", "negative", "count", "size0", "size", "empty", "big"],
)
def test_044_mpub_errors(site: Site, small: Server, body: bytes, text: str) -> None:
    topic = unique()
    client = site.client(small)
    client.command(f"MPUB {topic}", body)
    client.fatal(text)
    # The topic is created before the body is looked at (docs/protocol/commands#order-of-checks).
    assert topic_stats(small.http_address, topic)["message_count"] == 0


def test_045_mpub_topic(site: Site, small: Server) -> None:
    client = site.client(small)
    client.command("MPUB bad*", mpub_body([b"a"]))
    client.fatal('E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "bad*" is not valid')
    client = site.client(small)
    client.command("MPUB", mpub_body([b"a"]))
    client.fatal("E_INVALID MPUB insufficient number of parameters")


@pytest.mark.parametrize("size", [1, 100])
def test_046_mpub_wrong_total(site: Site, small: Server, size: int) -> None:
    topic = unique()
    client = site.client(small)
    client.send(b"MPUB %s\n" % topic.encode() + struct.pack(">i", size) + mpub_body([b"a", b"b"]))
    client.ok()
    client.alive()
    assert topic_stats(small.http_address, topic)["message_count"] == 2


def test_047_dpub_time(site: Site, small: Server) -> None:
    topic = unique()
    for line, text in (
        ("DPUB", "DPUB insufficient number of parameters"),
        (f"DPUB {topic}", "DPUB insufficient number of parameters"),
        (f"DPUB {topic} x", "DPUB could not parse timeout x"),
        (f"DPUB {topic} -1", "DPUB could not parse timeout -1"),
        (f"DPUB {topic} 10001", "DPUB timeout 10001 out of range 0-10000"),
    ):
        client = site.client(small)
        client.command(line, b"x")
        client.fatal(f"E_INVALID {text}")
    client = site.client(small)
    for delay in ("10000", "0"):
        client.command(f"DPUB {topic} {delay}", b"x")
        client.ok()


def test_048_pipelined(site: Site, small: Server) -> None:
    topic = unique().encode()
    pub = b"PUB %s\n\x00\x00\x00\x01x" % topic
    client = site.client(small)
    client.send(pub + pub + b"NOP\n" + pub)
    for _ in range(3):
        client.ok()
    client.silent()
    assert topic_stats(small.http_address, topic.decode())["depth"] == 3


def test_049_body_cut_short(site: Site, small: Server) -> None:
    client = site.client(small)
    client.send(b"PUB %s\n" % unique().encode() + struct.pack(">i", 10) + b"four")
    client.half_close()
    client.fatal("E_BAD_MESSAGE PUB failed to read message body")


def test_050_pub_while_subscribed(site: Site, small: Server) -> None:
    topic = unique()
    client = site.client(small)
    client.subscribe(topic, "c")
    client.publish(topic, b"x")
