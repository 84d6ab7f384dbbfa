"""Rows 91 to 112: heartbeats, timeouts, delays, output buffering, sampling.

Lower bounds are exact: they count from before the bytes that start the clock are sent. Upper bounds
leave a second for a busy machine, and still tell the right behaviour from the next wrong one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.conformance.rows import create_channel, waiting, warm_channel
from tests.support.rawclient import (
    HEARTBEAT,
    RESPONSE,
    Client,
    Message,
    channel_stats,
    mpub_body,
    post,
    topic_stats,
)
from tests.support.servers import Server, Site, unique

SLACK = 1.0
MANY = 2000


@contextmanager
def takes(low: float, high: float) -> Iterator[None]:
    """Assert that the block takes `low` to `high` seconds (and SLACK)."""
    began = time.monotonic()
    yield
    elapsed = time.monotonic() - began
    assert low <= elapsed <= high + SLACK


def timing_nsqd(site: Site, *flags: str) -> Server:
    """An nsqd with few channels: many make its queue scan coarse
    (docs/protocol/timeouts#queue-scan)."""
    return site.nsqd(*flags, share="timing")


def delete(server: Server, topic: str) -> None:
    """Remove a topic, so that few channels are left to scan."""
    assert post(server.http_address, f"/topic/delete?topic={topic}").status == 200


def subscribed(site: Site, server: Server, topic: str, rdy: int, **fields: int) -> Client:
    client = site.client(server)
    client.subscribe(topic, "c", rdy, **fields)
    return client


def heartbeat(client: Client, timeout: float) -> None:
    assert client.frame(timeout) == (RESPONSE, HEARTBEAT)


@waiting
def test_091_heartbeat(site: Site) -> None:
    client = site.client(timing_nsqd(site))
    with takes(1.0, 1.0):
        client.identify(heartbeat_interval=1000)
        heartbeat(client, 5)
    client.command("NOP")
    with takes(0.0, 1.0):
        heartbeat(client, 5)


@waiting
def test_092_silent_client(site: Site) -> None:
    client = site.client(timing_nsqd(site))
    with takes(2.0, 2.0):
        client.identify(heartbeat_interval=1000)
        heartbeat(client, 5)
        client.cut_off(5)


@waiting
def test_093_nop_keeps_open(site: Site) -> None:
    client = site.client(timing_nsqd(site))
    client.identify(heartbeat_interval=1000)
    for _ in range(4):
        site.sleep(1.5)
        client.command("NOP")
    client.alive()


def owed_much(site: Site, server: Server) -> tuple[Client, str]:
    """A subscriber whose RDY will call for more than fits into the kernel's buffers."""
    topic = unique()
    client = site.client(server)
    client.subscribe(topic, "c", heartbeat_interval=2000)
    producer = site.client(server)
    for _ in range(5):
        producer.command(f"MPUB {topic}", mpub_body([b"x" * 500_000] * 9))
        producer.ok()
    return client, topic


def client_count(server: Server, topic: str) -> int:
    return int(channel_stats(server.http_address, topic, "c")["client_count"])


@waiting
def test_093_client_that_does_not_read(site: Site) -> None:
    server = site.nsqd(share="not read")
    client, topic = owed_much(site, server)
    client.command("RDY 100")
    for _ in range(10):
        site.sleep(0.5)
        client.command("NOP")
    # Commands keep the connection open, but what is sent ends in the middle of a frame: no message
    # comes any more, and no heartbeat.
    assert client_count(server, topic) == 1
    with pytest.raises(TimeoutError):
        while True:
            client.take(1, 2.5)
            client.buffer.clear()
    assert channel_stats(server.http_address, topic, "c")["depth"] > 0
    client.command("PUB alive", b"x")
    client.closed()
    site.eventually(lambda: client_count(server, topic) == 0)


@waiting
def test_093_silent_client_that_does_not_read(site: Site) -> None:
    server = site.nsqd(share="not read")
    client, topic = owed_much(site, server)
    with takes(4.0, 4.0):
        client.command("RDY 100")
        site.eventually(lambda: client_count(server, topic) == 0)


@waiting
def test_094_no_heartbeats(site: Site) -> None:
    client = site.client(timing_nsqd(site))
    client.identify(heartbeat_interval=-1)
    with pytest.raises(TimeoutError):
        client.frame(3.0)
    client.alive()


def timed_out(site: Site) -> tuple[Server, str, Client, Message, Message]:
    """RDY 1 and two messages, of which the first times out after a second."""
    server = timing_nsqd(site)
    topic = warm_channel(site, server)
    site.client(server).publish(topic, b"first", b"second")
    client = site.client(server)
    client.subscribe(topic, "c", msg_timeout=1000)
    with takes(1.0, 1.35):
        client.command("RDY 1")
        first = client.message()
        second = client.message()
    assert (first.body, second.body, second.attempts) == (b"first", b"second", 1)
    return server, topic, client, first, second


@waiting
def test_095_timeout(site: Site) -> None:
    server, topic, *_ = timed_out(site)
    delete(server, topic)


@waiting
def test_096_timeout_counts(site: Site) -> None:
    server, topic, client, first, second = timed_out(site)
    found = channel_stats(server.http_address, topic, "c")
    assert (found["timeout_count"], found["requeue_count"]) == (1, 0)
    client.fin(second)
    assert client.message() == first._replace(attempts=2)
    delete(server, topic)


@waiting
def test_097_fin_after_timeout(site: Site) -> None:
    server, topic, client, first, second = timed_out(site)
    client.fin(first)
    client.error(f"E_FIN_FAILED FIN {first.id.decode()} failed ID not in flight")
    client.fin(second)
    assert client.message().id == first.id
    delete(server, topic)


@waiting
def test_098_consumer_dies(site: Site) -> None:
    server = timing_nsqd(site)
    topic = warm_channel(site, server)
    site.client(server).publish(topic, b"x")
    first = site.client(server)
    first.subscribe(topic, "c", msg_timeout=2000)
    with takes(2.0, 2.4):
        first.command("RDY 1")
        message = first.message()
        first.close()
        second = subscribed(site, server, topic, 1)
        site.eventually(lambda: channel_stats(server.http_address, topic, "c")["client_count"] == 1)
        assert channel_stats(server.http_address, topic, "c")["in_flight_count"] == 1
        assert second.message() == message._replace(attempts=2)
    delete(server, topic)


def test_099_closing(site: Site) -> None:
    server = site.nsqd()
    topic = unique()
    client = subscribed(site, server, topic, 5)
    client.publish(topic, b"x")
    message = client.message()
    client.command("CLS")
    client.ok(b"CLOSE_WAIT")
    site.client(server).publish(topic, b"y")
    client.silent(0.5)
    (entry,) = channel_stats(server.http_address, topic, "c")["clients"]
    assert (entry["state"], entry["ready_count"], entry["in_flight_count"]) == (4, 0, 1)
    client.fin(message)
    site.eventually(lambda: channel_stats(server.http_address, topic, "c")["in_flight_count"] == 0)
    client.alive()


@waiting
def test_100_touch(site: Site) -> None:
    # Twice the row's times, so that a TOUCH is not late on a busy machine.
    server = timing_nsqd(site)
    topic = warm_channel(site, server)
    client = subscribed(site, server, topic, 1, msg_timeout=2000)
    client.publish(topic, b"x")
    message = client.message()
    for _ in range(6):
        client.silent(0.7)
        client.command(b"TOUCH " + message.id)
    assert channel_stats(server.http_address, topic, "c")["timeout_count"] == 0
    client.fin(message)
    client.alive()
    delete(server, topic)


@waiting
def test_101_touch_limit(site: Site) -> None:
    server = timing_nsqd(site, "-max-msg-timeout=3s")
    topic = warm_channel(site, server)
    site.client(server).publish(topic, b"x")
    client = site.client(server)
    client.subscribe(topic, "c", msg_timeout=2000)
    with takes(3.0, 3.35):
        client.command("RDY 1")
        message = client.message()
        for _ in range(4):
            client.silent(0.7)
            client.command(b"TOUCH " + message.id)
        assert client.message() == message._replace(attempts=2)


@waiting
def test_102_req_limit(site: Site) -> None:
    server = timing_nsqd(site, "-max-req-timeout=2s")
    topic = warm_channel(site, server)
    client = subscribed(site, server, topic, 1)
    client.publish(topic, b"x")
    message = client.message()
    client.command(b"REQ %s 0" % message.id)
    assert client.message().attempts == 2
    with takes(2.0, 2.35):
        client.command(b"REQ %s 600000" % message.id)
        site.eventually(
            lambda: channel_stats(server.http_address, topic, "c")["deferred_count"] == 1
        )
        assert client.message() == message._replace(attempts=3)


@waiting
def test_103_req_delay(site: Site) -> None:
    server = timing_nsqd(site)
    topic = warm_channel(site, server)
    client = subscribed(site, server, topic, 1)
    client.publish(topic, b"x")
    message = client.message()
    with takes(0.5, 0.85):
        client.command(b"REQ %s 500" % message.id)
        assert client.message() == message._replace(attempts=2)
    delete(server, topic)


def deferred_counts(site: Site, server: Server, topic: str) -> None:
    def look() -> bool:
        found = channel_stats(server.http_address, topic, "c")
        return (found["deferred_count"], found["depth"], found["message_count"]) == (1, 0, 1)

    site.eventually(look)


@waiting
def test_104_dpub(site: Site) -> None:
    server = timing_nsqd(site)
    topic = warm_channel(site, server)
    client = subscribed(site, server, topic, 1)
    with takes(0.5, 0.85):
        client.command(f"DPUB {topic} 500", b"x")
        client.ok()
        deferred_counts(site, server, topic)
        message = client.message()
    assert (message.body, message.attempts) == (b"x", 1)
    delete(server, topic)


@waiting
def test_105_http_defer(site: Site) -> None:
    server = timing_nsqd(site)
    topic = warm_channel(site, server)
    client = subscribed(site, server, topic, 1)
    with takes(0.5, 0.85):
        assert post(server.http_address, f"/pub?topic={topic}&defer=500", b"x").body == b"OK"
        deferred_counts(site, server, topic)
        message = client.message()
    assert (message.body, message.attempts) == (b"x", 1)
    for value in ("3600001", "-1", "x", ""):
        reply = post(server.http_address, f"/pub?topic={topic}&defer={value}", b"x")
        assert (reply.status, reply.json) == (400, {"message": "INVALID_DEFER"})
    delete(server, topic)


@waiting
def test_106_dpub_while_paused(site: Site) -> None:
    server = timing_nsqd(site)
    topic = warm_channel(site, server)
    client = subscribed(site, server, topic, 1)
    assert post(server.http_address, f"/topic/pause?topic={topic}").status == 200
    client.command(f"DPUB {topic} 500", b"x")
    client.ok()
    client.silent(1.0)
    with takes(0.5, 0.85):
        assert post(server.http_address, f"/topic/unpause?topic={topic}").status == 200
        assert client.message().body == b"x"
    delete(server, topic)


@waiting
def test_107_timeout_on_fresh_channel(site: Site) -> None:
    server = timing_nsqd(site)
    topic = unique()
    client = site.client(server)
    client.subscribe(topic, "c", msg_timeout=1000)
    client.publish(topic, b"x")
    with takes(1.0, 6.3):
        client.command("RDY 1")
        message = client.message()
        assert client.message() == message._replace(attempts=2)
    delete(server, topic)


def test_108_flush_timer(site: Site) -> None:
    topic = unique()
    server = site.nsqd()
    client = subscribed(site, server, topic, 10)
    producer = site.client(server)
    for body in (b"0", b"1", b"2"):
        with takes(0.0, 0.3):
            producer.publish(topic, body)
            assert client.message().body == body


def test_109_flush_at_rdy_1(site: Site) -> None:
    topic = unique()
    server = site.nsqd()
    client = subscribed(site, server, topic, 1, output_buffer_timeout=5000)
    producer = site.client(server)
    for body in (b"0", b"1", b"2"):
        with takes(0.0, 0.1):
            producer.publish(topic, body)
            message = client.message()
        assert message.body == body
        client.fin(message)


def unhurried(site: Site, rdy: int, **fields: int) -> tuple[Server, str, Client]:
    """A consumer whose messages wait in nsqd's output buffer, and no heartbeat for long."""
    topic = unique()
    server = timing_nsqd(site)
    fields = {"output_buffer_timeout": -1, "heartbeat_interval": 60_000, **fields}
    return server, topic, subscribed(site, server, topic, rdy, **fields)


@waiting
def test_110_no_flush_timer(site: Site) -> None:
    server, topic, client = unhurried(site, 5, heartbeat_interval=1000)
    heartbeat(client, 5)
    site.client(server).publish(topic, b"x")
    with takes(0.0, 1.1):
        assert client.message().body == b"x"
    # It waited for the next heartbeat, which nsqd writes right behind it.
    assert client.frame(0.5) == (RESPONSE, HEARTBEAT)
    delete(server, topic)


def test_110_the_buffer_is_full(site: Site) -> None:
    server, topic, client = unhurried(site, 100, output_buffer_size=1000)
    producer = site.client(server)
    producer.publish(topic, b"a" * 500)
    client.silent(0.5)
    producer.publish(topic, b"b" * 500)
    # It sends when it is full, and that is in the middle of a frame.
    assert client.message().body == b"a" * 500
    client.silent(0.3)
    assert len(client.buffer) == 1000 - 534
    # The rest, and what is larger than the buffer, goes at once.
    producer.publish(topic, b"c" * 3000)
    assert [message.body[:1] for message in client.messages(2)] == [b"b", b"c"]
    delete(server, topic)


@pytest.mark.parametrize("end", ["RDY used up", "RDY 0", "pause", "an answer"])
def test_110_what_flushes_the_buffer(site: Site, end: str) -> None:
    server, topic, client = unhurried(site, 2)
    producer = site.client(server)
    producer.publish(topic, b"first")
    client.silent(0.5)
    if end == "RDY used up":
        producer.publish(topic, b"second")
    elif end == "RDY 0":
        client.command("RDY 0")
    elif end == "pause":
        post(server.http_address, f"/channel/pause?topic={topic}&channel=c")
    else:
        client.command("FIN " + "0" * 16)
    with takes(0.0, 0.5):
        assert client.message().body == b"first"
    delete(server, topic)


def test_110_a_message_that_was_held_is_in_flight(site: Site) -> None:
    server, topic, client = unhurried(site, 5)
    site.client(server).publish(topic, b"x")
    client.silent(0.5)
    assert channel_stats(server.http_address, topic, "c")["in_flight_count"] == 1
    client.half_close()
    # The end of the connection does not send it.
    client.closed()
    delete(server, topic)


def test_110_no_output_buffer(site: Site) -> None:
    topic = unique()
    server = site.nsqd()
    client = subscribed(site, server, topic, 5, output_buffer_size=-1)
    with takes(0.0, 0.1):
        site.client(server).publish(topic, b"x")
        assert client.message().body == b"x"


@pytest.mark.parametrize(("rate", "low", "high"), [(1, 10, 90), (99, MANY, MANY)])
def test_111_sampling(site: Site, rate: int, low: int, high: int) -> None:
    topic = unique()
    server = site.nsqd()
    create_channel(server, topic, "c")
    producer = site.client(server)
    producer.command(f"MPUB {topic}", mpub_body([b"%d" % n for n in range(MANY)]))
    producer.ok()
    client = subscribed(site, server, topic, 2500, sample_rate=rate)

    def all_taken() -> bool:
        found = channel_stats(server.http_address, topic, "c")
        return (found["message_count"], found["depth"]) == (MANY, 0)

    site.eventually(all_taken)
    messages = client.drain(1.0)
    assert low <= len(messages) <= high
    client.fin(*messages)
    site.eventually(lambda: channel_stats(server.http_address, topic, "c")["in_flight_count"] == 0)
    assert topic_stats(server.http_address, topic)["message_count"] == MANY


@waiting
def test_112_no_identify(site: Site) -> None:
    server = timing_nsqd(site)
    with takes(60.0, 60.0):
        with takes(30.0, 30.0):
            client = site.client(server)
            heartbeat(client, 40)
        client.cut_off(40)
