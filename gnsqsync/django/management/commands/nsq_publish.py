"""``manage.py nsq_publish``: publish messages from the command line or standard input."""

from __future__ import annotations

import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from gnsqsync.commands.integrations import bodies_of, failure_of, publish_all
from gnsqsync.commands.options import PUBLISH
from gnsqsync.django.command import NSQCommand, add_options
from gnsqsync.django.config import ALIAS
from gnsqsync.django.writers import close_writers, get_writer
from gnsqsync.errors import NSQError
from gnsqsync.options import check_topic
from gnsqsync.process.output import say

__all__ = ["Command"]


class Command(NSQCommand):
    help = (
        "Publish the bodies given, or else the lines of standard input without the empty ones,"
        " one message each. Exit code 0: nsqd has accepted all of them."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("topic")
        parser.add_argument("bodies", nargs="*", metavar="body")
        add_options(parser, (ALIAS, *PUBLISH.values()))

    def handle(self, **options: Any) -> None:
        topic, alias, timeout = options["topic"], options["alias"], options["timeout"]
        accepted = 0
        try:
            # A wrong topic is an error even if there is nothing to publish.
            check_topic(topic)
            bodies = bodies_of(options["bodies"], sys.stdin)
            writer = get_writer(alias)
            for more in publish_all(writer, topic, bodies, defer=options["defer"], timeout=timeout):
                accepted += more
            say(self.stdout, f"{accepted} published to {topic}")
        except (NSQError, ImproperlyConfigured) as error:
            raise CommandError(failure_of(error, accepted, topic)) from error
        finally:
            close_writers()
