"""Words that several findings use. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gnsqsync.stats import counted

__all__ = ["some_of", "verb", "waiting"]

# Upper bound of names in a sentence.
_NAMED = 3


def some_of(names: Sequence[str]) -> str:
    """Return the first names, and the number of further ones."""
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def verb(count: int) -> str:
    """Return ``waits`` or ``wait``."""
    return "waits" if count == 1 else "wait"


def waiting(count: int) -> str:
    """Return ``2 messages wait``, or ``no message waits``."""
    return f"{counted(count, 'message')} {verb(count)}" if count else "no message waits"
