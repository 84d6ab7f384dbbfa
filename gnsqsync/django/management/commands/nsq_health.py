"""``manage.py nsq_health``: ask a consumer if it is alive, or if it is ready."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from gnsqsync.django.command import NSQCommand
from gnsqsync.errors import ConfigError
from gnsqsync.process.output import say
from gnsqsync.process.probe import DEFAULT_ADDRESS, DEFAULT_TIMEOUT, ask_health

__all__ = ["Command"]


class Command(NSQCommand):
    help = (
        "Ask a consumer whether it is alive, or with --ready whether it is connected: one line."
        " Exit code 0: it is. gnsqsync health does the same without loading the project."
    )
    # A probe asks only the consumer, so the project's checks would cost time for nothing.
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--address",
            default=DEFAULT_ADDRESS,
            metavar="[HOST:]PORT|URL",
            help=f"The --metrics-address of nsq_consume. Default: {DEFAULT_ADDRESS}.",
        )
        parser.add_argument("--ready", action="store_true", help="Ask /readyz instead of /livez.")
        parser.add_argument(
            "--processes",
            type=int,
            default=1,
            metavar="N",
            help="The --processes of nsq_consume: ask N ports, from that of --address on.",
        )
        parser.add_argument(
            "--timeout",
            type=float,
            default=DEFAULT_TIMEOUT,
            metavar="SECONDS",
            help=f"Longest wait for an answer. Default: {DEFAULT_TIMEOUT:g}.",
        )

    def handle(self, **options: Any) -> None:
        try:
            found = ask_health(
                options["address"],
                ready=options["ready"],
                processes=options["processes"],
                timeout=options["timeout"],
            )
        except ConfigError as error:
            raise CommandError(str(error)) from None
        if not found.good:
            raise CommandError(found.text)
        say(self.stdout, found.text)
