"""``gnsqsync topic`` and ``gnsqsync channel``: create, delete, empty, pause, unpause.

Knows the servers to ask, in nsqadmin's order, and the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeVar

import click

from gnsqsync import LookupdHTTP, NsqdHTTP
from gnsqsync.cli.common import (
    asked,
    http_keywords,
    http_options,
    lookupd_option,
    nsqd_http_option,
)
from gnsqsync.cluster.asking import ask_all
from gnsqsync.commands.options import YES
from gnsqsync.commands.options_click import as_click
from gnsqsync.errors import ConfigError, HTTPError, NSQError
from gnsqsync.options import check_channel, check_topic
from gnsqsync.process.output import mention, say
from gnsqsync.stats import counted

Client = NsqdHTTP | LookupdHTTP
_C = TypeVar("_C", NsqdHTTP, LookupdHTTP, Client)
_T = TypeVar("_T")

# Action -> its participle in the line for each server, and the help.
ACTIONS = {
    "create": ("created", "Create {what}; one that exists is left as it is."),
    "delete": ("deleted", "Delete {what} with its messages. Live consumers may create it again."),
    "empty": ("emptied", "Throw away the messages of {what}."),
    "pause": ("paused", "Pause {what}: it goes on collecting, and delivers nothing."),
    "unpause": ("unpaused", "Undo pause."),
}


class Work:
    """An action on a topic or channel: its servers and their results."""

    def __init__(
        self,
        action: str,
        topic: str,
        channel: str | None,
        nsqds: Sequence[str],
        lookupds: Sequence[str],
        options: dict[str, Any] | None = None,
    ) -> None:
        self.action = action
        self.topic: str = check_topic(topic)
        self.channel: str | None = channel if channel is None else check_channel(channel)
        self.failed: bool = False
        self.asked: list[str] = []
        self._clients = ExitStack()
        self._options: dict[str, Any] = options or {}
        self._nsqds = {address: self._nsqd(address) for address in nsqds}
        self._lookupds = [
            self._clients.enter_context(LookupdHTTP(each, **self._options)) for each in lookupds
        ]

    def close(self) -> None:
        self._clients.close()

    @property
    def name(self) -> str:
        """The topic or channel in words."""
        if self.channel is None:
            return f"topic {self.topic!r}"
        return f"channel {self.channel!r} of topic {self.topic!r}"

    def create(self) -> None:
        """Create it on nsqlookupds, and a channel also on the topic's nsqds, as nsqadmin does."""
        self._do(self._lookupds)
        found = {} if self.channel is None else self._listed()[0]
        self._do({**self._nsqds, **found}.values())

    def find(self) -> tuple[list[NsqdHTTP], list[Any], list[LookupdHTTP]]:
        """Return the nsqds with the topic or channel, their figures, and nsqlookupds with it."""
        listed, knowing = self._listed()
        asked = {**self._nsqds, **listed}
        self.asked = [*(lookupd.url for lookupd in self._lookupds), *asked]
        having: list[NsqdHTTP] = []
        numbers: list[Any] = []
        for nsqd, found in self._ask(asked.values(), self._numbers):
            if found:
                having.append(nsqd)
                numbers += found
        return having, numbers, knowing

    def _numbers(self, nsqd: NsqdHTTP) -> Sequence[Any]:
        return nsqd.stats(self.topic, self.channel, include_mem=False).topics

    def apply(self, nsqds: Iterable[NsqdHTTP], lookupds: Iterable[LookupdHTTP]) -> None:
        """Do the action on each server and print the result. nsqlookupds come first."""
        self._do(lookupds)
        self._do(nsqds)

    def _listed(self) -> tuple[dict[str, NsqdHTTP], list[LookupdHTTP]]:
        found: dict[str, NsqdHTTP] = {}
        knowing = []
        for lookupd, answer in self._ask(self._lookupds, self._look_up):
            if answer is None:
                continue
            if self.channel is None or self.channel in answer.channels:
                knowing.append(lookupd)
            for producer in answer.producers:
                address = producer.http_address
                if address not in found and address not in self._nsqds:
                    found[address] = self._nsqd(address)
        return found, knowing

    def _look_up(self, lookupd: LookupdHTTP) -> Any:
        """Return the nsqlookupd's answer for the topic, or None if it does not know the topic."""
        try:
            return lookupd.lookup(self.topic)
        except HTTPError as error:
            if error.code != "TOPIC_NOT_FOUND":
                raise
            return None

    def _nsqd(self, address: str) -> NsqdHTTP:
        return self._clients.enter_context(NsqdHTTP(address, **self._options))

    def _act(self, client: Client) -> None:
        if self.action == "create":
            # nsqd and nsqlookupd both have /topic/create. A request that only one kind answers
            # comes first, to find an address of the wrong kind.
            if isinstance(client, LookupdHTTP):
                self._look_up(client)
            else:
                self._numbers(client)
        if self.channel is None:
            getattr(client, f"{self.action}_topic")(self.topic)
            return
        if self.action == "create" and isinstance(client, LookupdHTTP):
            client.create_topic(self.topic)
        getattr(client, f"{self.action}_channel")(self.topic, self.channel)

    def _do(self, clients: Iterable[Client]) -> None:
        for client, _ in self._ask(clients, self._act):
            say(sys.stdout, f"{client.url}: {self.name} {ACTIONS[self.action][0]}")

    def _ask(self, clients: Iterable[_C], call: Callable[[_C], _T]) -> Iterator[tuple[_C, _T]]:
        """Yield each server that answers, in order, with its answer. Print the other failures."""
        calls = {client: partial(call, client) for client in clients}
        try:
            found = ask_all(calls)
        except BaseException:  # After Ctrl-C no request goes on.
            for client in calls:
                client.cut()
            raise
        for client in calls:
            if client in found.failures:
                self._fail(client, found.failures[client])
            else:
                yield client, found.answers[client]

    def _fail(self, client: Client, error: NSQError) -> None:
        self.failed = True
        text = str(error).replace("\n", " ")
        if isinstance(error, HTTPError) and error.code == "TOPIC_NOT_FOUND":
            text = f"no such topic {self.topic!r}"
        mention(sys.stderr, f"gnsqsync: {client.url}: {text}")


