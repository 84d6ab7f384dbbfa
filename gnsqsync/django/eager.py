"""The eager mode: a publish calls the handlers of its topic, in this process.

Knows the handlers, no Writer. Handlers use the caller's database connections. These are not closed,
because the caller may be in a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gnsqsync import Message
from gnsqsync.django.config import get_alias
from gnsqsync.django.handlers import Handler, all_handlers
from gnsqsync.process.settings import max_attempts_of
from gnsqsync.testing.eager import Channel, deliver, one_per_channel
from gnsqsync.testing.memory import CapturedMessage

__all__ = ["deliver_of", "more_handlers"]


# Functions that return more handlers of a topic. An app whose handlers are no functions with
# @nsq_handler adds one.
more_handlers: list[Callable[[str], Sequence[Handler]]] = []


def deliver_of(alias: str) -> Callable[[list[CapturedMessage]], None]:
    """Return the function by which the MemoryWriter of an entry calls the entry's handlers."""
    return partial(deliver, channels_of=partial(_channels_of, alias))


def _channels_of(alias: str, topic: str) -> list[Channel]:
    more = [handler for handlers_of in more_handlers for handler in handlers_of(topic)]
    mine = [h for h in [*all_handlers(), *more] if (h.alias, h.topic) == (alias, topic)]
    settings = get_alias(alias)
    return [
        Channel(
            handler.name,
            handler.channel,
            _OnTheseConnections(handler),
            max_attempts_of({**settings.options, **handler.options}),
            settings.middleware_with(handler.options),
            handler.gives_up_eagerly,
        )
        for handler in one_per_channel(mine)
    ]


class _OnTheseConnections:
    """A handler as a function of a message, on the database connections of the caller."""

    def __init__(self, handler: Handler) -> None:
        # A middleware finds the function's name here, as with any decorator.
        self.__wrapped__ = handler.function
        self._handle = handler.handle

    def __call__(self, message: Message) -> None:
        self._handle(message)
