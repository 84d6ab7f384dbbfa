"""The rows of an archive as a DataFrame, read by tasks from any store.

Knows Spark. Tasks read with PyArrow and not with Spark's own reader. Spark's reader would need
Hadoop's file system for the store, and would miss a file that is merged between listing and
reading.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from gnsqsync.spark.jobs.layout import ARCHIVE_SCHEMA, Folder, Place, folder_of
from gnsqsync.spark.jobs.snapshot import folders, snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES = dict(column.split() for column in ARCHIVE_SCHEMA.split(", "))
_ALL = tuple(_TYPES)
# Upper bound of the files of one task, in bytes; a single file may be larger.
_TASK_BYTES = 64 << 20


@dataclass(frozen=True)
class Files:
    """A snapshot of an archive: names of files with their sizes. Each row is in one file only."""

    place: Place
    sizes: Mapping[str, int]

    def rows(
        self,
        spark: SparkSession,
        *,
        columns: Sequence[str] = _ALL,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> DataFrame:
        """Return the rows published at or after ``start`` and before ``end`` (aware datetimes).

        ``columns``: fewer are faster. ``timestamp`` is needed with a ``start`` or an ``end``.
        """
        from pyspark.sql import functions as F

        chosen = {
            name: size
            for name, size in self.sizes.items()
            if Folder.parse(folder_of(name)).overlaps(start, end)
        }
        rows = read(
            spark,
            self.place,
            [(name, folder_of(name), size) for name, size in chosen.items()],
            columns,
            start,
            end,
        )
        if start is not None:
            rows = rows.where(F.col("timestamp") >= F.lit(start))
        if end is not None:
            rows = rows.where(F.col("timestamp") < F.lit(end))
        return rows


def find(
    place: Place,
    *,
    topics: Sequence[str] = (),
    start: datetime | None = None,
    end: datetime | None = None,
) -> Files:
    """Return the files of ``topics`` (default: all) that may have rows of this time.

    Raises ConfigError if there is no archive.
    """
    store = place.open()
    return Files(place, snapshot(store, folders(store, topics, start, end)))


def read(
    spark: SparkSession,
    place: Place,
    files: Iterable[tuple[str, str, int]],
    columns: Sequence[str],
    start: datetime | None = None,
    end: datetime | None = None,
) -> DataFrame:
    """Return the rows of files, given as (name, folder that gives three columns, bytes).

    Row groups outside ``start`` and ``end`` are left out. Single rows outside are not.
    """
    from gnsqsync.spark.jobs.reading_source import FORMAT, Reading, ReadingSource

    spark.dataSource.register(ReadingSource)
    what = Reading(place.path, dict(place.options), _packed(files), start, end)
    return (
        spark.read.format(FORMAT)
        .schema(", ".join(f"{name} {_TYPES[name]}" for name in columns))
        .options(**what.to_options())
        .load()
    )


def _packed(files: Iterable[tuple[str, str, int]]) -> list[list[tuple[str, str]]]:
    """Return the files of each task, at most _TASK_BYTES or one file."""
    tasks: list[list[tuple[str, str]]] = []
    room = 0
    for name, folder, size in files:
        if not tasks or size > room:
            tasks.append([])
            room = _TASK_BYTES
        tasks[-1].append((name, folder))
        room -= size
    return tasks
