"""The layout of an archive in its store: columns, folders, and hidden names that readers skip.

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

# The columns within the files.
COLUMNS = (
    "value BINARY, id STRING, timestamp TIMESTAMP, attempts INT, nsqd STRING, received_at TIMESTAMP"
)
COLUMN_NAMES = tuple(column.split()[0] for column in COLUMNS.split(", "))
# The columns in the names of folders, in this order. Date and hour are of the publish time, in UTC.
PARTITIONS = ("topic", "date", "hour")
ARCHIVE_SCHEMA = f"{COLUMNS}, topic STRING, date DATE, hour INT"
FORMATS = ("parquet", "delta")
COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "none")

# The folder of checkpoints, staging and records. Readers of Parquet skip names that begin with an
# underscore.
HIDDEN = "_gnsqsync"
# Files that were merged into another, for readers that began before.
_OLD = f"{HIDDEN}/old"
# Marks of folders that got files since they were compacted.
CHANGED = f"{HIDDEN}/changed"
# The log of merges.
MERGES = f"{HIDDEN}/merges"
# Merged files that are not in place yet.
MERGING = f"{HIDDEN}/merging"

# The folder that each Delta table has.
DELTA_LOG = "_delta_log"

# Columns that are equal in copies of one message of a topic: ids are unique per nsqd and topic.
KEY = ("nsqd", "id", "timestamp")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Folder(NamedTuple):
    """The folder of one hour of one topic."""

    topic: str
    date: date
    hour: int

    @classmethod
    def parse(cls, name: str) -> Folder:
        """Return the folder of a name ``topic=.../date=.../hour=...``. Raises ValueError."""
        parts = dict(part.split("=", 1) for part in name.split("/"))
        try:
            return cls(
                unquote(parts["topic"]), date.fromisoformat(parts["date"]), int(parts["hour"])
            )
        except KeyError as error:
            raise ValueError(f"{name!r} has no {error}") from None

    @property
    def name(self) -> str:
        # Spark writes the same name. Of the characters of a topic's name it escapes only #.
        topic = self.topic.replace("#", "%23")
        return f"topic={topic}/date={self.date}/hour={self.hour:02}"

    @property
    def start(self) -> datetime:
        """Begin of the hour, in UTC."""
        day = datetime(self.date.year, self.date.month, self.date.day, tzinfo=UTC)
        return day + timedelta(hours=self.hour)

    def overlaps(self, start: datetime | None, end: datetime | None) -> bool:
        """Return True if the hour has a moment at or after ``start`` and before ``end``."""
        if start is not None and self.start + timedelta(hours=1) <= start:
            return False
        return end is None or self.start < end


def moment(microseconds: int) -> datetime:
    """Return microseconds since 1970 as a datetime in UTC."""
    return _EPOCH + timedelta(microseconds=microseconds)


@dataclass(frozen=True)
class Place:
    """The place of an archive, a rollup or the state of a replay, for the driver and for tasks.

    ``what``: the user's name of the path, for errors.
    """

    path: str
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    what: str = "the archive's path"

    @classmethod
    def of(
        cls, path: str, options: Mapping[str, Any] | None, what: str = "the archive's path"
    ) -> Place:
        """Return the place of a path. ``options`` count only if the path is a URL.

        All paths of a job get the same ``options``, and some may be local.
        """
        return cls(path, dict(options or {}) if "://" in path else {}, what)

    def open(self) -> Store:
        """Return the store of this place. Raises ConfigError."""
        return open_store(self.path, self.options, what=self.what, options_name="storage_options")


def refuse_delta(store: Store, folders: Iterable[str], instead: str) -> None:
    """Raise ConfigError if the folders at the top of a store belong to a Delta table.

    Some files in the folders of a Delta table are no longer part of it. ``instead``: advice.
    """
    if DELTA_LOG in folders:
        raise ConfigError(f"{store.url} is a Delta table: {instead}")


def as_parquet(url: str) -> str:
    """Return advice for a Delta table where only archives of Parquet files can be read."""
    return (
        "this reads archives of Parquet files. Copy the time that you need into one, with PySpark:"
        f' spark.conf.set("spark.sql.session.timeZone", "UTC"); spark.read.format("delta")'
        f'.load("{url}").where("date >= \'2026-11-20\'").withColumn("hour", hour("timestamp"))'
        '.write.partitionBy("topic", "date", "hour").parquet("ARCHIVE"), and give that folder'
    )


def number_of(name: str) -> int:
    """Return the number at the begin of a name's last part, as in ``merges/000000000007.json``."""
    return int(re.split(r"\D", name.rpartition("/")[2], maxsplit=1)[0])


def folder_of(name: str) -> str:
    return name.rpartition("/")[0]


def is_data(name: str) -> bool:
    """Return True if a name below an archive is a Parquet file that other readers see, too."""
    return name.endswith(".parquet") and not any(part[0] in "._" for part in name.split("/"))


def old_name(name: str) -> str:
    """Return the hidden name of a file that was merged into another."""
    return f"{_OLD}/{name.replace('/', '~')}"


def changed_name(folder: str) -> str:
    """Return the name of the mark of a folder that got files since it was compacted."""
    return f"{CHANGED}/{folder.replace('/', '~')}"


def changed_folder(name: str) -> str:
    return name.rpartition("/")[2].replace("~", "/")
