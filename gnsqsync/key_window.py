"""Drops messages that this process has handled before, by their keys.

Knows messages; knows no Reader and no database.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

from gnsqsync import envelope
from gnsqsync.errors import ConfigError
from gnsqsync.message import Message, Requeue
from gnsqsync.middleware import Handler, Middleware
from gnsqsync.options import check_duration, check_int

__all__ = ["KeyWindow"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")

KeyOf: TypeAlias = Callable[[Message], "str | None"]


def _key_of(message: Message) -> str | None:
    return message.headers.get(envelope.KEY)


class KeyWindow(Middleware):
    """Of messages with one key the first is handled; the others are finished without the handler.

    Within this process, and as long as it lives: another consumer of the channel has a window of
    its own. For effects in a database, which survive both, use an inbox. Several Readers may share
    one; a key counts for a topic and channel.

    A twin of a message that is being handled is requeued, so that it is handled if the first one
    fails. Only a handler that has returned counts; not one that has detached its message. A message
    without a key is handled.

    Args:
        size: How many keys it remembers, 1 or more.
        key: Returns the key of a message, or None; without it that is the header ``key``, for a
            Reader with ``headers=True``.
        delay: Seconds, 0 or more, after which a requeued twin comes again.

    Raises:
        ConfigError: A value is not allowed.

    Threads:
        Any number of workers may use it.
    """

    fails_after_handler = False

    def __init__(
        self, size: int = 100_000, key: KeyOf | None = None, *, delay: float = 1.0
    ) -> None:
        self._size = check_int("size", size, 1)
        if key is not None and not callable(key):
            raise ConfigError(f"key is {key!r}; it must be a function that takes a message")
        self._key = key or _key_of
        self._delay = check_duration("delay", delay)
        # Keys that are being handled, and by which message; setdefault and pop are atomic.
        self._running: dict[tuple[str, str, str], Message] = {}
        # Handled ones, the oldest first; popitem is atomic, too.
        self._handled: OrderedDict[tuple[str, str, str], None] = OrderedDict()
        self._has_warned = False

    def handle(
        self, message: Message, handler: Handler, proceed: Callable[[Message], object]
    ) -> object:
        """Around the handler. Raises Requeue for the twin of a message that is being handled."""
        key = self._key(message)
        if key is None:
            self._warn(message)
            return proceed(message)
        place = message.topic, message.channel, key
        if self._running.setdefault(place, message) is not message:
            raise Requeue(self._delay, backoff=False)
        try:
            if place in self._handled:
                log.info(
                    "%s/%s: message %s with key %s was handled before",
                    message.topic,
                    message.channel,
                    message.id,
                    key,
                )
                return None
            result = proceed(message)
            if not message.is_detached:
                self._handled[place] = None
                if len(self._handled) > self._size:
                    self._handled.popitem(last=False)
            return result
        finally:
            self._running.pop(place, None)

    def _warn(self, message: Message) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s/%s: message %s has no key, so a twin of it would be handled, too; publish with"
                " headers=True and read with headers=True; this is not told again",
                message.topic,
                message.channel,
                message.id,
            )
