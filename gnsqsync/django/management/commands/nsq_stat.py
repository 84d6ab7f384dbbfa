"""``manage.py nsq_stat``: depths and clients of topics and channels, over all nsqds."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from gnsqsync.commands.integrations import shown, topics_of
from gnsqsync.commands.options import JSON
from gnsqsync.django.command import NSQCommand, add_options
from gnsqsync.django.config import ALIAS, get_alias
from gnsqsync.process.output import say

__all__ = ["Command"]


class Command(NSQCommand):
    help = (
        "Show the depth of topics and channels, summed over the nsqds that LOOKUPD lists, or those"
        " of NSQD_HTTP, or those of NSQD with the next port. Exit code 1: an answer is missing, or"
        " there is no such topic."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("topic", nargs="?", help="Only this one.")
        add_options(parser, (ALIAS, JSON))

    def handle(self, **options: Any) -> None:
        try:
            alias = get_alias(options["alias"])
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        topics, failures = topics_of(
            options["topic"],
            nsqd_http=alias.nsqd_http,
            lookupd_http=alias.lookupd,
            nsqd_tcp=alias.nsqd,
            options=alias.options,
        )
        for line in shown(topics, failures, as_json=options["json"]):
            say(self.stdout, line)
        if failures:
            raise CommandError("; ".join(failures))
