"""The base of the management commands: their output, and the log lines that they show.

Knows no single command.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gnsqsync.commands.options import Option
from gnsqsync.process.first_process import become_first_process
from gnsqsync.process.log_output import readable_log
from gnsqsync.process.output import CannotWrite, drop_unwritten, replace_closed

__all__ = ["NSQCommand", "add_options", "at_least"]


def at_least(low: int) -> Any:
    """Return a type for argparse: an integer of at least ``low``."""

    def number(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"{value} is below {low}")
        return value

    return number


def add_options(parser: Any, options: Iterable[Option]) -> None:
    """Add options of a table to a parser of argparse."""
    for option in options:
        kind: dict[str, Any] = {"action": "store_true"}
        if option.kind is not bool:
            kind = {"metavar": option.metavar, "type": option.kind, "default": option.default}
            if option.repeats:
                kind |= {"action": "append", "default": []}
            if option.kind is int and option.low is not None:
                kind["type"] = at_least(int(option.low))
        parser.add_argument(option.flag, help=option.text, **kind)


class NSQCommand(BaseCommand):
    """A management command with safe output and a visible log.

    If its output is closed (``>&-``, ``2>&-``), the command writes nowhere. Django itself would
    take the closed output for a file. Warnings that LOGGING sends nowhere appear on standard error,
    with time and level.
    """

    # True for a command that runs until a signal comes.
    is_worker: bool = False

    def __init__(self, *args: Any, **options: Any) -> None:
        replace_closed()
        super().__init__(*args, **options)

    def run_from_argv(self, argv: list[str]) -> None:
        """Run a command line. A worker that is process 1 runs in a child, and process 1 reaps."""
        if self.is_worker:
            become_first_process(argv[1:])
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> Any:
        """Execute as Django does. Raise CommandError if standard output cannot be written."""
        try:
            with readable_log():
                result = super().execute(*args, **options)
                drop_unwritten()
                return result
        except CannotWrite as error:
            raise CommandError(str(error)) from error
