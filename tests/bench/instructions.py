"""How many machine instructions a message costs ours, counted by valgrind's callgrind.

It is the same on a busy machine and on an idle one, so that a change of a few percent shows. Two
runs of different length are subtracted, which takes start and end out. Of publishing only the
publisher's thread counts: it waits for nsqd, and what else comes round meanwhile, by the clock,
would be counted the more often the slower the machine is.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.bench import clients, rows
from tests.bench.cells import Bench
from tests.bench.clients import Client
from tests.bench.progress import Progress
from tests.bench.rows import Row
from tests.bench.under import Unavailable, run_under

ROWS = ("consume-2500", "publish-1")
CLIENTS = ("ours", "floor")
MESSAGES = {"consume": (5_000, 45_000), "publish": (1_000, 11_000)}


def run(bench: Bench, progress: Progress) -> list[dict[str, Any]]:
    """A row and a client each: instructions a message, kernel and nsqd not counted."""
    valgrind = shutil.which("valgrind")
    if valgrind is None:
        raise Unavailable("no valgrind on PATH")
    chosen = [row for row in rows.ROWS if row.name in ROWS]
    progress.total(len(chosen) * len(CLIENTS))
    points = []
    for row in chosen:
        row = replace(row, warm=row.batch)
        for client in clients.select(CLIENTS):
            progress.begin(f"instructions: {row.name} {client.name}")
            each = a_message(bench, row, client, MESSAGES[row.kind], valgrind)
            points.append({"row": row.name, "client": client.name, "instructions": each})
    return points


def a_message(
    bench: Bench,
    row: Row,
    client: Client,
    lengths: tuple[int, int],
    valgrind: str,
    tree: Path | None = None,
) -> float:
    """Instructions, by two runs of these lengths in messages.

    ``tree``: where the package is imported from, for ours.
    """
    few, many = (_count(bench, row, client, messages, valgrind, tree) for messages in lengths)
    return (many - few) / (lengths[1] - lengths[0])


def _count(
    bench: Bench, row: Row, client: Client, messages: int, valgrind: str, tree: Path | None
) -> int:
    with TemporaryDirectory() as folder:
        log, out = Path(folder) / "log", Path(folder) / "out"
        tool = [valgrind, "--tool=callgrind", "--separate-threads=yes"]
        tool += [f"--log-file={log}", f"--callgrind-out-file={out}"]
        topic = f"instructions-{row.name}-{client.name}-{messages}"
        # What still comes after the last one would be counted, more or less of it.
        run_under(tool, bench, row, client, messages, topic, tree, exact=True)
        threads = "*" if row.consumes else "01"
        files = list(Path(folder).glob(f"out-{threads}"))
        found = [re.search(r"^totals: (\d+)", file.read_text(), re.MULTILINE) for file in files]
    counted = sum(int(total[1]) for total in found if total is not None)
    if not counted:
        raise RuntimeError("callgrind has collected nothing")
    return counted


def table(points: list[dict[str, Any]]) -> str:
    floors = {p["row"]: p["instructions"] for p in points if p["client"] == "floor"}
    return "".join(
        f"  {p['row']:<14} {p['client']:<12} {p['instructions']:>8,.0f} instructions a message,"
        f" {p['instructions'] / floors[p['row']]:.2f} x floor\n"
        for p in points
    )
