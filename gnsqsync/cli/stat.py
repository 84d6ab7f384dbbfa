"""``gnsqsync stat``: show depths, rates and clients of topics and channels, over all nsqds."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gnsqsync.cli.common import (
    Flag,
    Signals,
    asked,
    http_keywords,
    http_options,
    lookupd_option,
    nsqd_http_option,
    print_json,
)
from gnsqsync.cluster.servers import Servers
from gnsqsync.cluster.totals import TopicTotal, totals
from gnsqsync.commands.integrations import told_stuck
from gnsqsync.commands.options import DOCTOR, JSON
from gnsqsync.commands.options_click import Number, as_click
from gnsqsync.errors import NSQError
from gnsqsync.options import check_channel, check_topic
from gnsqsync.process.output import told_when_full
from gnsqsync.stats import counted

if TYPE_CHECKING:
    from gnsqsync.http.clients import NsqdHTTP, Stats

# Numbers of a channel: key in our JSON, and heading in the table.
CHANNEL_NUMBERS = (
    ("depth", "depth"),
    ("in_flight", "in flight"),
    ("deferred", "deferred"),
    ("requeued", "requeued"),
    ("timed_out", "timed out"),
    ("messages", "messages"),
    ("clients", "clients"),
)
TOPIC_NUMBERS = ("depth", "messages")
# Upper bound of stuck channels whose consumers are asked for in one measurement.
_MOST_ASKED = 20

Row = dict[str, Any]


class Source:
    """The nsqds to ask, with an HTTP client for each nsqd of the last measurement."""

    def __init__(
        self,
        nsqds: tuple[str, ...],
        lookupds: tuple[str, ...],
        topic: str | None,
        channel: str | None,
        options: dict[str, Any] | None = None,
    ) -> None:
        fixed = nsqds or (() if lookupds else ("127.0.0.1:4151",))
        self._servers = Servers(fixed, lookupds, **(options or {}))
        self._topic = topic
        self._channel = channel

    def close(self) -> None:
        self._servers.close()

    def measure(self) -> tuple[list[Row], list[Row]]:
        """Return (servers, topics): each server with its error or None, and topics summed up."""
        found = self._servers.find()
        servers: list[Row] = [
            _server("nsqlookupd", lookupd.url, found.lookups.failures.get(address))
            for address, lookupd in self._servers.lookupds.items()
        ]
        # Bad addresses that nsqds registered. The other nsqds are still asked.
        servers += [_server("nsqd", address, error) for address, error in found.bad.items()]
        asked = self._servers.ask(found.nsqds, self._stats)
        for address, client in found.nsqds.items():
            row = _server("nsqd", client.url, asked.failures.get(address))
            stats = asked.answers.get(address)
            if stats is not None:
                row.update(version=stats.version, health=stats.health)
            servers.append(row)
        topics = totals(asked.answers.values())
        ready = self._ready(topics, {address: found.nsqds[address] for address in asked.answers})
        return servers, [_topic_row(name, topics[name], ready.get(name, {})) for name in topics]

    def _ready(
        self, topics: dict[str, TopicTotal], nsqds: dict[str, NsqdHTTP]
    ) -> dict[str, dict[str, int | None]]:
        """Return, by topic, the sum of the consumers' RDY of each stuck channel.

        An answer with all consumers may be large, so other channels have none.
        """
        stuck = [
            (name, channel)
            for name, topic in topics.items()
            for channel, one in topic.channels.items()
            if one.is_stuck
        ]
        del stuck[_MOST_ASKED:]
        found: dict[str, dict[str, int | None]] = {}
        if not stuck:
            return found
        # A single call for each nsqd: an nsqd that hangs now costs one timeout, not one a channel.
        asked = self._servers.ask(nsqds, partial(_consumers, stuck))
        now = totals(stats for answer in asked.answers.values() for stats in answer)
        for name, channel in stuck:
            total = now.get(name, TopicTotal()).channels.get(channel)
            # Consumers of an nsqd that does not answer may have RDY.
            ready = total.ready if total and not asked.failures else None
            found.setdefault(name, {})[channel] = ready
        return found

    def _stats(self, client: NsqdHTTP) -> Stats:
        return client.stats(self._topic, self._channel, include_clients=False, include_mem=False)


def _consumers(names: list[tuple[str, str]], client: NsqdHTTP) -> list[Stats]:
    return [client.stats(topic, channel, include_mem=False) for topic, channel in names]


def _server(kind: str, address: str, error: NSQError | None) -> Row:
    return {"kind": kind, "address": address, "error": None if error is None else str(error)}


def _topic_row(name: str, total: TopicTotal, ready: dict[str, int | None]) -> Row:
    return {
        "topic": name,
        **{key: getattr(total, key) for key in TOPIC_NUMBERS},
        "messages_per_second": None,
        "paused": total.paused,
        "channels": [
            {
                "channel": channel,
                **{key: getattr(one, key) for key, _ in CHANNEL_NUMBERS},
                "messages_per_second": None,
                "paused": one.paused,
                **({"ready": ready[channel]} if channel in ready else {}),
            }
            for channel, one in total.channels.items()
        ],
    }


class Rates:
    """Messages per second from two measurements, or None for a counter that fell."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, ...], int] = {}
        self._at = 0.0

    def fill_in(self, topics: list[Row], now: float) -> None:
        """Set ``messages_per_second`` of each row that the last measurement had, too."""
        counts: dict[tuple[str, ...], int] = {}
        elapsed = now - self._at
        for topic in topics:
            rows: list[tuple[tuple[str, ...], Row]] = [((topic["topic"],), topic)]
            rows += [((topic["topic"], row["channel"]), row) for row in topic["channels"]]
            for key, row in rows:
                counts[key] = row["messages"]
                before = self._last.get(key)
                # A restarted nsqd counts from 0 again (docs/protocol/nsqd-http#stats).
                if before is not None and elapsed > 0 and row["messages"] >= before:
                    row["messages_per_second"] = round((row["messages"] - before) / elapsed, 1)
        self._last = counts
        self._at = now


