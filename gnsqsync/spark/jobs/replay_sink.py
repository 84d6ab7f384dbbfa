"""The sink of a replay's tasks: each publishes parts one after the other, and records each part.

Knows the records and PySpark's classes. Knows nothing of the archive or the plan.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs.layout import Place
from gnsqsync.spark.publishing import Columns, PartitionPublisher
from gnsqsync.spark.sink_options import SinkOptions
from gnsqsync.spark.stores import Store

__all__ = ["FORMAT", "Pace", "ReplaySink", "Settings", "done_name"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")

FORMAT = "gnsqsync-replay"
# Name of the option that holds Settings. All other options are the sink's.
_SETTINGS = "gnsqsyncreplay"
# Places of the columns. Rows are sorted by the part.
_PART, _VALUE = 0, 1
# With a rate, one MPUB has the messages of this many seconds.
_BURST_SECONDS = 0.1

RUN = "run"


def done_name(part: int) -> str:
    return f"done/{part:08d}"


@dataclass(frozen=True)
class Settings:
    """Settings of the tasks of one run. ``rate``: messages per second of a task; None: no limit."""

    state: Place
    run: str
    rate: float | None

    def to_options(self) -> dict[str, str]:
        return {_SETTINGS: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def from_text(cls, text: str) -> Settings:
        found = json.loads(text)
        return cls(Place(**found.pop("state")), **found)


class Pace:
    """A rate limit: ``spent()`` returns when the time for the published messages is over.

    ``rate``: messages per second. Time without messages is lost: later messages are not faster.
    """

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate = rate
        self._clock = clock
        self._sleep = sleep
        self._due = clock()
        self.burst: int = max(1, int(rate * _BURST_SECONDS))

    def spent(self, messages: int) -> None:
        self._due += messages / self._rate
        left = self._due - self._clock()
        if left > 0:
            self._sleep(left)
        else:
            self._due -= left


class ReplaySink(DataSource):
    """The sink that a replay registers. Not for users."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = {name.lower(): value for name, value in self.options.items()}
        settings = Settings.from_text(options.pop(_SETTINGS))
        return ReplayWriter(settings, SinkOptions.parse(options))


class ReplayWriter(DataSourceArrowWriter):
    """Publishes the parts of a partition in their order, and records each confirmed part.

    The record is made once, after nsqd has confirmed the last message. No later run publishes a
    part with a record again. Some messages of a part without a record may be published already.
    """

    def __init__(self, settings: Settings, options: SinkOptions) -> None:
        self._settings = settings
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        store = self._settings.state.open()
        pace = None if self._settings.rate is None else Pace(self._settings.rate)
        task = _Task(store, self._settings, self._options, pace)
        try:
            for batch in iterator:
                for part, rows in _by_part(batch):
                    task.take(part, rows)
            task.finish()
        finally:
            task.close()
        return WriterCommitMessage()


class _Task:
    """A task, and the part that it publishes now."""

    def __init__(
        self, store: Store, settings: Settings, options: SinkOptions, pace: Pace | None
    ) -> None:
        if pace is not None:
            burst = min(pace.burst, options.max_batch_messages)
            options = dataclasses.replace(options, max_batch_messages=burst)
        self._store = store
        self._settings = settings
        self._options = options
        self._sent = None if pace is None else pace.spent
        # The current part, -1 before the first.
        self._part = -1
        # The publisher of the current part; None if the part has a record and needs no publishing.
        self._publisher: PartitionPublisher | None = None

    def take(self, part: int, rows: pa.RecordBatch) -> None:
        if part != self._part:
            self.finish()
            self._begin(part)
        if self._publisher is not None:
            self._publisher.publish_batch(rows)

    def _begin(self, part: int) -> None:
        """Begin a part, unless an earlier attempt has recorded it. Raises ConfigError."""
        run = self._store.read(RUN)
        if run is None:
            raise ConfigError(
                f"this executor does not see the state folder {self._settings.state.path!r} of the"
                " replay; set it to storage that the driver and all executors share"
            )
        if run.decode() != self._settings.run:
            raise ConfigError(
                f"another run of this replay has begun with the state folder"
                f" {self._settings.state.path!r}, and this one ends; let one of them run"
            )
        self._part = part
        if self._store.read(done_name(part)) is None:
            self._publisher = PartitionPublisher(self._options, Columns(_VALUE), part, self._sent)

    def finish(self) -> None:
        """Publish the rest of the current part, and record the part."""
        publisher = self._publisher
        if publisher is None:
            return
        publisher.flush()
        # The id makes the bytes unique to this attempt, see Store.create.
        record = {
            "messages": publisher.messages,
            "run": self._settings.run,
            "attempt": uuid.uuid4().hex,
        }
        if not self._store.create(done_name(self._part), json.dumps(record).encode()):
            log.warning(
                "part %d was published by another run at the same time, so its messages came twice",
                self._part,
            )
        self.close()

    def close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()


def _by_part(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield each part with its rows. The batch is sorted by part."""
    begin = 0
    for run in pc.value_counts(batch.column(_PART)).to_pylist():
        yield run["values"], batch.slice(begin, run["counts"])
        begin += run["counts"]
