"""The record of what was done to dead letters: lines of the log with who, what, and which letters.

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

# Letters that one line names. A process that is killed loses the record of fewer than that.
_A_LINE = 100


class Audit:
    """The letters that one look has purged or sent back, until ``write()`` has told the log.

    A purge is a WARNING, because it cannot be undone; a letter that was sent back is INFO.
    """

    def __init__(self, topic: str, by: str) -> None:
        self._topic = topic
        self._by = by
        # Ids of letters by the topic that they were sent back to; "" for a purge.
        self._done: dict[str, list[str]] = {}

    def note(self, letter: DeadLetter, to: str = "") -> None:
        """Record that a letter is purged, or is sent back to the topic ``to``."""
        ids = self._done.setdefault(to, [])
        ids.append(letter.id)
        if len(ids) >= _A_LINE:
            self._write(to)

    def write(self) -> None:
        """Write what is recorded since the last line."""
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
    """Name of the user that the operating system gives this process, or its number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may have a user without a name
        return f"user {os.getuid()}"
