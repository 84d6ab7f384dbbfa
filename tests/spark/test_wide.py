"""A query over many nsqds, played by one program: small partitions share tasks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gnsqsync.spark.plan import MOST_ALONE
from tests.support.needs import missing
from tests.support.realnsq import Unavailable
from tests.support.simulated import ManyNsqds, program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.mark.parametrize(("min_partitions", "tasks"), [(1, MOST_ALONE), (20, 20)])
def test_every_message_of_many_nsqds_comes_once(
    spark: SparkSession, tmp_path: Path, topic: str, min_partitions: int, tasks: int
) -> None:
    try:
        program()
    except Unavailable as error:
        missing(error)
    rows: list[tuple[str, str]] = []
    seen: list[int] = []

    def write(batch: DataFrame, number: int) -> None:
        found = batch.select("nsqd", "id").collect()
        rows.extend((row.nsqd, row.id) for row in found)
        seen.append(batch.rdd.getNumPartitions())

    with ManyNsqds(40, size=20) as many:
        many.create(topic)
        many.fill(topic, 7)
        query = (
            spark.readStream.format("nsq")
            .options(lookupdHttpAddresses=many.lookupd, subscribe=topic, channel="ch")
            .options(walPath=str(tmp_path / "wal"), minPartitions=min_partitions)
            .load()
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        counts = many.counts()
        addresses = set(many.tcp_addresses)
    assert len(rows) == len(set(rows)) == 280
    assert {nsqd for nsqd, _ in rows} == addresses
    assert seen == [tasks]
    assert (counts["finished"], counts["waiting"], counts["refused"]) == (280, 0, 0)
