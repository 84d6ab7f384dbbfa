"""``manage.py nsq_relay``: publish the messages of the outbox until a signal comes."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.core.management.base import CommandError
from django.db import connections

from gnsqsync.commands.options import RELAY
from gnsqsync.django.command import NSQCommand, add_options
from gnsqsync.django.databases import written
from gnsqsync.django.outbox.models import OutboxMessage
from gnsqsync.django.outbox.relay import OutboxStore
from gnsqsync.django.outbox.writing import lag
from gnsqsync.django.writers import close_writers
from gnsqsync.errors import ConfigError
from gnsqsync.outbox.relay import Relay
from gnsqsync.outbox.relay_command import lag_text, run_relay
from gnsqsync.process.output import mention, say

__all__ = ["Command"]


class Command(NSQCommand):
    is_worker: bool = True
    help = (
        "Publish the messages of the outbox that are due and delete them, until a signal ends it;"
        " the batch at hand is finished. Several may run side by side on databases that have SKIP"
        " LOCKED. Exit code 0 after a signal; with --once when nothing is left and each periodic"
        " message can be worked out, else 1."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--database",
            choices=tuple(connections),
            metavar="ALIAS",
            help="The database of the outbox. Default: the one in which the router writes it.",
        )
        add_options(parser, RELAY.values())

    def handle(self, **options: Any) -> None:
        database = written(OutboxMessage, options["database"])
        if options["lag"]:
            self._show_lag(database, options["json"])
            return
        try:
            relay = Relay(
                OutboxStore(database),
                batch=options["batch"],
                max_attempts=options["max_attempts"],
                rate=options["rate"],
            )
            self._say(options["verbosity"], f"publishing the outbox of {database}")
            left = run_relay(
                relay,
                partial(lag, database),
                interval=options["interval"],
                once=options["once"],
                say=partial(self._say, options["verbosity"]),
            )
        except ConfigError as error:
            names_option = str(error).startswith(("interval is", "rate is"))
            raise CommandError(f"{'--' * names_option}{error}") from error
        finally:
            close_writers()
        if left is not None:
            raise CommandError(left)

    def _say(self, verbosity: int, text: str) -> None:
        if verbosity > 0:
            mention(self.stdout, text)

    def _show_lag(self, database: str, as_json: bool) -> None:
        say(self.stdout, lag_text(lag(database), as_json=as_json))
