"""``manage.py nsq_health``: ask a consumer if it is alive, or if it is ready."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from django.core.management.base import CommandError

from gnsqsync.commands.options import HEALTH
from gnsqsync.django.command import NSQCommand, add_options
from gnsqsync.errors import ConfigError
from gnsqsync.process.output import say
from gnsqsync.process.probe import ask_health

__all__ = ["Command"]

_PROCESSES = "The --processes of nsq_consume: ask N ports, from that of --address on."
_OPTIONS = (
    replace(HEALTH["address"], help="The --metrics-address of nsq_consume. Default: {default}."),
    HEALTH["ready"],
    replace(HEALTH["processes"], help=_PROCESSES, low=None),
    replace(HEALTH["timeout"], help="Longest wait for an answer. Default: {default:g}."),
)


class Command(NSQCommand):
    help = (
        "Ask a consumer whether it is alive, or with --ready whether it is connected: one line."
        " Exit code 0: it is. gnsqsync health does the same without loading the project."
    )
    # A probe asks only the consumer, so the project's checks would cost time for nothing.
    requires_system_checks: tuple[str, ...] = ()

    def add_arguments(self, parser: Any) -> None:
        add_options(parser, _OPTIONS)

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
