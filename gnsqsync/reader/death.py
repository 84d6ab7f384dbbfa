"""Headers of a dead letter that tell why and where its message failed.

Knows messages and exceptions. Publishes nothing. The format is in docs/guides/dead-letters.

``death_headers`` is called when a dead letter is made.

Surprise: the class of an exception is the user's, and even its ``__str__`` may fail.
``gnsqsync.foreign`` reads its texts, so that a broken exception cannot keep a dead letter from
leaving.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime

from gnsqsync.foreign import class_of, line_of, text_of, traceback_of
from gnsqsync.message import Discard, Message, Reject, Requeue

__all__ = ["DEATH_HEADERS", "death_headers"]

# Names of the headers that a dead letter has beside those of its message.
DEATH_HEADERS = (
    "deadtopic",
    "deadchannel",
    "deadnsqd",
    "deadid",
    "deadattempts",
    "deadfirsttime",
    "deadtime",
    "deadreason",
    "deaderror",
    "deadtext",
    "deadtraceback",
    "deadhandler",
)

# Upper bound in bytes of the one-line reason that lists show.
_MOST_OF_A_LINE = 500


def death_headers(message: Message, error: BaseException | None, handler: str) -> dict[str, str]:
    """Return the headers of a dead letter, with those of the message. Raises no Exception.

    ``error``: exception of its handler; None if no handler ran. ``handler``: name of the handler.
    """
    reason = _reason(message, error)
    headers = {
        **message.headers,
        "deadtopic": message.topic,
        "deadchannel": message.channel,
        "deadnsqd": message.nsqd_address,
        "deadid": message.id,
        "deadattempts": str(message.attempts),
        "deadfirsttime": _time(message.timestamp / 1e9),
        "deadtime": _time(time.time()),
        "deadreason": text_of(" ".join(reason.split()), _MOST_OF_A_LINE),
        "deadhandler": text_of(handler, _MOST_OF_A_LINE),
    }
    for name in ("deaderror", "deadtext", "deadtraceback"):
        headers.pop(name, None)
    if error is not None:
        headers["deaderror"] = class_of(error)
        headers["deadtext"] = text_of(error)
        headers["deadtraceback"] = traceback_of(error)
    return headers


def _reason(message: Message, error: BaseException | None) -> str:
    if error is None:
        return f"delivered {message.attempts} times"
    if isinstance(error, (Reject, Discard)):
        reason = text_of(error.reason)
        if reason:
            return reason
    if isinstance(error, Requeue):
        return f"requeued by its handler on attempt {message.attempts}"
    return line_of(error)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
