"""Options whose effect shows only at an nsqd; what a message and a Reader know of themselves."""

from __future__ import annotations

import ssl
import time

import pytest

from gnsqsync import Message, NsqdHTTP
from gnsqsync.errors import NotSent
from gnsqsync.http.clients import ClientStats
from tests.integration.conftest import Client, url
from tests.support.servers import Server, Site
from tests.support.worlds import World


def consumers(nsqd: Server, topic: str) -> list[ClientStats]:
    """The consumers of a topic's only channel, as nsqd knows them."""
    with NsqdHTTP(url(nsqd)) as http:
        return [
            client
            for found in http.stats(topic=topic).topics
            for channel in found.channels
            for client in channel.clients
        ]


def test_sampling(client: Client, nsqd: Server, world: World, topic: str) -> None:
    got: list[Message] = []
    reader = client.consume(topic, got.append, nsqd, sample_rate=19, max_in_flight=100)
    world.eventually(lambda: reader.stats().connections)
    assert [seen.sample_rate for seen in consumers(nsqd, topic)] == [19]
    client.writer(nsqd).publish_many(topic, [b"x"] * 2000)

    def is_over() -> bool:
        with NsqdHTTP(url(nsqd)) as http:
            channel = http.stats(topic=topic).topics[0].channels[0]
        # The topic hands them over one by one.
        waiting = channel.depth or channel.in_flight_count
        return channel.message_count == 2000 and not waiting

    world.eventually(is_over)
    # 20 percent of them; ten standard deviations to either side.
    assert 220 < len(got) < 580


def test_tls_versions(client: Client, site: Site, topic: str) -> None:
    nsqd = site.nsqd(*site.certificates.flags, "-tls-min-version=tls1.2")
    default = client.writer(nsqd, tls_ca_file=str(site.certificates.ca_file))
    default.publish(topic, b"x")
    context = ssl.create_default_context(cafile=str(site.certificates.ca_file))
    assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = ssl.create_default_context(cafile=str(site.certificates.ca_file))
        context.minimum_version = context.maximum_version = version
        client.writer(nsqd, tls=context).publish(topic, b"x")
    # A context is used as it is: this one trusts nobody.
    with pytest.raises(NotSent, match="does not verify"):
        client.writer(nsqd, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)).publish(topic, b"x")


def test_a_message_knows_its_deadlines(
    client: Client, site: Site, world: World, topic: str
) -> None:
    nsqd = site.nsqd("-max-msg-timeout=90s")
    kept: list[Message] = []

    def handler(message: Message) -> None:
        message.detach()
        kept.append(message)

    before = time.monotonic()
    client.writer(nsqd).publish(topic, b"x")
    client.consume(topic, handler, nsqd, msg_timeout=70)
    (message,) = world.eventually(lambda: kept)
    first = message.deadline
    assert before + 70 <= first <= time.monotonic() + 70
    assert message.hard_deadline - first == pytest.approx(20)
    assert message.touch()
    assert first < message.deadline < message.hard_deadline
    assert message.is_alive
    assert not message.timed_out
    assert message.finish()
    assert not message.is_alive


def test_is_starved(client: Client, nsqd: Server, world: World, topic: str) -> None:
    kept: list[Message] = []

    def handler(message: Message) -> None:
        message.detach()
        kept.append(message)

    reader = client.consume(topic, handler, nsqd, max_in_flight=10, latency="throughput")
    writer = client.writer(nsqd)
    writer.publish_many(topic, [b"x"] * 8)
    world.eventually(lambda: len(kept) == 8)
    assert not reader.is_starved
    writer.publish(topic, b"x")
    world.eventually(lambda: reader.is_starved)
    for message in kept:
        message.finish()
    assert not reader.is_starved
