"""``gnsqsync health``: ask if a consumer is alive, or ready.

Knows options. Imports little, because a probe starts every few seconds.
"""

from __future__ import annotations

import sys

import click

from gnsqsync.process.output import say
from gnsqsync.process.probe import DEFAULT_ADDRESS, DEFAULT_TIMEOUT, ask_health


@click.command(
    epilog="""\b
Example: gnsqsync health
         gnsqsync health --address 9150 --ready
         gnsqsync health --address http://127.0.0.1:9150/readyz --timeout 2
         gnsqsync health --address 127.0.0.1:9150 --processes 4

Exit codes: 0 the consumer says yes; 1 it says no, or there is no answer; 2 wrong usage.
""",
)
@click.option(
    "--address",
    default=DEFAULT_ADDRESS,
    show_default=True,
    metavar="[HOST:]PORT|URL",
    help="The --metrics-address of the consumer.",
)
@click.option("--ready", is_flag=True, help="Ask /readyz instead of /livez.")
@click.option(
    "--processes",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    metavar="N",
    help="The --processes of the consumer: ask N ports, from the given one on.",
)
@click.option(
    "--timeout",
    default=DEFAULT_TIMEOUT,
    show_default=True,
    type=float,
    metavar="SECONDS",
    help="Seconds in which the answer must come.",
)
def health(address: str, ready: bool, processes: int, timeout: float) -> int:
    """Ask a consumer whether it is alive, or with --ready whether it is connected: one line.

    It asks the --metrics-address of gnsqsync consume, manage.py nsq_consume or flask nsq consume.
    For the probes of Docker and Kubernetes that run a command.
    """
    found = ask_health(address, ready=ready, processes=processes, timeout=timeout)
    say(sys.stdout, found.text)
    return 0 if found.good else 1
