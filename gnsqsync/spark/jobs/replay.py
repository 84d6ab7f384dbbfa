"""The replay job: messages of an archive from a window of time, published to a topic again.

Knows Spark and the archive. ``replay_plan`` makes the parts, ``replay_sink`` publishes one in a
task.
"""

from __future__ import annotations

import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.spark.jobs import reading
from gnsqsync.spark.jobs.common import storage_path
from gnsqsync.spark.jobs.layout import Place, moment
from gnsqsync.spark.jobs.replay_plan import Bucket, Plan, Wave, Waves, first_shift, pack
from gnsqsync.spark.jobs.snapshot import topics_of
from gnsqsync.spark.sink_options import SinkOptions
from gnsqsync.spark.stores import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# Name of the plan in the state folder.
_PLAN = "plan"
# Seconds that one job of Spark (a wave) should take. Progress is told after each.
_WAVE_SECONDS = 5.0
# Messages of the first wave, whose speed is unknown.
_FIRST_MESSAGES = 100_000
# Upper bound of the parts of a wave.
_WAVE_PARTS = 256
# Messages per second that one task easily publishes. A slower replay needs one task only, which
# then keeps the rate and the order exactly.
_TASK_RATE = 20_000.0
# A bucket that is too full is split into 2 to the power of this many buckets.
_SPLIT_SHIFT = 6
# Largest number of topics in an error.
_TOPICS_NAMED = 10


class Replayed(NamedTuple):
    """The result of a replay, or with ``dry_run`` its size.

    ``messages``: number of messages of the whole replay, counted at its begin. ``before``: messages
    in parts that earlier runs finished. ``published``: messages that this run published. ``first``,
    ``last``: publish times.
    """

    messages: int
    before: int
    published: int
    parts: int
    first: datetime | None
    last: datetime | None


def replay(
    spark: SparkSession,
    archive: str,
    topic: str,
    *,
    state: str | None = None,
    options: Mapping[str, str] | None = None,
    topics: Sequence[str] = (),
    start: datetime | None = None,
    end: datetime | None = None,
    filter: str | None = None,
    rate: float | None = None,
    parallelism: int | None = None,
    part_messages: int = 10_000,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[Replayed], object] | None = None,
) -> Replayed:
    """Publish the messages of ``topics`` in ``archive`` to ``topic`` again.

    Each message is published at least once, as by the sink. With ``state`` the same call continues
    after a crash. A part with a record there is never published again. A part that was under way is
    published again as a whole. A speculative copy of a task (spark.speculation) publishes its
    current part twice.

    Args:
        spark: The session of Spark that runs the job.
        archive: The path or URL of an archive.
        topic: The topic to publish to.
        state: A folder or URL that driver and executors share. It keeps the parts, and a record of
            each finished part. None is for ``dry_run`` only.
        options: Options of the sink, such as nsqdTcpAddresses. Default: none.
        topics: Topics of the archive. Default: all.
        start: Only messages published at this time or later; an aware datetime. Default: no limit.
        end: Only messages published before this time; an aware datetime. Default: no limit.
        filter: A Spark SQL condition over the archive's columns. Default: none.
        rate: Messages per second of the whole job. Default: no limit.
        parallelism: Number of tasks at a time. With 1 the messages leave in the order of their
            publish time; otherwise several parts leave at a time. Default: as Spark's.
        part_messages: Messages of a part, roughly. Default: 10,000.
        dry_run: True to count only. Default: False.
        storage_options: Options of fsspec's file systems of URLs. Default: none.
        progress: Called every few seconds with the result so far. Default: none.

    Returns:
        The numbers of messages and parts.

    Raises:
        ConfigError: A value is not allowed. If tasks fail, Spark's own error is raised.
        NSQError: The archive does not have one of ``topics``.
    """
    archive = storage_path(archive, "the archive's path")
    if rate is not None and not (rate > 0 and math.isfinite(rate)):
        raise ConfigError(f"rate is {rate!r} messages per second; it must be above 0")
    for name, value in (("parallelism", parallelism), ("part_messages", part_messages)):
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}; it must be 1 or more")
    what = {
        "archive": archive,
        "topics": sorted(set(topics)),
        "start": _text(start),
        "end": _text(end),
        "filter": filter,
        "topic": topic,
    }
    if not dry_run and not state:
        raise ConfigError(
            "a replay needs a state folder, to go on after a crash without publishing twice what"
            " is finished: set it to an empty folder that driver and executors share"
        )
    sink = {**(options or {}), "topic": topic}
    SinkOptions.parse(sink)
    place = Place.of(archive, storage_options)
    _check_topics(topics, place)
    files = reading.find(place, topics=topics, start=start, end=end)
    rows = _Rows(spark, files, start, end, filter)
    if dry_run:
        return _counted(rows.times(), part_messages)

    assert state is not None
    if ":" not in state:
        state = os.path.abspath(state)
    records = Place.of(state, storage_options, "the state folder")
    store = records.open()
    plan = _load_plan(store, what, state)
    if plan is None:
        if rate is not None:
            # With larger parts a slow replay would show no progress for hours, and would repeat
            # much after a crash.
            part_messages = max(1, min(part_messages, int(rate * _WAVE_SECONDS)))
        plan = _make_plan(store, rows.times(), what, part_messages)
    if rate is not None:
        parallelism = min(
            parallelism or math.ceil(rate / _TASK_RATE), spark.sparkContext.defaultParallelism
        )
    run = _Run(spark, store, plan, rows, parallelism or spark.sparkContext.defaultParallelism)
    return run.publish(records, sink, rate, progress or (lambda _: None))


