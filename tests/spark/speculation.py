"""``python -m tests.spark.speculation``: two hosts, slow tasks, and Spark's copies of them.

Tasks wait at random around the log's entries, so that Spark starts a second attempt on the other
host while the first one goes on; whoever makes an entry first decides. Every number must come once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark import session
from tests.spark.nsqds import Cluster, OwnCluster, numbered, scratch
from tests.spark.queries import Numbers, Reading, numbers_in
from tests.spark.standalone import CORES, Standalone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

FAULT = "before_create:delay=0-0.5;after_create:delay=0-0.5"
SETTINGS = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    # Holds when one executor has room for the whole stage, which is three tasks.
    "spark.speculation.task.duration.threshold": "300ms",
    "spark.executor.memory": "512m",
    "spark.executor.cores": str(CORES),
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
}


@dataclass(frozen=True)
class Outcome:
    """``copies``: second attempts that Spark started; ``replays_differ``: batches read anew that
    had other rows."""

    messages: int
    rows: int
    distinct: int
    batches: int
    copies: int
    replays_differ: int

    @property
    def is_right(self) -> bool:
        return self.rows == self.distinct == self.messages and not self.replays_differ


def run(messages: int, folder: Path, cluster: Cluster) -> Outcome:
    """Read so many messages with a session of its own on a cluster of two hosts."""
    events = folder / "events"
    events.mkdir()
    with Standalone(folder) as standalone:
        settings = SETTINGS | {"spark.eventLog.dir": f"file://{events}"}
        spark = session.start(folder, standalone.url, **settings)
        try:
            numbers, differ = Numbers(), 0
            reading = Reading(
                spark, cluster, "copies", folder, maxInFlight=500,
                msgTimeoutMs=5000, fault=FAULT,
            )  # fmt: skip
            cluster.create("copies")
            cluster.publish("copies", numbered(range(messages), 50))

            def write(batch: DataFrame, number: int) -> None:
                nonlocal differ
                numbers(batch, number)
                differ += numbers_in(batch) != numbers.by_batch[number]

            # What the slower attempt held goes back to nsqd and comes in a later batch.
            reading.run_until_empty(write)
        finally:
            session.stop(spark)
    counts = numbers.counts
    return Outcome(
        messages=messages,
        rows=counts.total(),
        distinct=len(counts),
        batches=len(numbers.by_batch),
        copies=_copies(events),
        replays_differ=differ,
    )


def _copies(events: Path) -> int:
    """Speculative tasks, as Spark's event log has them."""
    return sum(
        json.loads(line).get("Task Info", {}).get("Speculative", False)
        for file in events.iterdir()
        for line in file.read_text().splitlines()
        if '"SparkListenerTaskStart"' in line
    )


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 when something was lost or is there twice, 2 when it cannot run."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.speculation",
        description="Read numbered messages on two hosts with speculation, then count them.",
    )
    parser.add_argument("--messages", type=int, default=20_000)
    chosen = parser.parse_args(argv)
    if not session.is_ready():
        return 2
    with scratch("copies") as folder, OwnCluster("real", 3) as cluster:
        outcome = run(chosen.messages, Path(folder), cluster)
    print(json.dumps(outcome.__dict__))
    return 0 if outcome.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
