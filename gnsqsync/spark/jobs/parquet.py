"""Parquet files as the jobs write and count them. Knows nothing of where they belong."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gnsqsync.spark import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Files of a write that are open at once in a task; below it rows need no sorting by folder.
_OPEN_FILES = "20"


def prepare(spark: SparkSession) -> None:
    """Set how a session of ours writes Parquet."""
    # INT96, Spark's default, has no statistics, by which readers skip what they need not read.
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    spark.conf.set("spark.sql.maxConcurrentOutputFileWriters", _OPEN_FILES)


def write(rows: DataFrame, folder: str, compression: str, partitions: Iterable[str] = ()) -> None:
    """Write rows to a new folder, in one folder for each value of ``partitions`` below it."""
    rows.write.option("compression", compression).partitionBy(*partitions).parquet(uri(folder))


def uri(path: str) -> str:
    """A local path for Spark, whose default file system may be another one."""
    return f"file://{path}"


def count_rows(paths: Iterable[str]) -> int:
    """The rows of Parquet files, from their last bytes alone."""
    from pyarrow import parquet

    return sum(parquet.read_metadata(path).num_rows for path in paths)


def count_below(folder: str) -> int:
    """The rows of all Parquet files below a folder, 0 when there is no such folder."""
    return count_rows(os.path.join(folder, name) for name in files.parquet_files(folder))
