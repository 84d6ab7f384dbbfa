"""Handlers with a ``time_limit``: what is raised in them, and what becomes of their messages."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from gnsqsync import Message, Middleware, Requeue
from gnsqsync.errors import ConfigError, TimeLimitExceeded, TimeLimitInterrupt
from tests.component.conftest import Client, Gate
from tests.component.reader.test_messages import answers, deliver
from tests.support.scripted import ScriptedNsqd, automatic
from tests.support.worlds import World

LONG = 20.0


def works_on(world: World, seconds: float = LONG) -> None:
    """Take so long, in steps between which an exception can be raised."""
    steps = iter(range(int(seconds * 200)))
    world.eventually(lambda: next(steps, None) is None, 2 * LONG)


class Seen(Middleware):
    """What handlers raised."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def handle(
        self, message: Message, handler: Any, proceed: Callable[[Message], object]
    ) -> object:
        try:
            return proceed(message)
        except BaseException as error:
            self.errors.append(error)
            raise


def test_a_handler_that_is_too_slow_has_failed(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []
    seen = Seen()

    def slow(message: Message) -> None:
        if message.body == b"quick":
            done.append("quick")
            return
        try:
            works_on(world)
        except Exception:
            done.append("an Exception")
        finally:
            done.append("finally")

    with ScriptedNsqd(deliver((b"slow", 2), (b"quick", 1))) as nsqd:
        reader = client.consume(
            slow, nsqd, time_limit=0.05, middleware=seen, backoff="every_failure"
        )
        world.eventually(lambda: len(answers(nsqd)) == 2)
        # 90 s times attempts, as for any failure; the next message is not struck.
        assert sorted(answers(nsqd)) == ["FIN", "REQ 180000"]
        assert done == ["finally", "quick"]
        assert reader.stats().is_in_backoff
    (error,) = seen.errors
    assert isinstance(error, TimeLimitExceeded)
    assert isinstance(error, TimeoutError)
    assert isinstance(error.__cause__, TimeLimitInterrupt)
    assert str(error) == "the handler ran longer than 0.05 s (time_limit)"
    (record,) = (record for record in caplog.records if record.exc_info)
    assert record.levelno == logging.WARNING
    # Where the handler was.
    assert "in works_on" in caplog.text


@pytest.mark.parametrize(
    ("options", "answer"),
    [
        ({"discard_on": TimeLimitExceeded}, "FIN"),
        ({"discard_on": TimeoutError}, "FIN"),
        ({"reject_on": [TimeLimitExceeded], "on_giving_up": "discard"}, "FIN"),
        ({"max_attempts": 1, "on_giving_up": "discard"}, "FIN"),
        ({"retry_on": TimeLimitExceeded, "requeue_delay": 1}, "REQ 1000"),
    ],
)
def test_rules_for_exceptions_see_it(
    client: Client, world: World, options: dict[str, Any], answer: str
) -> None:
    with ScriptedNsqd(deliver((b"x", 1))) as nsqd:
        client.consume(lambda message: works_on(world), nsqd, time_limit=0.03, **options)
        world.eventually(lambda: answers(nsqd) == [answer])


def test_a_handler_that_goes_on_is_not_interrupted_again(client: Client, world: World) -> None:
    def stubborn(message: Message) -> None:
        try:
            works_on(world)
        except TimeLimitInterrupt:
            works_on(world, 0.1)

    with ScriptedNsqd(deliver((b"x", 1))) as nsqd:
        client.consume(stubborn, nsqd, time_limit=0.02)
        world.eventually(lambda: answers(nsqd) == ["FIN"])


def test_a_handler_may_say_what_it_means(client: Client, world: World) -> None:
    def later(message: Message) -> None:
        try:
            works_on(world)
        except TimeLimitInterrupt:
            raise Requeue(7, backoff=False) from None

    with ScriptedNsqd(deliver((b"x", 1))) as nsqd:
        reader = client.consume(later, nsqd, time_limit=0.02)
        world.eventually(lambda: answers(nsqd) == ["REQ 7000"])
        assert not reader.stats().is_in_backoff


def test_code_around_the_handler_is_not_limited(client: Client, world: World, gate: Gate) -> None:
    class Slow(Middleware):
        def handle(self, message: Message, handler: Any, proceed: Any) -> object:
            works_on(world, 0.1)
            result = proceed(message)
            works_on(world, 0.1)
            return result

    with ScriptedNsqd(deliver((b"x", 1), (b"y", 1))) as nsqd:
        client.consume(lambda message: None, nsqd, time_limit=0.02, middleware=Slow())
        world.eventually(lambda: answers(nsqd) == ["FIN", "FIN"])


def test_a_handler_says_which_part_of_it_is_limited(client: Client, world: World) -> None:
    class Within:
        def __init__(self, function: Callable[[Message], object]) -> None:
            self.function = function

        def __call__(self, message: Message) -> None:
            try:
                self.function(message)
            finally:
                works_on(world, 0.1)

        def _limited(self, wrap: Callable[[Any], Any]) -> Within:
            return Within(wrap(self.function))

    with ScriptedNsqd(deliver((b"x", 1))) as nsqd:
        client.consume(Within(lambda message: None), nsqd, time_limit=0.02)
        world.eventually(lambda: answers(nsqd) == ["FIN"])
    with ScriptedNsqd(deliver((b"x", 1))) as nsqd:
        client.consume(Within(lambda message: works_on(world)), nsqd, time_limit=0.02)
        world.eventually(lambda: answers(nsqd) == ["REQ 90000"])


@pytest.mark.parametrize(
    ("options", "warns"),
    [
        ({"time_limit": 61}, True),
        ({"time_limit": 60}, False),
        ({"time_limit": 61, "msg_timeout": 70}, False),
        ({"time_limit": 61, "auto_touch": True}, False),
        ({}, False),
    ],
)
def test_a_limit_above_the_timeout_of_messages(
    client: Client,
    world: World,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    warns: bool,
) -> None:
    with ScriptedNsqd([automatic()]) as one, ScriptedNsqd([automatic()]) as other:
        client.consume(print, one, other, max_in_flight=2, **options)
        world.eventually(lambda: one.received("RDY") and other.received("RDY"))
    lines = [line for line in caplog.messages if "time_limit" in line]
    # Not for each nsqd.
    assert len(lines) == warns


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "time_limit is 0 seconds; allowed is 0.01 to 86400"),
        (-1, "time_limit is -1 seconds; allowed is 0.01 to 86400"),
        (1e9, "time_limit is 1000000000.0 seconds; allowed is 0.01 to 86400"),
        (float("nan"), "time_limit is nan; it must be a number of seconds"),
        ("5", "time_limit is '5'; it must be a number of seconds"),
        (True, "time_limit is True; it must be a number of seconds"),
    ],
)
def test_limits_that_are_not_allowed(client: Client, value: Any, text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        client.reader(print, nsqd_tcp_addresses="a", time_limit=value)
    assert str(raised.value) == text


def test_the_pull_form_has_no_limit(client: Client) -> None:
    with pytest.raises(ConfigError, match="time_limit is for handlers; this Reader has none"):
        client.reader(None, nsqd_tcp_addresses="a", time_limit=1)
