"""The troubles of this process: which of them are told, and the words that such lines share.

Knows the one ``Troubles`` of a process, its lock and its clock; logs nothing.
"""

from __future__ import annotations

import os
import time

from gnsqsync.errors import NSQError, ServerError
from gnsqsync.policy.troubles import Tell, Troubles
from gnsqsync.runtime import world

__all__ = ["AWAY", "duration", "kind_of", "more", "troubles", "used_by"]

# The kind of a trouble: a server is not reached, whatever it is that shows it.
AWAY = ("away",)

# Users of a place that a line names; the others are counted.
_MOST_NAMES = 5


_of: dict[int, Troubles] = {}


def troubles() -> Troubles:
    """Those of this process. The child of a fork has told nothing, and has a lock of its own."""
    pid = os.getpid()
    found = _of.get(pid)
    if found is None:
        # A native lock also under gevent: no greenlet is switched while one holds it.
        lock = world.native("threading", "Lock")()
        # Atomic: of two threads that come first, both get the same.
        found = _of.setdefault(pid, Troubles(lock, time.monotonic))
    return found


def kind_of(error: Exception, name: str) -> tuple[str, ...]:
    """The kind of a failed dial: failures of one kind at one server are told together.

    The text does not count, because a peer can vary it. A failure for which trying again is useless
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
    """As people say it: "0.4 s", "37 s", "4 min", "2.5 h"."""
    if seconds < 9.95:
        return f"{seconds:.1f} s".replace(".0 ", " ")
    if seconds < 119.5:
        return f"{seconds:.0f} s"
    if seconds < 7170:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h".replace(".0 ", " ")


def used_by(tell: Tell, what: str) -> str:
    """``; 3 consumers of this process use it: a, b, c`` where ``what`` is "consumers".

    Empty for one user or none: the line names that one itself.
    """
    names = tell.users
    if len(names) < 2:
        return ""
    shown = ", ".join(names[:_MOST_NAMES])
    if len(names) > _MOST_NAMES:
        shown += f" and {len(names) - _MOST_NAMES} more"
    return f"; {len(names)} {what} of this process use it: {shown}"


def more(tell: Tell) -> str:
    """The end of a line: how often it was met without one, since when, when the next one comes."""
    text = ""
    if tell.times > 1:
        text = f"; {tell.times:,} times since the last line"
    if tell.seconds >= 1:
        text += f"; it began {duration(tell.seconds)} ago"
    if tell.again:
        text += f"; told again in {duration(tell.again)} at the earliest"
    return text