def lost(work: Work, numbers: Iterable[Any]) -> str:
    """Return a sentence with the messages that ``delete`` or ``empty`` throws away."""
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


def _confirmed(question: str) -> bool:
    try:
        return click.confirm(question, err=True)
    except click.Abort:
        # Ctrl-D and Ctrl-C leave the cursor on the line of the question.
        click.echo(err=True)
        raise


def run(work: Work, yes: bool) -> int:
    """Run the whole command. Return the exit code."""
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
            raise NSQError(f"no such {work.name} {asked(work.asked)}")
        return 1
    if asks:
        click.echo(lost(work, numbers), err=True)
        where = counted(len(nsqds), "nsqd")
        if not _confirmed(f"{work.action.capitalize()} {work.name} on {where}?"):
            click.echo("nothing was changed", err=True)
            return 1
    work.apply(nsqds, lookupds)
    return 1 if work.failed else 0


def _group(kind: str) -> click.Group:
    group = click.Group(
        kind,
        help=f"Create, delete, empty, pause or unpause a {kind}, on all nsqds that have it.\n\n"
        "The nsqds are the given ones and those that nsqlookupds list for the topic. Without an"
        " address it is the nsqd on this machine (127.0.0.1:4151).",
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
        text = "Throw away the messages in TOPIC itself. Its channels keep their messages."
    if kind == "topic" and action == "create":
        text += " nsqlookupds only register it; an nsqd gets it with the first publish."

    def command(
        topic: str,
        nsqd_http_addresses: tuple[str, ...],
        lookupd_http_addresses: tuple[str, ...],
        channel: str | None = None,
        yes: bool = False,
        **options: Any,
    ) -> int:
        nsqds = nsqd_http_addresses or (() if lookupd_http_addresses else ("127.0.0.1:4151",))
        work = Work(action, topic, channel, nsqds, lookupd_http_addresses, http_keywords(options))
        try:
            return run(work, yes)
        finally:
            work.close()

    decorated: Any = http_options(command)
    if action in ("delete", "empty"):
        decorated = as_click(YES, short="-y")(decorated)
    decorated = nsqd_http_option()(lookupd_option()(decorated))
    if kind == "channel":
        decorated = click.argument("channel")(decorated)
    decorated = click.argument("topic")(decorated)
    example = f"Example: gnsqsync {kind} {action} orders{' billing' if kind == 'channel' else ''}"
    example += " -l 127.0.0.1:4161"
    exits = "Exit codes: 0 done; 1 a server failed, there is no such topic or channel, or the"
    exits += " answer was no; 2 wrong usage."
    return click.command(action, help=text, epilog=f"{example}\n\n{exits}")(decorated)


topic: click.Group = _group("topic")
channel: click.Group = _group("channel")
