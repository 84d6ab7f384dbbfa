"""``manage.py nsq_relay``: publish what is in the outbox until a signal comes."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from gnsqsync.django.command import NSQCommand
from gnsqsync.django.management.commands.nsq_consume import at_least
from gnsqsync.django.outbox.relay import OutboxStore
from gnsqsync.django.outbox.writing import lag
from gnsqsync.django.writers import close_writers
from gnsqsync.service.output import say
from gnsqsync.service.relay import Relay
from gnsqsync.service.supervisor import StopFlag, StopSignals

__all__ = ["Command"]


class Command(NSQCommand):
    help = (
        "Publish the messages of the outbox that are due and delete them, until SIGTERM or SIGINT;"
        " the batch at hand is finished. Several may run side by side on databases that have SKIP"
        " LOCKED. Exit code 0 after a signal; with --once when nothing is left, else 1."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--database",
            default=DEFAULT_DB_ALIAS,
            choices=tuple(connections),
            metavar="ALIAS",
            help="Whose outbox.",
        )
        parser.add_argument(
            "--batch",
            type=at_least(1),
            default=100,
            metavar="N",
            help="Messages of a transaction. Default: 100.",
        )
        parser.add_argument(
            "--interval",
            type=float,
            default=1.0,
            metavar="SECONDS",
            help="Between two looks when nothing is due. Default: 1.",
        )
        parser.add_argument(
            "--rate",
            type=float,
            metavar="N",
            help="At most so many messages a second, as after an hour without a relay.",
        )
        parser.add_argument(
            "--max-attempts",
            type=at_least(1),
            default=10,
            metavar="N",
            help="Refusals by nsqd until a message has failed for good. Default: 10.",
        )
        parser.add_argument("--once", action="store_true", help="End when nothing is due.")
        parser.add_argument(
            "--lag", action="store_true", help="Show what waits and what failed, and end."
        )
        parser.add_argument("--json", action="store_true", help="With --lag: a JSON object.")

    def handle(self, **options: Any) -> None:
        database = options["database"]
        if options["lag"]:
            self._show_lag(database, options["json"])
            return
        for name in ("interval", "rate"):
            if options[name] is not None and not options[name] > 0:  # nan is not
                raise CommandError(f"--{name} must be above 0")
        relay = Relay(
            OutboxStore(database),
            batch=options["batch"],
            max_attempts=options["max_attempts"],
            rate=options["rate"],
        )
        stop = StopFlag()
        self._say(options["verbosity"], f"publishing the outbox of {database}")
        try:
            with StopSignals(stop.set, 0.0):
                relay.run(stop, interval=options["interval"], until_empty=options["once"])
        finally:
            close_writers()
            self._say(options["verbosity"], f"{relay.published} published")
        if options["once"] and not stop.is_set:
            left = lag(database)
            if left.waiting or left.failed:
                raise CommandError(f"{left.waiting} still wait, {left.failed} have failed")

    def _say(self, verbosity: int, text: str) -> None:
        if verbosity > 0:
            say(self.stdout, text)

    def _show_lag(self, database: str, as_json: bool) -> None:
        found = lag(database)
        if as_json:
            say(self.stdout, json.dumps(asdict(found)))
        else:
            say(self.stdout, str(found))
