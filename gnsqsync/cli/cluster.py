"""``gnsqsync cluster``: nsqlookupd, nsqds and nsqadmin, until the user or the end of one ends all.

Knows the ports of NSQ. The servers are processes of their own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gnsqsync.cli.common import Flag, Signals

if TYPE_CHECKING:
    from gnsqsync.daemon.process import ServerProcess
    from gnsqsync.embedded import Nsqd

__all__ = ["cluster"]

# Default ports of NSQ's documentation. Each further nsqd has the next two ports.
NSQD_PORT = 4150
LOOKUPD_PORT = 4160
NSQADMIN_PORT = 4171
# Upper bound of nsqds. The ports of one more would be those of nsqlookupd.
MOST_NSQDS = (LOOKUPD_PORT - NSQD_PORT) // 2


@click.command(
    epilog="""\b
Example: gnsqsync cluster
         gnsqsync cluster --nsqds 3 --data-path ./nsq-data
         gnsqsync cluster --free-ports --no-admin

Exit codes: 0 stopped by a signal; 1 a server did not start, or ended by itself; 2 wrong usage.
""",
)
@click.option(
    "--nsqds",
    "count",
    default=2,
    show_default=True,
    type=click.IntRange(1, MOST_NSQDS),
    metavar="N",
    help="Number of nsqds.",
)
@click.option("--free-ports", is_flag=True, help="Use free ports instead of NSQ's own.")
@click.option(
    "--data-path",
    type=click.Path(file_okay=False),
    metavar="FOLDER",
    help="Keep the messages here, in a folder for each nsqd. [default: a temporary folder]",
)
@click.option(
    "--mem-queue-size",
    default=10_000,
    show_default=True,
    type=click.IntRange(0),
    metavar="N",
    help="Messages in memory for each topic and channel; more go to disk.",
)
@click.option("--no-admin", is_flag=True, help="Start no nsqadmin. Its extra is not needed then.")
def cluster(
    count: int, free_ports: bool, data_path: str | None, mem_queue_size: int, no_admin: bool
) -> int:
    """Run a whole NSQ on this machine: an nsqlookupd, two nsqds, and nsqadmin if it is installed.

    For development and tests. All listen on 127.0.0.1 only. Ctrl-C ends all of them; without
    --data-path their messages go, too.
    """
    if not no_admin and importlib.util.find_spec("jinja2") is None:
        click.echo(
            'Without nsqadmin, which needs an extra: pip install "gnsqsync[admin]"', err=True
        )
        no_admin = True
    from gnsqsync.embedded import ServerFailed

    ended = Flag()
    with contextlib.ExitStack() as stack:
        signals = stack.enter_context(Signals(ended.set))
        try:
            servers = _start(stack, count, free_ports, data_path, mem_queue_size, not no_admin)
        except ServerFailed as error:
            why = str(error).splitlines()[-1].rpartition(" - listen ")
            text = f"listen {why[2]}. --free-ports takes others." if why[1] else str(error)
            program = str(error).partition(" ")[0]
            raise click.ClickException(f"{program} did not start: {text}") from None
        with _told_of_children(ended):
            # A server may have ended before the handler was set.
            if signals.received is None and all(server.is_running for server in servers):
                while not ended.wait(math.inf):
                    pass
        gone = [server for server in servers if not server.is_running]
        if signals.received is None and gone:
            last = "".join(gone[0].log.strip().splitlines()[-1:])
            raise click.ClickException(
                f"{gone[0].options.program} has ended with exit code {gone[0].stop()}, so all do;"
                f" its last line: {last}"
            )
    return 0


def _start(
    stack: contextlib.ExitStack,
    count: int,
    free_ports: bool,
    data_path: str | None,
    mem_queue_size: int,
    with_admin: bool,
) -> list[ServerProcess]:
    """Start all servers and print their addresses. ``stack`` ends them. ServerFailed."""
    from gnsqsync.embedded import Nsqd, Nsqlookupd

    def at(port: int) -> str:
        return f"127.0.0.1:{0 if free_ports else port}"

    lookupd = stack.enter_context(
        Nsqlookupd(tcp_address=at(LOOKUPD_PORT), http_address=at(LOOKUPD_PORT + 1))
    )
    nsqds = []
    for number in range(count):
        port = NSQD_PORT + 2 * number
        nsqd = Nsqd(
            tcp_address=at(port),
            http_address=at(port + 1),
            lookupd_tcp_addresses=lookupd.tcp_address,
            data_path=None if data_path is None else Path(data_path) / f"nsqd-{number + 1}",
            mem_queue_size=mem_queue_size,
        )
        nsqds.append(stack.enter_context(nsqd))
    servers: list[ServerProcess] = [lookupd, *nsqds]
    url = ""
    if with_admin:
        from gnsqsync.admin import Nsqadmin

        admin = Nsqadmin(
            http_address=at(NSQADMIN_PORT), lookupd_http_addresses=lookupd.http_address
        )
        servers.append(stack.enter_context(admin))
        url = admin.url
    say_where(lookupd.tcp_address, lookupd.http_address, nsqds, url)
    return servers


def say_where(lookupd_tcp: str, lookupd_http: str, nsqds: list[Nsqd], admin: str) -> None:
    """Print the addresses, and the lines to write in a program."""
    click.echo(f"nsqlookupd  {lookupd_tcp}  http://{lookupd_http}")
    for nsqd in nsqds:
        click.echo(f"nsqd        {nsqd.tcp_address}  http://{nsqd.http_address}")
    if admin:
        click.echo(f"nsqadmin    {admin}")
    click.echo()
    click.echo(f'  Writer("{nsqds[0].tcp_address}")')
    click.echo(f'  Reader(topic, channel, handler, lookupd_http_addresses="{lookupd_http}")')
    click.echo()
    click.echo("Ctrl-C ends all of them.")


@contextlib.contextmanager
def _told_of_children(ended: Flag) -> Iterator[None]:
    """Set ``ended`` when a server ends inside of the block."""
    before = signal.signal(signal.SIGCHLD, lambda *_: ended.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before)