def _check_topics(topics: Sequence[str], archive: Place) -> None:
    """Raise NSQError for a topic that the archive does not have. It is no empty replay."""
    there = topics_of(archive.open())
    for topic in topics:
        if there and topic not in there:
            named = ", ".join(there[:_TOPICS_NAMED])
            more = len(there) - _TOPICS_NAMED
            raise NSQError(
                f"the archive at {archive.path} has no topic {topic!r}; it has {named}"
                f"{f' and {more} more' if more > 0 else ''}"
            )


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat()


@dataclass(frozen=True)
class _Rows:
    """The rows to replay, all of them or those of a shorter time."""

    spark: SparkSession
    files: reading.Files
    start: datetime | None
    end: datetime | None
    filter: str | None

    def times(self) -> DataFrame:
        """Return all rows with their publish time; with a filter, all columns are read for it."""
        if self.filter is None:
            return self.files.rows(
                self.spark, columns=["timestamp"], start=self.start, end=self.end
            )
        return self._filtered(self.start, self.end)

    def between(self, start: datetime, end: datetime) -> DataFrame:
        return self._filtered(start, end)

    def _filtered(self, start: datetime | None, end: datetime | None) -> DataFrame:
        from pyspark.errors import AnalysisException, ParseException

        rows = self.files.rows(self.spark, start=start, end=end)
        if self.filter is None:
            return rows
        try:
            return rows.where(self.filter)
        except (AnalysisException, ParseException) as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"filter {self.filter!r} is not a condition over {', '.join(rows.columns)}:"
                f" {reason}"
            ) from None


def _published_at() -> Column:
    """Return the publish time as an expression, in microseconds since 1970."""
    from pyspark.sql import functions as F

    return F.unix_micros("timestamp")


def _extent(rows: DataFrame) -> Bucket | None:
    from pyspark.sql import functions as F

    at = _published_at()
    found = rows.agg(F.min(at), F.max(at), F.count("*")).first()
    assert found is not None
    low, high, messages = found
    return Bucket(low, high + 1, messages) if messages else None


