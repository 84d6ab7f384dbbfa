"""Why a message became a dead letter, as headers beside its own.

Knows messages and exceptions; publishes nothing. docs/guides/dead-letters.
"""

from __future__ import annotations

import time
import traceback
from datetime import UTC, datetime

from gnsqsync.message import Discard, Message, Reject, Requeue

__all__ = ["DEATH_HEADERS", "death_headers"]

# Those that a dead letter has beside the ones of the message.
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

# Bytes of the texts. What an exception says may hold a whole document.
_MOST_OF_A_LINE = 500
_MOST_TEXT = 2_000
_MOST_TRACEBACK = 8_000


def death_headers(message: Message, error: BaseException | None, handler: str) -> dict[str, str]:
    """The headers of a dead letter, those of the message included.

    ``error``: what its handler raised; None where no handler ran. ``handler``: its name.
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
        "deadreason": _cut(" ".join(reason.split()), _MOST_OF_A_LINE),
        "deadhandler": handler,
    }
    for name in ("deaderror", "deadtext", "deadtraceback"):
        headers.pop(name, None)
    if error is not None:
        kind = type(error)
        headers["deaderror"] = f"{kind.__module__}.{kind.__qualname__}"
        headers["deadtext"] = _cut(str(error), _MOST_TEXT)
        text = "".join(traceback.format_exception(error))
        headers["deadtraceback"] = _cut_front(text, _MOST_TRACEBACK)
    return headers


def _reason(message: Message, error: BaseException | None) -> str:
    if error is None:
        return f"delivered {message.attempts} times"
    if isinstance(error, (Reject, Discard)) and error.reason:
        return error.reason
    if isinstance(error, Requeue):
        return f"requeued by its handler on attempt {message.attempts}"
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _cut(text: str, most: int) -> str:
    """At most so many bytes of UTF-8; what is no UTF-8 is escaped."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    return data[: most - 3].decode("utf-8", "ignore") + "..."


def _cut_front(text: str, most: int) -> str:
    """The end, which says what happened, and where."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    return "..." + data[3 - most :].decode("utf-8", "ignore")
