"""The short form of ``python -m tests.spark.idle``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.idle import watch
from tests.spark.nsqds import Cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_an_idle_query_makes_no_batch_and_does_not_grow(
    spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    watched = watch(spark, cluster, topic, tmp_path, 4.0)
    assert (watched.batches, watched.files, watched.connections) == (0, 0, 0)
    assert watched.descriptors <= 2
    # A second is the promise, on a machine that has nothing else to do.
    assert watched.stop_seconds < 5.0
