"""Answers that come too late, and delays that are too long, at real and embedded nsqds."""

from __future__ import annotations

import time

from gnsqsync import Message, Observer, Requeue
from tests.integration.conftest import Client
from tests.support.servers import Server, Site
from tests.support.worlds import World


def test_a_delay_above_nsqds_limit_is_lowered_there(
    client: Client, site: Site, world: World, topic: str
) -> None:
    nsqd = site.nsqd("-max-req-timeout=200ms")
    seen: list[int] = []

    def handler(message: Message) -> None:
        seen.append(message.attempts)
        if message.attempts == 1:
            raise Requeue(7200, backoff=False)

    client.writer(nsqd).publish(topic, "x")
    reader = client.consume(topic, handler, nsqd)
    world.eventually(lambda: seen == [1, 2])
    world.eventually(lambda: reader.stats().finished == 1)
    assert len(reader.stats().connections) == 1


def test_an_answer_that_comes_too_late(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    refused: list[tuple[str, str]] = []
    kept: list[Message] = []

    class Watch(Observer):
        def answer_failed(self, nsqd_address: str, message_id: str, code: str) -> None:
            refused.append((message_id, code))

    def keep(message: Message) -> None:
        message.detach()
        kept.append(message)

    writer = client.writer(nsqd)
    writer.publish_many(topic, [b"a", b"b", b"c"])
    reader = client.consume(topic, keep, nsqd, msg_timeout=2, max_in_flight=3, observer=Watch())
    world.eventually(lambda: len(kept) == 3)
    # Or nsqd would deliver them here again, and our answers would be good for that.
    reader.pause()
    deadline = max(message.deadline for message in kept)
    assert deadline - time.monotonic() < 2.1
    other: list[Message] = []
    client.consume(topic, other.append, nsqd, max_in_flight=3)
    world.eventually(lambda: len(other) == 3)
    fin, req, touch = kept
    assert fin.finish()
    assert req.requeue(0, backoff=False)
    assert touch.touch()
    world.eventually(lambda: len(refused) == 3)
    assert all(message.timed_out for message in kept)
    assert not any(message.is_alive for message in kept)
    assert sorted(refused) == sorted(
        [(fin.id, "E_FIN_FAILED"), (req.id, "E_REQ_FAILED"), (touch.id, "E_TOUCH_FAILED")]
    )
    assert touch.finish() is False
    assert reader.stats().answers_failed == 3
    # Not fatal: the connection goes on.
    reader.resume()
    writer.publish(topic, "d")
    world.eventually(lambda: len(kept) + len(other) == 7)
    assert {message.attempts for message in other[:3]} == {2}
    for message in kept[3:]:
        message.finish()
