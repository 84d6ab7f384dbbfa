"""``gnsqsync health``: ask if a consumer is alive, or ready.

Knows options. Imports little, because a probe starts every few seconds.
"""

from __future__ import annotations

import sys

import click

from gnsqsync.commands.options import HEALTH
from gnsqsync.commands.options_click import as_click
from gnsqsync.process.output import say
from gnsqsync.process.probe import ask_health


@click.command(
    epilog="""\b
Example: gnsqsync health
         gnsqsync health --address 9150 --ready
         gnsqsync health --address http://127.0.0.1:9150/readyz --timeout 2
         gnsqsync health --address 127.0.0.1:9150 --processes 4

Exit codes: 0 the consumer says yes; 1 it says no, or there is no answer; 2 wrong usage.
""",
)
@as_click(HEALTH["address"], HEALTH["ready"])
@as_click(
    HEALTH["processes"],
    help="The --processes of the consumer: ask N ports, from the given one on.",
)
@as_click(HEALTH["timeout"], help="Seconds in which the answer must come.")
def health(address: str, ready: bool, processes: int, timeout: float) -> int:
    """Ask a consumer whether it is alive, or with --ready whether it is connected: one line.

    It asks the --metrics-address of gnsqsync consume, manage.py nsq_consume or flask nsq consume.
    For the probes of Docker and Kubernetes that run a command.
    """
    found = ask_health(address, ready=ready, processes=processes, timeout=timeout)
    say(sys.stdout, found.text)
    return 0 if found.good else 1
