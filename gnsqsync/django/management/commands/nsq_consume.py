"""``manage.py nsq_consume``: run the handlers until a signal comes."""

from __future__ import annotations

from functools import partial
from typing import Any

from gnsqsync.django.consume_command import ConsumeCommand
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
        parser.add_argument(
            "--topic", action="append", default=[], help="Only handlers of this topic; repeatable."
        )
        parser.add_argument(
            "--channel",
            action="append",
            default=[],
            help="Only handlers of this channel; repeatable.",
        )
        self.add_consume_arguments(parser)

    def handle(self, **options: Any) -> None:
        wanted = options["names"], options["topic"], options["channel"]
        self.consume(partial(select, *wanted), options)
