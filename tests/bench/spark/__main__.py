"""``python -m tests.bench.spark``: rows a second from nsqd through Spark and back.

The floor is the same on bare sockets, in the tasks of the same session. README.rst in
tests/bench explains the table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.bench import machine
from tests.bench import progress as progress_kinds
from tests.bench.report import spread
from tests.bench.spark.cells import CLIENTS, ROWS, Bench, Row
from tests.spark import session
from tests.spark.nsqds import OwnCluster, scratch
from tests.support import realnsq

FULL = {"rounds": 5, "messages": 300_000}
QUICK = {"rounds": 3, "messages": 100_000}
LEAST_SHARE = 0.6


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.spark",
        description="Rows a second from real nsqds through Spark and back, beside bare sockets.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer, shorter rounds")
    parser.add_argument("--rounds", type=int, help="how often each cell is measured")
    parser.add_argument("--messages", type=int, help="messages a cell")
    parser.add_argument("--nsqds", type=int, default=2, help="how many nsqds; default 2")
    parser.add_argument("--only", default="", help="rows: noop,parquet,noop-1k,publish")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    chosen = parser.parse_args(argv)
    form = QUICK if chosen.quick else FULL
    chosen.rounds = form["rounds"] if chosen.rounds is None else chosen.rounds
    chosen.messages = form["messages"] if chosen.messages is None else chosen.messages
    if min(chosen.rounds, chosen.messages, chosen.nsqds) < 1:
        parser.error("--rounds, --messages and --nsqds must be positive")
    names = [name for name in chosen.only.split(",") if name]
    known = {row.name: row for row in ROWS}
    if unknown := set(names) - known.keys():
        parser.error(f"no row is called {', '.join(unknown)}; there are {', '.join(known)}")
    chosen.rows = [known[name] for name in names] or list(ROWS)
    return chosen


def summary(bench: Bench, row: Row) -> dict[str, Any]:
    """Spreads of both clients, and the ratio of their medians (above 1: ours is faster)."""
    rates = {
        client: spread(s.rate for s in bench.samples if (s.row, s.client) == (row.name, client))
        for client in CLIENTS
    }
    share = rates["ours"]["median"] / rates["floor"]["median"]
    return {
        "row": row.name,
        "rate": rates,
        "share_of_floor": share,
        "goal": row.goal,
        "reached": share >= LEAST_SHARE and rates["ours"]["median"] >= row.goal,
    }


def line(row: Row, found: dict[str, Any]) -> str:
    shown = [
        "{median:6.1f} ({min:.1f}..{max:.1f})".format(**{k: v / 1000 for k, v in rate.items()})
        for rate in found["rate"].values()
    ]
    verdict = "yes" if found["reached"] else "no"
    return (
        f"{row.name:<8}  {shown[0]:>24}  {shown[1]:>24}  {found['share_of_floor']:>8.2f}"
        f"  {row.goal / 1000:>5.0f}  {verdict:>7}  {row.title}"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 when a goal was missed, 2 when nothing could be measured."""
    chosen = arguments(argv)
    if not session.is_ready():
        return 2
    before = machine.describe()
    with (
        progress_kinds.choose() as progress,
        scratch("bench") as folder,
        OwnCluster("real", chosen.nsqds, ["-mem-queue-size=1000000"]) as cluster,
    ):
        spark = session.start(Path(folder), "local[2]")
        try:
            before["spark"] = spark.version
            bench = Bench(spark, cluster, Path(folder), chosen.messages, progress)
            bench.run(chosen.rows, CLIENTS, chosen.rounds)
        finally:
            session.stop(spark)
    before["load_average_after"] = list(os.getloadavg())
    print(f"{before['cpu']}, {before['cores']} cores, {before['kernel']}, {before['python']}")
    print(
        f"Spark {before['spark']} local[2], {chosen.nsqds} nsqds {realnsq.VERSION},"
        f" {chosen.messages:,} messages, {chosen.rounds} rounds; median (min..max)"
    )
    print("load average {:.1f} before, {:.1f} after\n".format(
        before["load_average"][0], before["load_average_after"][0]))  # fmt: skip
    print(
        f"{'row':<8}  {'ours, k rows/s':>24}  {'floor, k rows/s':>24}  {'of floor':>8}"
        f"  {'goal':>5}  {'reached':>7}"
    )
    found = [summary(bench, row) for row in chosen.rows]
    for row, entry in zip(chosen.rows, found, strict=True):
        print(line(row, entry))
    if chosen.json is not None:
        whole = {
            "format": 1,
            "machine": before,
            "options": {key: getattr(chosen, key) for key in ("rounds", "messages", "nsqds")},
            "rows": [asdict(row) for row in chosen.rows],
            "summary": found,
            "samples": [asdict(sample) | {"rate": sample.rate} for sample in bench.samples],
        }
        chosen.json.write_text(json.dumps(whole, indent=1) + "\n")
    return 0 if all(entry["reached"] for entry in found) else 1


if __name__ == "__main__":
    sys.exit(main())
