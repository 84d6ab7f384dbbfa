"""``manage.py nsq_doctor``: reasons for which messages wait in a cluster, a topic or a channel."""

from __future__ import annotations

import json
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from gnsqsync.cluster.diagnosis import examine
from gnsqsync.cluster.looking import LOOK_SECONDS, LOOK_TIMEOUT
from gnsqsync.django.command import NSQCommand
from gnsqsync.django.config import DEFAULT, get_alias
from gnsqsync.errors import NSQError
from gnsqsync.process.output import say

__all__ = ["Command"]


class Command(NSQCommand):
    help = (
        "Say why messages wait in the cluster of LOOKUPD, NSQD and NSQD_HTTP, or in one topic, or"
        " that all is well. It tries each advertised address as a consumer on this machine would,"
        " with the TLS and AUTH of OPTIONS, but subscribes to nothing. Exit code 0: all is well, or"
        " there are hints only."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("topic", nargs="?", help="Only this one.")
        parser.add_argument("--channel", help="Only this channel.")
        parser.add_argument("--alias", default=DEFAULT, help="The entry of GNSQSYNC to use.")
        parser.add_argument(
            "--seconds",
            type=float,
            default=LOOK_SECONDS,
            help="Seconds between two looks. Take more than a handler needs for a message.",
        )
        parser.add_argument(
            "--timeout",
            type=float,
            default=LOOK_TIMEOUT,
            help="Seconds for which a server may be silent.",
        )
        parser.add_argument("--json", action="store_true", help="One JSON object.")

    def handle(self, **options: Any) -> None:
        try:
            alias = get_alias(options["alias"])
            found = examine(
                alias.doctor_question(
                    options["topic"], options["channel"], options["seconds"], options["timeout"]
                )
            )
        except (ImproperlyConfigured, NSQError) as error:
            raise CommandError(str(error)) from error
        if options["json"]:
            say(self.stdout, json.dumps(found.json()))
        else:
            for line in found.lines():
                say(self.stdout, line)
        if not found.is_good:
            raise CommandError("something is wrong")
