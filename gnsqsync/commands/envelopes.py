"""Envelopes, opened for the handlers of the tools ``tail``, ``consume`` and ``to-file``.

Knows one message at a time. Knows no file and no terminal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from gnsqsync import envelope
from gnsqsync.message import Message
from gnsqsync.middleware import Handler, Middleware
from gnsqsync.reader.once import by_header

__all__ = ["OpenEnvelopes", "of_headers"]


def of_headers(handler: object, *, headers: bool, raw: bool) -> dict[str, Any]:
    """Return the options of a Reader for the flags ``--headers`` and ``--raw``.

    Without a flag envelopes are opened, and dead letters get none. A handler that rejects every
    message without headers gets ``--headers``.
    """
    headers = headers or (not raw and by_header(handler))
    return {"headers": headers, "middleware": [] if raw or headers else [OpenEnvelopes()]}


class OpenEnvelopes(Middleware):
    """A middleware that opens envelopes as ``Reader(headers=True)`` does, with two differences.

    A body whose headers break a rule stays unchanged. And a dead letter is the unchanged message,
    because a user who did not ask for headers publishes none. ``told`` is called with the first
    opened message.
    """

    fails_after_handler: ClassVar[bool] = False

    def __init__(self, told: Callable[[Message], object] | None = None) -> None:
        self._told = told

    def handle(
        self, message: Message, handler: Handler, proceed: Callable[[Message], object]
    ) -> object:
        """Open the envelope of the message, if it has one."""
        opened = envelope.opened(message.body)
        if opened is not None:
            message._headers, message.body = opened
            told, self._told = self._told, None
            if told is not None:
                told(message)
        return proceed(message)
