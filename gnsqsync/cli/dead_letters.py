"""``gnsqsync dead-letters``: list, show, requeue and purge. Knows the addresses of the servers."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from gnsqsync.cli.common import (
    connection_keywords,
    connection_options,
    lookupd_option,
    nsqd_http_option,
    nsqd_option,
)
from gnsqsync.commands.letter_actions import ACTIONS
from gnsqsync.commands.letters_click import dead_letter_command, run_in_terminal
from gnsqsync.dead_letters import DeadLetters
from gnsqsync.dead_letters.places import CHANNEL


def _run(
    action: str,
    topic: str,
    channel: str,
    nsqd_tcp_addresses: tuple[str, ...],
    nsqd_http_addresses: tuple[str, ...],
    lookupd_http_addresses: tuple[str, ...],
    **options: Any,
) -> int:
    is_any_given = nsqd_tcp_addresses or nsqd_http_addresses or lookupd_http_addresses
    make = partial(
        DeadLetters,
        topic,
        channel,
        nsqd_tcp_addresses=nsqd_tcp_addresses if is_any_given else "127.0.0.1:4150",
        nsqd_http_addresses=nsqd_http_addresses,
        lookupd_http_addresses=lookupd_http_addresses,
        **connection_keywords(options),
    )
    return run_in_terminal(action, make, **options)


_channel = click.option(
    "--channel",
    "-c",
    default=CHANNEL,
    show_default=True,
    metavar="CHANNEL",
    help="Take the letters from this channel of TOPIC. The first channel of a topic gets the"
    " messages that wait in it.",
)
_OPTIONS = (_channel, nsqd_option(), nsqd_http_option(), lookupd_option(), connection_options)

dead_letters: click.Group = click.Group(
    "dead-letters",
    commands={
        action: dead_letter_command(
            action, partial(_run, action), "gnsqsync dead-letters", _OPTIONS
        )
        for action in ACTIONS
    },
    help="List, show, requeue or purge the dead letters in a topic.\n\n"
    "The nsqds are those given, and those that the nsqlookupds list; without an address the one"
    " on this machine (127.0.0.1:4150).",
    epilog="Example: gnsqsync dead-letters list orders.dead -l 127.0.0.1:4161",
)
