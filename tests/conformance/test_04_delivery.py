"""Rows 51 to 73: RDY, FIN, REQ, channels, pause, empty, delete, ephemeral names."""

from __future__ import annotations

import re
import time
from typing import Any

from tests.conformance.rows import create_channel
from tests.support.rawclient import Client, channel_stats, mpub_body, post, topic_stats
from tests.support.servers import Server, Site, unique


def consumer(site: Site, server: Server, topic: str, rdy: int | None = 1) -> Client:
    client = site.client(server)
    client.subscribe(topic, "c", rdy)
    return client


def in_channel(site: Site, server: Server, topic: str, **wanted: Any) -> None:
    """Wait until /stats shows these values for channel c."""

    def look() -> bool:
        found = channel_stats(server.http_address, topic, "c")
        return found is not None and {key: found[key] for key in wanted} == wanted

    site.eventually(look)


def ready_counts(server: Server, topic: str) -> list[int]:
    """The RDY that each client of channel c has given, as /stats shows it."""
    found = channel_stats(server.http_address, topic, "c")
    return [client["ready_count"] for client in found["clients"]]


def post_ok(server: Server, path: str, topic: str, channel: str | None = None) -> None:
    target = f"{path}?topic={topic.replace('#', '%23')}"
    if channel is not None:
        target += f"&channel={channel.replace('#', '%23')}"
    assert post(server.http_address, target).status == 200


def test_051_one_at_a_time(site: Site, small: Server) -> None:
    topic = unique()
    client = consumer(site, small, topic)
    site.client(small).publish(topic, b"0", b"1", b"2", b"3")
    for body in (b"0", b"1", b"2", b"3"):
        message = client.message()
        assert (message.body, message.attempts) == (body, 1)
        client.silent(0.1)
        client.fin(message)
    in_channel(site, small, topic, depth=0, in_flight_count=0)


def test_052_id_and_timestamp(site: Site, small: Server) -> None:
    topic = unique()
    client = consumer(site, small, topic)
    client.publish(topic, b"x")
    message = client.message()
    assert re.fullmatch(rb"[0-9a-f]{16}", message.id)
    assert abs(message.timestamp - time.time_ns()) < 5e9


def test_053_rdy_is_a_ceiling(site: Site, small: Server) -> None:
    topic = unique()
    site.client(small).publish(topic, *[b"%d" % n for n in range(5)])
    client = consumer(site, small, topic, 3)
    assert len({message.id for message in client.messages(3)}) == 3
    client.silent(0.5)
    in_channel(site, small, topic, in_flight_count=3, depth=2)


def test_054_rdy_lowered(site: Site, small: Server) -> None:
    topic = unique()
    site.client(small).publish(topic, *[b"%d" % n for n in range(5)])
    client = consumer(site, small, topic, 3)
    first, second, third = client.messages(3)
    client.command("RDY 1")
    client.silent()
    client.fin(first, second)
    client.silent()
    client.fin(third)
    client.message()
    client.silent()


def test_055_foreign_message(site: Site, small: Server) -> None:
    topic = unique()
    owner = consumer(site, small, topic)
    owner.publish(topic, b"x")
    message_id = owner.message().id.decode()
    other = consumer(site, small, topic, None)
    for line in (f"FIN {message_id}", f"REQ {message_id} 0", f"TOUCH {message_id}"):
        name = line.split()[0]
        other.command(line)
        other.error(f"E_{name}_FAILED {name} {message_id} failed client does not own message")
    other.alive()


def test_056_touch_and_fin(site: Site, small: Server) -> None:
    topic = unique()
    client = consumer(site, small, topic)
    client.publish(topic, b"x")
    message = client.message()
    client.command(b"TOUCH " + message.id)
    client.fin(message)
    client.silent()
    in_channel(site, small, topic, in_flight_count=0, depth=0)


