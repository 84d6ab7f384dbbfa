"""A guard by which a message is handled once: its marker and the handler's work commit together.

Knows messages, keys and the markers of the inbox; knows no Reader.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from gnsqsync import Message
from gnsqsync.django.inbox.markers import is_installed, mark, require_ignoring
from gnsqsync.errors import ConfigError
from gnsqsync.outbox.once import KeyOf, key_of, run_once

__all__ = ["Once"]

log: logging.Logger = logging.getLogger("gnsqsync.django")


class Once:
    """Runs a handler in a transaction of ``database``, unless the message was handled before.

    Attributes:
        by_header: True if the key of a message is its header ``key``.
    """

    def __init__(self, database: str, given: KeyOf | None, *, by_header: bool = True) -> None:
        self._database = database
        self._given = given
        self.by_header: bool = by_header and given is None

    def check(self) -> None:
        """Raise ConfigError if markers cannot be written."""
        if not is_installed():
            raise ConfigError(
                "once= needs 'gnsqsync.django.inbox' in INSTALLED_APPS, and manage.py migrate"
            )
        require_ignoring(self._database)

    def key(self, message: Message) -> str:
        """Return the key of a message. Called before the transaction. Raises Reject without one."""
        return key_of(message, self._given)

    def run(self, key: str, message: Message, function: Callable[[Message], object]) -> None:
        """Write the marker, and call the function unless it was there. Within the transaction."""
        run_once(message, key, partial(mark, self._database), function, log)
