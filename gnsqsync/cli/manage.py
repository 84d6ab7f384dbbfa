"""``gnsqsync topic`` and ``gnsqsync channel``: create, delete, empty, pause, unpause.

Knows which servers to ask, in the order that nsqadmin has, and the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import click

from gnsqsync import LookupdHTTP, NsqdHTTP
from gnsqsync.cli.common import counted, lookupd_option, nsqd_http_option, show_log
from gnsqsync.errors import ConfigError, HTTPError, NSQError
from gnsqsync.options import check_channel, check_topic

Client = NsqdHTTP | LookupdHTTP

# Word of the command, what is said of a server that did it, and the help.
ACTIONS = {
    "create": ("created", "Create {what}; one that exists is left as it is."),
    "delete": ("deleted", "Delete {what} with its messages. Live consumers may create it again."),
    "empty": ("emptied", "Throw away the messages of {what}."),
    "pause": ("paused", "Pause {what}: nothing is delivered from it, and it goes on collecting."),
    "unpause": ("unpaused", "Undo pause."),
}


class Work:
    """One action on one topic or channel: the servers, and what became of each."""

    def __init__(
        self,
        action: str,
        topic: str,
        channel: str | None,
        nsqds: Sequence[str],
        lookupds: Sequence[str],
    ) -> None:
        self.action = action
        self.topic: str = check_topic(topic)
        self.channel: str | None = channel if channel is None else check_channel(channel)
        self.failed: bool = False
        self._clients = ExitStack()
        self._nsqds = {address: self._nsqd(address) for address in nsqds}
        self._lookupds = [self._clients.enter_context(LookupdHTTP(each)) for each in lookupds]

    def close(self) -> None:
        self._clients.close()

    @property
    def name(self) -> str:
        """The topic or channel in words."""
        if self.channel is None:
            return f"topic {self.topic!r}"
        return f"channel {self.channel!r} of topic {self.topic!r}"

    def create(self) -> None:
        """As nsqadmin: in the nsqlookupds, and a channel also on the nsqds that have the topic."""
        for lookupd in self._lookupds:
            self._do(lookupd, partial(lookupd.create_topic, self.topic))
            if self.channel is not None:
                self._do(lookupd, partial(lookupd.create_channel, self.topic, self.channel))
        found = () if self.channel is None else self._listed()[0]
        for nsqd in {**self._nsqds, **dict(found)}.values():
            self._do(nsqd, self._call(nsqd))

    def find(self) -> tuple[list[NsqdHTTP], list[Any], list[LookupdHTTP]]:
        """The nsqds that have it, their numbers, and the nsqlookupds that know it."""
        listed, knowing = self._listed()
        having: list[NsqdHTTP] = []
        numbers: list[Any] = []
        for nsqd in {**self._nsqds, **listed}.values():
            try:
                found = nsqd.stats(self.topic, self.channel, include_mem=False).topics
            except NSQError as error:
                self._fail(nsqd, error)
                continue
            if found:
                having.append(nsqd)
                numbers += found
        return having, numbers, knowing

    def apply(self, nsqds: Iterable[NsqdHTTP], lookupds: Iterable[LookupdHTTP]) -> None:
        """Do it on each server, and say what happened there; nsqlookupds first."""
        clients: list[Client] = [*lookupds, *nsqds]
        for client in clients:
            self._do(client, self._call(client))

    def _listed(self) -> tuple[dict[str, NsqdHTTP], list[LookupdHTTP]]:
        found: dict[str, NsqdHTTP] = {}
        knowing = []
        for lookupd in self._lookupds:
            try:
                answer = lookupd.lookup(self.topic)
                if self.channel is None or self.channel in answer.channels:
                    knowing.append(lookupd)
                for producer in answer.producers:
                    address = producer.http_address
                    if address not in found and address not in self._nsqds:
                        found[address] = self._nsqd(address)
            except HTTPError as error:
                if error.code != "TOPIC_NOT_FOUND":
                    self._fail(lookupd, error)
            except NSQError as error:
                self._fail(lookupd, error)
        return found, knowing

    def _nsqd(self, address: str) -> NsqdHTTP:
        return self._clients.enter_context(NsqdHTTP(address))

    def _call(self, client: Client) -> Callable[[], object]:
        names = (self.topic,) if self.channel is None else (self.topic, self.channel)
        kind = "topic" if self.channel is None else "channel"
        return partial(getattr(client, f"{self.action}_{kind}"), *names)

    def _do(self, client: Client, call: Callable[[], object]) -> None:
        try:
            call()
        except NSQError as error:
            self._fail(client, error)
        else:
            click.echo(f"{client.url}: {self.name} {ACTIONS[self.action][0]}")

    def _fail(self, client: Client, error: NSQError) -> None:
        self.failed = True
        text = str(error).replace("\n", " ")
        if isinstance(error, HTTPError) and error.code == "TOPIC_NOT_FOUND":
            text = f"no such topic {self.topic!r}"
        click.echo(f"gnsqsync: {client.url}: {text}", err=True)


def lost(work: Work, numbers: Iterable[Any]) -> str:
    """What ``delete`` or ``empty`` throws away, as a sentence."""
    waiting = in_flight = deferred = 0
    channels = set()
    for topic in numbers:
        if work.channel is None:
            waiting += topic.depth
        if work.channel is None and work.action == "empty":
            continue
        for channel in topic.channels:
            channels.add(channel.channel_name)
            waiting += channel.depth
            in_flight += channel.in_flight_count
            deferred += channel.deferred_count
    text = f"{counted(waiting, 'waiting message')}"
    if in_flight or deferred:
        text += f", {in_flight:,} in flight and {deferred:,} deferred"
    if work.channel is None and work.action == "delete":
        text += f", in the topic and {counted(len(channels), 'channel')}"
    return f"What would be lost: {text}."


def run(work: Work, yes: bool) -> int:
    """The whole command; returns the exit code."""
    if work.action == "create":
        work.create()
        return 1 if work.failed else 0
    asks = work.action in ("delete", "empty") and not yes
    if asks and not (sys.stdin is not None and sys.stdin.isatty()):
        raise ConfigError(
            f"{work.action} asks before it throws messages away, and this is not a terminal;"
            " give --yes"
        )
    nsqds, numbers, lookupds = work.find()
    if work.action != "delete":
        lookupds = []
    if not nsqds and not lookupds:
        if not work.failed:
            raise NSQError(f"no such {work.name}")
        return 1
    if asks:
        click.echo(lost(work, numbers), err=True)
        where = counted(len(nsqds), "nsqd")
        if not click.confirm(f"{work.action.capitalize()} {work.name} on {where}?", err=True):
            click.echo("nothing was changed", err=True)
            return 1
    work.apply(nsqds, lookupds)
    return 1 if work.failed else 0


def _group(kind: str) -> click.Group:
    group = click.Group(
        kind,
        help=f"Create, delete, empty, pause or unpause a {kind}, on all nsqds that have it.\n\n"
        "The nsqds are those given, and those that the nsqlookupds list for the topic; without an"
        " address the one on this machine (127.0.0.1:4151).",
        epilog=f"Example: gnsqsync {kind} pause orders{' billing' if kind == 'channel' else ''}"
        " -l 127.0.0.1:4161",
    )
    for action in ACTIONS:
        group.add_command(_command(kind, action))
    return group


def _command(kind: str, action: str) -> click.Command:
    words = "TOPIC" if kind == "topic" else "CHANNEL of TOPIC"
    text = ACTIONS[action][1].format(what=words)
    if kind == "topic" and action == "empty":
        text = "Throw away what waits in TOPIC itself; its channels keep their messages."
    if kind == "topic" and action == "create":
        text += " In nsqlookupds it is registered only: nsqds get it with the first publish."

    def command(
        topic: str,
        nsqd_http_addresses: tuple[str, ...],
        lookupd_http_addresses: tuple[str, ...],
        verbose: bool,
        channel: str | None = None,
        yes: bool = False,
    ) -> int:
        show_log(verbose)
        nsqds = nsqd_http_addresses or (() if lookupd_http_addresses else ("127.0.0.1:4151",))
        work = Work(action, topic, channel, nsqds, lookupd_http_addresses)
        try:
            return run(work, yes)
        finally:
            work.close()

    decorated: Any = click.option(
        "--verbose", "-v", is_flag=True, help="Show what the library does."
    )(command)
    if action in ("delete", "empty"):
        decorated = click.option("--yes", "-y", is_flag=True, help="Do not ask.")(decorated)
    decorated = nsqd_http_option()(lookupd_option()(decorated))
    if kind == "channel":
        decorated = click.argument("channel")(decorated)
    decorated = click.argument("topic")(decorated)
    exits = "Exit codes: 0 done; 1 a server failed, there is no such topic or channel, or the"
    exits += " answer was no; 2 wrong usage."
    return click.command(action, help=text, epilog=exits)(decorated)


topic: click.Group = _group("topic")
channel: click.Group = _group("channel")
