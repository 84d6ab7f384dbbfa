"""``manage.py nsq_consume``: run the handlers until a signal comes."""

from __future__ import annotations

from functools import partial
from typing import Any

from gnsqsync.commands.options import SELECTION
from gnsqsync.django.command import add_options
from gnsqsync.django.consume_command import CONSUME, ConsumeCommand
from gnsqsync.django.handlers import select

__all__ = ["Command"]


class Command(ConsumeCommand):
    help = (
        "Call the functions marked with @nsq_handler with the messages of their channels. The"
        " first signal lets running handlers finish and gives all other messages back,"
        " the second does not wait for handlers, the third ends the process at once. Exit code 0:"
        " stopped by a signal, and every message was answered."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "names", nargs="*", metavar="name", help="Handlers or apps; all of them if none."
        )
        add_options(parser, (*SELECTION.values(), *CONSUME.values()))

    def handle(self, **options: Any) -> None:
        wanted = options["names"], options["topic"], options["channel"]
        self.consume(partial(select, *wanted), options)
