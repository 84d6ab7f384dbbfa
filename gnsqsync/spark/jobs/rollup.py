"""The rollup job: an archive counted by topic and window of time, kept as small Parquet files.

Knows which hours of the archive changed since the last run, and counts only these. An hour of the
rollup is one file, which is replaced in one step.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from gnsqsync.errors import ConfigError
from gnsqsync.spark import files
from gnsqsync.spark.jobs import parquet
from gnsqsync.spark.jobs.common import local_path
from gnsqsync.spark.jobs.layout import ARCHIVE_SCHEMA, HIDDEN, PARTITIONS, has_parquet

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STATE = "rollup.json"


class Rolled(NamedTuple):
    """What a rollup did: hours that had changed, rows written for them, messages counted."""

    hours: int
    windows: int
    messages: int


def rollup(
    spark: SparkSession,
    archive: str,
    path: str,
    *,
    window: int = 60,
    start: datetime | None = None,
    end: datetime | None = None,
    whole: bool = False,
) -> Rolled:
    """Count the messages of ``archive`` per topic and window of publish time, into ``path``.

    Only hours in which files came or went since the last run are read. Hours that are gone from the
    archive stay in the rollup.

    Columns: topic, window_start, window_seconds, messages, bytes, attempts (their sum), redelivered
    (messages with more than one attempt), and delay_p50, delay_p95 and delay_max in seconds from
    nsqd's timestamp to the moment when the read task had the message. Percentiles are approximate
    (0.01 %).

    Args:
        spark: The session.
        archive: The path of an archive, on a file system that driver and executors share.
        path: Where the rollup is, on such a file system, too.
        window: Seconds; they divide an hour.
        start: Only hours that end after it; an aware datetime.
        end: Only hours that begin before it; an aware datetime.
        whole: Whether to read all hours.

    Returns:
        What was done.

    Raises:
        ConfigError: A value is not allowed.
    """
    archive = local_path(archive, "the archive's path")
    path = local_path(path, "the rollup's path")
    if not 1 <= window <= 3600 or 3600 % window:
        raise ConfigError(f"window is {window} seconds; it must divide an hour, as 10, 60 or 300")
    if not has_parquet(archive):
        raise ConfigError(f"there is no archive at {archive}: it has no folder topic=...")
    state_path = os.path.join(path, HIDDEN, _STATE)
    staging = os.path.join(path, HIDDEN, "staging")
    files.make_folder(staging)
    with files.locked(os.path.join(path, HIDDEN, "lock")):
        state: dict[str, Any] = files.read_json(state_path) or {"window": window, "hours": {}}
        if state["window"] != window:
            raise ConfigError(
                f"the rollup at {path} has windows of {state['window']} seconds, not {window}: use"
                " another folder"
            )
        for name in os.listdir(staging):
            files.remove_tree(os.path.join(staging, name))
        before = _fingerprints(archive, start, end)
        changed = [
            hour for hour, mark in before.items() if whole or state["hours"].get(hour) != mark
        ]
        if not changed:
            return Rolled(0, 0, 0)
        attempt = os.path.join(staging, uuid.uuid4().hex)
        own = spark.newSession()
        parquet.prepare(own)
        counted = _count(_read(own, archive, changed), window).persist()
        try:
            # Together in one task, so that each hour is one file.
            parquet.write(counted.repartition("date", "hour"), attempt, "zstd", ("date", "hour"))
            windows, messages = counted.selectExpr(
                "count(*)", "coalesce(sum(messages), 0)"
            ).collect()[0]
        finally:
            counted.unpersist()
        moves = []
        for name in files.parquet_files(attempt):
            files.sync_file(os.path.join(attempt, name))
            moves.append(
                (
                    os.path.join(attempt, name),
                    os.path.join(path, os.path.dirname(name), "windows.parquet"),
                )
            )
        files.move_all(moves)
        files.remove_tree(attempt)
        # An hour that changed while it was read is read once more by the next run.
        after = _fingerprints(archive, start, end)
        state["hours"] |= {
            hour: before[hour] for hour in changed if after.get(hour) == before[hour]
        }
        files.write_json(state_path, state)
    return Rolled(len(changed), windows, messages)


def _fingerprints(archive: str, start: datetime | None, end: datetime | None) -> dict[str, str]:
    """For each hour of the archive, as ``date=.../hour=...``, a fingerprint of its set of files."""
    hours: dict[str, list[str]] = {}
    for topic in _folders(archive, "topic"):
        for date in _folders(os.path.join(archive, topic), "date"):
            for hour in _folders(os.path.join(archive, topic, date), "hour"):
                if not _overlaps(date, hour, start, end):
                    continue
                # A file never changes under its name.
                if found := files.parquet_files(os.path.join(archive, topic, date, hour)):
                    hours.setdefault(f"{date}/{hour}", []).extend([topic, *found])
    return {
        hour: hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
        for hour, names in sorted(hours.items())
    }


def _folders(path: str, column: str) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.startswith(f"{column}="))


def _overlaps(date: str, hour: str, start: datetime | None, end: datetime | None) -> bool:
    began = datetime.fromisoformat(date.partition("=")[2]).replace(tzinfo=UTC)
    began += timedelta(hours=int(hour.partition("=")[2]))
    if start is not None and began + timedelta(hours=1) <= start:
        return False
    return end is None or began < end


def _read(spark: SparkSession, archive: str, hours: Iterable[str]) -> DataFrame:
    def paths() -> Iterator[str]:
        topics = _folders(archive, "topic")
        for hour in hours:
            for topic in topics:
                path = os.path.join(archive, topic, hour)
                if os.path.isdir(path):
                    yield parquet.uri(path)

    reader = spark.read.schema(ARCHIVE_SCHEMA).option("basePath", parquet.uri(archive))
    return reader.parquet(*paths())


def _count(rows: DataFrame, window: int) -> DataFrame:
    from pyspark.sql import functions as F

    micros = F.unix_micros("timestamp")
    width = F.lit(window * 1_000_000)
    delay = (F.unix_micros("received_at") - micros) / 1e6
    # 1 / accuracy is the error in rank.
    percentiles = F.percentile_approx("delay", [0.5, 0.95], 10_000)
    return (
        rows.select(
            *PARTITIONS,
            F.timestamp_micros((F.floor(micros / width) * width).cast("long")).alias(
                "window_start"
            ),
            F.length("value").cast("long").alias("size"),
            "attempts",
            delay.alias("delay"),
        )
        .groupBy(*PARTITIONS, "window_start")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum("size").alias("bytes"),
            F.sum("attempts").alias("attempts"),
            F.count_if(F.col("attempts") > 1).alias("redelivered"),
            percentiles.alias("percentiles"),
            F.max("delay").alias("delay_max"),
        )
        .select(
            "topic",
            "window_start",
            F.lit(window).alias("window_seconds"),
            "messages",
            "bytes",
            "attempts",
            "redelivered",
            F.col("percentiles")[0].alias("delay_p50"),
            F.col("percentiles")[1].alias("delay_p95"),
            "delay_max",
            "date",
            F.lpad(F.col("hour").cast("string"), 2, "0").alias("hour"),
        )
    )
