"""``manage.py nsq_doctor``: reasons for which messages wait in a cluster, a topic or a channel."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from gnsqsync.cluster.diagnosis import examine
from gnsqsync.commands.options import DOCTOR, JSON
from gnsqsync.django.command import NSQCommand, add_options
from gnsqsync.django.config import ALIAS, get_alias
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
        seconds, timeout = DOCTOR["seconds"], replace(DOCTOR["timeout"], metavar=None)
        add_options(parser, (DOCTOR["channel"], ALIAS, seconds, timeout, JSON))

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
