"""Sink, source and archive, one after the other.

``python -m tests.spark.versions`` runs this file on each PySpark.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from tests.spark.nsqds import Cluster, numbered
from tests.spark.queries import Numbers, Reading, numbers_in, once
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = "gnsqsync_spark_rows_total"


@pytest.fixture
def reading(spark: SparkSession, embedded_cluster: Cluster, topic: str, tmp_path: Path) -> Reading:
    embedded_cluster.create(topic)
    embedded_cluster.create(topic, "archive")
    return Reading(spark, embedded_cluster, topic, tmp_path, maxMessagesPerTrigger=80)


def test_source_and_archive_have_the_messages_of_the_sink(
    spark: SparkSession,
    reading: Reading,
    embedded_cluster: Cluster,
    topic: str,
    tmp_path: Path,
) -> None:
    from gnsqsync.spark import QueryMetrics, archive

    registry = CollectorRegistry()
    metrics = QueryMetrics(registry)
    spark.streams.addListener(metrics)
    rows = spark.createDataFrame(
        [(bytearray(body),) for body in numbered(range(200))], "value binary"
    )
    sink = {"topic": topic, "nsqdTcpAddresses": ",".join(embedded_cluster.tcp_addresses)}
    rows.write.format("nsq").options(**sink).mode("append").save()

    # More than a batch may have: all of it is read, in several batches or in one.
    numbers = Numbers()
    query = reading.run(numbers)
    assert numbers.counts == once(200)
    assert embedded_cluster.left(topic) == 0
    eventually(lambda: registry.get_sample_value(ROWS, {"query": str(query.id)}) == 200)

    options = {"lookupdHttpAddresses": embedded_cluster.lookupd}
    folder = str(tmp_path / "archive")
    for more in (0, 50):
        embedded_cluster.publish(topic, numbered(range(200, 200 + more)))
        archive(
            spark,
            topic,
            folder,
            channel="archive",
            options=options,
            available_now=True,
            max_messages=80,
        ).awaitTermination()
        assert numbers_in(spark.read.parquet(folder)) == list(range(200 + more))
    spark.streams.removeListener(metrics)


def test_a_failed_batch_and_what_waits_behind_it(
    reading: Reading, embedded_cluster: Cluster, topic: str
) -> None:
    def fail(batch: object, number: int) -> None:
        raise ArithmeticError("the sink fails")

    embedded_cluster.publish(topic, numbered(range(100)))
    with pytest.raises(Exception, match="the sink fails"):
        reading.run(fail)
    embedded_cluster.publish(topic, numbered(range(100, 150)))
    numbers = Numbers()
    reading.run(numbers)
    assert numbers.counts == once(150)
