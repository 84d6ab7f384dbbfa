"""Runs cells: one client doing one row once, in one Spark session, and the schedule of them all.

Knows nothing of tables. Clients take turns within each row and round, so that what else the
machine does hits both alike.
"""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.bench.progress import Progress
from tests.spark.nsqds import Cluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHANNEL = "bench"
CLIENTS = ("ours", "floor")


@dataclass(frozen=True)
class Row:
    """One workload. ``goal``: rows a second that the design's prototype had."""

    name: str
    title: str
    kind: str  # noop, parquet or publish
    body_size: int
    goal: int


ROWS = (
    Row("noop", "nsqd to the noop sink", "noop", 100, 139_000),
    Row("parquet", "nsqd to Parquet", "parquet", 100, 59_000),
    Row("noop-1k", "nsqd to the noop sink, bodies of 1000 bytes", "noop", 1000, 63_000),
    Row("publish", "a DataFrame to nsqd", "publish", 100, 181_000),
)


@dataclass(frozen=True)
class Sample:
    """One measured cell. ``seconds``: of the batches with rows; ``wall``: of the whole query.

    ``phases``: seconds by Spark's names of a batch's parts; none of a cell that is no query.
    """

    row: str
    client: str
    round: int
    messages: int
    batches: int
    seconds: float
    wall: float
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.messages / self.seconds


class Bench:
    """The state of one run of the command."""

    def __init__(
        self,
        spark: SparkSession,
        cluster: Cluster,
        folder: Path,
        messages: int,
        progress: Progress,
    ) -> None:
        from tests.bench.spark.raw import RawSource

        self.samples: list[Sample] = []
        self._spark = spark
        self._cluster = cluster
        self._folder = folder
        self._messages = messages
        self._progress = progress
        self._topics = 0
        spark.dataSource.register(RawSource)

    def run(self, rows: Sequence[Row], clients: Sequence[str], rounds: int) -> None:
        """All cells of all rounds, and a first round that is thrown away: the JVM is warm then."""
        self._progress.total(len(rows) * len(clients) * (rounds + 1))
        for number in range(rounds + 1):
            for row in rows:
                # Nobody always follows the same neighbour.
                turn = number % len(clients)
                for client in (*clients[turn:], *clients[:turn]):
                    label = f"round {number}" if number else "warm-up"
                    self._progress.begin(f"{label}: {row.name} {client}")
                    sample = self.cell(row, client, number)
                    if number:
                        self.samples.append(sample)

    def cell(self, row: Row, client: str, number: int) -> Sample:
        self._topics += 1
        topic = f"bench-{self._topics}"
        self._cluster.create(topic, CHANNEL)
        folder = self._folder / topic
        phases: dict[str, float] = {}
        try:
            if row.kind == "publish":
                seconds = wall = self._publish(client, topic, row.body_size)
                batches, left = 1, self._messages
            else:
                self._cluster.publish(topic, [b"x" * row.body_size] * self._messages)
                frame = self._stream(client, topic, folder)
                batches, phases, wall = self._read(frame, row.kind, folder)
                seconds = phases["triggerExecution"]
                left = 0
            if self._cluster.left(topic, CHANNEL) != left:
                raise RuntimeError(
                    f"{row.name} {client}: {self._cluster.left(topic, CHANNEL)} messages in the"
                    f" channels, {left} expected"
                )
        finally:
            self._cluster.forget([topic])
            shutil.rmtree(folder, ignore_errors=True)
        return Sample(row.name, client, number, self._messages, batches, seconds, wall, phases)

    def _stream(self, client: str, topic: str, folder: Path) -> DataFrame:
        if client == "floor":
            depths = [depth for depth, _, _ in self._cluster.depths(topic, CHANNEL)]
            plan = [
                (nsqd, depth)
                for nsqd, depth in zip(self._cluster.tcp_addresses, depths, strict=True)
            ]
            if len(plan) == 1:
                half = plan[0][1] // 2
                plan = [(plan[0][0], half), (plan[0][0], plan[0][1] - half)]
            return (
                self._spark.readStream.format("raw")
                .options(topic=topic, channel=CHANNEL, plan=json.dumps(plan))
                .load()
            )
        return (
            self._spark.readStream.format("nsq")
            .option("nsqdTcpAddresses", ",".join(self._cluster.tcp_addresses))
            .option("nsqdHttpAddresses", ",".join(self._cluster.http_addresses))
            .options(subscribe=topic, channel=CHANNEL, minPartitions="2")
            .option("walPath", str(folder / "checkpoint" / "nsq-wal"))
            .load()
        )

    def _read(
        self, frame: DataFrame, kind: str, folder: Path
    ) -> tuple[int, dict[str, float], float]:
        """Batches with rows, their seconds by phase, and the seconds of the whole query."""
        writer = frame.writeStream.option("checkpointLocation", str(folder / "checkpoint"))
        if kind == "parquet":
            writer = writer.format("parquet").option("path", str(folder / "rows"))
        else:
            writer = writer.format("noop")
        began = time.monotonic()
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        wall = time.monotonic() - began
        batches: list[Any] = [p for p in query.recentProgress if p["numInputRows"]]
        rows = sum(p["numInputRows"] for p in batches)
        if rows != self._messages:
            raise RuntimeError(f"Spark counted {rows} rows, {self._messages} were published")
        phases: Counter[str] = Counter()
        for batch in batches:
            phases.update(batch["durationMs"])
        return len(batches), {name: ms / 1e3 for name, ms in phases.items()}, wall

    def _publish(self, client: str, topic: str, body_size: int) -> float:
        from pyspark.sql import functions as F

        frame = self._spark.range(0, self._messages, 1, 2).select(
            F.rpad(F.col("id").cast("string"), body_size, "x").cast("binary").alias("value")
        )
        nsqds = ",".join(self._cluster.tcp_addresses)
        if client == "floor":
            writer = frame.write.format("raw").options(topic=topic, nsqds=nsqds)
        else:
            writer = frame.write.format("nsq").options(topic=topic, nsqdTcpAddresses=nsqds)
        began = time.monotonic()
        writer.mode("append").save()
        return time.monotonic() - began
