"""Tries of messages: the deliveries with a call of the handler. nsqd counts all deliveries.

Knows messages. Must not know a connection or a handler.

``note_uncalled`` remembers a delivery without a call, and ``of`` takes such deliveries off nsqd's
count.

Surprise: the memory belongs to this process. A delivery to another process counts as a try, because
nothing is known of it.
"""

from __future__ import annotations

from gnsqsync.message import Message
from gnsqsync.runtime import Runtime

__all__ = ["Tries", "which"]

# Upper bound of remembered messages. While a database is away, each waiting message is remembered.
_MOST_UNCALLED = 10_000


def which(message: Message) -> tuple[str, str]:
    """Return the key of a message among all others: its nsqd and its id."""
    return message.nsqd_address, message.id


class Tries:
    """Limit of tries of one Reader, and the deliveries that were no try.

    Deliveries to other processes count as tries, because nothing is known of them. ``_lock`` guards
    the table. Reading one entry needs no lock.
    """

    def __init__(self, runtime: Runtime, max_attempts: int) -> None:
        self._most = max_attempts
        self._lock = runtime.lock()
        # Number of deliveries without a call, by nsqd and id, the oldest message first.
        self._uncalled: dict[tuple[str, str], int] = {}

    def note_uncalled(self, message: Message) -> None:
        """Note that this delivery ended before the handler was called."""
        key = which(message)
        with self._lock:
            self._uncalled[key] = self._uncalled.get(key, 0) + 1
            if len(self._uncalled) > _MOST_UNCALLED:
                del self._uncalled[next(iter(self._uncalled))]

    def of(self, message: Message) -> int:
        """Return the number of tries that a message has had, with this one."""
        return message.attempts - self._uncalled.get(which(message), 0)

    def is_last(self, message: Message) -> bool:
        """Return True if a failure of this delivery gives the message up."""
        if not 0 < self._most <= message.attempts:
            return False
        return self.of(message) >= self._most
