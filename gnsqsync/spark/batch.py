"""``spark.read.format("nsq")``: a drain that is planned and read once, or a peek.

Spark does not commit a batch read, and calls every method again at each action. A drain is
therefore an epoch of a log that is never committed. The first action plans it, and every further
action replays it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from gnsqsync.process.log_output import make_readable
from gnsqsync.spark.depths import Depths
from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.options import SourceOptions
from gnsqsync.spark.plan import (
    Offset,
    Source,
    first_offset,
    next_offset,
    parts_of,
    scale,
    share_out,
)
from gnsqsync.spark.plans import check_identity
from gnsqsync.spark.reach import Progress, Reach
from gnsqsync.spark.read_plan import PartitionPlan
from gnsqsync.spark.read_task import peek_partitions, read_partitions, try_to_reach
from gnsqsync.spark.records import record
from gnsqsync.spark.settings import columns_of, plans, read_settings
from gnsqsync.spark.streams import Sign
from gnsqsync.spark.verdict import DrainTask, judged
from gnsqsync.spark.wal import LogDamaged, Wal

__all__ = ["NsqBatchReader", "plan_now"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")


class NsqBatchReader(DataSourceReader):
    """The reader of one ``load()``. The same ``drainId`` and ``walPath`` always give the same rows.

    ``load_id``: name of the drain if the user gives no ``drainId``. All actions on one DataFrame
    share it.
    """

    def __init__(self, options: SourceOptions, schema: StructType, load_id: str) -> None:
        self._options = options
        self._columns = columns_of(schema)
        # After the tasks no driver looks into the log, so a task that misses its nsqd must fail.
        must_reach = options.fail_on_unreachable == "any"
        self._settings = read_settings(options, must_reach=must_reach)
        self._stream = f"drain-{options.drain_id or load_id}"
        make_readable()

    def partitions(self) -> list[InputPartition]:
        if self._options.peek:
            return [InputPartition(task) for task in self._peek()]
        end = self._drain()
        parts = parts_of(end)
        return [InputPartition(DrainTask(task, parts)) for task in self._plans(end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        make_readable()
        # If no message waits, there is no plan, and Spark makes an empty partition of its own.
        if partition is None or partition.value is None:
            return iter(())
        if self._options.peek:
            return peek_partitions(partition.value, self._settings, self._columns)
        task: DrainTask = partition.value
        rows = read_partitions(task.plans, self._settings, self._columns)
        return judged(rows, task, self._options)

    def _plans(self, end: Offset) -> list[list[PartitionPlan]]:
        return plans(end, self._options.min_partitions)

    def _peek(self) -> list[list[PartitionPlan]]:
        """Return the plans of all messages that wait now. Warn of messages beyond the limit."""
        tasks = self._plans(plan_now(self._options, self._stream))
        most = self._options.max_in_flight
        for plan in (plan for task in tasks for plan in task):
            if plan.budget > most:
                log.warning(
                    "peek shows at most %d of the %d messages of %s on nsqd %s, as it holds all of"
                    " them at a time: 'maxInFlight' is %d, and nsqd's --max-rdy-count is the limit",
                    most,
                    plan.budget,
                    plan.topic,
                    plan.nsqd,
                    most,
                )
        return tasks

    def _drain(self) -> Offset:
        """Return the plan in the log, or write a new plan there and return it.

        Raises ConfigError if the plan belongs to another channel or to other topics. Raises
        LogDamaged if the plan is gone and the log has rows of it.
        """
        options = self._options
        store = open_store(options.wal_path, options.wal_options)
        wal = Wal(store, self._stream, options.retention)
        name = f"{self._stream}/drain"
        known = wal.record(name)
        if known is not None:
            # Each action on the rows is a use of the log.
            Sign().show(lambda: store, self._stream, 0.0)
        if known is None:
            store.probe()
            if options.drain_id and wal.places():
                raise LogDamaged.file(store, name, "it is missing, and entries of it are there")
            planned = plan_now(options, self._stream)
            wal.announce({"channel": options.channel, "topics": sorted(options.topics)})
            if store.create(name, record(planned)):
                return planned
            known = wal.record(name)
            assert known is not None, "a name that could not be made is there"
        where = f"drain {self._stream.removeprefix('drain-')!r} in {options.wal_path!r}"
        check_identity({**wal.identity(), **known}, options.channel, options.topics, where)
        return known


def plan_now(options: SourceOptions, stream: str) -> Offset:
    """Return the plan of all messages that wait now.

    The driver tries each nsqd first and logs an nsqd that it cannot reach or that refuses it: no
    driver looks again after the tasks. Raises ConnectionLost if none of the nsqds with messages can
    be reached from here, or as option failOnUnreachable says.
    """
    depths = Depths(options)
    try:
        depths.start(must_exist=True)
        seen = depths.look(whole=True)
        silent = depths.silent()
    finally:
        depths.close()
    waiting = {source: backlog.depth for source, backlog in seen.items() if backlog}
    parts = share_out(scale(waiting, options.max_messages), options.min_partitions)
    end = next_offset(first_offset(stream, options.channel), parts)
    tries = {Source(p.nsqd, p.topic): p for task in plans(end, judged=True) for p in task}
    settings = read_settings(options)
    reach = Reach(waiting, silent, options.fail_on_unreachable or "all")
    problems = try_to_reach(list(tries.values()), settings)
    for source, problem in zip(tries, problems, strict=True):
        reach.met(source, problem)
    reach.judge()
    if not parts:
        # Messages may wait without any that can be read, for example in a paused channel.
        Progress(options.channel, seen).judge(seen)
    return end
