"""The rollup job: an archive counted by topic and window of time, kept as small Parquet files.

Knows which hours of the archive have changed since the last run, and counts only these. An hour of
the rollup is one file, which is replaced in one step.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs import reading
from gnsqsync.spark.jobs.common import storage_path
from gnsqsync.spark.jobs.layout import HIDDEN, PARTITIONS, Place, folder_of
from gnsqsync.spark.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STATE = f"{HIDDEN}/rollup.json"
# Number of hours that are counted at a time, because their windows go through the driver's memory.
_HOURS = 500


class Rolled(NamedTuple):
    """The result of a rollup: changed hours, windows written for them, messages counted."""

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
    storage_options: Mapping[str, Any] | None = None,
) -> Rolled:
    """Count the messages of ``archive`` per topic and window of publish time, into ``path``.

    Only hours whose files changed since the last run are read. Hours that are gone from the archive
    stay in the rollup.

    Columns: topic, window_start, window_seconds, messages, bytes, attempts (their sum), redelivered
    (messages with more than one attempt), and delay_p50, delay_p95 and delay_max. Delays are
    seconds from nsqd's timestamp until the read task has the message. Percentiles are approximate
    (0.01 %). If two rollups write to one path at a time, the next run counts the hours of both
    again.

    Args:
        spark: The session of Spark that runs the job.
        archive: The path or URL of an archive, as for ``archive``.
        path: The path or URL of the rollup.
        window: Seconds of a window; a divisor of 3600. Default: 60.
        start: Only hours that end after this time; an aware datetime. Default: no limit.
        end: Only hours that begin before this time; an aware datetime. Default: no limit.
        whole: True to read all hours. Default: False.
        storage_options: Options of fsspec's file systems of URLs. Default: none.

    Returns:
        The numbers of hours, windows and messages.

    Raises:
        ConfigError: A value is not allowed.
    """
    archive = storage_path(archive, "the archive's path")
    path = storage_path(path, "the rollup's path")
    if not 1 <= window <= 3600 or 3600 % window:
        raise ConfigError(f"window is {window} seconds; it must divide an hour, as 10, 60 or 300")
    place = Place.of(archive, storage_options)
    files = reading.find(place, start=start, end=end)
    store = Place.of(path, storage_options, "the rollup's path").open()
    state = _state(store, window)
    before = _fingerprints(files)
    changed = [hour for hour, mark in before.items() if whole or state["hours"].get(hour) != mark]
    windows = messages = 0
    for first in range(0, len(changed), _HOURS):
        hours = set(changed[first : first + _HOURS])
        sizes = {name: size for name, size in files.sizes.items() if _hour(name) in hours}
        rows = reading.Files(place, sizes).rows(spark, columns=_COLUMNS)
        counted = _count(rows, window).toArrow()
        windows += counted.num_rows
        for hour, table in _by_hour(counted):
            messages += sum(table.column("messages").to_pylist())
            store.put(f"{hour}/windows.parquet", _parquet(table))
    if changed:
        _note(store, state, {hour: before[hour] for hour in changed})
    return Rolled(len(changed), windows, messages)


_COLUMNS = ("value", "timestamp", "attempts", "received_at", *PARTITIONS)


def _state(store: Store, window: int) -> dict[str, Any]:
    """Return the state of a rollup: the files of each hour that are counted, and the last run."""
    data = store.read(_STATE)
    if data is None:
        return {"window": window, "hours": {}, "run": ""}
    state: dict[str, Any] = json.loads(data)
    if state["window"] != window:
        raise ConfigError(
            f"the rollup at {store.url} has windows of {state['window']} seconds, not {window}: use"
            " another folder"
        )
    return state


def _note(store: Store, state: dict[str, Any], counted: dict[str, str]) -> None:
    """Note that these hours are counted, unless another rollup was at work meanwhile."""
    now = _state(store, state["window"])
    hours = now["hours"] | counted
    if now["run"] != state["run"]:
        # Another rollup was at work. Nobody knows who was last to write the hours of this run, so
        # the next run counts these hours again.
        hours = {hour: mark for hour, mark in now["hours"].items() if hour not in counted}
    new = {"window": state["window"], "hours": hours, "run": uuid.uuid4().hex}
    store.put(_STATE, json.dumps(new).encode())


def _hour(name: str) -> str:
    """Return the part ``date=.../hour=...`` of the name of a file."""
    return folder_of(name).partition("/")[2]


def _fingerprints(files: reading.Files) -> dict[str, str]:
    """Return a fingerprint of the names of each hour's files. Files never change under a name."""
    hours: dict[str, list[str]] = {}
    for name in sorted(files.sizes):
        hours.setdefault(_hour(name), []).append(name)
    return {
        hour: hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
        for hour, names in sorted(hours.items())
    }


def _by_hour(table: Any) -> Iterator[tuple[str, Any]]:
    """Yield each hour with its rows, without the columns that are in the hour's name."""
    import pyarrow.compute as pc

    for row in table.select(["date", "hour"]).group_by(["date", "hour"]).aggregate([]).to_pylist():
        mine = table.filter(
            pc.and_(pc.equal(table["date"], row["date"]), pc.equal(table["hour"], row["hour"]))
        )
        yield (
            f"date={row['date']}/hour={row['hour']:02}",
            mine.drop_columns(["date", "hour"]).sort_by("window_start"),
        )


def _parquet(table: Any) -> bytes:
    import io

    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(table, out, compression="zstd")
    return out.getvalue()


def _count(rows: DataFrame, window: int) -> DataFrame:
    from pyspark.sql import functions as F

    micros = F.unix_micros("timestamp")
    width = F.lit(window * 1_000_000)
    delay = (F.unix_micros("received_at") - micros) / 1e6
    # The error of a percentile's rank is 1 / accuracy.
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
            "hour",
        )
    )
