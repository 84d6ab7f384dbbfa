"""The writer of a query's batches into an archive: each row once, at any crash of any process.

Knows the steps from a DataFrame to files in place, and how to resume them:

1. Tasks write the files of a batch to a hidden folder, under unique names.
2. The driver makes a record that gives each file its name in the archive. A batch can have only
   one record.
3. The driver gives the files these names.

After a crash before the record, the batch is written again. After a crash behind the record, the
naming is finished. A driver or task that was believed dead changes nothing later, because it has
no record.

A message that nsqd delivered more than once (attempts > 1) is looked up in the archive. Its copies
have the same publish time, so they lie in the folder of the same hour. No state is kept, and a copy
may come at any time later.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.spark.jobs.layout import (
    COLUMN_NAMES,
    HIDDEN,
    KEY,
    Place,
    changed_name,
    folder_of,
    moment,
    number_of,
)
from gnsqsync.spark.jobs.reading import read
from gnsqsync.spark.jobs.snapshot import snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from gnsqsync.spark.jobs.staging import Staged

# Number of records that are kept. A driver that was away for long then finds its batch done.
_RECORDS = 100


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of the writer of an archive.

    ``look_up_all``: True to look up every message, not only messages with attempts > 1. A killed
    nsqd may deliver messages from its disk again, and does not know of the earlier attempt.
    """

    compression: str = "zstd"
    look_up_all: bool = False


@dataclass(slots=True)
class Counts:
    """Counts of a writer since it was made.

    ``rows``: rows put into the archive. ``duplicates``: rows left out because the archive has them.
    A batch that another driver put there first is not counted.
    """

    batches: int = 0
    rows: int = 0
    duplicates: int = 0


