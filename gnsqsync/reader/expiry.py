"""Messages that are older than ``max_age`` and go elsewhere than to the handler.

Knows a message and the wall clock; nsqd's stamps are of that.
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
    """The handler for messages of up to ``max_age`` seconds; ``on_expired`` for older ones."""

    def call(message: Message) -> object:
        age = time.time() - message.timestamp / 1e9
        if age <= max_age:
            return handler(message)
        if callable(on_expired):
            return on_expired(message)
        reason = f"it is {age:.1f} s old, and max_age is {max_age:g} s"
        raise Discard(reason) if on_expired == "discard" else Reject(reason)

    return call
