"""``format("nsq")`` for Spark: the data source and its streaming reader.

Knows when and in which process Spark calls each method. Other modules know the log, the plan of an
epoch, the nsqds and the reading of a partition; none of these knows Spark.
"""

from __future__ import annotations

import dataclasses
import logging
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from gnsqsync.errors import ConfigError
from gnsqsync.process.log_output import make_readable
from gnsqsync.spark.batch import NsqBatchReader, plan_now
from gnsqsync.spark.depths import Backlog, Depths
from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.options import SourceOptions
from gnsqsync.spark.pauses import Pauses
from gnsqsync.spark.plan import (
    Offset,
    Part,
    Source,
    Targets,
    Trust,
    budgets_of,
    first_offset,
    parts_of,
    scale,
    share_out,
)
from gnsqsync.spark.plans import check_identity
from gnsqsync.spark.reach import Progress, Reach
from gnsqsync.spark.read_task import read_partitions
from gnsqsync.spark.returns import Look
from gnsqsync.spark.rows import SPARK_SCHEMA
from gnsqsync.spark.settings import (
    columns_of,
    end_without_traceback,
    plans,
    read_settings,
)
from gnsqsync.spark.stream_log import StreamLog
from gnsqsync.spark.streams import Sign
from gnsqsync.spark.tally import RunCounts
from gnsqsync.spark.wal import LogDamaged

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )
    except ImportError:  # before PySpark 4.2, which calls none of what needs them
        SupportsTriggerAvailableNow = object

# True if this PySpark tells a source that its run has an end.
KNOWS_AVAILABLE_NOW: bool = SupportsTriggerAvailableNow is not object

_NOT_TOLD = "PySpark before 4.2 does not tell a source of that trigger, and 4.2 does"

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter

