"""Runs one client on one row under a tool that watches it: valgrind, a profiler."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tests.bench.cells import Bench
from tests.bench.clients import Client
from tests.bench.rows import Row

TIMEOUT = 600.0


class Unavailable(Exception):
    """The tool is not there; its text says what to install."""


def run_under(
    tool: Sequence[str],
    bench: Bench,
    row: Row,
    client: Client,
    messages: int,
    topic: str,
    tree: Path | None = None,
    *,
    exact: bool = False,
) -> None:
    """``tool``: its command up to the program. On a topic of its own; RuntimeError if it fails.

    ``tree``: where the package is imported from, for ours. ``exact``: no more messages come than
    are measured.
    """
    # On one CPU, where there is that layout: a profiler counts less waiting as work there.
    layout = bench.layouts[0]
    server, channel = bench.servers[layout.name], "bench"
    server.create(topic, channel if row.consumes else "")
    try:
        order = replace(bench.order(layout, row, client, messages), topic=topic, channel=channel)
        if row.consumes:
            surplus = 0 if exact else row.surplus
            server.feed(topic, channel, row.warmup + messages + surplus, order.body)
        ran = subprocess.run(
            [*tool, sys.executable, str(client.script), json.dumps(asdict(order))],
            # One order of all sets and dicts of strings, or the start's cost varies.
            env={
                **client.environment(),
                "PYTHONHASHSEED": "0",
                **({} if tree is None else {"PYTHONPATH": str(tree)}),
            },
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        if ran.returncode:
            raise RuntimeError(f"{client.name} under {tool[0]}: {ran.stderr[-2000:]}")
    finally:
        server.delete(topic)
