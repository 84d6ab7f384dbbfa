"""The eager mode: a publish calls the handlers of its topic, in this process.

Knows the handlers, no Writer. Their database connections are the caller's: neither closed nor
counted anew, since the caller may be in the middle of something.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from gnsqsync.django.config import get_alias
from gnsqsync.django.handlers import Handler, all_handlers
from gnsqsync.service.settings import max_attempts_of
from gnsqsync.writer.eager import Channel, deliver
from gnsqsync.writer.memory import CapturedMessage

__all__ = ["deliver_of"]


def deliver_of(alias: str) -> Callable[[list[CapturedMessage]], None]:
    """For the MemoryWriter of an entry: what calls the handlers of this entry."""
    return partial(deliver, channels_of=partial(_channels_of, alias))


def _channels_of(alias: str, topic: str) -> list[Channel]:
    by_channel: dict[str, Handler] = {}
    for handler in all_handlers():
        if (handler.alias, handler.topic) == (alias, topic):
            # Those of one channel would share its messages.
            by_channel.setdefault(handler.channel, handler)
    options = get_alias(alias).options
    return [
        Channel(
            handler.name,
            handler.channel,
            handler.handle,
            max_attempts_of({**options, **handler.options}),
        )
        for handler in by_channel.values()
    ]