__all__ = ["KNOWS_AVAILABLE_NOW", "NsqDataSource", "NsqStreamReader"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")

# Largest share of a core that looks at nsqds may take while no message comes.
_IDLE_SHARE = 0.005
# Longest pause between two such looks, in seconds.
_LONGEST_PAUSE = 2.0


class NsqDataSource(DataSource):
    """A data source that reads NSQ channels and publishes to topics.

    If gnsqsync is installed, ``format("nsq")`` finds it without registration. Otherwise call
    ``spark.dataSource.register(NsqDataSource)``. The guide lists the options.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # Names one load(): Spark pickles this object then, and makes every action's reader from it.
        self._load_id = uuid.uuid4().hex

    @classmethod
    def name(cls) -> str:
        return "nsq"

    def schema(self) -> str:
        # load() calls this first, so the user gets errors in the call that is wrong.
        SourceOptions.parse(self.options, streaming=None)
        return SPARK_SCHEMA

    def streamReader(self, schema: StructType) -> NsqStreamReader:
        return NsqStreamReader(SourceOptions.parse(self.options, streaming=True), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = SourceOptions.parse(self.options, streaming=False)
        return NsqBatchReader(options, schema, self._load_id)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from gnsqsync.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from gnsqsync.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)


class NsqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of one streaming query.

    Spark makes one object in the driver and calls all methods but ``read`` on it, one call at a
    time. An exception there ends the query. ``read`` runs on executors, on a copy that was pickled
    before the first batch, and may run again. Its orders are in the partition.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._columns = columns_of(schema)
        self._first: Offset | None = None
        # The end that was planned last. PySpark 4.0 and 4.1 do not pass the start to
        # latestOffset(): this is the start then.
        self._end: Offset | None = None
        # The end of the only batch of a run with an end, on PySpark 4.0 and 4.1.
        self._drained: Offset | None = None
        # True once Spark has told that this run ends by itself.
        self._has_end = False
        self._depths: Depths | None = None
        self._log: StreamLog | None = None
        # Monotonic time at which Spark asked for an epoch. All earlier tasks are over by then.
        self._asked_at = 0.0
        # Messages that a run with an end has still to take. None for a run without an end, like
        # the next two.
        self._targets: Targets | None = None
        # The nsqds that a run with an end has reached.
        self._reach: Reach | None = None
        # The judge of whether a run with an end has read anything.
        self._progress: Progress | None = None
        # Counts of messages and costs of this run.
        self._counts = RunCounts()
        # The nsqds that the last tasks did not reach.
        self._missed: set[str] = set()
        # The epoch whose results have not been read yet.
        self._untold: Offset | None = None
        self._trust = Trust()
        # Monotonic time before which a look would cost too much.
        self._next_look = 0.0
        self._pauses = Pauses(time.monotonic())
        self._sign = Sign()
        # Monotonic time of the last planned epoch.
        self._last_epoch_at = time.monotonic()
        self._settings = read_settings(options)
        if not KNOWS_AVAILABLE_NOW and options.max_messages and options.available_now is None:
            raise ConfigError(
                "option 'availableNow' is missing, which 'maxMessagesPerTrigger' needs here: set it"
                f" to true for a run with trigger(availableNow=True), else to false: {_NOT_TOLD}"
            )
        make_readable()

    # -- in the driver ---------------------------------------------------------------------------

    def initialOffset(self) -> Offset:
        # Spark calls this more than once, also when it replays batch 0. Then the end in Spark's log
        # counts, and not this offset.
        if self._first is None:
            self._first = first_offset(uuid.uuid4().hex, self._options.channel)
        return self._first

    def getDefaultReadLimit(self) -> Any:
        limit = self._options.max_messages
        return ReadAllAvailable() if limit is None else ReadMaxRows(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._has_end = True
        seen = self._cluster().look(whole=True)
        waiting = {source: b.depth for source, b in seen.items() if b is not None}
        self._targets = Targets(waiting)
        fail_on = self._options.fail_on_unreachable or "all"
        self._reach = Reach(waiting, self._cluster().silent(), fail_on)
        self._progress = Progress(self._options.channel, seen)

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """Return the end of the next epoch, with its plan, or ``start`` if no message can be read.

        PySpark 4.2 and newer pass both arguments. They take the number of parameters as the sign
        that ``limit`` is obeyed.
        """
        if start is None:
            if self._options.available_now:
                return self._drain_at_once()
            start = self._end or self.initialOffset()
        self._asked_at = time.monotonic()
        self._check(start)
        self._show_use(start)
        self._learn()
        stream_log = self._open_log(start)
        end = stream_log.left_over(start)
        if end is None:
            parts = self._wait_for_messages(start["epoch"], self._limit(limit))
            self._pauses.answered(time.monotonic())
            if not parts:
                self._judge_run(start["epoch"])
                return start
            end = stream_log.plan(start, parts)
            if self._targets is not None:
                self._targets.take(parts)
        self._last_epoch_at = time.monotonic()
        self._untold = end
        return end

    def _show_use(self, offset: Offset) -> None:
        """Show that the log is in use, so that nobody deletes the log of a waiting query."""
        settings = self._settings
        if offset["epoch"] > 0:
            self._sign.show(
                lambda: open_store(settings.wal_path, settings.wal_options),
                offset["stream"],
                time.monotonic(),
            )

    def _judge_run(self, epoch: int) -> None:
        """Raise an error, at the end of a run with an end, if it missed nsqds or read nothing."""
        if self._reach is None or self._progress is None:
            return
        self._reach.judge()
        seen = self._cluster().look(whole=True)
        self._note_looks(epoch, seen)
        self._progress.judge(seen, self._reach.missed)

    def _drain_at_once(self) -> Offset:
        """Return the end of the only new batch of a run with an end on PySpark 4.0 and 4.1.

        All waiting messages go into this batch. PySpark may ask several times; the answer stays the
        same.
        """
        if self._drained is not None:
            return self._drained
        limit, start = self._options.max_messages, self._end or self.initialOffset()
        if limit is not None:
            log.warning(
                "all that waits goes into one batch, and not %d messages at most, as PySpark before"
                " 4.2 ends after one",
                limit,
            )
        self._check(start)
        stream_log = self._open_log(start)
        self._drained = stream_log.left_over(start)
        if self._drained is None:
            unlimited = dataclasses.replace(self._options, max_messages=None)
            parts = parts_of(plan_now(unlimited, start["stream"]))
            self._drained = stream_log.plan(start, parts) if parts else start
        return self._drained

    def _check(self, offset: Offset) -> None:
        """Raise ConfigError if the checkpoint belongs to another channel or to other topics."""
        check_identity(offset, self._options.channel, self._options.topics, "the checkpoint")

    def _learn(self) -> None:
        """Read the counts and errors that the tasks of the epoch before wrote to the log.

        The tasks are over when Spark asks for the next epoch. Raises ConnectionLost as option
        failOnUnreachable says.
        """
        epoch, self._untold = self._untold, None
        fail_on = self._options.fail_on_unreachable
        is_wanted = KNOWS_AVAILABLE_NOW or fail_on in ("all", "any")
        if epoch is None or not is_wanted:
            return
        wal = self._open_log(epoch).wal
        parts = parts_of(epoch)
        try:
            heads = wal.last_heads(epoch["epoch"], len(parts))
        except (OSError, LogDamaged) as error:
            damaged = isinstance(error, LogDamaged) and self._options.fail_on_data_loss
            if damaged or self._targets is not None or fail_on in ("all", "any"):
                raise
            log.warning("the messages of epoch %d cannot be counted: %s", epoch["epoch"], error)
            return
        # A partition has no head if Spark did not pull it, for example for a sink that looks at one
        # row only.
        told = [(part, head) for part, head in zip(parts, heads, strict=True) if head is not None]
        self._counts.add(head.tally for _, head in told)
        if self._progress is not None:
            for head in heads:
                tally = None if head is None else head.tally
                self._progress.took(
                    tally["received"] + tally.get("deduplicated", 0) if tally else None
                )
        reach = self._reach or Reach(budgets_of(parts), {}, fail_on)
        for part, head in told:
            # If there are rows, an earlier attempt has reached the nsqd.
            problem = "" if head.tally.get("received") else head.problem
            reach.met(Source(part.nsqd, part.topic), problem)
            (self._missed.add if problem else self._missed.discard)(part.nsqd)
        if self._targets is None:
            if fail_on in ("all", "any"):
                reach.judge()
            return
        for source in reach.missed:
            self._targets.drop(source)

    def _check_silent(self, seen: Mapping[Source, Backlog | None]) -> None:
        """Judge the nsqds whose HTTP API does not answer, in a run without an end.

        Raises ConnectionLost as option failOnUnreachable says. ``_judge_run`` does the same at the
        end of a run with an end.
        """
        fail_on = self._options.fail_on_unreachable
        silent = self._cluster().silent()
        if self._targets is not None or not silent:
            return
        answered = any(backlog is not None for backlog in seen.values())
        if fail_on == "any" or (fail_on == "all" and not answered):
            Reach({}, silent, fail_on).judge()

    def reportLatestOffset(self) -> dict[str, Any]:
        cluster = self._cluster()
        topics = cluster.report()
        unreachable = self._missed | set(cluster.silent())
        return {
            "channel": self._options.channel,
            "backlog": sum(n["depth"] for nsqds in topics.values() for n in nsqds.values()),
            "unreachable": sorted(unreachable),
            **self._counts.shown(),
            "topics": topics,
        }

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        self._end = end
        self._check(end)
        if end["epoch"] == 0 or start == end:
            return []
        if self._options.available_now and self._drained is None and not KNOWS_AVAILABLE_NOW:
            log.warning(
                "this run only repeats the batch of one that failed: start it again for what waits,"
                " or set spark.sql.streaming.triggerAvailableNowWrapper.enabled to true"
            )
        self._open_log(end).confirm(start, end)
        tasks = plans(end, self._options.min_partitions, judged=self._reach is not None)
        return [InputPartition(task) for task in tasks]

    def commit(self, end: Offset) -> None:
        self._pauses.committed(end["epoch"], time.monotonic())
        if end["epoch"] == 0:
            return
        try:
            self._open_log(end).commit(end["epoch"])
        except OSError as error:
            # The next commit covers this one; until then the log is only longer.
            log.warning("the commit of epoch %d is not written: %s", end["epoch"], error)

    def stop(self) -> None:
        if self._depths is not None:
            self._depths.close()
        # An EOFError or ConnectionError in flight means that Spark has closed the connection.
        if isinstance(sys.exc_info()[1], (EOFError, ConnectionError)):
            end_without_traceback()

    def _cluster(self) -> Depths:
        if self._depths is None:
            depths = Depths(self._options)
            depths.start(must_exist=self._has_end or bool(self._options.available_now))
            self._depths = depths
        return self._depths

    def _limit(self, limit: Any) -> int | None:
        if limit is None:
            return self._options.max_messages
        return getattr(limit, "max_rows", None)

    def _wait_for_messages(self, turn: int, limit: int | None) -> list[Part]:
        """Return the parts of the next epoch once enough messages wait, or none at a deadline."""
        options, cluster, pauses = self._options, self._cluster(), self._pauses
        # A run with an end needs an answer now: Spark ends it if no source has messages.
        has_end = self._targets is not None
        now = time.monotonic()
        self._next_look = now if has_end else pauses.look_at(now, self._next_look)
        deadline = now if has_end else pauses.last_look_at(now)
        while True:
            time.sleep(max(0.0, self._next_look - time.monotonic()))
            before = time.process_time()
            seen = cluster.look()
            if not has_end and pauses.is_alone and cluster.is_answer_missing:
                # The messages may be on a slow nsqd, so wait for all answers.
                seen = cluster.look(whole=True)
            self._note_looks(turn, seen)
            cost = time.process_time() - before
            self._check_silent(seen)
            waiting = self._readable(seen)
            if self._is_enough(sum(waiting.values())):
                parts = share_out(scale(waiting, limit, turn), options.min_partitions)
                self._trust.planned(parts, _done(seen))
                return parts
            pause = max(options.poll_interval, min(cost / _IDLE_SHARE, _LONGEST_PAUSE))
            self._next_look = time.monotonic() + pause
            if self._next_look > deadline:
                return []

    def _readable(self, seen: Mapping[Source, Backlog | None]) -> dict[Source, int]:
        """Return the number of messages of each source that may go into the next epoch."""
        now = time.monotonic()
        for source in self._trust.judge(_done(seen), now):
            log.warning(
                "an epoch got nothing of %s from nsqd %s, though messages wait there: the"
                " executors may not reach that address, or other consumers read the channel",
                source.topic,
                source.nsqd,
            )
        if self._targets is not None:
            depths = {source: None if b is None else b.depth for source, b in seen.items()}
            return self._targets.bound(depths)
        return {
            source: backlog.depth
            for source, backlog in seen.items()
            if backlog is not None and self._trust.allows(source, now)
        }

    def _is_enough(self, waiting: int) -> bool:
        options = self._options
        if waiting >= options.min_messages or self._targets is not None:
            return waiting > 0
        waited = time.monotonic() - self._last_epoch_at
        return waiting > 0 and waited >= options.max_trigger_delay

    def _note_looks(self, epoch: int, seen: Mapping[Source, Backlog | None]) -> None:
        """Tell the log the counts of channels that were asked for after the tasks of ``epoch``."""
        looks = {
            source: Look.at(backlog)
            for source, backlog in seen.items()
            # A slow nsqd may answer only now to a question from before the end of the epoch.
            if backlog is not None and backlog.asked_at >= self._asked_at
        }
        assert self._log is not None, "the log is open before anybody looks"
        self._log.looked(epoch, looks)

    def _open_log(self, offset: Offset) -> StreamLog:
        """Return the log of the stream of ``offset``, opened at the first use."""
        # Before PySpark 4.2 a run with an end may begin a new stream before it hears of the old.
        if self._log is None or self._log.stream != offset["stream"]:
            # Ids are of use only if later runs continue the same stream.
            one_stream = KNOWS_AVAILABLE_NOW or not self._options.available_now
            self._log = StreamLog(self._options, offset, keeps_ids=one_stream)
        return self._log

    # -- on executors ----------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        make_readable()
        return read_partitions(partition.value, self._settings, self._columns)


def _done(seen: Mapping[Source, Backlog | None]) -> dict[Source, int]:
    """Return the number of finished messages of each source that has messages."""
    return {source: backlog.done for source, backlog in seen.items() if backlog and backlog.depth}
