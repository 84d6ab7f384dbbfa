"""The eager mode of Flask: handlers run with what a test publishes, each in its own context."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from flask import Flask, current_app, g, has_request_context

from gnsqsync import Message, Requeue
from gnsqsync.errors import ConfigError
from gnsqsync.flask import NSQ, CapturedMessage


class Shop:
    """An application whose view publishes, and its handlers."""

    def __init__(self, **config: object) -> None:
        self.app = Flask("shop")
        self.app.config.update(TESTING=True, **config)
        self.nsq = nsq = NSQ(self.app)
        self.seen: list[object] = []

        @self.app.post("/<topic>")
        def publish(topic: str) -> str:
            g.user = "Ann"
            nsq.publish(topic, "1")
            return f"published by {g.user}"

        @nsq.handler("orders", "warehouse")
        def pack(message: Message) -> None:
            self.seen.append((current_app.name, has_request_context(), "user" in g))
            nsq.publish("packed", message.body)
            self.seen.append("packed")

        @nsq.handler("packed", "mail", shared=True)
        class Mail:
            def __init__(self, message: Message) -> None:
                shop.seen.append(f"mail {message.json()}")

        @nsq.handler("bad", "bad")
        def bad(message: Message) -> None:
            raise ValueError("a bug")

        shop = self

    def post(self, topic: str) -> str:
        return self.app.test_client().post(f"/{topic}").text


PACKED = [("shop", False, False), "packed", "mail 1"]


@pytest.fixture
def shop() -> Iterator[Shop]:
    yield Shop()


@pytest.fixture
def handled(shop: Shop) -> Iterator[list[CapturedMessage]]:
    with shop.nsq.captured_messages(shop.app, eager=True) as messages:
        yield messages


def test_a_view_and_the_handlers_after_it(shop: Shop, handled: list[CapturedMessage]) -> None:
    torn_down: list[str] = []
    shop.app.teardown_appcontext(lambda error: torn_down.append(type(error).__name__))
    assert shop.post("orders") == "published by Ann"
    assert shop.seen == PACKED
    assert handled == [CapturedMessage("orders", b"1"), CapturedMessage("packed", b"1")]
    # Two of handlers, then that of the request.
    assert torn_down == ["NoneType"] * 3


def test_a_failure_is_that_of_the_test(shop: Shop, handled: list[CapturedMessage]) -> None:
    with pytest.raises(ValueError, match="a bug"):
        shop.post("bad")
    with shop.app.app_context(), pytest.raises(ValueError, match="a bug"):
        shop.nsq.publish("bad", "1")
    shop.app.testing = False
    assert "Internal Server Error" in shop.post("bad")
    assert len(handled) == 3


def test_by_the_config() -> None:
    shop = Shop(NSQ_BACKEND="eager")
    shop.post("orders")
    assert shop.seen == PACKED
    with shop.app.app_context():
        assert len(shop.nsq.writer.messages) == 2  # type: ignore[attr-defined]
    with shop.nsq.captured_messages(shop.app) as messages:
        shop.post("orders")
    assert (len(messages), shop.seen) == (1, PACKED)
    # Of this moment.
    shop.app.config["NSQ_BACKEND"] = None
    shop.post("bad")
    with pytest.raises(ConfigError, match="it must be 'nsq', 'memory', 'eager', or None"):
        Shop(NSQ_BACKEND="Eager")


def test_without_it_no_handler_runs(shop: Shop) -> None:
    shop.post("orders")
    shop.post("bad")
    assert shop.seen == []


def test_a_handler_that_comes_later_and_one_of_the_same_channel(
    shop: Shop, handled: list[CapturedMessage]
) -> None:
    @shop.nsq.handler("packed", "mail", name="second", shared=True)
    def second(message: Message) -> None:
        raise AssertionError("one handler of a channel gets a message")

    @shop.nsq.handler("packed", "more", max_attempts=2)
    def more(message: Message) -> None:
        raise Requeue

    with pytest.raises(Requeue):
        shop.post("packed")
    assert shop.seen == ["mail 1"]


def test_the_limit_of_the_config_counts() -> None:
    shop = Shop(NSQ_BACKEND="eager", NSQ_OPTIONS={"max_attempts": 3})

    @shop.nsq.handler("often", "often")
    def often(message: Message) -> None:
        shop.seen.append(message.attempts)
        message.requeue()

    with pytest.raises(Requeue):
        shop.post("often")
    assert shop.seen == [1, 2, 3]


def test_each_application_has_its_own() -> None:
    nsq, names = NSQ(), []
    apps = [Flask("one"), Flask("two")]
    for app in apps:
        app.config.update(NSQ_BACKEND="eager")
        nsq.init_app(app)

    @nsq.handler("t", "c")
    def handle(message: Message) -> None:
        names.append(current_app.name)

    for app in apps:
        with app.app_context():
            nsq.publish("t", "1")
    assert names == ["one", "two"]


def test_a_thread_that_publishes(shop: Shop, handled: list[CapturedMessage]) -> None:
    thread = threading.Thread(target=shop.post, args=("orders",))
    thread.start()
    thread.join()
    assert shop.seen == PACKED