def _counted(rows: DataFrame, part_messages: int) -> Replayed:
    extent = _extent(rows)
    if extent is None:
        return Replayed(0, 0, 0, 0, None, None)
    parts = -(-extent.messages // part_messages)
    return Replayed(extent.messages, 0, 0, parts, moment(extent.start), moment(extent.end - 1))


# -- the plan --------------------------------------------------------------------------------------


def _load_plan(store: Store, what: Mapping[str, Any], state: str) -> Plan | None:
    data = store.read(_PLAN)
    if data is None:
        return None
    plan = Plan.from_json(data)
    plan.check_same(what, state)
    return plan


def _make_plan(store: Store, rows: DataFrame, what: Mapping[str, Any], part_messages: int) -> Plan:
    """Count the messages, cut them into parts, and save the parts before anything is published."""
    store.probe()
    plan = pack(what, _buckets(rows, part_messages), part_messages)
    if not store.create(_PLAN, plan.to_json()):
        raise ConfigError(
            f"another replay has begun with the state folder {store.url} at this moment; let one"
            " of them run"
        )
    return plan


def _buckets(rows: DataFrame, part_messages: int) -> Iterable[Bucket]:
    """Yield slices of time with their counts, none larger than a part.

    A slice is larger if too many messages have one publish time.
    """
    from pyspark.sql import functions as F

    extent = _extent(rows)
    if extent is None:
        return
    at = _published_at()
    shift = first_shift(extent.start, extent.end, extent.messages, part_messages)
    while True:
        counted = rows.groupBy(F.shiftright(at, shift).alias("slice")).count().collect()
        full = [row["slice"] for row in counted if row["count"] > part_messages and shift]
        thick = set(full)
        for row in counted:
            if row["slice"] not in thick:
                begin = row["slice"] << shift
                yield Bucket(
                    max(begin, extent.start),
                    min(begin + (1 << shift), extent.end),
                    row["count"],
                )
        if not full:
            return
        rows = rows.where(F.shiftright(at, shift).isin(full))
        shift = max(0, shift - _SPLIT_SHIFT)


# -- publishing ------------------------------------------------------------------------------------


class _Run:
    """A run of a replay, over the parts that have no record."""

    def __init__(
        self, spark: SparkSession, store: Store, plan: Plan, rows: _Rows, parallelism: int
    ) -> None:
        self._spark = spark
        self._store = store
        self._plan = plan
        self._rows = rows
        self._parallelism = parallelism
        self._name = uuid.uuid4().hex

    def publish(
        self,
        state: Place,
        sink: dict[str, str],
        rate: float | None,
        progress: Callable[[Replayed], object],
    ) -> Replayed:
        from gnsqsync.spark.jobs.replay_sink import FORMAT, RUN, ReplaySink, Settings

        self._spark.dataSource.register(ReplaySink)
        # Tasks of an earlier run cannot begin a part after this.
        self._store.put(RUN, self._name.encode())
        plan = self._plan
        done = self._done()
        before = sum(plan.counts[part] for part in done)
        result = Replayed(
            plan.messages,
            before,
            0,
            len(plan.counts),
            moment(plan.bounds[0]) if plan.bounds else None,
            moment(plan.bounds[-1] - 1) if plan.bounds else None,
        )
        progress(result)
        left = Waves(plan, done)
        expected = _FIRST_MESSAGES if rate is None else rate * _WAVE_SECONDS
        while (wave := left.take(expected, _WAVE_PARTS)) is not None:
            began = time.monotonic()
            tasks = min(self._parallelism, len(wave.parts))
            settings = Settings(state, self._name, None if rate is None else rate / tasks)
            (
                self._rows_of(wave, tasks)
                .write.format(FORMAT)
                .mode("append")
                .options(**sink, **settings.to_options())
                .save()
            )
            seconds = time.monotonic() - began
            result = result._replace(published=result.published + self._settle(wave))
            progress(result)
            if rate is None:
                # A wave is at most twice as large as expected before, because the first waves are
                # slower than later ones.
                expected = min(2 * expected, wave.messages * _WAVE_SECONDS / seconds)
        return result

    def _done(self) -> set[int]:
        return {int(name.rpartition("/")[2]) for name in self._store.list("done")}

    def _settle(self, wave: Wave) -> int:
        """Return the number of messages that the wave published.

        A part without a record has no rows left in the archive. It gets a record, too.
        """
        from gnsqsync.spark.jobs.replay_sink import done_name

        messages = 0
        for part in wave.parts:
            record = self._store.read(done_name(part))
            if record is None:
                nothing = {"messages": 0, "run": self._name}
                self._store.create(done_name(part), json.dumps(nothing).encode())
            else:
                messages += int(json.loads(record)["messages"])
        return messages

    def _rows_of(self, wave: Wave, tasks: int) -> DataFrame:
        """Return rows (part, value), sorted by time. Each part is whole in one partition."""
        from pyspark.sql import functions as F

        bounds, at = self._plan.bounds, _published_at()
        first, last = wave.parts[0], wave.parts[-1]
        rows = self._rows.between(moment(bounds[first]), moment(bounds[last + 1])).withColumn(
            "part", _part_of(at, bounds, first, last + 1)
        )
        if len(wave.parts) <= last - first:
            rows = rows.where(F.col("part").isin(list(wave.parts)))
        places = {part: place for place, part in enumerate(wave.parts)}
        keys = _keys(self._spark, tasks)
        place = F.array(
            *(F.lit(keys[places.get(part, 0) % tasks]) for part in range(first, last + 1))
        )
        return (
            rows.withColumn("key", F.get(place, F.col("part") - first))
            .repartition(tasks, "key")
            .sortWithinPartitions("part", "timestamp", "nsqd", "id")
            .select("part", "value")
        )


def _part_of(at: Column, bounds: Sequence[int], low: int, high: int) -> Column:
    """Return the part (low to high - 1) of a time, as an expression: a binary search."""
    from pyspark.sql import functions as F

    if high - low == 1:
        return F.lit(low)
    middle = (low + high) // 2
    return F.when(at < bounds[middle], _part_of(at, bounds, low, middle)).otherwise(
        _part_of(at, bounds, middle, high)
    )


def _keys(spark: SparkSession, partitions: int) -> list[int]:
    """Return for each partition a number that Spark's hash puts there.

    With these numbers all partitions are equally full. If Spark's hash ever changes, parts are only
    spread less evenly.
    """
    if partitions == 1:
        return [0]
    rows = (
        spark.range(partitions * 50)
        .selectExpr("id", f"pmod(hash(int(id)), {partitions}) AS partition")
        .groupBy("partition")
        .agg({"id": "min"})
        .collect()
    )
    found = {row[0]: row[1] for row in rows}
    return [found.get(partition, partition) for partition in range(partitions)]
