"""The record of acts on dead letters: log lines with the user, the act, and the letters' ids.

Knows the log only; answers no letter.
"""

from __future__ import annotations

import getpass
import logging
import os

from gnsqsync.dead_letters.letter import DeadLetter
from gnsqsync.stats import counted

__all__ = ["Audit", "user_of_this_process"]

log: logging.Logger = logging.getLogger("gnsqsync.dead_letters")

# Largest number of letters in a line. A killed process loses the record of fewer letters.
_A_LINE = 100


class Audit:
    """The letters that one look has purged or sent back, until ``write()`` has logged them.

    A purge is a WARNING, because it cannot be undone; a letter that was sent back is INFO.
    """

    def __init__(self, topic: str, by: str) -> None:
        self._topic = topic
        self._by = by
        # Ids of letters by the topic to which they were sent back; "" for a purge.
        self._done: dict[str, list[str]] = {}

    def note(self, letter: DeadLetter, to: str = "") -> None:
        """Record that a letter is purged, or is sent back to the topic ``to``."""
        ids = self._done.setdefault(to, [])
        ids.append(letter.id)
        if len(ids) >= _A_LINE:
            self._write(to)

    def write(self) -> None:
        """Log all letters that were noted since the last line."""
        for to in list(self._done):
            self._write(to)

    def _write(self, to: str) -> None:
        ids = self._done.pop(to)
        count, names = counted(len(ids), "dead letter"), ", ".join(ids)
        if to:
            log.info("%s of %s sent back to %s by %s: %s", count, self._topic, to, self._by, names)
        else:
            log.warning("%s of %s purged by %s: %s", count, self._topic, self._by, names)


def user_of_this_process() -> str:
    """Return the name of this process's user, or its number if it has no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have a user without a name
        return f"user {os.getuid()}"
