"""Troubles of this process, and the words that log lines about them share.

Knows the one ``Troubles`` of a process, its lock and its clock. Logs nothing.

``policy.troubles`` decides when a line is due. The functions here make the ends of lines from its
answer.

Surprise: all Readers and Writers of a process share the object, so one of them may keep another
from logging a line.
"""

from __future__ import annotations

import os
import time

from gnsqsync.errors import NSQError, ServerError
from gnsqsync.policy.troubles import Tell, Troubles
from gnsqsync.runtime import world

__all__ = ["AWAY", "duration", "kind_of", "more", "troubles", "used_by"]

# Kind of the trouble that a server is not reached, however that shows.
AWAY = ("away",)

# Upper bound of users that a line names. It counts the others.
_MOST_NAMES = 5


# Troubles by process id.
_of: dict[int, Troubles] = {}


def troubles() -> Troubles:
    """Return the Troubles of this process. A forked child has its own, with its own lock."""
    pid = os.getpid()
    found = _of.get(pid)
    if found is None:
        # A native lock, even under gevent: no greenlet switches while it holds the lock.
        lock = world.native("threading", "Lock")()
        # setdefault is atomic, so two threads that come first get the same object.
        found = _of.setdefault(pid, Troubles(lock, time.monotonic))
    return found


def kind_of(error: Exception, name: str) -> tuple[str, ...]:
    """Return the kind of a failed dial. Failures of one kind at one server make one line.

    The text does not count, because a peer can vary it. A failure that a new try cannot cure
    belongs to one client, ``name``. A thread that cannot be started is a trouble of this process,
    whether or not the server is away.
    """
    kind = type(error).__name__
    if isinstance(error, NSQError) and not error.retriable:
        return (kind, name)
    if isinstance(error.__cause__, RuntimeError):
        return ("no thread",)
    return (kind,) if isinstance(error, ServerError) else AWAY


def duration(seconds: float) -> str:
    """Format seconds as people say them: "0.4 s", "37 s", "4 min", "2.5 h"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    if seconds < 7170:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h".replace(".0 ", " ")


def used_by(tell: Tell, what: str) -> str:
    """Return ``; 3 consumers of this process use it: a, b, c`` if ``what`` is "consumers".

    Return "" for one user or none, because the line names that user itself.
    """
    names = tell.users
    if len(names) < 2:
        return ""
    shown = ", ".join(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        shown += f" and {len(names) - _MOST_NAMES} more"
    return f"; {len(names)} {what} of this process use it: {shown}"


def more(tell: Tell) -> str:
    """Return the end of a line: how often it was met, when it began, when the next line comes."""
    text = ""
    if tell.times > 1:
        text = f"; {tell.times:,} times since the last line"
    if tell.seconds >= 1:
        text += f"; it began {duration(tell.seconds)} ago"
    if tell.again:
        text += f"; not repeated within {duration(tell.again)}"
    return text
