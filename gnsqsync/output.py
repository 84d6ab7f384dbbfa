"""Lines for people on standard output, which may be a pipe whose reader has left, or closed.

Knows no command and no framework.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Protocol, TextIO

__all__ = ["Output", "nowhere", "replace_closed", "say", "send_nowhere"]


class Output(Protocol):
    """Standard output, or what a framework has in its place."""

    def write(self, text: str, /) -> object: ...
    def flush(self) -> object: ...
    def fileno(self) -> int: ...


def say(output: Output, text: str) -> None:
    """Write a line now, also into a pipe. A reader that left is no error.

    As in ``nsq_stat | head -1``: what the command does goes on, and its exit code stays.
    """
    try:
        output.write(f"{text}\n")
        output.flush()
    except BrokenPipeError:
        send_nowhere(output)


@cache
def nowhere() -> TextIO:
    """In place of standard output or error that was closed before the program began."""
    return open(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)


def replace_closed() -> None:
    """For the begin of each command: after ``>&-`` sys.stdout is None, which nobody expects."""
    sys.stdout = sys.stdout or nowhere()
    sys.stderr = sys.stderr or nowhere()


def send_nowhere(output: Output) -> None:
    """After a write that failed: what is buffered must go, or Python complains when it exits."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, output.fileno())
    os.close(null)
