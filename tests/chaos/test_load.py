"""Much of everything: messages, topics, publishers, bytes. Short forms; the long one is --soak."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from typing import Any

import pytest

from gnsqsync import Message, Reader, Writer
from gnsqsync.errors import ConfigError
from tests.chaos.processes import WORLDS
from tests.chaos.soak import soak
from tests.support.faultproxy import DOWN, UP, FaultProxy, Trouble
from tests.support.servers import Server, Site, unique
from tests.support.worlds import World

MAX_MSG_SIZE = 1_048_576


def stats(server: Server, query: str = "") -> Any:
    url = "http://{}:{}/stats?format=json{}".format(*server.http_address, query)
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


def text(server: Server) -> str:
    return "{}:{}".format(*server.tcp_address)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("server_kind", ["real"])
@pytest.mark.parametrize("world_name", WORLDS)
def test_a_short_soak(world_name: str, server_kind: str) -> None:
    outcome = soak(200_000, 5, world_name, lambda line: None)
    print(outcome)
    # Memory is another matter: it is flat only after a million.
    assert outcome.last["lost"] == 0, str(outcome)
    assert outcome.faults >= 1
    assert outcome.most["threads"] <= outcome.warm["threads"] + 3, str(outcome)
    assert outcome.most["descriptors"] <= outcome.warm["descriptors"] + 3, str(outcome)


@pytest.mark.parametrize("server_kind", ["real"])
def test_a_thousand_publishers_on_one_writer(site: Site, world: World) -> None:
    nsqd, topic = site.nsqd(), unique("thousand")
    with Writer(text(nsqd), runtime=world.runtime, publish_timeout=60.0) as writer:

        def publish(who: int) -> None:
            for number in range(3):
                writer.publish(topic, f"{who}:{number}")

        tasks = [world.spawn(publish, who) for who in range(1000)]
        for task in tasks:
            task.join(60.0)
        assert writer.stats().published == 3000
        assert len(writer.stats().connections) == 1
    (found,) = stats(nsqd, f"&topic={topic}")["topics"]
    assert found["message_count"] == 3000


@pytest.mark.parametrize("server_kind", ["real"])
def test_the_largest_message_in_single_bytes_and_with_a_stall(site: Site, world: World) -> None:
    nsqd, topic = site.nsqd(), unique("largest")
    body = bytes(range(256)) * (MAX_MSG_SIZE // 256)
    troubles = [
        Trouble(direction, kind, at, amount)
        for direction in (UP, DOWN)
        for kind, at, amount in (("drip", 0, 300), ("stall", 500_000, 0.3), ("drip", 900_000, 300))
    ]
    bodies: list[bytes] = []

    def handler(message: Message) -> None:
        bodies.append(message.body)

    with FaultProxy(nsqd.tcp_address, plan=lambda chance: troubles) as proxy:
        options: dict[str, Any] = {"nsqd_tcp_addresses": proxy.text, "runtime": world.runtime}
        with (
            Reader(topic, "ch", handler, **options),
            Writer(publish_timeout=30.0, **options) as writer,
        ):
            with pytest.raises(ConfigError):
                writer.publish(topic, body + b"x")
            writer.publish(topic, body)
            world.eventually(lambda: bodies, 30.0)
    assert bodies == [body]


@pytest.mark.parametrize("server_kind", ["embedded"])
@pytest.mark.timeout(300)
def test_two_thousand_topics_and_channels(site: Site) -> None:
    nsqd = site.own_nsqd()
    topics = [f"topic_{number}" for number in range(2000)]
    handled: Counter[bytes] = Counter()
    with Writer(text(nsqd), publish_timeout=60.0) as writer:
        for future in [writer.publish_async(topic, topic) for topic in topics]:
            future.result(60.0)
    for topic in topics:
        url = "http://{}:{}/channel/create?topic={}&channel=ch".format(*nsqd.http_address, topic)
        urllib.request.urlopen(url, data=b"", timeout=30).close()
    shown = stats(nsqd)["topics"]
    assert len(shown) == 2000
    assert all(len(found["channels"]) == 1 for found in shown)
    for topic in topics[::100]:
        reader = Reader(
            topic,
            "ch",
            lambda message: handled.update([message.body]),
            nsqd_tcp_addresses=text(nsqd),
        )
        with reader:
            site.eventually(lambda topic=topic: handled[topic.encode()], 30.0)
    assert sum(handled.values()) == 20