def test_057_fin_twice(site: Site, small: Server) -> None:
    topic = unique()
    client = consumer(site, small, topic)
    client.publish(topic, b"x")
    message = client.message()
    client.fin(message, message)
    client.error(f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight")
    client.alive()


def test_058_requeue(site: Site, small: Server) -> None:
    topic = unique()
    site.client(small).publish(topic, b"first", b"second")
    client = consumer(site, small, topic)
    first = client.message()
    client.command(b"REQ %s 0" % first.id)
    second = client.message()
    assert (first.body, second.body) == (b"first", b"second")
    client.fin(second)
    assert client.message() == first._replace(attempts=2)
    in_channel(site, small, topic, requeue_count=1, timeout_count=0)


def test_059_channel_paused(site: Site, small: Server) -> None:
    topic = unique()
    client = consumer(site, small, topic)
    post_ok(small, "/channel/pause", topic, "c")
    site.client(small).publish(topic, b"x")
    client.silent()
    in_channel(site, small, topic, depth=1, paused=True)
    post_ok(small, "/channel/unpause", topic, "c")
    assert client.message().body == b"x"
    in_channel(site, small, topic, paused=False)


def test_060_topic_paused(site: Site, small: Server) -> None:
    topic = unique()
    client = consumer(site, small, topic)
    post_ok(small, "/topic/pause", topic)
    site.client(small).publish(topic, b"x")
    client.silent()
    found = topic_stats(small.http_address, topic)
    assert (found["depth"], found["paused"], found["channels"][0]["depth"]) == (1, True, 0)
    post_ok(small, "/topic/unpause", topic)
    assert client.message().body == b"x"


def test_061_first_channel_gets_all(site: Site, small: Server) -> None:
    topic = unique()
    site.client(small).publish(topic, b"0", b"1", b"2")
    consumer(site, small, topic, None)
    in_channel(site, small, topic, depth=3)
    assert topic_stats(small.http_address, topic)["depth"] == 0


def two_channels(site: Site, small: Server) -> tuple[str, Client, Client]:
    topic = unique()
    first = consumer(site, small, topic)
    first.publish(topic, b"before")
    message = first.message()
    assert message.body == b"before"
    first.fin(message)
    second = site.client(small)
    second.subscribe(topic, "d", 1)
    return topic, first, second


def test_062_later_channel(site: Site, small: Server) -> None:
    topic, first, second = two_channels(site, small)
    second.silent()
    assert channel_stats(small.http_address, topic, "d")["depth"] == 0
    site.client(small).publish(topic, b"after")
    assert first.message().body == b"after"
    assert second.message().body == b"after"


def test_063_copies(site: Site, small: Server) -> None:
    topic, first, second = two_channels(site, small)
    site.client(small).publish(topic, b"after")
    assert first.message() == second.message()


def test_064_channels_deleted(site: Site, small: Server) -> None:
    topic, first, second = two_channels(site, small)
    post_ok(small, "/channel/delete", topic, "c")
    first.closed()
    post_ok(small, "/channel/delete", topic, "d")
    second.closed()
    site.client(small).publish(topic, b"x")
    found = topic_stats(small.http_address, topic)
    assert (found["depth"], found["channels"]) == (1, [])


def test_065_ephemeral_channel(site: Site, small: Server) -> None:
    topic, channel = unique(), "c#ephemeral"
    client = site.client(small)
    client.subscribe(topic, channel)
    assert channel_stats(small.http_address, topic, channel)["client_count"] == 1
    client.close()
    site.eventually(lambda: channel_stats(small.http_address, topic, channel) is None)
    assert topic_stats(small.http_address, topic) is not None


def test_066_ephemeral_topic(site: Site, small: Server) -> None:
    topic = unique() + "#ephemeral"
    client = site.client(small)
    client.subscribe(topic, "c#ephemeral")
    assert topic_stats(small.http_address, topic) is not None
    client.close()
    site.eventually(lambda: topic_stats(small.http_address, topic) is None)


def test_067_ephemeral_topic_with_publisher_only(site: Site, small: Server) -> None:
    topic = unique() + "#ephemeral"
    client = site.client(small)
    client.publish(topic, b"x")
    client.close()
    site.sleep(0.5)
    assert topic_stats(small.http_address, topic)["depth"] == 1


def test_068_ephemeral_topic_drops(site: Site, small: Server) -> None:
    topic = unique() + "#ephemeral"
    client = site.client(small)
    client.publish(topic, *[b"x"] * 21)
    found = topic_stats(small.http_address, topic)
    assert (found["depth"], found["backend_depth"], found["message_count"]) == (5, 0, 21)


def test_069_overflow(site: Site, small: Server) -> None:
    topic = unique()
    client = consumer(site, small, topic, None)
    bodies = [b"%d" % n for n in range(20)]
    site.client(small).publish(topic, *bodies)
    in_channel(site, small, topic, depth=20, backend_depth=15)
    client.command("RDY 20")
    messages = client.messages(20)
    assert sorted(message.body for message in messages) == sorted(bodies)
    client.fin(*messages)
    in_channel(site, small, topic, depth=0, in_flight_count=0)


def test_070_channel_empty(site: Site, small: Server) -> None:
    topic = unique()
    client = consumer(site, small, topic)
    client.publish(topic, b"x")
    message = client.message()
    client.publish(topic, b"waiting")
    client.command(f"DPUB {topic} 10000", b"later")
    client.ok()
    in_channel(site, small, topic, depth=1, in_flight_count=1, deferred_count=1)
    # nsqd forgets what is in flight before what waits: one that is ready may get it in between.
    client.command("RDY 0")
    site.eventually(lambda: ready_counts(small, topic) == [0])
    post_ok(small, "/channel/empty", topic, "c")
    in_channel(site, small, topic, depth=0, in_flight_count=0, deferred_count=0, message_count=3)
    client.fin(message)
    client.error(f"E_FIN_FAILED FIN {message.id.decode()} failed ID not in flight")
    # The connection's own count was reset as well: RDY 1 allows the next one.
    client.command("RDY 1")
    client.publish(topic, b"next")
    assert client.message().body == b"next"


def test_071_topic_empty(site: Site, small: Server) -> None:
    topic = unique()
    site.client(small).publish(topic, b"0", b"1", b"2")
    post_ok(small, "/topic/empty", topic)
    found = topic_stats(small.http_address, topic)
    assert (found["depth"], found["message_count"]) == (0, 3)


def test_072_topic_delete(site: Site, small: Server) -> None:
    topic = unique()
    create_channel(small, topic, "d")
    client = consumer(site, small, topic)
    producer = site.client(small)
    producer.publish(topic, b"x")
    client.message()
    post_ok(small, "/topic/delete", topic)
    client.closed()
    assert topic_stats(small.http_address, topic) is None
    producer.publish(topic, b"x")
    assert topic_stats(small.http_address, topic)["message_count"] == 1


def test_073_two_consumers(site: Site, small: Server) -> None:
    topic = unique()
    clients = [consumer(site, small, topic, 100) for _ in range(2)]
    bodies = [b"%03d" % n for n in range(200)]
    producer = site.client(small)
    producer.command(f"MPUB {topic}", mpub_body(bodies))
    producer.ok()
    # Nothing is finished, so each connection takes its RDY and no more.
    taken = [client.messages(100) for client in clients]
    assert sorted(message.body for part in taken for message in part) == bodies
    for client, part in zip(clients, taken, strict=True):
        client.fin(*part)
    in_channel(site, small, topic, depth=0, in_flight_count=0)
