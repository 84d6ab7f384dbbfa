"""Words that several findings use. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gnsqsync.stats import counted

__all__ = ["printable", "short", "some_of", "verb", "waiting"]

# Upper bound of names in a sentence.
_NAMED = 3
# Upper bound of the characters of a text that a server or client chose.
_LONGEST = 200


def printable(text: str) -> str:
    """Return a text without the characters that could steer a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


def short(text: str) -> str:
    """Return the begin of a text that somebody else chose."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def some_of(names: Sequence[str]) -> str:
    """Return the first names, and the number of further ones."""
    more = len(names) - _NAMED
    return ", ".join(map(short, names[:_NAMED])) + (f" and {more} more" if more > 0 else "")


def verb(count: int) -> str:
    """Return ``waits`` or ``wait``."""
    return "waits" if count == 1 else "wait"


def waiting(count: int) -> str:
    """Return ``2 messages wait``, or ``no message waits``."""
    return f"{counted(count, 'message')} {verb(count)}" if count else "no message waits"
