"""``gnsqsync doctor``: reasons for which messages wait in a cluster, a topic or a channel."""

from __future__ import annotations

import sys
from typing import Any

import click

from gnsqsync import ConnectionOptions
from gnsqsync.cli.common import (
    connection_keywords,
    connection_options,
    lookupd_option,
    nsqd_http_option,
    nsqd_option,
    print_json,
)
from gnsqsync.cluster.diagnosis import examine
from gnsqsync.cluster.looking import Question
from gnsqsync.commands.options import DOCTOR, JSON
from gnsqsync.commands.options_click import Number, as_click
from gnsqsync.process.output import say


@click.command(
    epilog="""\b
Example: gnsqsync doctor
         gnsqsync doctor -l 127.0.0.1:4161
         gnsqsync doctor orders -c billing -l 127.0.0.1:4161 --seconds 10
         gnsqsync doctor -l 127.0.0.1:4161 --json | jq -r '.findings[] | .level, .wrong'

--json prints one object: ok, findings (kind, level, where, wrong, right, messages), nsqds and
nsqlookupds, each with its address and its error or null.

Exit codes: 0 all is well, or there are hints only; 1 something is wrong; 2 wrong usage.
""",
)
@click.argument("topic", required=False)
@as_click(DOCTOR["channel"], short="-c", metavar="CHANNEL")
@nsqd_option()
@nsqd_http_option()
@lookupd_option()
@as_click(DOCTOR["seconds"], DOCTOR["timeout"], type=Number(0.1))
@as_click(JSON)
@connection_options
def doctor(
    topic: str | None,
    channel: str | None,
    nsqd_tcp_addresses: tuple[str, ...],
    nsqd_http_addresses: tuple[str, ...],
    lookupd_http_addresses: tuple[str, ...],
    seconds: float,
    timeout: float,
    as_json: bool,
    **options: Any,
) -> int:
    """Say why messages wait in a cluster, or in TOPIC, or that all is well.

    It asks the given nsqds and nsqlookupds, and the nsqds that these list; without an address the
    nsqd on this machine. It tries each advertised address as a consumer on this machine would, with
    TLS and AUTH, but subscribes to nothing. Each finding says what is wrong and what would be
    right, the worst one first.
    """
    is_any_given = nsqd_tcp_addresses or nsqd_http_addresses or lookupd_http_addresses
    found = examine(
        Question(
            nsqd_tcp=nsqd_tcp_addresses if is_any_given else "127.0.0.1:4150",
            nsqd_http=nsqd_http_addresses,
            lookupd_http=lookupd_http_addresses,
            topic=topic,
            channel=channel,
            seconds=seconds,
            timeout=timeout,
            options=ConnectionOptions(**connection_keywords(options)),
        )
    )
    if as_json:
        print_json(found.json())
    else:
        for line in found.lines():
            say(sys.stdout, line)
    return 0 if found.is_good else 1
