"""``manage.py nsq_publish``: publish messages from the command line or standard input."""

from __future__ import annotations

import sys
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from gnsqsync.django.config import DEFAULT
from gnsqsync.django.writers import close_writers, publish, publish_many
from gnsqsync.errors import NSQError, PublishError

__all__ = ["Command"]

# Messages of an MPUB from standard input.
_BATCH = 200


class Command(BaseCommand):
    help = (
        "Publish the bodies given, or else the lines of standard input without the empty ones,"
        " one message each. Exit code 0: nsqd has accepted all of them."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("topic")
        parser.add_argument("bodies", nargs="*", metavar="body")
        parser.add_argument("--alias", default=DEFAULT, help="The entry of GNSQSYNC to use.")
        parser.add_argument(
            "--defer", type=float, metavar="SECONDS", help="Deliver them so much later."
        )
        parser.add_argument(
            "--timeout", type=float, metavar="SECONDS", help="For each publish. Default: 5."
        )

    def handle(self, **options: Any) -> None:
        topic, alias, timeout = options["topic"], options["alias"], options["timeout"]
        accepted = 0
        try:
            if options["defer"] is not None:
                for body in options["bodies"] or _lines():
                    publish(topic, body, alias=alias, defer=options["defer"], timeout=timeout)
                    accepted += 1
            else:
                bodies = list(options["bodies"] or _lines())
                for start in range(0, len(bodies), _BATCH):
                    batch = bodies[start : start + _BATCH]
                    publish_many(topic, batch, alias=alias, timeout=timeout)
                    accepted += len(batch)
        except PublishError as error:
            accepted += error.acknowledged or 0
            raise CommandError(f"{accepted} published to {topic}, then: {error}") from error
        except (NSQError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        finally:
            close_writers()
        self.stdout.write(f"{accepted} published to {topic}")


def _lines() -> list[bytes]:
    lines = (line.rstrip(b"\r\n") for line in sys.stdin.buffer)
    return [line for line in lines if line]
