"""A source of Spark whose tasks read files of an archive.

Knows PySpark's classes. Does not know which files to read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from gnsqsync.spark.jobs import parquet
from gnsqsync.spark.jobs.layout import Folder, Place
from gnsqsync.spark.jobs.snapshot import opened
from gnsqsync.spark.stores import Store

__all__ = ["FORMAT", "Reading", "ReadingSource"]

FORMAT = "gnsqsync-archive-files"
_OPTION = "gnsqsyncreading"


@dataclass(frozen=True)
class Reading:
    """Orders of the tasks. ``tasks``: the files of each task.

    A file is a pair: its name, and the folder that gives topic, date and hour of its rows. Row
    groups outside ``start`` and ``end`` are left out.
    """

    path: str
    options: dict[str, Any] = field(repr=False)
    tasks: list[list[tuple[str, str]]]
    start: datetime | None
    end: datetime | None

    def to_options(self) -> dict[str, str]:
        return {_OPTION: json.dumps(self.__dict__, default=datetime.isoformat)}

    @classmethod
    def from_options(cls, options: dict[str, str]) -> Reading:
        found = json.loads(options[_OPTION])
        for name in ("start", "end"):
            if found[name] is not None:
                found[name] = datetime.fromisoformat(found[name])
        return cls(**found)


class ReadingSource(DataSource):
    """The source that ``reading`` registers. Not for users."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def reader(self, schema: StructType) -> DataSourceReader:
        options = {name.lower(): value for name, value in self.options.items()}
        return _Reader(Reading.from_options(options), schema.names)


class _Reader(DataSourceReader):
    def __init__(self, reading: Reading, columns: Sequence[str]) -> None:
        self._place = Place(reading.path, reading.options)
        self._reading = reading
        self._columns = list(columns)

    def partitions(self) -> list[InputPartition]:
        # Without any partition PySpark would call read() once, with None.
        return [InputPartition(files) for files in self._reading.tasks or [[]]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        store = self._place.open()
        for name, folder in partition.value:
            yield from self._file(store, name, Folder.parse(folder))

    def _file(self, store: Store, name: str, folder: Folder) -> Iterator[pa.RecordBatch]:
        inside = [column for column in self._columns if column not in Folder._fields]
        constant = {
            "topic": pa.scalar(folder.topic, pa.string()),
            "date": pa.scalar(folder.date, pa.date32()),
            "hour": pa.scalar(folder.hour, pa.int32()),
        }
        with opened(store, name) as file:
            # A batch without columns would not know its number of rows.
            columns = inside or ["attempts"]
            for batch in parquet.read(file, columns, self._reading.start, self._reading.end):
                arrays = [
                    pa.repeat(constant[column], batch.num_rows)
                    if column in constant
                    else batch.column(inside.index(column))
                    for column in self._columns
                ]
                yield pa.RecordBatch.from_arrays(arrays, names=self._columns)
