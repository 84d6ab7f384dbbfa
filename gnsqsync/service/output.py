"""Lines for people on standard output, which may be full, closed, or a pipe whose reader has left.

Knows no command and no framework.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Protocol, TextIO

from gnsqsync.errors import NSQError

__all__ = [
    "CannotWrite",
    "Output",
    "nowhere",
    "replace_closed",
    "say",
    "send_nowhere",
    "told_when_full",
]


class CannotWrite(NSQError):
    """Standard output takes nothing any more; as a rule a disk is full."""


class Output(Protocol):
    """Standard output, or what a framework has in its place."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def fileno(self) -> int: ...


def say(output: Output, text: str) -> None:
    """Write a line now, also into a pipe. A closed pipe is no error.

    As in ``nsq_stat | head -1``: the command goes on, and its exit code stays. CannotWrite for
    other errors.
    """
    try:
        with told_when_full(output):
            output.write(f"{text}\n")
            output.flush()
    except BrokenPipeError:
        send_nowhere(output)


@contextmanager
def told_when_full(output: Output) -> Iterator[None]:
    """Turns an OSError into CannotWrite; a BrokenPipeError stays.

    The code inside should flush: after an error the buffered rest is thrown away.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        send_nowhere(output)
        why = error.strerror or error
        raise CannotWrite(f"cannot write to standard output: {why}") from error


@cache
def nowhere() -> TextIO:
    """In place of standard output or error that was closed before the program began."""
    return open(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)


def replace_closed() -> None:
    """For the start of each command: after ``>&-`` sys.stdout is None, and print() would fail."""
    sys.stdout = sys.stdout or nowhere()
    sys.stderr = sys.stderr or nowhere()


def send_nowhere(output: Output) -> None:
    """After a write that failed. Python flushes at its exit, and would report that error again."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, output.fileno())
    os.close(null)
