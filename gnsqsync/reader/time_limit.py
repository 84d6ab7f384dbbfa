"""Time limit of a Reader's handler (``time_limit``).

Knows the exceptions that stand for it. The runtime knows how to interrupt a call.

``limited`` wraps a handler: the interrupt is raised inside, and becomes TimeLimitExceeded outside.

Surprise: the interrupt is no Exception, so that ``except Exception`` in the handler does not stop
it. It may strike at any line of the handler.
"""

from __future__ import annotations

from gnsqsync.errors import TimeLimitExceeded, TimeLimitInterrupt
from gnsqsync.message import Message
from gnsqsync.middleware import Handler
from gnsqsync.runtime import After, Runtime

__all__ = ["limited"]


def limited(handler: Handler, seconds: float, runtime: Runtime, after: After) -> Handler:
    """Return a handler that is interrupted after ``seconds``.

    TimeLimitInterrupt is raised in the handler, and TimeLimitExceeded is raised from it. A handler
    with a method ``_limited(wrap)`` chooses the part of it that is limited. Handlers of the
    integrations close connections after the user's function, and that must not be interrupted.
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
