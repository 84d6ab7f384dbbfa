"""``format("nsq")`` for writing: the methods that Spark calls on the driver and in its tasks.

Knows PySpark's classes. ``publishing`` decides where and when each message goes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import BinaryType, IntegralType, StringType, StructType

from gnsqsync.errors import ConfigError
from gnsqsync.spark.publishing import Columns, PartitionPublisher
from gnsqsync.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Row

__all__ = ["Published", "batch_writer", "find_columns", "stream_writer"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")

# Seconds for which a batch of a query waits for the answer of an nsqlookupd.
_STREAM_PATIENCE = 10.0


@dataclass
class Published(WriterCommitMessage):
    """The messages and bytes that one task has published, confirmed by nsqd."""

    messages: int
    bytes: int


class _Sink:
    """The options of a sink and the places of its columns; pickled into the tasks."""

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns

    def _publisher(self) -> PartitionPublisher:
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        return PartitionPublisher(self._options, self._columns, partition)

    def _write_arrow(self, batches: Iterator[pa.RecordBatch]) -> Published:
        with self._publisher() as publisher:
            for batch in batches:
                publisher.publish_batch(batch)
            publisher.flush()
            return Published(publisher.messages, publisher.bytes)

    def _write_rows(self, rows: Iterator[Row]) -> Published:
        with self._publisher() as publisher:
            publisher.publish_rows(rows)
            publisher.flush()
            return Published(publisher.messages, publisher.bytes)


class NsqBatchWriter(_Sink, DataSourceArrowWriter):
    """``df.write.format("nsq")``: each row is published at least once.

    When a task returns, nsqd has confirmed all of its rows. A failed task has published a part of
    its rows, which nobody can take back. Its retry, or a speculative copy of it, publishes that
    part again. Put an id into the body if duplicates matter.
    """

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        return self._write_arrow(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log_commit("a write", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _log_abort("a write", messages)


class _StreamEnds:
    """The end of a batch, for both writers of streams."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _log_commit(f"batch {batchId}", messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _log_abort(f"batch {batchId}", messages)


class NsqStreamRowWriter(_StreamEnds, _Sink, DataSourceStreamWriter):
    """``df.writeStream.format("nsq")`` on Spark 4.0, with the promises of NsqBatchWriter.

    If Spark runs a batch again, because it crashed before the commit, the batch is published again.
    """

    def write(self, iterator: Iterator[Row]) -> Published:
        return self._write_rows(iterator)


if hasattr(datasource, "DataSourceStreamArrowWriter"):

    class NsqStreamArrowWriter(_StreamEnds, _Sink, datasource.DataSourceStreamArrowWriter):
        """``df.writeStream.format("nsq")`` on Spark 4.1 and newer, which passes Arrow batches."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
            return self._write_arrow(iterator)


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceArrowWriter:
    """Return the writer for ``df.write``. Called on the driver. Raises ConfigError."""
    if overwrite:
        raise ConfigError(
            "NSQ has nothing to overwrite, messages can only be added; set .mode('append')"
        )
    checked = SinkOptions.parse(options)
    return NsqBatchWriter(checked, find_columns(schema, checked.topic))


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """Return the writer for ``df.writeStream``. Called on the driver for each batch.

    Raises ConfigError.
    """
    if overwrite:
        raise ConfigError(
            "outputMode 'complete' would publish the whole result again with each batch; set"
            " .outputMode('append') or 'update'"
        )
    checked = SinkOptions.parse(options, patience=_STREAM_PATIENCE)
    columns = find_columns(schema, checked.topic)
    if hasattr(datasource, "DataSourceStreamArrowWriter"):
        return NsqStreamArrowWriter(checked, columns)
    return NsqStreamRowWriter(checked, columns)


def find_columns(schema: StructType, topic: str | None) -> Columns:
    """Return the places of ``value``, ``topic`` (unless the option is set) and ``defer_ms``.

    Other columns are ignored. Raises ConfigError if a column is missing, there twice, or of a wrong
    type.
    """
    value = _find(schema, "value", (StringType, BinaryType), "STRING or BINARY")
    if value is None:
        names = ", ".join(repr(field.name) for field in schema.fields) or "none"
        raise ConfigError(
            "the rows have no column 'value' to publish, but"
            f" {names}; select one AS value, or to_json(struct(*)) AS value"
        )
    defer_ms = _find(schema, "defer_ms", (IntegralType,), "INT or BIGINT")
    if topic is not None:
        return Columns(value, None, defer_ms)
    by_row = _find(schema, "topic", (StringType,), "STRING")
    if by_row is None:
        raise ConfigError(
            "option 'topic' is missing: set it, or give the rows a column 'topic' of type STRING"
        )
    return Columns(value, by_row, defer_ms)


def _find(schema: StructType, name: str, types: tuple[type, ...], wanted: str) -> int | None:
    found = [i for i, field in enumerate(schema.fields) if field.name.lower() == name]
    if not found:
        return None
    if len(found) > 1:
        raise ConfigError(f"the rows have {len(found)} columns {name!r}; drop all but one")
    kind = schema.fields[found[0]].dataType
    if not isinstance(kind, types):
        raise ConfigError(
            f"column {name!r} is {kind.simpleString().upper()}; it must be {wanted}, cast it"
            + (" or use to_json()" if name == "value" else "")
        )
    return found[0]


def _sum(messages: Sequence[WriterCommitMessage | None]) -> str:
    published = [message for message in messages if isinstance(message, Published)]
    count = sum(message.messages for message in published)
    size = sum(message.bytes for message in published)
    return f"{count} messages ({size} bytes) by {len(published)} of {len(messages)} tasks"


def _log_commit(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    log.info("%s has published %s", what, _sum(messages))


def _log_abort(what: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    log.warning(
        "%s failed after %s, and part of the other tasks' rows; they stay published",
        what,
        _sum(messages),
    )
