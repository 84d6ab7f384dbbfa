"""A handler that returns code which nobody runs has failed, whatever stands around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gnsqsync import Message, Middleware
from gnsqsync.errors import ConfigError
from gnsqsync.middleware import around_handler


def message_of() -> Message:
    responder: Any = None
    return Message(b"0123456789abcdef", b"body", 1, 1, responder, 0.0)


class Dropping(Middleware):
    """Returns nothing of what the handler returned."""

    def handle(
        self, message: Message, handler: Any, proceed: Callable[[Message], object]
    ) -> object:
        proceed(message)
        return None


async def work(message: Message) -> None:
    raise AssertionError("nobody runs it")


async def numbers() -> Any:
    yield 1


class Awaitable:
    def __await__(self) -> Any:
        yield


@pytest.mark.parametrize("middlewares", [[], [Dropping()]])
@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (lambda message: work(message), "coroutine"),
        (lambda message: numbers(), "async_generator"),
        (lambda message: (number for number in [message]), "generator"),
        (lambda message: Awaitable(), "Awaitable"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_code_that_nobody_runs(
    handler: Callable[[Message], object], kind: str, middlewares: list[Middleware]
) -> None:
    with pytest.raises(ConfigError, match=f"the handler returned a {kind}, which nobody runs"):
        around_handler(middlewares, handler)(message_of())


def test_other_values_and_returns_of_detached_messages_mean_nothing() -> None:
    for value in (None, 0, "x", [1], range(3), {"a": 1}):
        around_handler([], lambda message, value=value: value)(message_of())

    def later(message: Message) -> object:
        message.detach()
        return Awaitable()

    around_handler([], later)(message_of())
