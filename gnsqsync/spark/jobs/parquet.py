"""Parquet files as the jobs write and read them. Knows nothing of their place in an archive."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gnsqsync.spark.jobs.layout import COLUMN_NAMES
from gnsqsync.spark.stores import Store

if TYPE_CHECKING:
    import pyarrow as pa

# Bytes and rows at which a row group is written. Readers skip whole row groups, and need memory
# for one.
_GROUP_BYTES = 32 << 20
_GROUP_ROWS = 1 << 20
# Rows that are read at a time.
_READ_ROWS = 1 << 16


def schema(columns: Sequence[str] = COLUMN_NAMES) -> pa.Schema:
    """Return the schema of the files of an archive: the source's own columns."""
    from gnsqsync.spark.rows import arrow_schema

    return arrow_schema(columns)


class Rows:
    """The rows of a file that is being written, collected into row groups of a good size."""

    def __init__(self, writer: Any) -> None:
        self.rows: int = 0
        # Bytes of all rows before compression.
        self.bytes: int = 0
        # Bytes of rows that are not in a row group yet.
        self.waiting_bytes: int = 0
        self._writer = writer
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        self.bytes += batch.nbytes
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        self.waiting_bytes += batch.nbytes
        if self.waiting_bytes >= _GROUP_BYTES or self._waiting_rows >= _GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write the waiting rows as a row group."""
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(
                pa.Table.from_batches(self._waiting), row_group_size=_GROUP_ROWS
            )
        self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0


@contextlib.contextmanager
def writing(store: Store, name: str, compression: str) -> Iterator[Rows]:
    """Write a new file. It exists after the block, unless the block raises."""
    from pyarrow import parquet

    with store.writing(name) as file:
        with parquet.ParquetWriter(file, schema(), compression=compression) as writer:
            rows = Rows(writer)
            yield rows
            rows.flush()


def read(
    file: Any,
    columns: list[str],
    start: datetime | None = None,
    end: datetime | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file with the types of ``schema``.

    Row groups without a row published at or after ``start`` and before ``end`` are skipped.
    """
    import pyarrow as pa
    from pyarrow import parquet

    found = parquet.ParquetFile(file)
    groups = [
        group
        for group in range(found.metadata.num_row_groups)
        if _overlaps(found.metadata.row_group(group), start, end)
    ]
    wanted = schema(columns)
    if groups:
        for batch in found.iter_batches(_READ_ROWS, row_groups=groups, columns=columns):
            yield from pa.Table.from_batches([batch]).select(columns).cast(wanted).to_batches()


def _overlaps(group: Any, start: datetime | None, end: datetime | None) -> bool:
    if start is None and end is None:
        return True
    for number in range(group.num_columns):
        column = group.column(number)
        if column.path_in_schema == "timestamp":
            known = column.statistics
            if known is None or not known.has_min_max or known.min.tzinfo is None:
                return True
            return (start is None or known.max >= start) and (end is None or known.min < end)
    return True


def count(store: Store, name: str) -> int:
    """Return the number of rows of a file, from its last bytes alone."""
    from pyarrow import parquet

    with store.reading(name) as file:
        return int(parquet.read_metadata(file).num_rows)