class ArchiveWriter:
    """The function for ``foreachBatch`` of one query that fills an archive.

    ``stream``: the id of the query's checkpoint; batch numbers are unique only together with it.
    ``on_batch`` is called after each batch with ``counts``. Spark calls the function on the query's
    thread. Several writers and compactions may work on one archive at a time.
    """

    def __init__(
        self,
        place: Place,
        stream: str,
        settings: Settings | None = None,
        on_batch: Callable[[Counts], None] | None = None,
    ) -> None:
        self.counts: Counts = Counts()
        self._place = place
        self._store = place.open()
        # Begin of the names of files. Batch numbers begin anew with each checkpoint, so it has the
        # checkpoint's id.
        self._prefix = f"part-{stream[:8]}-"
        self._stream = stream
        self._state = f"{HIDDEN}/{stream}"
        self._settings = settings or Settings()
        self._on_batch = on_batch
        # Rows of the current batch that the archive has already.
        self._duplicates = 0

    def heal(self) -> None:
        """Finish the batch that a crash interrupted. Needs no Spark."""
        names = self._store.list(f"{self._state}/batches")
        if names:
            self._finish(names[-1])

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Put one batch into the archive. A batch that the archive has already changes nothing."""
        self._duplicates = 0
        staged = self._write(rows, batch)
        if staged is not None:
            self.counts.batches += 1
            self.counts.rows += sum(file.rows for file in staged)
            self.counts.duplicates += self._duplicates
        if self._on_batch is not None:
            self._on_batch(self.counts)

    def _write(self, rows: DataFrame, batch: int) -> list[Staged] | None:
        """Write the batch. Return its files, or None if the archive has the batch already."""
        names = self._store.list(f"{self._state}/batches")
        name = f"{self._state}/batches/{batch:012}.json"
        if names and names[-1] > name:
            raise ConfigError(
                f"the checkpoint is at batch {batch}, but {self._store.url} has its batch"
                f" {number_of(names[-1])}: an older checkpoint was put back; start with a new one"
            )
        if names:
            # A crash may have come before the end of the last batch, or before Spark's note of it.
            self._finish(names[-1])
            if names[-1] == name:
                return None
        attempt = f"{self._state}/staging/{batch:012}-{uuid.uuid4().hex}"
        try:
            staged = self._stage(rows, attempt)
        except BaseException:  # any error, such as a full disk: the batch is written again
            self._store.delete_folder(attempt)
            raise
        if not staged:
            self._store.delete_folder(attempt)
            return staged
        files = []
        for number, file in enumerate(staged):
            final = f"{self._prefix}{batch:06}-{number:03}.parquet"
            files.append((file.name, f"{file.folder}/{final}"))
        record = {"batch": batch, "done": False, "files": files}
        # False if another driver with this checkpoint was faster. Its batch has the same rows.
        is_ours = self._store.create(name, json.dumps(record).encode())
        self._finish(name)
        # Other attempts at this batch, or at an earlier one, cannot get a record now.
        staging = f"{self._state}/staging"
        for folder in self._store.folders(staging):
            if number_of(folder) <= batch:
                self._store.delete_folder(f"{staging}/{folder}")
        self._store.delete(names[: -_RECORDS + 1])
        return staged if is_ours else None

    def _stage(self, rows: DataFrame, attempt: str) -> list[Staged]:
        """Write the rows that are new, and return their files."""
        from pyspark.sql import functions as F

        again = (F.col("attempts") > 1) | F.lit(self._settings.look_up_all)
        written = self._run(
            rows.select(*COLUMN_NAMES, "topic", again.alias("again")), f"{attempt}/first"
        )
        there = set(self._store.list(attempt))
        if missing := [file for file in written if file.name not in there]:
            raise NSQError(
                f"the executors wrote {sum(file.rows for file in missing):,} rows to"
                f" {self._store.url} that the driver does not find there: set the archive's path to"
                " storage that the driver and all executors share"
            )
        first = [file for file in written if not file.again]
        returned = [file for file in written if file.again]
        if returned:
            fresh = self._stage_unknown(rows, first, returned, f"{attempt}/fresh")
            kept = sum(file.rows for file in fresh)
            self._duplicates = sum(file.rows for file in returned) - kept
            first += fresh
        return first

    def _stage_unknown(
        self, rows: DataFrame, first: list[Staged], again: list[Staged], folder: str
    ) -> list[Staged]:
        """Write the rows of ``again`` that neither the archive nor ``first`` has."""
        from pyspark.sql import functions as F

        spark = rows.sparkSession
        key = ["topic", *KEY]
        returned = read(
            spark,
            self._place,
            [(file.name, file.folder, file.bytes) for file in again],
            [*COLUMN_NAMES, "topic"],
        ).dropDuplicates(key)
        hours = {file.folder for file in again}
        known = [
            (name, folder_of(name), size) for name, size in snapshot(self._store, hours).items()
        ]
        known += [(file.name, file.folder, file.bytes) for file in first if file.folder in hours]
        if known:
            low = moment(min(file.low for file in again))
            high = moment(max(file.high for file in again) + 1)
            there = read(spark, self._place, known, key, low, high)
            returned = returned.join(there, on=key, how="left_anti")
        returned = returned.select(*COLUMN_NAMES, "topic", F.lit(False).alias("again"))
        return self._run(returned, folder)

    def _run(self, rows: DataFrame, folder: str) -> list[Staged]:
        from gnsqsync.spark.jobs.staging import FORMAT, LIST, Staged, StagingSink

        rows.sparkSession.dataSource.register(StagingSink)
        (
            rows.write.format(FORMAT)
            .mode("append")
            .options(
                archive=self._place.path,
                storage=json.dumps(dict(self._place.options)),
                folder=folder,
                compression=self._settings.compression,
            )
            .save()
        )
        data = self._store.read(f"{folder}/{LIST}")
        assert data is not None
        return [Staged(*file) for file in json.loads(data)]

    def _finish(self, name: str) -> None:
        """Give the files of a record their names, as far as that is not done."""
        record = self._record(name)
        if record["done"]:
            return
        files = [(source, target) for source, target in record["files"]]
        try:
            self._store.copy(files)
        except FileNotFoundError:
            if self._record(name)["done"]:
                return  # another driver did it, and a compaction has merged the files since
            raise
        mark = f"{self._stream}-{record['batch']}".encode()
        for folder in sorted({folder_of(target) for _, target in files}):
            self._store.put(changed_name(folder), mark)
        # The sources are deleted before the record is done. After that a compaction may merge the
        # files, and a late copy from a source would bring one back.
        self._store.delete((source for source, _ in files), durable=True)
        self._store.put(name, json.dumps({**record, "done": True}).encode())

    def _record(self, name: str) -> dict[str, Any]:
        data = self._store.read(name)
        if data is None:
            # A record is deleted _RECORDS batches later, so its batch is done.
            return {"done": True}
        record: dict[str, Any] = json.loads(data)
        return record
