"""``python -m tests.bench.spark.drain``: the seconds of an AvailableNow as a user waits for them.

Each round starts Spark anew for our source and for bare sockets in the same tasks, and drains a
full channel to the noop sink: the first time cold, then again. Seconds by the clock, from start()
to the query's end; beside it what Spark says of its parts. Figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.bench import progress as progress_kinds
from tests.bench.spark.cells import CLIENTS, ROWS, Bench, Sample
from tests.spark import session
from tests.spark.nsqds import OwnCluster, scratch

PARTS = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets")
STATES = ("cold", "warm", "warm again")


def table(samples: dict[tuple[str, str], list[Sample]], starts: Iterable[float]) -> list[str]:
    """The lines to print."""
    head = ("state", "client", "wall s", "of floor", "batches", *PARTS, "addBatch of floor")
    rows: list[tuple[str, ...]] = [head]
    for state in STATES:
        floor = samples[state, "floor"]
        for client in CLIENTS:
            mine = samples[state, client]
            rows.append(
                (
                    state,
                    client,
                    f"{_wall(mine):.2f}",
                    f"{_wall(floor) / _wall(mine):.2f}",
                    f"{statistics.median(sample.batches for sample in mine):.0f}",
                    *(f"{_part(mine, part):.2f}" for part in PARTS),
                    f"{_part(floor, 'addBatch') / _part(mine, 'addBatch'):.2f}",
                )
            )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return [*lines, "", f"Spark starts in {statistics.median(starts):.1f} s"]


def _wall(samples: list[Sample]) -> float:
    return statistics.median(sample.wall for sample in samples)


def _part(samples: list[Sample], part: str) -> float:
    return statistics.median(sample.phases.get(part, 0.0) for sample in samples)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 2 when nothing could be measured."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.spark.drain", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=300_000)
    chosen = parser.parse_args(argv)
    if not session.is_ready():
        return 2
    samples: dict[tuple[str, str], list[Sample]] = {
        (state, client): [] for state in STATES for client in CLIENTS
    }
    starts = []
    row = next(row for row in ROWS if row.name == "noop")
    with (
        progress_kinds.choose() as progress,
        scratch("drain") as folder,
        OwnCluster("real", 2, ["-mem-queue-size=1000000"]) as cluster,
    ):
        progress.total(chosen.rounds * len(samples))
        for number in range(chosen.rounds):
            # Nobody always comes first.
            for client in CLIENTS[:: -1 if number % 2 else 1]:
                began = time.monotonic()
                spark = session.start(Path(folder), "local[2]")
                starts.append(time.monotonic() - began)
                try:
                    bench = Bench(
                        spark, cluster, Path(folder) / f"{number}", chosen.messages, progress
                    )
                    for state in STATES:
                        progress.begin(f"round {number + 1}: {client} {state}")
                        samples[state, client].append(bench.cell(row, client, number))
                finally:
                    session.stop(spark)
    print(f"{chosen.messages:,} messages, {chosen.rounds} rounds, load {os.getloadavg()[0]:.1f}")
    print(*table(samples, starts), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
