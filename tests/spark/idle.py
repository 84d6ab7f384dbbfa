"""``python -m tests.spark.idle``: a query that has nothing to do, watched for a minute.

It must run no batch, write nothing, hold no more memory, files or threads than at the start, use
less than 2 % of a core, and stop within a second. The exit status is 1 when it does not.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark import session
from tests.spark.nsqds import Cluster, OwnCluster, numbered, scratch
from tests.spark.processes import Meter, children

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

MOST_CPU = 0.02
MOST_STOP = 1.0
# The JVM frees and takes memory as it likes; a leak a poll would be far more in a minute.
MOST_GROWTH = 16 << 20


@dataclass(frozen=True)
class Watched:
    """What an idle query did: differences from the first to the last second."""

    seconds: float
    batches: int
    files: int  # in checkpoint and log
    cpu: float  # cores, all processes together
    python_cpu: float  # cores, without the JVM
    memory: int  # bytes, without the JVM's heap, which says nothing
    descriptors: int
    threads: int
    connections: int  # at the nsqds' TCP ports
    stop_seconds: float

    @property
    def grew(self) -> bool:
        growth = (self.batches, self.files, self.connections)
        return any(growth) or self.memory > MOST_GROWTH or self.descriptors > 2 or self.threads > 2

    @property
    def is_right(self) -> bool:
        return not self.grew and self.cpu < MOST_CPU and self.stop_seconds < MOST_STOP


def watch(
    spark: SparkSession, cluster: Cluster, topic: str, folder: Path, seconds: float
) -> Watched:
    """Start a query, let it handle a few messages, and watch it while nothing comes."""
    cluster.create(topic)
    query = (
        spark.readStream.format("nsq")
        .options(lookupdHttpAddresses=cluster.lookupd, subscribe=topic, channel="ch")
        .option("walPath", str(folder / "checkpoint" / "nsq-wal"))
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    try:
        cluster.publish(topic, numbered(range(100)))
        query.processAllAvailable()
        if cluster.left(topic) != 0:
            raise RuntimeError(f"{cluster.left(topic)} messages left: {query.exception()}")
        # Spark's own clean-up of the last batch, and workers that have nothing more to do.
        time.sleep(min(10.0, seconds))
        before = _look(query, folder, cluster)
        meter = Meter(_jvm())
        began = time.monotonic()
        meter.watch(seconds)
        took = time.monotonic() - began
        java, python = meter.used()
        after = _look(query, folder, cluster)
    finally:
        began = time.monotonic()
        query.stop()
        stopped = time.monotonic() - began
    return Watched(
        seconds=took,
        batches=after[0] - before[0],
        files=after[1] - before[1],
        connections=after[2] - before[2],
        cpu=(python.cpu + java.cpu) / took,
        python_cpu=python.cpu / took,
        memory=python.memory,
        descriptors=python.files + java.files,
        threads=python.threads + java.threads,
        stop_seconds=stopped,
    )


def _jvm() -> int:
    (pid,) = [pid for pid in children(os.getpid()) if _is_java(pid)]
    return pid


def _is_java(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().strip() == "java"


def _look(query: StreamingQuery, folder: Path, cluster: Cluster) -> tuple[int, int, int]:
    progress: Any = query.lastProgress
    files = sum(1 for _ in (folder / "checkpoint").rglob("*"))
    return progress["batchId"], files, cluster.clients()


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 when the query was not idle enough, 2 when it cannot run."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.idle", description="Watch a query that has nothing to do."
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    chosen = parser.parse_args(argv)
    if not session.is_ready():
        return 2
    with scratch("idle") as folder, OwnCluster("real", 3) as cluster:
        spark = session.start(Path(folder), "local[2]")
        try:
            watched = watch(spark, cluster, "idle", Path(folder), chosen.seconds)
        finally:
            session.stop(spark)
    for name, value in asdict(watched).items():
        print(f"{name:>14}  {value:,.4g}" if isinstance(value, float) else f"{name:>14}  {value:,}")
    print("idle" if watched.is_right else "not idle")
    return 0 if watched.is_right else 1


if __name__ == "__main__":
    sys.exit(main())
