"""What a task of a replay does: publishes parts one after the other and records each.

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
# Name of the option that holds Settings; all others are the sink's.
_SETTINGS = "gnsqsyncreplay"
# The columns of the rows, sorted by the first.
_PART, _VALUE = 0, 1
# With a rate: the messages of so many seconds are published at once.
_BURST_SECONDS = 0.1

RUN = "run"


def done_name(part: int) -> str:
    return f"done/{part:08d}"


@dataclass(frozen=True)
class Settings:
    """What the tasks of one run need. ``rate``: messages per second of each task, or None."""

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
    """Keeps to a rate: ``spent()`` returns when the time for the published messages is over.

    Time that passed without a message is not made up for by more of them later.
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
    """Where a replay writes; registered by it, not for users."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        options = {name.lower(): value for name, value in self.options.items()}
        settings = Settings.from_text(options.pop(_SETTINGS))
        return ReplayWriter(settings, SinkOptions.parse(options))


class ReplayWriter(DataSourceArrowWriter):
    """Publishes the parts of a partition in their order, and records each that is confirmed.

    The record is made after the last confirmation and only once: no later run publishes a part with
    a record again. A part without one may be published in part already.
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
    """The part at hand of one task."""

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
        self._part = -1
        self._publisher: PartitionPublisher | None = None

    def take(self, part: int, rows: pa.RecordBatch) -> None:
        if part != self._part:
            self.finish()
            self._begin(part)
        if self._publisher is not None:
            self._publisher.publish_batch(rows)

    def _begin(self, part: int) -> None:
        """Unless it is done, by an attempt of this task before."""
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
        """Record the part at hand when all of it is confirmed."""
        publisher = self._publisher
        if publisher is None:
            return
        publisher.flush()
        # The id makes the bytes this attempt's own, see Store.create.
        record = {
            "messages": publisher.messages,
            "run": self._settings.run,
            "attempt": uuid.uuid4().hex,
        }
        if not self._store.create(done_name(self._part), json.dumps(record).encode()):
            log.warning(
                "part %d was published by somebody else at the same time, so it is there twice",
                self._part,
            )
        self.close()

    def close(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            publisher.close()


def _by_part(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each part; the batch is sorted by it."""
    begin = 0
    for run in pc.value_counts(batch.column(_PART)).to_pylist():
        yield run["values"], batch.slice(begin, run["counts"])
        begin += run["counts"]
