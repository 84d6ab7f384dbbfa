"""The needs of handling a message once: its key, and no answer before the commit.

Knows messages. Knows no database.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from gnsqsync import envelope
from gnsqsync.errors import ConfigError
from gnsqsync.message import Message, Reject, no_key
from gnsqsync.options import check_ran
from gnsqsync.reader.once import MARK

__all__ = ["MARK", "MAX_CONSUMER", "KeyOf", "check_consumer", "key_of", "run_once"]

# Upper bound of characters: a topic and a channel of 64 each, and the slash.
MAX_CONSUMER = 129

KeyOf: TypeAlias = Callable[[Message], str]

# Exceptions of a key function that mean that the body has no key, at any attempt. Other errors,
# such as those of a database, may be gone at the next attempt.
_OF_THE_MESSAGE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)

# Error of a handler with ``once`` that answers by itself; {} is the call.
_ANSWERS = (
    "a handler with once has called {} of its message; it must return, which finishes the message"
    " after the commit, or raise"
)


def key_of(message: Message, given: KeyOf | None = None) -> str:
    """Return the key in the message's envelope, or the result of the function ``given``.

    Raises Reject if there is no valid key, because no attempt would change that.
    """
    try:
        key: object = given(message) if given is not None else message.headers.get(envelope.KEY)
    except _OF_THE_MESSAGE as error:
        raise no_key("key", error) from error
    if key is None and given is None:
        raise Reject(
            "the message has no key: publish with headers=True, or give once a function that"
            " returns a key of the message"
        )
    try:
        return envelope.check_key(key, "the key of the message")
    except ConfigError as error:
        raise Reject(str(error)) from error


def _consumer_of(message: Message) -> str:
    """Return the consumer's name for markers: topic and channel."""
    return f"{message.topic}/{message.channel}"


def check_consumer(consumer: object) -> str:
    """Return the name of a consumer unchanged. ConfigError if it does not fit its column."""
    if (
        not isinstance(consumer, str)
        or not 0 < len(consumer) <= MAX_CONSUMER
        or (not consumer.isprintable())
    ):
        raise ConfigError(
            f"consumer is {consumer!r:.80}; it must be a str of 1 to {MAX_CONSUMER} printable"
            " characters, such as topic/channel"
        )
    return consumer


def run_once(
    message: Message,
    key: str,
    mark: Callable[[str, str], bool],
    function: Callable[[Message], object],
    log: logging.Logger,
) -> None:
    """Write the marker, and call the function unless it was there. Within the transaction.

    Args:
        message: The message. The function must not answer it.
        key: The key of the message.
        mark: Function of the consumer and the key that writes the marker, and returns False if the
            marker existed.
        function: The handler.
        log: The logger of a message that was handled before.
    """
    consumer = _consumer_of(message)
    if not mark(consumer, key):
        log.info("%s: message with key %s was handled before", consumer, key)
        return
    with _unanswered(message):
        check_ran(function(message), message)


@contextmanager
def _unanswered(message: Message) -> Iterator[None]:
    """Forbid answers inside of the block, because an answer would not wait for the commit.

    Raises ConfigError if the handler tries to answer, and at the end if it detached the message.
    """
    given = message._responder
    message._responder = _Unanswered(given)
    try:
        yield
    finally:
        message._responder = given
    if message.is_detached:
        raise ConfigError(_ANSWERS.format("detach()"))


class _Unanswered:
    """A responder that refuses answers, in place of the connection."""

    def __init__(self, responder: Any) -> None:
        self._responder = responder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._responder, name)

    def finish(self, message: Message) -> bool:
        raise ConfigError(_ANSWERS.format("finish()"))

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> bool:
        raise ConfigError(_ANSWERS.format("requeue()"))
