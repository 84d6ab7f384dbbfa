"""How many sends and recvs our Reader makes, counted by the runtime of the tests."""

from __future__ import annotations

from typing import Any

from tests.bench import clients, rows
from tests.bench.cells import Bench
from tests.bench.progress import Progress

ROWS = ("consume-2500-workers", "consume-2500", "consume-200")
MESSAGES = 100_000


def run(bench: Bench, progress: Progress) -> list[dict[str, Any]]:
    (ours,) = clients.select(["ours"])
    chosen = [row for row in rows.ROWS if row.name in ROWS]
    progress.total(len(chosen))
    points = []
    for row in chosen:
        progress.begin(f"counting: {row.name}")
        found = bench.measure(bench.layouts[0], row, ours, MESSAGES, flavour="counting")
        names = ("received", "sends", "recvs")
        points.append({"row": row.name, **{name: found[name] for name in names}})
    return points


def table(points: list[dict[str, Any]]) -> str:
    return "".join(
        f"  {p['row']:<21} {p['received']} messages in {p['recvs']} recvs, {p['sends']} sends:"
        f" {p['sends'] / p['recvs']:.2f} sends a received chunk\n"
        for p in points
    )
