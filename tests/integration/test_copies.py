"""Copies on several nsqds, and the window of keys that drops the twins; in every world."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import pytest

from gnsqsync import KeyWindow, Message, Middleware, NsqdHTTP, Writer
from gnsqsync.errors import ConfigError, NotSent, Refused, TooFewCopies
from tests.integration.conftest import Client, address, url
from tests.support.servers import Server, Site, unique
from tests.support.worlds import World


def stored(server: Server, topic: str) -> int:
    """How many messages this nsqd has got."""
    with NsqdHTTP(url(server)) as http:
        return sum(found.message_count for found in http.stats(topic).topics)


@pytest.fixture
def nsqds(site: Site) -> list[Server]:
    """Three nsqds that all tests share: each has a topic of its own."""
    return site.nsqds(3)


@pytest.fixture
def mortal(site: Site) -> list[Server]:
    """Three nsqds, of which the test may stop the first."""
    return [site.own_nsqd(), *site.nsqds(2)]


def test_each_message_is_at_the_wanted_number_of_nsqds(
    client: Client, nsqds: list[Server], topic: str
) -> None:
    writer = client.writer(*nsqds, copies=2, headers=True)
    for number in range(30):
        writer.publish(topic, str(number))
    writer.publish_many(topic, ["a", "b", "c"])
    futures = [writer.publish_async(topic, str(number)) for number in range(30, 60)]
    for future in futures:
        client.world.eventually(future.done)
        assert future.result(0) is None
    counts = [stored(server, topic) for server in nsqds]
    assert sum(counts) == 2 * 63 and min(counts) >= 5


def test_with_three_each_has_all(client: Client, nsqds: list[Server], topic: str) -> None:
    writer = client.writer(*nsqds, copies=3, policy="failover")
    for number in range(10):
        writer.publish(topic, str(number))
    assert [stored(server, topic) for server in nsqds] == [10, 10, 10]


def test_an_nsqd_that_is_away_is_replaced(client: Client, mortal: list[Server], topic: str) -> None:
    writer = client.writer(*mortal, copies=2)
    writer.publish(topic, "first")
    mortal[0].stop()
    for number in range(20):
        writer.publish(topic, str(number))
    assert [stored(server, topic) for server in mortal[1:]] >= [20, 20]


def test_too_few_are_told_with_how_many_have_it(client: Client, site: Site, topic: str) -> None:
    mortal = [site.own_nsqd(), site.own_nsqd()]
    writer = client.writer(*mortal, copies=2, publish_timeout=2.0)
    writer.publish(topic, "both")
    mortal[0].stop()
    with pytest.raises(TooFewCopies) as caught:
        writer.publish(topic, "one")
    assert (caught.value.copies, caught.value.nsqds) == (1, (address(mortal[1]),))
    assert f"{address(mortal[1])} has it, of 2 nsqds:" in str(caught.value)
    with pytest.raises(TooFewCopies) as caught:
        writer.publish_many(topic, ["two", "three"])
    assert caught.value.acknowledged == 0
    future = writer.publish_async(topic, "four")
    client.world.eventually(future.done)
    assert isinstance(future.exception(0), TooFewCopies)
    assert stored(mortal[1], topic) == 5
    assert writer.stats().outcome_unknown == 3
    if mortal[1].kind == "real":
        # It was not dialled again while the other one was sought.
        assert mortal[1].log.count("TCP: new client") == 1
    mortal[1].stop()
    with pytest.raises(NotSent):
        writer.publish(topic, "five")


def test_fewer_are_enough_where_that_was_asked_for(
    client: Client, mortal: list[Server], topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    writer = client.writer(*mortal[:2], copies=2, copies_min=1, publish_timeout=2.0)
    writer.publish(topic, "both")
    mortal[0].stop()
    with caplog.at_level(logging.WARNING, "gnsqsync.writer"):
        for number in range(5):
            writer.publish(topic, str(number))
        lines = [r.getMessage() for r in caplog.records if "instead of 2" in r.getMessage()]
        (line,) = lines
        assert line.startswith("a Writer: each message is at 1 nsqd instead of 2")
        mortal[0].start()

        def is_back() -> bool:
            writer.publish(topic, "x")
            return any("at 2 nsqds again" in record.getMessage() for record in caplog.records)

        client.world.eventually(is_back)
    assert stored(mortal[1], topic) > 6


def test_a_refusal_that_all_would_give(client: Client, nsqds: list[Server]) -> None:
    writer = client.writer(*nsqds, copies=2, max_msg_size=2**21)
    with pytest.raises(Refused):
        writer.publish(unique("t"), b"x" * (2**20 + 1))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"copies": 0}, "copies is 0"),
        ({"copies": 2}, "copies is 2, and nsqd_tcp_addresses has 1; give at least as many"),
        ({"copies": 1, "copies_min": 2}, "copies_min is 2"),
        ({"copies": "2"}, "copies is '2'; it must be an int"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Writer("127.0.0.1:4150", **options)
    assert says in str(caught.value)
    Writer(lookupd_http_addresses="127.0.0.1:4161", copies=2)


# -- the window of keys --------------------------------------------------------------------------


def test_the_twins_are_dropped(
    client: Client, nsqds: list[Server], world: World, topic: str
) -> None:
    got: list[bytes] = []

    def handle(message: Message) -> None:
        if message.attempts == 1 and int(message.body) % 10 == 0:
            raise ValueError("not yet")
        got.append(message.body)

    writer = client.writer(*nsqds, copies=2, headers=True)
    for number in range(100):
        writer.publish(topic, str(number))
    window = KeyWindow(delay=0)
    reader = client.consume(
        topic,
        handle,
        *nsqds,
        headers=True,
        middleware=window,
        concurrency=4,
        max_in_flight=100,
        requeue_delay=0,
        backoff=False,
    )
    world.eventually(lambda: reader.stats().finished == 200)
    assert Counter(got) == Counter(b"%d" % number for number in range(100))
    assert len(window._turns) <= 8


class Commit(Middleware):
    """Stands outside of the window, and fails after the handler at the first attempt."""

    def handle(self, message: Message, handler: Any, proceed: Any) -> object:
        result = proceed(message)
        if message.body == b"commit" and message.attempts == 1:
            raise ValueError("the commit failed")
        return result


def test_a_message_that_is_not_done_is_handled_again(
    client: Client, nsqds: list[Server], world: World, topic: str
) -> None:
    """The redelivery or the twin of a message is handled, whichever comes first."""
    done: list[bytes] = []

    def handle(message: Message) -> None:
        if message.body == b"requeue" and message.attempts == 1:
            message.requeue(0, backoff=False)
        elif message.body == b"detach" and message.attempts == 1:
            message.detach()
            message.requeue(0, backoff=False)
        elif not (message.body == b"commit" and message.attempts == 1):
            done.append(message.body)

    writer = client.writer(*nsqds, copies=2, headers=True)
    bodies = [b"requeue", b"detach", b"commit", b"plain"]
    for body in bodies:
        writer.publish(topic, body)
    reader = client.consume(
        topic,
        handle,
        *nsqds,
        headers=True,
        middleware=[Commit(), KeyWindow(delay=0)],
        concurrency=4,
        max_in_flight=100,
        requeue_delay=0,
        backoff=False,
    )
    world.eventually(lambda: reader.stats().finished == 2 * len(bodies))
    assert sorted(done) == sorted(bodies)


def test_each_channel_gets_it_and_the_window_is_bounded(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    window = KeyWindow(size=5)
    got: list[str] = []
    for channel in ("a", "b"):
        reader = client.consume(
            topic,
            lambda message: got.append(message.channel),
            nsqd,
            channel=channel,
            headers=True,
            middleware=[window],
        )
        # A channel gets what is published after it was made.
        world.eventually(lambda reader=reader: reader.stats().connections)
    writer = client.writer(nsqd, headers=True)
    for _ in range(20):
        writer.publish(topic, "x")
    world.eventually(lambda: len(got) == 40)
    assert Counter(got) == {"a": 20, "b": 20}
    assert len(window._handled) == 5


def test_a_message_without_a_key_is_handled_and_told_once(
    client: Client, nsqd: Server, world: World, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    got: list[bytes] = []
    with caplog.at_level(logging.WARNING, "gnsqsync.reader"):
        client.writer(nsqd).publish_many(topic, ["x", "x"])
        client.consume(topic, lambda m: got.append(m.body), nsqd, middleware=KeyWindow())
        world.eventually(lambda: len(got) == 2)
    assert sum("has no key" in record.getMessage() for record in caplog.records) == 1


def test_a_key_of_the_body(client: Client, nsqd: Server, world: World, topic: str) -> None:
    got: list[bytes] = []
    window = KeyWindow(key=lambda message: message.body[:1].decode())
    client.writer(nsqd).publish_many(topic, ["a1", "a2", "b1"])
    reader = client.consume(topic, lambda m: got.append(m.body), nsqd, middleware=window)
    world.eventually(lambda: reader.stats().finished == 3)
    assert got == [b"a1", b"b1"]
    for wrong in ({"size": 0}, {"key": "k"}, {"delay": -1}):
        with pytest.raises(ConfigError):
            KeyWindow(**wrong)  # type: ignore[arg-type]
