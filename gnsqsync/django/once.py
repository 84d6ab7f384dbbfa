"""A message is handled once: its marker and what its handler does are one transaction.

Knows messages, keys and the markers of the inbox; knows no Reader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

from gnsqsync import Message, Reject, envelope
from gnsqsync.django.inbox.markers import is_installed, mark
from gnsqsync.errors import ConfigError

__all__ = ["KeyOf", "Once", "key_of"]

log: logging.Logger = logging.getLogger("gnsqsync.django")

KeyOf: TypeAlias = Callable[[Message], str]


def key_of(message: Message) -> str:
    """The key of its envelope. Reject where it has none: no attempt would give it one."""
    try:
        return message.headers[envelope.KEY]
    except KeyError:
        raise Reject(
            "the message has no key: publish with headers=True, or give once= a function that"
            " returns a key of the message"
        ) from None


class Once:
    """Runs a handler unless the message was handled. In a transaction of ``database``."""

    def __init__(self, database: str, consumer: str, key_of: KeyOf) -> None:
        self._database = database
        self._consumer = consumer
        self._key_of = key_of

    def check(self) -> None:
        """ConfigError where the table is missing."""
        if not is_installed():
            raise ConfigError(
                "once= needs 'gnsqsync.django.inbox' in INSTALLED_APPS, and manage.py migrate"
            )

    def key(self, message: Message) -> str:
        """Reject where there is none that could be kept."""
        key = self._key_of(message)
        try:
            return envelope.check_key(key, "the key of the message")
        except ConfigError as error:
            raise Reject(str(error)) from error

    def run(self, key: str, message: Message, function: Callable[[Message], object]) -> None:
        """Within the transaction."""
        if not mark(self._database, self._consumer, key):
            log.info("%s: message with key %s was handled before", self._consumer, key)
            return
        given = message._responder
        message._responder = _Unanswered(given)
        try:
            function(message)
        finally:
            message._responder = given
        if message.is_detached:
            raise ConfigError(_ANSWERS.format("detach()"))


_ANSWERS = (
    "a handler with once= has called {} of its message; it must return, which finishes the message"
    " after the commit, or raise"
)


class _Unanswered:
    """In place of the connection while the transaction is open: an answer would not wait for it."""

    def __init__(self, responder: Any) -> None:
        self._responder = responder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._responder, name)

    def finish(self, message: Message) -> bool:
        raise ConfigError(_ANSWERS.format("finish()"))

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> bool:
        raise ConfigError(_ANSWERS.format("requeue()"))
