"""A message is handled once: its marker and what its handler does are one transaction.

Knows messages, keys and the markers of the inbox; knows no Reader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from gnsqsync import Message
from gnsqsync.django.inbox.markers import is_installed, mark
from gnsqsync.errors import ConfigError
from gnsqsync.service.once import KeyOf, consumer_of, key_of, unanswered

__all__ = ["Once"]

log: logging.Logger = logging.getLogger("gnsqsync.django")


class Once:
    """Runs a handler unless the message was handled. In a transaction of ``database``."""

    def __init__(self, database: str, given: KeyOf | None) -> None:
        self._database = database
        self._given = given

    def check(self) -> None:
        """ConfigError where the table is missing."""
        if not is_installed():
            raise ConfigError(
                "once= needs 'gnsqsync.django.inbox' in INSTALLED_APPS, and manage.py migrate"
            )

    def key(self, message: Message) -> str:
        """Before the transaction; Reject where there is none."""
        return key_of(message, self._given)

    def run(self, key: str, message: Message, function: Callable[[Message], object]) -> None:
        """Within the transaction."""
        consumer = consumer_of(message)
        if not mark(self._database, consumer, key):
            log.info("%s: message with key %s was handled before", consumer, key)
            return
        with unanswered(message):
            function(message)
