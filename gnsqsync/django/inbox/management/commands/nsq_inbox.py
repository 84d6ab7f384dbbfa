"""``manage.py nsq_inbox``: count the markers, and delete old ones."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from gnsqsync.django.command import NSQCommand, at_least
from gnsqsync.django.inbox.markers import prune
from gnsqsync.django.inbox.models import InboxMarker
from gnsqsync.process.output import say
from gnsqsync.stats import counted

__all__ = ["Command"]


class Command(NSQCommand):
    help = (
        "Show the number of messages that the inbox remembers. With --prune forget messages that"
        " were handled longer ago; such a message is handled again if it comes again."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--database",
            default=DEFAULT_DB_ALIAS,
            choices=tuple(connections),
            metavar="ALIAS",
            help="The database of the inbox.",
        )
        parser.add_argument(
            "--prune", type=float, metavar="DAYS", help="Delete markers older than DAYS."
        )
        parser.add_argument(
            "--batch",
            type=at_least(1),
            default=1000,
            metavar="N",
            help="Markers of a transaction. Default: 1000.",
        )
        parser.add_argument("--json", action="store_true", help="A JSON object.")

    def handle(self, **options: Any) -> None:
        database, days = options["database"], options["prune"]
        deleted = 0
        if days is not None:
            if not 0 < days <= 36500:  # nan is not
                raise CommandError("--prune must be above 0, and at most 36500 days")
            deleted = prune(timedelta(days=days), batch=options["batch"], using=database)
        markers = InboxMarker.objects.using(database)
        left = markers.count()
        oldest = markers.order_by("handled_at").values_list("handled_at", flat=True).first()
        since = None if oldest is None else oldest.isoformat(timespec="seconds")
        if options["json"]:
            found = {"deleted": deleted, "markers": left, "oldest": since}
            say(self.stdout, json.dumps(found))
            return
        if days is not None:
            say(self.stdout, f"{counted(deleted, 'marker')} deleted")
        say(self.stdout, counted(left, "marker") + (f", the oldest of {since}" if since else ""))
