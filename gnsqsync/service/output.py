"""Lines for people on standard output and error, which may be full, closed, or without a reader.

``say`` writes a result: an error of the output is an error of the command. ``mention`` writes a
line beside work that goes on whatever becomes of the line. Knows no command and no framework.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Protocol, TextIO

from gnsqsync.errors import NSQError

__all__ = [
    "CannotWrite",
    "Output",
    "drop_unwritten",
    "flush",
    "mention",
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


def mention(output: Output, text: str) -> None:
    """Write a line about work that goes on. A line that cannot be written is dropped.

    The output stays as it is, so that a handler that prints into the same broken pipe fails, and
    its message comes again.
    """
    # ValueError: a handler has closed sys.stdout.
    with suppress(OSError, ValueError):
        output.write(f"{text}\n")
        output.flush()


def flush() -> None:
    """Write what standard output and error still hold, as far as they take it."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def drop_unwritten() -> None:
    """Keep the exit code of a command that ends: Python would report unwritten output with 120.

    CannotWrite for another error than a pipe without a reader.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            with told_when_full(stream):
                stream.flush()
        except BrokenPipeError:
            send_nowhere(stream)
        except ValueError:
            continue  # a handler has closed it


@contextmanager
def told_when_full(output: Output) -> Iterator[None]:
    """Turn an OSError into CannotWrite; a BrokenPipeError stays.

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
    """Return what stands for standard output or error that was closed before the program began."""
    return open(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)


def replace_closed() -> None:
    """Open what was closed before the program began; called at the start of each command.

    After ``>&-`` sys.stdout is None, and print() would fail. The next socket would get the number
    of standard output, and what a child process prints would reach nsqd.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = sys.stdout or nowhere()
    sys.stderr = sys.stderr or nowhere()


def send_nowhere(output: Output) -> None:
    """Lead the output to the null device, after a write that failed.

    Python flushes at its exit, and would report that error again.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, output.fileno())
    os.close(null)
