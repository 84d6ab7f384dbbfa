"""Middleware, headers and typed bodies of a Flask application."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from flask import Flask

from gnsqsync import Message, Middleware, Publication, Reject
from gnsqsync.errors import ConfigError
from gnsqsync.flask import NSQ


@dataclasses.dataclass
class Order:
    number: int


class Carry(Middleware):
    """Counts how often it is made."""

    made = 0

    def __init__(self) -> None:
        Carry.made += 1

    def publish(self, publication: Publication, proceed: Any) -> Future[None] | None:
        assert publication.headers is not None
        publication.headers["by"] = "carry"
        result: Future[None] | None = proceed(publication)
        return result

    def handle(
        self, message: Message, handler: Any, proceed: Callable[[Message], object]
    ) -> object:
        SEEN.append(f"before {message.headers['by']}")
        return proceed(message)


class Own(Middleware):
    def handle(
        self, message: Message, handler: Any, proceed: Callable[[Message], object]
    ) -> object:
        SEEN.append("own")
        return proceed(message)


SEEN: list[str] = []
PATH = f"{__name__}.Carry"


def make(**config: Any) -> tuple[Flask, NSQ]:
    app = Flask("shop")
    app.config.update(TESTING=True, NSQ_OPTIONS={"headers": True}, **config)
    nsq = NSQ(app)

    @nsq.handler("orders", "pack", body=Order, middleware=[Own()])
    def pack(message: Message, order: Order) -> None:
        SEEN.append(f"order {order.number} {message.headers['id']}")

    return app, nsq


@pytest.mark.parametrize("given", [[PATH], [Carry], [Carry()]])
def test_middlewares_of_the_config_come_first(given: list[Any]) -> None:
    SEEN.clear()
    app, nsq = make(NSQ_MIDDLEWARE=given)
    with app.app_context(), nsq.captured_messages(eager=True) as messages:
        nsq.publish("orders", '{"number": 5}', headers={"id": "a", "key": "k"})
        nsq.publish_many("orders", ['{"number": 6}'], headers={"id": "b", "key": "l"})
        with pytest.raises(Reject, match="the body is no Order"):
            nsq.publish("orders", "{}")
    assert SEEN[:6] == ["before carry", "own", "order 5 a", "before carry", "own", "order 6 b"]
    assert [dict(message.headers) for message in messages[:2]] == [
        {"id": "a", "key": "k", "by": "carry"},
        {"id": "b", "key": "l", "by": "carry"},
    ]
    assert messages[0].body == b'{"number": 5}'


def test_a_class_is_made_once() -> None:
    for _ in range(3):
        app, nsq = make(NSQ_MIDDLEWARE=[PATH])
        with app.app_context(), nsq.captured_messages():
            before = Carry.made
            nsq.publish("orders", "x")
            nsq.publish("orders", "y")
    assert Carry.made == before


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (PATH, "it must be a list, such as ['shop.nsq.Carry']"),
        (["no.such.module"], "NSQ_MIDDLEWARE is 'no.such.module': No module named 'no'"),
        ([5], "it must be a list of gnsqsync.Middleware objects"),
        (["json.dumps"], "it must be a list of gnsqsync.Middleware objects"),
    ],
)
def test_object_that_is_no_middleware_is_refused(given: Any, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(NSQ_MIDDLEWARE=given)
    assert says in str(caught.value)


def test_error_tells_the_place_of_a_middleware() -> None:
    app = Flask("shop")
    app.config.update(NSQ_OPTIONS={"middleware": []})
    with pytest.raises(ConfigError, match="its place is NSQ_MIDDLEWARE"):
        NSQ(app)


def test_a_reader_of_the_application_has_them_all() -> None:
    app, nsq = make(NSQ_MIDDLEWARE=[PATH], NSQ_BACKEND="nsq")
    reader = nsq.handlers["pack"].reader(app)
    assert [type(one).__name__ for one in reader._setup.middleware] == ["Carry", "Own"]
    assert reader._setup.flow.headers
