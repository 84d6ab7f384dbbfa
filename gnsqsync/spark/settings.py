"""Columns, plans and settings that readers pass to their tasks, made from Spark's arguments.

Knows Spark's types, and the modules that know no Spark. Keeps no state.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import time
from types import TracebackType

from pyspark.sql.types import StructType

from gnsqsync.errors import ConfigError
from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.options import SourceOptions
from gnsqsync.spark.plan import Offset, group, parts_of
from gnsqsync.spark.plans import check_identity
from gnsqsync.spark.read_plan import PartitionPlan, ReadSettings
from gnsqsync.spark.rows import ALL_COLUMNS, check_columns
from gnsqsync.spark.streams import delete_ended
from gnsqsync.spark.wal import LogDamaged, Wal

__all__ = [
    "columns_of",
    "end_without_traceback",
    "open_log",
    "plans",
    "read_settings",
]

log: logging.Logger = logging.getLogger("gnsqsync.spark")


def columns_of(schema: StructType) -> list[str]:
    """Return the columns that the user's schema wants. Raises ConfigError for an unknown one."""
    columns: list[str] = schema.fieldNames()
    check_columns(columns)
    types = dict(column.split() for column in ALL_COLUMNS.split(", "))
    for field in schema.fields:
        if field.dataType.simpleString() != types[field.name].lower():
            raise ConfigError(
                f"column {field.name!r} is {types[field.name]} and not"
                f" {field.dataType.simpleString().upper()}; cast it after load()"
            )
        if not field.nullable:
            raise ConfigError(f"column {field.name!r} must be nullable; leave out NOT NULL")
    return columns


def plans(
    end: Offset, min_partitions: int = 1, *, judged: bool = False
) -> list[list[PartitionPlan]]:
    """Return the plans of an epoch, one list for each task.

    Every attempt gets the same plans. The log knows partitions and not tasks, so a restart may
    change ``min_partitions`` and still finds the entries.
    """
    parts = parts_of(end)
    return [
        [
            PartitionPlan(
                stream=end["stream"],
                epoch=end["epoch"],
                partition=number,
                topic=parts[number].topic,
                channel=end["channel"],
                nsqd=parts[number].nsqd,
                budget=parts[number].budget,
                judged=judged,
            )
            for number in numbers
        ]
        for numbers in group(parts, min_partitions)
    ]


def read_settings(options: SourceOptions, *, must_reach: bool = False) -> ReadSettings:
    """Return the part of the options that tasks need, with ``must_reach``."""
    names = {field.name for field in dataclasses.fields(ReadSettings)} - {"must_reach"}
    given = {name: getattr(options, name) for name in names}
    return ReadSettings(**given, must_reach=must_reach)


def open_log(options: SourceOptions, stream: str, *, new: bool) -> Wal:
    """Return the log of a stream, marked so that tasks recognise it.

    ``new``: True if nothing was read yet. If not, the mark must be there: a log that was moved or
    deleted may have held the only copy of messages. Raises ConfigError if the storage cannot be
    used, and if the log belongs to another channel or to other topics.
    """
    store = open_store(options.wal_path, options.wal_options)
    store.probe()
    wal = Wal(store, stream, options.retention)
    if not new and options.fail_on_data_loss:
        try:
            wal.check_announced()
        except LogDamaged:
            raise LogDamaged(
                f"option 'walPath' {options.wal_path!r} has no log of this query, which has read"
                " before: set it to where the log is, or 'failOnDataLoss' to false if it is lost"
            ) from None
    try:
        stored = wal.identity()
    except LogDamaged as error:
        if options.fail_on_data_loss:
            raise
        log.warning("%s; going on, as failOnDataLoss is false", error)
        store.delete([wal.mark_name])
        stored = {}
    check_identity(stored, options.channel, options.topics, f"the log in {options.wal_path!r}")
    wal.announce({"channel": options.channel, "topics": sorted(options.topics)})
    try:
        delete_ended(store, stream, options.retention, time.time())
    except OSError as error:
        log.warning("logs of runs that ended are not deleted: %s", error)
    return wal


def end_without_traceback() -> None:
    """Keep a process that Spark has left from printing a ConnectionError at its end.

    Spark closes the connection when a query stops. PySpark would then report over the closed
    connection, fail, and print a traceback.
    """
    usual = sys.excepthook

    def hook(
        kind: type[BaseException], value: BaseException, traceback: TracebackType | None
    ) -> None:
        if not issubclass(kind, ConnectionError):
            usual(kind, value, traceback)

    sys.excepthook = hook
