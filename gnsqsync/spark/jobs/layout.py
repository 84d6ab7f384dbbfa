"""How an archive lies on disk: its columns, its folders, and how to read it.

Knows names only; who writes it, and in which steps, is of ``archive``. A plain
``spark.read.parquet(path)`` reads an archive too; ``read_archive`` reads less of it, and takes a
topic "007" for a name and not for a number.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs import parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# In the files.
COLUMNS = (
    "value BINARY, id STRING, timestamp TIMESTAMP, attempts INT, nsqd STRING, received_at TIMESTAMP"
)
COLUMN_NAMES = tuple(column.split()[0] for column in COLUMNS.split(", "))
# In the names of the folders, in this order: the hour of the publish time, in UTC.
PARTITIONS = ("topic", "date", "hour")
ARCHIVE_SCHEMA = f"{COLUMNS}, topic STRING, date DATE, hour INT"

# Readers of Parquet skip what starts with an underscore: checkpoints, staging, records.
HIDDEN = "_gnsqsync"

_TOPIC = f"{PARTITIONS[0]}="

# What makes two rows the same message: ids are per nsqd and topic.
KEY = ("nsqd", "id", "timestamp")


class Folder(NamedTuple):
    """One hour of one topic."""

    topic: str
    date: date
    hour: int

    @property
    def start(self) -> datetime:
        """When the hour begins."""
        day = datetime(self.date.year, self.date.month, self.date.day, tzinfo=UTC)
        return day + timedelta(hours=self.hour)


def topics_of(path: str) -> list[str]:
    """The topics of the archive at ``path``, a local folder; none where there is no archive."""
    try:
        names = sorted(os.listdir(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [unquote(name[len(_TOPIC) :]) for name in names if name.startswith(_TOPIC)]


def has_parquet(path: str) -> bool:
    """Whether there is an archive with at least one topic at ``path``, a local folder."""
    return bool(topics_of(path))


def read_archive(
    spark: SparkSession,
    path: str,
    *,
    topics: Sequence[str] = (),
    start: datetime | None = None,
    end: datetime | None = None,
) -> DataFrame:
    """The rows of an archive with the columns of ARCHIVE_SCHEMA.

    Only of ``topics``, if any are given, and only what was published at or after ``start`` and
    before ``end`` (aware datetimes); folders outside are not opened. Raises ConfigError when
    there is no archive at ``path``.
    """
    from pyspark.sql import functions as F

    if not has_parquet(path):
        raise ConfigError(f"there is no archive at {path}: it has no folder topic=...")
    rows = spark.read.schema(ARCHIVE_SCHEMA).parquet(parquet.uri(path))
    if topics:
        rows = rows.where(F.col("topic").isin(list(topics)))
    if start is not None:
        utc = start.astimezone(UTC)
        day, hour = F.lit(utc.date()), F.lit(utc.hour)
        rows = rows.where(
            (F.col("date") > day) | ((F.col("date") == day) & (F.col("hour") >= hour))
        ).where(F.col("timestamp") >= F.lit(start))
    if end is not None:
        utc = end.astimezone(UTC)
        day, hour = F.lit(utc.date()), F.lit(utc.hour)
        rows = rows.where(
            (F.col("date") < day) | ((F.col("date") == day) & (F.col("hour") <= hour))
        ).where(F.col("timestamp") < F.lit(end))
    return rows
