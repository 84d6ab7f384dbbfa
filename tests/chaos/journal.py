"""What a client process did, line by line, written as it happens and read when all is over.

Knows the form of the lines only. Times are of the monotonic clock, which all processes share.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

# A publish began: number, how. It ended: number, outcome, how.
BEGUN, ENDED = "P", "p"
# A handler was called: call, number, nsqd, message id, attempts, deadline. It ended: call, how.
CALLED, RETURNED = "H", "h"
# A Reader lost a connection: nsqd, reason; or it ended while the Reader was stopping. nsqd refused
# an answer: nsqd, message id, code.
LOST, CLOSED, ANSWER_FAILED = "L", "C", "F"
# Something that must not happen: text.
WRONG = "X"
# What the client tells at its end, as JSON.
SUMMARY = "S"

_TERMINATOR = "\n"


class Journal:
    """Appends lines to a file, each with one write, so that forked children may share it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._only: int | None = None

    def note_only_mine(self) -> None:
        """In a forked child: of all that runs here, note what the caller does.

        Greenlets of the parent are copied, and end in the child, too, what they had begun.
        """
        self._only = threading.get_ident()

    @property
    def is_copied(self) -> bool:
        """Whether the caller is such a copy: the parent does, and notes, the same."""
        return self._only not in (None, threading.get_ident())

    def note(self, kind: str, *fields: object, at: float | None = None) -> None:
        if self.is_copied:
            return
        moment = time.monotonic() if at is None else at
        texts = (str(field).replace("\t", " ").replace("\n", " ") for field in fields)
        line = "\t".join((kind, f"{moment:.6f}", *texts)) + _TERMINATOR
        os.write(self._file, line.encode())

    def close(self) -> None:
        os.close(self._file)


def read(path: Path) -> Iterator[tuple[str, float, list[str]]]:
    """The lines: kind, time, fields. Without a torn last line, of a process that was killed."""
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.endswith(_TERMINATOR):
                kind, moment, *fields = line[:-1].split("\t")
                yield kind, float(moment), fields


def body_of(number: int, size: int) -> bytes:
    """The one body that belongs to a number: every byte of it follows from the number."""
    head = b"%d:%d:" % (number, size)
    return (head * (size // len(head) + 1))[: max(size, len(head))]


def number_of(body: bytes) -> int | None:
    """The number of a body; None for one that nobody published."""
    number, _, rest = body.partition(b":")
    size = rest.partition(b":")[0]
    if not number.isdigit() or not size.isdigit():
        return None
    return int(number) if body_of(int(number), int(size)) == body else None
