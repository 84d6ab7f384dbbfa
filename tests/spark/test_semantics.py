"""Whatever Spark does with a batch, its rows are the same each time, and none is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.nsqds import Cluster, number_of, numbered
from tests.spark.queries import Numbers, Reading, numbers_in, once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Two attempts at a time meet at the entries of the log.
DELAYS = "before_create:delay=0-0.05;after_create:delay=0-0.05"


@pytest.fixture
def reading(spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path) -> Reading:
    """3000 messages on three nsqds, read in two partitions each."""
    cluster.create(topic)
    cluster.publish(topic, numbered(range(3000), 50))
    return Reading(spark, cluster, topic, tmp_path, minPartitions=6, maxInFlight=100)


def test_two_attempts_of_one_task_at_the_same_time(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    from gnsqsync.spark.open_store import open_store
    from gnsqsync.spark.read_plan import PartitionPlan, ReadSettings
    from gnsqsync.spark.wal import Wal
    from tests.support.read_faults import read_with_faults

    wal = str(tmp_path / "wal")
    Wal(open_store(wal, {}), "stream", 60.0).announce()
    plan = PartitionPlan("stream", 1, 0, topic, "ch", cluster.tcp_addresses[0], 1000)
    settings = ReadSettings(wal_path=wal, max_in_flight=100)

    def attempt(_: object) -> Iterator[list[int]]:
        batches = read_with_faults(plan, settings, ["value"], DELAYS)
        yield [number_of(body) for batch in batches for body in batch.column("value").to_pylist()]

    cluster.create(topic)
    cluster.publish(topic, numbered(range(1000)), nsqd=0)
    both = spark.sparkContext.range(2, numSlices=2).mapPartitions(attempt)
    seen = both.collect()
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == len(seen[0])
    # What one attempt held while the other closed the log is for the next epoch.
    assert len(seen[0]) + cluster.left(topic) == 1000


def test_count_show_and_collect_of_one_batch(reading: Reading) -> None:
    seen: list[list[int]] = []

    def write(batch: DataFrame, number: int) -> None:
        assert batch.count() == 3000
        batch.show(3)
        seen.append(numbers_in(batch))
        seen.append(numbers_in(batch))

    reading.run(write)
    assert seen == [list(range(3000))] * 2
    assert reading.cluster.left(reading.topic) == 0


def test_limit_stops_early_and_loses_nothing(reading: Reading) -> None:
    numbers = Numbers()

    def write(batch: DataFrame, number: int) -> None:
        first = numbers_in(batch.limit(5))
        assert len(first) == 5
        assert not batch.isEmpty()
        assert len(batch.take(1)) == 1
        numbers(batch, number)
        assert set(first) <= set(numbers.by_batch[number])

    # What a task held that the limit ended comes back, perhaps behind the end of the run.
    reading.run_until_empty(write)
    assert numbers.counts == once(3000)
    assert reading.cluster.left(reading.topic) == 0


def test_limit_alone_keeps_the_rest_in_the_log(reading: Reading) -> None:
    def write(batch: DataFrame, number: int) -> None:
        assert len(batch.limit(5).collect()) == 5
        raise ArithmeticError("the sink fails")

    with pytest.raises(Exception, match="the sink fails"):
        reading.run(write)
    numbers = Numbers()
    reading.run(numbers)
    assert numbers.counts == once(3000)


@pytest.fixture
def one_partition(spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path) -> Reading:
    """1000 messages in one partition, so that the two reads of a union run beside each other."""
    cluster.create(topic)
    cluster.publish(topic, numbered(range(1000), 50), nsqd=0)
    return Reading(
        spark,
        cluster,
        topic,
        tmp_path,
        maxInFlight=100,
        fault=DELAYS,
    )


def test_a_union_of_a_batch_with_itself(one_partition: Reading) -> None:
    numbers = Numbers()

    def write(batch: DataFrame, number: int) -> None:
        numbers(batch.union(batch), number)

    one_partition.run_until_empty(write)
    assert numbers.counts == Counter(dict.fromkeys(range(1000), 2))


def test_a_union_of_a_stream_with_itself(one_partition: Reading) -> None:
    numbers = Numbers()
    frame = one_partition.frame()
    one_partition.run_until_empty(numbers, frame.union(frame))
    assert numbers.counts == Counter(dict.fromkeys(range(1000), 2))


@pytest.mark.parametrize("point", ["before_create#2", "after_create#2", "before_close", "emit#2"])
def test_a_worker_killed_at(point: str, reading: Reading, tmp_path: Path) -> None:
    numbers = Numbers()
    mark = tmp_path / "killed"
    # nsqd keeps what a dead task held until it times out.
    frame = reading.frame(fault=f"{point}:kill_once={mark}", msgTimeoutMs=2000)
    reading.run_until_empty(numbers, frame)
    assert mark.exists()
    assert numbers.counts == once(3000)


def test_a_task_that_fails_twice_succeeds_the_third_time(reading: Reading) -> None:
    from pyspark import TaskContext

    def fail_twice(rows: Iterator[object]) -> Iterator[int]:
        context = TaskContext.get()
        assert context is not None
        count = sum(1 for _ in rows)
        if context.attemptNumber() < 2:
            raise RuntimeError("this attempt fails after it has read everything")
        yield count

    counts: list[int] = []

    def write(batch: DataFrame, number: int) -> None:
        counts.append(sum(batch.rdd.mapPartitions(fail_twice).collect()))

    reading.run(write)
    assert sum(counts) == 3000
    assert reading.cluster.left(reading.topic) == 0


def test_a_failed_batch_is_replayed_with_the_same_rows(reading: Reading) -> None:
    seen: list[list[int]] = []

    def fail(batch: DataFrame, number: int) -> None:
        seen.append(numbers_in(batch))
        raise ArithmeticError("the sink fails")

    with pytest.raises(Exception, match="the sink fails"):
        reading.run(fail)
    reading.cluster.publish(reading.topic, numbered(range(3000, 3100)))
    numbers = Numbers()
    # Before 4.2 such a run is one batch, here the one that failed.
    reading.run_until_empty(numbers)
    assert numbers.by_batch[min(numbers.by_batch)] == seen[0] == list(range(3000))
    assert numbers.counts == once(3100)
