"""How many machine instructions a message costs ours, counted by valgrind's callgrind.

It is the same on a busy machine and on an idle one, so that a change of a few percent shows. Two
runs of different length are subtracted, which takes start and end out.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench import clients, rows
from tests.bench.cells import Bench
from tests.bench.clients import Client
from tests.bench.progress import Progress
from tests.bench.rows import Row

ROWS = ("consume-2500", "publish-1")
CLIENTS = ("ours", "floor")
MESSAGES = {"consume": (2_000, 12_000), "publish": (300, 1_800)}
TIMEOUT = 600.0


class Unavailable(Exception):
    """valgrind is not there."""


def run(bench: Bench, progress: Progress) -> list[dict[str, Any]]:
    """A row and a client each: instructions a message, kernel and nsqd not counted."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise Unavailable("no valgrind on PATH")
    chosen = [row for row in rows.ROWS if row.name in ROWS]
    progress.total(2 * len(chosen) * len(CLIENTS))
    points = []
    for row in chosen:
        row = replace(row, warm=row.batch)
        for client in clients.select(CLIENTS):
            counted = []
            for messages in MESSAGES[row.kind]:
                progress.begin(f"instructions: {row.name} {client.name}, {messages} messages")
                counted.append(_count(bench, row, client, messages, valgrind))
            few, many = MESSAGES[row.kind]
            each = (counted[1] - counted[0]) / (many - few)
            points.append({"row": row.name, "client": client.name, "instructions": each})
    return points


def _count(bench: Bench, row: Row, client: Client, messages: int, valgrind: str) -> int:
    layout = bench.layouts[-1]
    server = bench.servers[layout.name]
    topic, channel = f"instructions-{row.name}-{client.name}-{messages}", "bench"
    server.create(topic, channel if row.consumes else "")
    try:
        order = replace(bench.order(layout, row, client, messages), topic=topic, channel=channel)
        if row.consumes:
            server.feed(topic, channel, row.warmup + messages + row.surplus, order.body)
        with TemporaryDirectory() as folder:
            log, out = Path(folder) / "log", Path(folder) / "out"
            command = [valgrind, "--tool=callgrind", f"--log-file={log}"]
            command += [f"--callgrind-out-file={out}", sys.executable, str(client.script)]
            ran = subprocess.run(
                [*command, json.dumps(asdict(order))],
                env=client.environment(),
                capture_output=True,
                text=True,
                timeout=TIMEOUT,
                check=False,
            )
            found = re.search(r"Collected : (\d+)", log.read_text())
        if ran.returncode or found is None:
            raise RuntimeError(f"{client.name} under valgrind: {ran.stderr[-2000:]}")
    finally:
        server.delete(topic)
    return int(found[1])


def table(points: list[dict[str, Any]]) -> str:
    floors = {p["row"]: p["instructions"] for p in points if p["client"] == "floor"}
    return "".join(
        f"  {p['row']:<14} {p['client']:<12} {p['instructions']:>8,.0f} instructions a message,"
        f" {p['instructions'] / floors[p['row']]:.2f} x floor\n"
        for p in points
    )
