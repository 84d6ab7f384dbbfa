"""Messages older than ``max_age``, which go elsewhere than to the handler.

Knows a message and the wall clock, by which nsqd stamps messages.

The returned handler looks at the age of a message, and calls the other handler or ``on_expired``.

Surprise: an expired message takes the way of one that the handler rejected or discarded. No step
behind the handler knows the difference.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gnsqsync.message import Discard, Message, Reject
from gnsqsync.middleware import Handler

if TYPE_CHECKING:
    from gnsqsync.reader.options import OnExpired

__all__ = ["unless_expired"]


def unless_expired(handler: Handler, max_age: float, on_expired: OnExpired) -> Handler:
    """Return a handler that sends messages older than ``max_age`` seconds to ``on_expired``."""

    def call(message: Message) -> object:
        age = time.time() - message.timestamp / 1e9
        if age <= max_age:
            return handler(message)
        if callable(on_expired):
            return on_expired(message)
        reason = f"it is {age:.1f} s old, and max_age is {max_age:g} s"
        raise Discard(reason) if on_expired == "discard" else Reject(reason)

    return call
