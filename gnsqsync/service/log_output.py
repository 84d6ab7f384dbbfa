"""What a command shows of the log where its program has configured none.

Knows Python's last resort only: the handler that prints warnings of loggers without any handler
to standard error. Whoever configures logging, before or later, gets everything as configured.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["Lines", "is_readable", "make_readable", "readable_log"]


class Lines(logging.Formatter):
    """Time, level, logger and text; the last resort by itself prints the bare text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S")


def is_readable() -> bool:
    """Whether a command of ours runs that prints warnings with time and level."""
    return logging.lastResort is not None and isinstance(logging.lastResort.formatter, Lines)


def make_readable() -> None:
    """Have warnings that no handler takes printed with time and level, from now on.

    Nothing happens where the program has set ``logging.lastResort`` to None: it wants silence.
    """
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(Lines())


@contextmanager
def readable_log() -> Iterator[None]:
    """As ``make_readable()``, while it is entered: for a command, which owns its process."""
    handler = logging.lastResort
    before = None if handler is None else handler.formatter
    make_readable()
    try:
        yield
    finally:
        if handler is not None:
            handler.setFormatter(before)
