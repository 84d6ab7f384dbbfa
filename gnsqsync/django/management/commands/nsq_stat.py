"""``manage.py nsq_stat``: depths and clients of topics and channels, over all nsqds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from gnsqsync import LookupdHTTP, NsqdHTTP
from gnsqsync.django.config import DEFAULT, Alias, get_alias
from gnsqsync.errors import NSQError

__all__ = ["Command"]

Row = dict[str, Any]


class Command(BaseCommand):
    help = (
        "Show the depth of topics and channels, summed over the nsqds that LOOKUPD lists, or those"
        " of NSQD_HTTP, or those of NSQD with the next port. Exit code 1: an answer is missing."
    )

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("topic", nargs="?", help="Only this one.")
        parser.add_argument("--alias", default=DEFAULT, help="The entry of GNSQSYNC to use.")
        parser.add_argument("--json", action="store_true", help="One JSON object.")

    def handle(self, **options: Any) -> None:
        failures: list[str] = []
        topics: dict[str, Row] = {}
        try:
            nsqds = _nsqds(get_alias(options["alias"]), failures)
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error
        for address in nsqds:
            try:
                with NsqdHTTP(address) as nsqd:
                    stats = nsqd.stats(options["topic"])
            except NSQError as error:
                failures.append(f"{address}: {error}")
            else:
                _add(topics, stats.topics)
        if options["json"]:
            self.stdout.write(json.dumps({"topics": topics, "failures": failures}))
        else:
            self._table(topics)
        if failures:
            raise CommandError("; ".join(failures))

    def _table(self, topics: dict[str, Row]) -> None:
        rows: list[tuple[str, ...]] = [
            ("topic/channel", "depth", "in flight", "deferred", "messages", "clients")
        ]
        for topic, row in sorted(topics.items()):
            rows.append((topic, str(row["depth"]), "", "", str(row["messages"]), ""))
            for channel, numbers in sorted(row["channels"].items()):
                rows.append((f"{topic}/{channel}", *map(str, numbers.values())))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for first, *rest in rows:
            cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
            self.stdout.write("  ".join([first.ljust(widths[0]), *cells]).rstrip())


def _nsqds(alias: Alias, failures: list[str]) -> list[str]:
    """The HTTP addresses to ask; what could not be found out is added to ``failures``."""
    if alias.nsqd_http:
        return list(alias.nsqd_http)
    found: dict[str, None] = {}
    for url in alias.lookupd:
        try:
            with LookupdHTTP(url) as lookupd:
                found.update(dict.fromkeys(node.http_address for node in lookupd.nodes()))
        except NSQError as error:
            failures.append(f"{url}: {error}")
    if alias.lookupd:
        return list(found)
    return [_next_port(address) for address in alias.nsqd]


def _next_port(address: str) -> str:
    """nsqd's HTTP port is the one after its TCP port, where nobody has changed them."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return address  # 4150 and 4151, by default
    return f"{host}:{int(port) + 1}"


def _add(topics: dict[str, Row], found: Iterable[Any]) -> None:
    for topic in found:
        row = topics.setdefault(topic.topic_name, {"depth": 0, "messages": 0, "channels": {}})
        row["depth"] += topic.depth
        row["messages"] += topic.message_count
        for channel in topic.channels:
            numbers = row["channels"].setdefault(
                channel.channel_name,
                dict.fromkeys(("depth", "in_flight", "deferred", "messages", "clients"), 0),
            )
            numbers["depth"] += channel.depth
            numbers["in_flight"] += channel.in_flight_count
            numbers["deferred"] += channel.deferred_count
            numbers["messages"] += channel.message_count
            numbers["clients"] += channel.client_count
