"""A rate limit on the embedded and the real nsqd, in every world; its figures are simulated."""

from __future__ import annotations

import time

from gnsqsync import Message
from tests.integration.conftest import Client
from tests.support.servers import Server
from tests.support.worlds import World


def test_another_reader_gets_the_messages_that_a_limited_one_leaves(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    limited: list[float] = []
    other: list[bytes] = []
    client.writer(nsqd).publish_many(topic, [b"%d" % number for number in range(300)])
    started = time.monotonic()
    reader = client.consume(
        topic,
        lambda message: limited.append(time.monotonic()),
        nsqd,
        rate_limit=10,
        rate_burst=5,
        max_in_flight=100,
    )
    world.eventually(lambda: len(limited) >= 10)
    assert time.monotonic() - started > 0.3
    # nsqd has been told of no more than may come.
    (connection,) = reader.stats().connections
    assert connection.rdy <= 6

    def handler(message: Message) -> None:
        other.append(message.body)

    client.consume(topic, handler, nsqd, max_in_flight=100)
    world.eventually(lambda: len(limited) + len(other) == 300)
    seconds = time.monotonic() - started
    assert len(limited) <= 10 * seconds + 5 + 2


def test_a_slow_rate_is_no_reason_to_wait_at_the_stop(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    handled: list[Message] = []
    client.writer(nsqd).publish_many(topic, [b"x"] * 10)
    reader = client.consume(topic, handled.append, nsqd, rate_limit=0.01, max_in_flight=5)
    world.eventually(lambda: handled)
    world.sleep(0.2)
    assert len(handled) == 1
    reader.stop()
    result = reader.join(60)
    assert result is not None and result.clean
