"""Lines for people on standard output and error, which may be full, closed or without a reader.

``say`` writes a result, so an error of the output is an error of the command. ``mention`` writes a
line about work that goes on even if the line is lost. Knows no command and no framework.
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
    """Standard output cannot be written, as a rule because a disk is full."""


class Output(Protocol):
    """Standard output, or a framework's replacement of it."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def fileno(self) -> int: ...


def say(output: Output, text: str) -> None:
    """Write a line at once, even into a pipe. A closed pipe is no error.

    In ``nsq_stat | head -1`` the command goes on, and its exit code stays. CannotWrite for other
    errors.
    """
    try:
        with told_when_full(output):
            output.write(f"{text}\n")
            output.flush()
    except BrokenPipeError:
        send_nowhere(output)


def mention(output: Output, text: str) -> None:
    """Write a line about work that goes on. A line that cannot be written is dropped.

    The output is not replaced: a handler that prints into the same broken pipe must fail, so that
    its message comes again.
    """
    # A handler may have closed sys.stdout, which raises ValueError.
    with suppress(OSError, ValueError):
        output.write(f"{text}\n")
        output.flush()


def flush() -> None:
    """Flush standard output and error, and ignore errors."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()


def drop_unwritten() -> None:
    """Flush or drop the output of a command that ends, so that Python does not exit with 120.

    CannotWrite for any error other than a pipe without a reader.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            with told_when_full(stream):
                stream.flush()
        except BrokenPipeError:
            send_nowhere(stream)
        except ValueError:
            continue  # A handler has closed the stream.


@contextmanager
def told_when_full(output: Output) -> Iterator[None]:
    """Turn an OSError into CannotWrite. A BrokenPipeError stays.

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
    """Return the replacement of a standard stream that was closed before the program began."""
    return open(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)


def replace_closed() -> None:
    """Replace standard streams that were closed before the program began. Called by each command.

    After ``>&-`` sys.stdout is None, and print() would fail. The next socket would get the number
    of standard output, and the output of a child process would reach nsqd.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # The kernel gives the lowest free number, which is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    sys.stdout = sys.stdout or nowhere()
    sys.stderr = sys.stderr or nowhere()


def send_nowhere(output: Output) -> None:
    """Redirect the output to the null device after a failed write.

    Otherwise Python would flush at its exit, and report the error again.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, output.fileno())
    os.close(null)
