"""The eager mode: a publish calls the handlers of its topic, in this process.

Knows the handlers and their contexts, no Writer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from flask import Flask

from gnsqsync.flask.config import read_settings
from gnsqsync.flask.handlers import Handler, InContext
from gnsqsync.process.settings import max_attempts_of
from gnsqsync.testing.eager import Channel, deliver, one_per_channel
from gnsqsync.testing.memory import CapturedMessage

__all__ = ["deliver_of"]


def deliver_of(
    app: Flask, handlers: Mapping[str, Handler]
) -> Callable[[list[CapturedMessage]], None]:
    """Return the function by which an application's MemoryWriter calls the handlers.

    Handlers that are registered later are called, too.
    """
    return partial(deliver, channels_of=partial(_channels_of, app, handlers))


def _channels_of(app: Flask, handlers: Mapping[str, Handler], topic: str) -> list[Channel]:
    mine = [handler for handler in handlers.values() if handler.topic == topic]
    settings = read_settings(app)
    return [
        Channel(
            handler.name,
            handler.channel,
            InContext(app, handler.function),
            max_attempts_of({**settings.options, **handler.options}),
            settings.middleware_with(handler.options),
        )
        for handler in one_per_channel(mine)
    ]
