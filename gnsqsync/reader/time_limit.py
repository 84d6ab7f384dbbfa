"""The handler of a Reader, for ``time_limit`` seconds.

Knows which exceptions say so; how a call is interrupted the runtime knows.
"""

from __future__ import annotations

from gnsqsync.errors import TimeLimitExceeded, TimeLimitInterrupt
from gnsqsync.message import Message
from gnsqsync.middleware import Handler
from gnsqsync.runtime import After, Runtime

__all__ = ["limited"]


def limited(handler: Handler, seconds: float, runtime: Runtime, after: After) -> Handler:
    """The handler, in which TimeLimitInterrupt is raised after ``seconds``; and from it
    TimeLimitExceeded.

    A handler with a method ``_limited(wrap)`` says itself which part of it is limited: those of the
    integrations close connections after the user's function, which nothing should interrupt.
    """
    limit = runtime.time_limit(seconds, TimeLimitInterrupt, after)

    def wrap(function: Handler) -> Handler:
        def call(message: Message) -> object:
            try:
                return limit(function, message)
            except TimeLimitInterrupt as interrupt:
                text = f"the handler ran longer than {seconds:g} s (time_limit)"
                raise TimeLimitExceeded(text) from interrupt

        return call

    within = getattr(handler, "_limited", None)
    result: Handler = wrap(handler) if within is None else within(wrap)
    return result
