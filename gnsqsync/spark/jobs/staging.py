"""The sink of the archive's tasks: each writes its rows to hidden files, one for each folder.

Knows Arrow and the layout. A file counts only after its task has succeeded and the driver has its
name. A task that is repeated, copied or lost therefore does no harm.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from gnsqsync.spark.jobs import parquet
from gnsqsync.spark.jobs.layout import COLUMN_NAMES, Folder, Place, moment

FORMAT = "gnsqsync-archive-staging"
# Name of the list of all tasks' files within the folder, for the driver.
LIST = "list.json"

# Bytes of waiting rows in all files of a task. Beyond it the largest row group is written.
_WAITING_BYTES = 128 << 20
_TIME = COLUMN_NAMES.index("timestamp")
# Microseconds of an hour.
_HOUR = 3_600_000_000


class Staged(NamedTuple):
    """A file that a task has written.

    ``folder``: the folder of the archive for its rows. ``again``: True if its rows must be looked
    up in the archive. ``bytes``: size before compression. ``low`` and ``high``: the first and last
    publish time, in microseconds since 1970.
    """

    name: str
    folder: str
    again: bool
    rows: int
    bytes: int
    low: int
    high: int


@dataclass
class _Written(WriterCommitMessage):
    files: list[Staged]


class StagingSink(DataSource):
    """The sink that the writer of the archive registers. Not for users.

    Options: ``archive`` (its path), ``storage`` (JSON), ``folder``, ``compression``.
    """

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = {name.lower(): value for name, value in self.options.items()}
        place = Place(options["archive"], json.loads(options["storage"]))
        return _Writer(place, options["folder"], options["compression"])


@dataclass
class _Writer(DataSourceArrowWriter):
    """Writes rows with the columns COLUMN_NAMES, topic and again to files."""

    place: Place
    folder: str
    compression: str

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        store = self.place.open()
        files: dict[_Key, tuple[str, parquet.Rows]] = {}
        times: dict[_Key, list[pa.StructScalar]] = {}
        with ExitStack() as stack:
            for batch in iterator:
                for key, rows in _split(batch):
                    if key not in files:
                        name = f"{self.folder}/{uuid.uuid4().hex}.parquet"
                        writing = parquet.writing(store, name, self.compression)
                        files[key] = name, stack.enter_context(writing)
                    files[key][1].add(rows)
                    times.setdefault(key, []).append(pc.min_max(rows.column(_TIME).cast("int64")))
                if sum(rows.waiting_bytes for _, rows in files.values()) > _WAITING_BYTES:
                    max((rows for _, rows in files.values()), key=lambda r: r.waiting_bytes).flush()
        found = []
        for key, (name, rows) in files.items():
            start = moment(key.hour * _HOUR)
            folder = Folder(key.topic, start.date(), start.hour).name
            low = min(each["min"].as_py() for each in times[key])
            high = max(each["max"].as_py() for each in times[key])
            found.append(Staged(name, folder, key.again, rows.rows, rows.bytes, low, high))
        return _Written(found)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        files = [file for each in messages if isinstance(each, _Written) for file in each.files]
        self.place.open().put(f"{self.folder}/{LIST}", json.dumps(files).encode())


class _Key(NamedTuple):
    """The values that all rows of a file share. ``hour``: hours since 1970."""

    topic: str
    hour: int
    again: bool


def _split(batch: pa.RecordBatch) -> Iterator[tuple[_Key, pa.RecordBatch]]:
    schema = parquet.schema()
    columns = [
        column.cast(field.type) for column, field in zip(batch.columns, schema, strict=False)
    ]
    rows = pa.RecordBatch.from_arrays(columns, schema=schema)
    topics = batch.column(len(COLUMN_NAMES)).dictionary_encode()
    again = batch.column(len(COLUMN_NAMES) + 1).cast(pa.int64())
    hours = pc.divide(columns[_TIME].cast(pa.int64()), _HOUR)
    # The key puts topic, hour and again into a number, so one comparison selects a file's rows.
    key = pc.add(pc.multiply(topics.indices.cast(pa.int64()), 1 << 32), pc.add(hours, hours))
    key = pc.add(key, again)
    values = pc.unique(key).to_pylist()
    for value in values:
        found = rows if len(values) == 1 else rows.filter(pc.equal(key, value))
        topic = topics.dictionary[value >> 32].as_py()
        yield _Key(topic, (value & 0xFFFFFFFF) >> 1, bool(value & 1)), found
