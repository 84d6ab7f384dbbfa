"""What the memory of ours is made of while it consumes: Python's objects, and malloc's arenas.

``measured`` is what the row of the table shows. ``one arena``: the same with one malloc arena for
all threads, where glibc gives each thread its own. ``objects``: what Python holds, by tracemalloc,
at the moment in which as many messages as are allowed wait for their handlers.
"""

from __future__ import annotations

from typing import Any

from tests.bench import clients, rows
from tests.bench.cells import Bench
from tests.bench.progress import Progress

ROW = "consume-2500-workers"
MESSAGES = 200_000
# Files with less are shown as one.
LEAST = 0.02

MIB = 1024 * 1024

Points = list[dict[str, Any]]


def run(bench: Bench, progress: Progress) -> Points:
    """Each part and its MiB; ``objects`` first whole, then by the file that made them."""
    (ours,) = clients.select(["ours"])
    (row,) = (row for row in rows.ROWS if row.name == ROW)
    layout = bench.layouts[0]
    progress.total(3)
    progress.begin(f"memory: {ROW}")
    measured = bench.measure(layout, row, ours, MESSAGES)
    progress.begin(f"memory: {ROW}, one arena")
    one = bench.measure(layout, row, ours, MESSAGES, environment={"MALLOC_ARENA_MAX": "1"})
    progress.begin(f"memory: {ROW}, traced")
    traced = bench.measure(layout, row, ours, MESSAGES, flavour="traced")
    points = [
        {"part": "measured", "mib": _above_imports(measured)},
        {"part": "one arena", "mib": _above_imports(one)},
        {"part": "objects", "mib": sum(traced["objects"].values()) / MIB},
    ]
    rest = 0.0
    for file, size in sorted(traced["objects"].items(), key=lambda pair: -pair[1]):
        if size / MIB < LEAST:
            rest += size / MIB
        else:
            points.append({"part": file, "mib": size / MIB})
    return [*points, {"part": "other files", "mib": rest}]


def _above_imports(result: dict[str, Any]) -> float:
    return float(result["stop_kib"] - result["imports_kib"]) / 1024


def table(points: Points) -> str:
    return "".join(f"  {p['mib']:>6.2f} MiB  {p['part']}\n" for p in points)