@click.command(
    epilog="""\b
Example: gnsqsync stat
         gnsqsync stat orders -l 127.0.0.1:4161
         gnsqsync stat orders --once --json | jq '.topics[].channels[] | [.channel, .depth]'

--json prints an object per measurement: time, servers (kind, address, error or null), and topics,
each with depth, messages, messages_per_second, paused and its channels, which have in_flight,
deferred, requeued, timed_out and clients as well. A channel where messages wait and consumers
have none has ready: the sum of their RDY, 0 in a backoff.

Exit codes: 0 Ctrl-C, or --once and an answer; 1 --once, and no nsqd answered, or
none has TOPIC or CHANNEL; 2 wrong usage.
""",
)
@click.argument("topic", required=False)
@as_click(DOCTOR["channel"], short="-c", metavar="CHANNEL")
@nsqd_http_option()
@lookupd_option()
@click.option(
    "--interval",
    default=2.0,
    show_default=True,
    type=Number(0.1),
    metavar="SECONDS",
    help="Seconds between two measurements.",
)
@click.option("--once", is_flag=True, help="Measure once and end; there are no rates then.")
@as_click(JSON, help="One JSON object per measurement.")
@http_options
def stat(
    topic: str | None,
    channel: str | None,
    nsqd_http_addresses: tuple[str, ...],
    lookupd_http_addresses: tuple[str, ...],
    interval: float,
    once: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Show depth, rates and clients of all topics and channels, or of TOPIC.

    Numbers are sums over all nsqds: those given, and those that the nsqlookupds name. "depth" is
    the number of waiting messages, without those in flight or deferred; messages, requeued and
    timed out count since the nsqd started. On a terminal the table stays and changes; Ctrl-C ends
    it. With --once the exit code is 1 when no nsqd answered, or none has what was asked for.
    """
    keywords = http_keywords(options)
    # The names are checked here. Otherwise the error would seem to come from each nsqd.
    if topic is not None:
        check_topic(topic)
    if channel is not None:
        check_channel(channel)
    source = Source(nsqd_http_addresses, lookupd_http_addresses, topic, channel, keywords)
    try:
        if once:
            servers, topics = source.measure()
            _print(servers, topics, as_json, Console())
            return 0 if topics else _tell_why_nothing(servers, topic, channel)
        _watch(source, interval, as_json)
    finally:
        source.close()
    return 0


def _answered(server: Row) -> bool:
    return server["kind"] == "nsqd" and server["error"] is None


def _tell_why_nothing(servers: list[Row], topic: str | None, channel: str | None) -> int:
    """Return the exit code of a measurement without a topic. NSQError if a name was not found."""
    nsqds = [str(server["address"]) for server in servers if server["kind"] == "nsqd"]
    if not nsqds and not any(server["error"] for server in servers):
        lookupds = [str(server["address"]) for server in servers]
        raise NSQError(f"no nsqd is registered {asked(lookupds)}")
    if not any(_answered(server) for server in servers):
        return 1
    if channel is not None:
        of = f" of topic {topic!r}" if topic is not None else ""
        raise NSQError(f"no such channel {channel!r}{of} {asked(nsqds)}")
    if topic is not None:
        raise NSQError(f"no such topic {topic!r} {asked(nsqds)}")
    click.echo(f"gnsqsync: there are no topics {asked(nsqds)}", err=True)
    return 0


def _watch(source: Source, interval: float, as_json: bool) -> None:
    rates = Rates()
    stop = Flag()
    console = Console()
    live = None
    if sys.stdout.isatty() and not as_json:
        live = Live(console=console, auto_refresh=False, screen=False)
        live.start()
    try:
        with Signals(stop.set):
            while True:
                began = time.monotonic()
                servers, topics = source.measure()
                rates.fill_in(topics, began)
                if live is not None:
                    live.update(render(servers, topics), refresh=True)
                else:
                    _print(servers, topics, as_json, console)
                if stop.wait(max(0.0, began + interval - time.monotonic())):
                    return
    finally:
        if live is not None:
            live.stop()


def _print(servers: list[Row], topics: list[Row], as_json: bool, console: Console) -> None:
    if as_json:
        print_json({"time": round(time.time(), 3), "servers": servers, "topics": topics})
    elif sys.stdout.isatty():
        console.print(render(servers, topics))
    else:
        with told_when_full(sys.stdout):
            for line in plain_lines(servers, topics):
                click.echo(line)
            sys.stdout.flush()


def plain_lines(servers: list[Row], topics: list[Row]) -> list[str]:
    """Return the numbers as ``key=value`` words, one line per topic and channel."""
    lines = []
    for topic in topics:
        for row in (topic, *topic["channels"]):
            words = [f"topic={topic['topic']}"]
            if "channel" in row:
                words.append(f"channel={row['channel']}")
            keys = [key for key, _ in CHANNEL_NUMBERS if key in row]
            words += [f"{key}={row[key]}" for key in keys]
            if row["messages_per_second"] is not None:
                words.append(f"messages_per_second={row['messages_per_second']}")
            if row["paused"]:
                words.append("paused")
            lines.append(" ".join(words))
    lines += _stuck(topics)
    return lines + [f"error: {server['error']}" for server in servers if server["error"]]


def _stuck(topics: list[Row]) -> list[str]:
    """Return a line for each channel where messages wait and all consumers have RDY 0."""
    return [
        told_stuck(topic["topic"], row["channel"], row["depth"])
        for topic in topics
        for row in topic["channels"]
        if row.get("ready") == 0
    ]


def render(servers: list[Row], topics: list[Row]) -> Group:
    """Return the table, and below it the number of servers that answered, and errors."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("topic / channel", overflow="fold")
    for _, heading in CHANNEL_NUMBERS[:-1]:
        table.add_column(heading, justify="right")
    table.add_column("messages/s", justify="right")
    table.add_column("clients", justify="right")
    for topic in topics:
        table.add_row(*_cells(topic["topic"], topic), style="bold")
        for channel in topic["channels"]:
            table.add_row(*_cells(f"  {channel['channel']}", channel))
    if not topics:
        table.add_row("(no topics)")
    asked = [server for server in servers if server["kind"] == "nsqd"]
    notes = [f"{sum(map(_answered, asked))} of {counted(len(asked), 'nsqd')} answered"]
    notes += [
        f"{server['address']}: {server['health']}"
        for server in asked
        if server.get("health", "OK") != "OK"
    ]
    notes += _stuck(topics)
    notes += [str(server["error"]) for server in servers if server["error"]]
    return Group(table, Text("\n".join(["", *notes])))


def _cells(name: str, row: Row) -> list[Text]:
    # rich would search a str for markup like [bold], so cells are Text.
    rate = row["messages_per_second"]
    cells = [f"{name}{' (paused)' if row['paused'] else ''}"]
    cells += [f"{row[key]:,}" if key in row else "" for key, _ in CHANNEL_NUMBERS[:-1]]
    cells.append("" if rate is None else f"{rate:,.1f}")
    cells.append(f"{row['clients']:,}" if "clients" in row else "")
    return [Text(cell) for cell in cells]
