"""Requeue, Reject, Discard, and the lists of exceptions, on the embedded and the real nsqd."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from gnsqsync import Discard, Message, Observer, Reject
from tests.integration.conftest import Client, address
from tests.support.servers import Server, Site, unique
from tests.support.worlds import World


class Told(Observer):
    def __init__(self) -> None:
        self.notes: list[tuple[str, bytes, BaseException | None]] = []

    def gave_up(self, message: Message, error: BaseException | None) -> None:
        self.notes.append(("gave up", message.body, error))

    def discarded(self, message: Message, error: BaseException) -> None:
        self.notes.append(("discarded", message.body, error))


class NoOrder(ValueError):
    """A body that no attempt can help."""


def test_one_bad_body_does_not_pause_the_healthy_ones(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    handled: list[bytes] = []
    told = Told()

    def handler(message: Message) -> None:
        if message.body == b"bad":
            raise NoOrder("no order at all")
        if message.body == b"useless":
            raise Discard("nobody wants it")
        handled.append(message.body)

    dead = unique("dead")
    bodies = [b"bad", b"useless", *[b"%d" % number for number in range(20)]]
    client.writer(nsqd).publish_many(topic, bodies)
    reader = client.consume(
        topic, handler, nsqd, reject_on=[NoOrder], dead_letter_topic=dead, observer=told
    )
    world.eventually(lambda: reader.stats().finished == 22)
    assert sorted(handled) == sorted(bodies[2:])
    stats = reader.stats()
    assert (stats.gave_up, stats.discarded, stats.requeued) == (1, 1, 0)
    assert not reader.is_in_backoff
    assert sorted(note[:2] for note in told.notes) == [
        ("discarded", b"useless"),
        ("gave up", b"bad"),
    ]
    assert {type(error) for _, _, error in told.notes} == {NoOrder, Discard}
    got: list[bytes] = []
    client.consume(dead, lambda message: got.append(message.body), nsqd)
    world.eventually(lambda: got == [b"bad"])


def test_rejected_without_a_place_for_it_waits_in_nsqd(
    client: Client, nsqd: Server, world: World, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)

    def handler(message: Message) -> None:
        raise Reject("no order at all")

    client.writer(nsqd).publish(topic, b"bad")
    reader = client.consume(topic, handler, nsqd)
    world.eventually(lambda: reader.stats().requeued == 1)
    assert reader.stats().finished == 0
    assert not reader.is_in_backoff
    rejected = "was rejected (no order at all) on attempt 1"
    line = next(r for r in caplog.records if rejected in r.getMessage())
    assert (line.levelno, line.exc_info) == (logging.ERROR, None)
    assert re.search(
        r"comes again in 9\d\d(\.\d)? s; set dead_letter_topic or on_giving_up", line.getMessage()
    )


def test_a_failure_that_the_filter_excuses_is_tried_again_without_backoff(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    attempts: list[int] = []

    def handler(message: Message) -> None:
        attempts.append(message.attempts)
        if message.attempts < 3:
            raise NoOrder

    client.writer(nsqd).publish(topic, b"x")
    reader = client.consume(
        topic,
        handler,
        nsqd,
        requeue_delay=0,
        backoff=lambda error: not isinstance(error, NoOrder),
    )
    world.eventually(lambda: reader.stats().finished == 1)
    assert attempts == [1, 2, 3]
    assert reader.stats().backoff_level == 0


@pytest.mark.parametrize("on_expired", ["discard", "dead_letter", "hook"])
def test_a_message_that_is_too_old_reaches_no_handler(
    client: Client, nsqd: Server, world: World, topic: str, on_expired: str
) -> None:
    handled: list[bytes] = []
    hook: list[bytes] = []
    dead = unique("dead")
    writer = client.writer(nsqd)
    writer.publish(topic, b"old")
    world.sleep(0.6)
    writer.publish(topic, b"new")
    where: dict[str, Any] = {"on_expired": on_expired}
    if on_expired == "hook":
        where["on_expired"] = lambda message: hook.append(message.body)
    if on_expired == "dead_letter":
        where["dead_letter_topic"] = dead
    reader = client.consume(
        topic,
        lambda message: handled.append(message.body),
        nsqd,
        max_age=0.5,
        **where,
    )
    world.eventually(lambda: reader.stats().finished == 2)
    assert b"old" not in handled
    stats = reader.stats()
    assert (stats.discarded >= 1) == (on_expired == "discard")
    assert (stats.gave_up >= 1) == (on_expired == "dead_letter")
    assert (hook[:1] == [b"old"]) == (on_expired == "hook")


def test_a_dead_letter_tells_its_story(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    def handler(message: Message) -> None:
        raise NoOrder("line one\nline two " + "x" * 5000)

    dead = unique("dead")
    client.writer(nsqd, headers=True).publish(topic, b"{}", headers={"id": "7", "key": "order-7"})
    reader = client.consume(
        topic,
        handler,
        nsqd,
        headers=True,
        max_attempts=2,
        requeue_delay=0,
        max_backoff_duration=0,
        dead_letter_topic=dead,
    )
    world.eventually(lambda: reader.stats().gave_up == 1)
    letters: list[Message] = []
    client.consume(dead, letters.append, nsqd, headers=True)
    world.eventually(lambda: letters)
    letter = letters[0]
    story = dict(letter.headers)
    assert letter.body == b"{}"
    assert (story.pop("id"), story.pop("key")) == ("7", "order-7")
    assert story.pop("deadtopic") == topic
    assert story.pop("deadchannel") == "ch"
    assert story.pop("deadnsqd") == address(nsqd)
    assert len(story.pop("deadid")) == 16
    assert story.pop("deadattempts") == "2"
    assert story.pop("deadfirsttime") <= story.pop("deadtime")
    assert story.pop("deadreason").startswith("NoOrder: line one line two xxx")
    assert story.pop("deaderror").endswith(".NoOrder")
    assert story.pop("deadtext").startswith("line one\nline two xxx")
    assert story.pop("deadtraceback").endswith("xxx\n")
    assert story.pop("deadhandler").endswith("handler")
    assert story == {}
    assert sum(map(len, letter.headers.values())) < 12_000


def test_a_letter_that_nsqd_finds_too_long_goes_without_its_story(
    client: Client, site: Site, world: World, topic: str
) -> None:
    narrow = site.nsqd("-max-msg-size=1024")

    def handler(message: Message) -> None:
        raise Reject("too long")

    dead = unique("dead")
    body = b"x" * (1024 - 100)
    client.writer(narrow, headers=True).publish(topic, body, headers={"id": "7", "key": "k"})
    reader = client.consume(topic, handler, narrow, headers=True, dead_letter_topic=dead)
    world.eventually(lambda: reader.stats().gave_up == 1)
    letters: list[Message] = []
    client.consume(dead, letters.append, narrow, headers=True)
    world.eventually(lambda: letters)
    assert (letters[0].body, dict(letters[0].headers)) == (body, {"id": "7", "key": "k"})


def test_too_many_headers_leave_no_room_for_the_story(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    def handler(message: Message) -> None:
        raise Reject("too many")

    dead = unique("dead")
    headers = {"key": "k", **{f"h{number}": "x" for number in range(63)}}
    client.writer(nsqd, headers=True).publish(topic, b"x", headers=headers)
    reader = client.consume(topic, handler, nsqd, headers=True, dead_letter_topic=dead)
    world.eventually(lambda: reader.stats().gave_up == 1)
    letters: list[Message] = []
    client.consume(dead, letters.append, nsqd, headers=True)
    world.eventually(lambda: letters)
    assert dict(letters[0].headers) == headers
