"""How an archive lies in its store: columns, folders, and the names of what readers skip.

Knows names only. ``snapshot`` finds the files, ``reading`` reads them, ``batches`` and
``compaction`` write them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import unquote

from gnsqsync.errors import ConfigError
from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.stores import Store

# In the files.
COLUMNS = (
    "value BINARY, id STRING, timestamp TIMESTAMP, attempts INT, nsqd STRING, received_at TIMESTAMP"
)
COLUMN_NAMES = tuple(column.split()[0] for column in COLUMNS.split(", "))
# In the names of the folders, in this order: the hour of the publish time, in UTC.
PARTITIONS = ("topic", "date", "hour")
ARCHIVE_SCHEMA = f"{COLUMNS}, topic STRING, date DATE, hour INT"
FORMATS = ("parquet", "delta")
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")

# Readers of Parquet skip what starts with an underscore: checkpoints, staging, records.
HIDDEN = "_gnsqsync"
# Below it: files that were merged into another, for readers that have begun before; folders that
# got files since they were compacted; the log of merges; merged files that are not in place yet.
_OLD = f"{HIDDEN}/old"
CHANGED = f"{HIDDEN}/changed"
MERGES = f"{HIDDEN}/merges"
MERGING = f"{HIDDEN}/merging"

# What each Delta table has.
DELTA_LOG = "_delta_log"

# What makes two rows the same message: ids are per nsqd and topic.
KEY = ("nsqd", "id", "timestamp")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Folder(NamedTuple):
    """One hour of one topic."""

    topic: str
    date: date
    hour: int

    @classmethod
    def parse(cls, name: str) -> Folder:
        """Of ``topic=.../date=.../hour=...``; ValueError."""
        parts = dict(part.split("=", 1) for part in name.split("/"))
        try:
            return cls(
                unquote(parts["topic"]), date.fromisoformat(parts["date"]), int(parts["hour"])
            )
        except KeyError as error:
            raise ValueError(f"{name!r} has no {error}") from None

    @property
    def name(self) -> str:
        # As Spark writes it; of what is allowed in a topic's name only # is not allowed there.
        topic = self.topic.replace("#", "%23")
        return f"topic={topic}/date={self.date}/hour={self.hour:02}"

    @property
    def start(self) -> datetime:
        """When the hour begins."""
        day = datetime(self.date.year, self.date.month, self.date.day, tzinfo=UTC)
        return day + timedelta(hours=self.hour)

    def overlaps(self, start: datetime | None, end: datetime | None) -> bool:
        """Whether the hour has a moment at or after ``start`` and before ``end``."""
        if start is not None and self.start + timedelta(hours=1) <= start:
            return False
        return end is None or self.start < end


def moment(microseconds: int) -> datetime:
    """A publish time from microseconds since 1970."""
    return _EPOCH + timedelta(microseconds=microseconds)


@dataclass(frozen=True)
class Place:
    """Where an archive, a rollup or the state of a replay is, for the driver and for tasks."""

    path: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    what: str = "the archive's path"

    @classmethod
    def of(
        cls, path: str, options: Mapping[str, Any] | None, what: str = "the archive's path"
    ) -> Place:
        """With ``options`` if the path is a URL: they are for all paths of a job together."""
        return cls(path, dict(options or {}) if "://" in path else {}, what)

    def open(self) -> Store:
        """Raises ConfigError."""
        return open_store(self.path, self.options, what=self.what, options_name="storage_options")


def refuse_delta(store: Store, folders: Iterable[str], instead: str) -> None:
    """Raise ConfigError if these folders, at the top of a store, are those of a Delta table.

    Some files of a Delta table are no part of it any more. ``instead``: what to do.
    """
    if DELTA_LOG in folders:
        raise ConfigError(f"{store.url} is a Delta table: {instead}")


def as_parquet(url: str) -> str:
    """Return what to do where only an archive of Parquet files can be read."""
    return (
        "this reads archives of Parquet files. Copy the time that you need into one, with PySpark:"
        f' spark.conf.set("spark.sql.session.timeZone", "UTC"); spark.read.format("delta")'
        f'.load("{url}").where("date >= \'2026-11-20\'").withColumn("hour", hour("timestamp"))'
        '.write.partitionBy("topic", "date", "hour").parquet("ARCHIVE"), and give that folder'
    )


def number_of(name: str) -> int:
    """The number with which the last part of a name begins, as in ``merges/000000000007.json``."""
    return int(re.split(r"\D", name.rpartition("/")[2], maxsplit=1)[0])


def folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def is_data(name: str) -> bool:
    """Whether a name below an archive is one of its Parquet files, as others see it, too."""
    return name.endswith(".parquet") and not any(part[0] in "._" for part in name.split("/"))


def old_name(name: str) -> str:
    """Where a file is kept that was merged into another."""
    return f"{_OLD}/{name.replace('/', '~')}"


def changed_name(folder: str) -> str:
    """The mark of a folder that got files since it was compacted."""
    return f"{CHANGED}/{folder.replace('/', '~')}"


def changed_folder(name: str) -> str:
    return name.rpartition("/")[2].replace("~", "/")
