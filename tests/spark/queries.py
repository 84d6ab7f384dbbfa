"""How the tests here read a topic: the source with a log of its own, and runs of a query."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.nsqds import Cluster, number_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

WriteBatch = Callable[["DataFrame", int], None]


def format_of(options: dict[str, Any]) -> str:
    """The format that takes these options: one of the tests, where they ask for a fault."""
    return "nsq-with-faults" if "fault" in options else "nsq"


class Reading:
    """One topic read by streaming queries that share a checkpoint; the log lies inside it."""

    def __init__(
        self, spark: SparkSession, cluster: Cluster, topic: str, folder: Path, **options: object
    ) -> None:
        self.checkpoint = folder / "checkpoint"
        self.cluster = cluster
        self.topic = topic
        self._spark = spark
        self._options: dict[str, Any] = {
            "lookupdHttpAddresses": cluster.lookupd,
            "subscribe": topic,
            "channel": "ch",
            "walPath": str(self.checkpoint / "nsq-wal"),
            "lookupdPollIntervalMs": 500,
            **options,
        }

    def frame(self, **options: object) -> DataFrame:
        """The streaming DataFrame for a run with an end; ``options`` on top of those of all."""
        chosen = {"availableNow": "true", **self._options, **options}
        return self._spark.readStream.format(format_of(chosen)).options(**chosen).load()

    def run(self, write: WriteBatch, frame: DataFrame | None = None) -> StreamingQuery:
        """What is there now, in foreachBatch, to its end; raises what the query raised."""
        query = self.start(write, frame, availableNow=True)
        query.awaitTermination()
        return query

    def run_until_empty(self, write: WriteBatch, frame: DataFrame | None = None) -> None:
        """As run(), and again whenever messages came back that an attempt had given up."""
        deadline = time.monotonic() + 60.0
        while True:
            self.run(write, frame)
            eventually(
                lambda: self.cluster.waiting(self.topic) or not self.cluster.left(self.topic),
                deadline - time.monotonic(),
                describe="no message is in flight",
            )
            if not self.cluster.left(self.topic):
                return

    def start(
        self, write: WriteBatch, frame: DataFrame | None = None, **trigger: Any
    ) -> StreamingQuery:
        """As run(), but returns at once; without a trigger it goes on for ever."""
        if frame is None:
            frame = self.frame(availableNow="true" if "availableNow" in trigger else "false")
        writer = frame.writeStream.foreachBatch(write)
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.option("checkpointLocation", str(self.checkpoint)).start()


class Numbers:
    """Counts the numbers that came, batch by batch; a replayed batch replaces what it gave."""

    def __init__(self) -> None:
        self.by_batch: dict[int, list[int]] = {}

    def __call__(self, batch: DataFrame, number: int) -> None:
        """A foreachBatch function that collects each batch once."""
        self.by_batch[number] = numbers_in(batch)

    @property
    def counts(self) -> Counter[int]:
        return Counter(number for batch in self.by_batch.values() for number in batch)


def numbers_in(frame: DataFrame) -> list[int]:
    """The numbers in its rows, sorted."""
    return sorted(number_of(row.value) for row in frame.select("value").collect())


def once(count: int) -> Counter[int]:
    """What Numbers.counts is when every number came once."""
    return Counter(range(count))
