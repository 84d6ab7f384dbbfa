"""Puts the batches of a query into an archive, each row once, whichever process dies and when.

Knows the steps from a DataFrame to files in place, and how to take them up again. A batch is first
written to a hidden folder. Then a record says which file goes where, and only then the files are
renamed into the archive. After a crash before the record the batch is written again, after it the
renames are finished; either way the archive has the batch once.

A message that nsqd delivered more than once (attempts > 1) is looked up in the archive. Its copies
have the same publish time, so they lie in the same hour's folder: no state is kept, and a copy
may come at any time later.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.spark import files
from gnsqsync.spark.jobs import compaction, parquet
from gnsqsync.spark.jobs.layout import ARCHIVE_SCHEMA, COLUMN_NAMES, HIDDEN, KEY, PARTITIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Settings:
    """How an archive is written: ``compact_every`` in seconds, 0 for never; sizes in bytes.

    ``look_up_all``: look up every message, not only those with attempts > 1. An nsqd that was
    killed may deliver again what it had on disk, and then knows of no earlier attempt.
    """

    compression: str = "zstd"
    compact_every: float = 600.0
    target_size: int = 128 << 20
    look_up_all: bool = False


@dataclass(slots=True)
class Counts:
    """What a writer did since it was made.

    ``rows``: put into the archive; ``duplicates``: left out, since the archive has them;
    ``merged``: files that compactions made superfluous.
    """

    batches: int = 0
    rows: int = 0
    duplicates: int = 0
    merged: int = 0


class ArchiveWriter:
    """The function for ``foreachBatch`` of one query that fills an archive.

    ``path``: the archive, a folder that driver and executors share. ``stream``: identifies the
    query's checkpoint; batch numbers mean something only together with it. ``on_batch`` is called
    after each batch with ``counts``. Called by Spark's thread of the query.
    """

    def __init__(
        self,
        path: str,
        stream: str,
        settings: Settings | None = None,
        on_batch: Callable[[Counts], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.counts: Counts = Counts()
        self._path = path
        # Batch numbers begin anew with each checkpoint.
        self._prefix = f"part-{stream[:8]}-"
        self._state = os.path.join(path, HIDDEN, stream)
        self._staging = os.path.join(self._state, "staging")
        self._settings = settings or Settings()
        self._on_batch = on_batch
        self._clock = clock
        files.make_folder(self._staging)

    def heal(self) -> None:
        """Finish the batch that a crash interrupted, and remove its leftovers. Needs no Spark."""
        with self._locked():
            record = self._record()
            if record is not None:
                self._finish(record)
            compaction.finish(self._path, self._state)
            for name in os.listdir(self._staging):
                files.remove_tree(os.path.join(self._staging, name))

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Put one batch into the archive; nothing happens when it is there already."""
        with self._locked():
            self._write(rows, batch)
            if self._compaction_due():
                self._compact(rows.sparkSession)
            self.counts.batches += 1
        if self._on_batch is not None:
            self._on_batch(self.counts)

    def _write(self, rows: DataFrame, batch: int) -> None:
        record = self._record()
        if record is not None:
            if record["batch"] > batch:
                raise ConfigError(
                    f"the checkpoint is at batch {batch}, but {self._path} has its batch"
                    f" {record['batch']}: an older checkpoint was put back; start with a new one"
                )
            # A crash came before the end of its renames, or before Spark noted that it is done.
            self._finish(record)
            if record["batch"] == batch:
                return
        attempt = os.path.join(self._staging, f"{batch}-{uuid.uuid4().hex}")
        folders = self._stage(rows, attempt)
        moves: list[tuple[str, str]] = []
        for folder in folders:
            for name in files.parquet_files(folder):
                files.sync_file(os.path.join(folder, name))
                final = f"{self._prefix}{batch:06}-{len(moves):03}.parquet"
                moves.append(
                    (
                        os.path.relpath(os.path.join(folder, name), self._state),
                        os.path.join(os.path.dirname(name), final),
                    )
                )
        if moves:
            record = {"batch": batch, "moves": moves}
            files.write_json(self._record_path, record)
            self._finish(record)
        files.remove_tree(attempt)

    def _stage(self, rows: DataFrame, attempt: str) -> list[str]:
        """Write the rows that are new; the folders below which they are."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        parquet.prepare(rows.sparkSession)
        seconds = F.floor(F.unix_micros("timestamp") / F.lit(1_000_000))
        # Computed from the epoch, so that the session's time zone does not matter.
        placed = rows.select(
            *COLUMN_NAMES,
            ((F.col("attempts") > 1) | F.lit(self._settings.look_up_all)).alias("again"),
            "topic",
            F.date_from_unix_date(F.floor(seconds / 86400).cast("int")).alias("date"),
            F.lpad((F.floor(seconds / 3600) % 24).cast("string"), 2, "0").alias("hour"),
        )
        seen = Observation()
        parquet.write(
            placed.observe(seen, F.count(F.lit(1)).alias("rows")),
            attempt,
            self._settings.compression,
            ("again", *PARTITIONS),
        )
        first, again = (os.path.join(attempt, f"again={flag}") for flag in ("false", "true"))
        new, returned = parquet.count_below(first), parquet.count_below(again)
        written = seen.get["rows"]
        if new + returned != written:
            raise NSQError(
                f"the executors wrote {written:,} rows to {self._path}, but the driver finds"
                f" {new + returned:,} there: set the archive's path to a folder that the driver and"
                " all executors share"
            )
        self.counts.rows += new
        if not returned:
            return [first]
        fresh = os.path.join(attempt, "fresh")
        self._stage_unknown(rows.sparkSession, first, again, fresh)
        kept = parquet.count_below(fresh)
        self.counts.rows += kept
        self.counts.duplicates += returned - kept
        return [first, fresh]

    def _stage_unknown(self, spark: SparkSession, first: str, again: str, fresh: str) -> None:
        """Write to ``fresh`` those rows of ``again`` that neither the archive nor ``first`` has."""
        from pyspark.sql import functions as F

        def read(base: str, paths: list[str]) -> DataFrame:
            reader = spark.read.schema(ARCHIVE_SCHEMA).option("basePath", parquet.uri(base))
            return reader.parquet(*map(parquet.uri, paths))

        key = ["topic", *KEY]
        hours = sorted({os.path.dirname(name) for name in files.parquet_files(again)})
        returned = read(again, [again]).dropDuplicates(key)
        low, high = returned.agg(F.min("timestamp"), F.max("timestamp")).collect()[0]
        for base in (self._path, first):
            there = [os.path.join(base, hour) for hour in hours]
            there = [path for path in there if files.parquet_files(path)]
            if there:
                known = read(base, there).where(F.col("timestamp").between(low, high))
                returned = returned.join(known.select(key), on=key, how="left_anti")
        hour = F.lpad(F.col("hour").cast("string"), 2, "0").alias("hour")
        returned = returned.select(*COLUMN_NAMES, "topic", "date", hour)
        parquet.write(returned, fresh, self._settings.compression, PARTITIONS)

    @property
    def _record_path(self) -> str:
        return os.path.join(self._state, "batch.json")

    def _record(self) -> dict[str, Any] | None:
        """The record of the last batch that was put into the archive."""
        found: dict[str, Any] | None = files.read_json(self._record_path)
        return found

    def _finish(self, record: dict[str, Any]) -> None:
        """Do the renames that are left. From here on the batch is in the archive for good."""
        if record.get("done"):
            return
        files.move_all(
            (os.path.join(self._state, source), os.path.join(self._path, target))
            for source, target in record["moves"]
        )
        notes = self._notes()
        folders = {os.path.dirname(target) for _, target in record["moves"]}
        if not folders <= set(notes["folders"]):
            notes["folders"] = sorted(folders | set(notes["folders"]))
            files.write_json(self._notes_path, notes)
        # From now on a compaction may remove its files, so they must not be looked for.
        files.write_json(self._record_path, {**record, "done": True})

    @property
    def _notes_path(self) -> str:
        return os.path.join(self._state, "compaction-notes.json")

    def _notes(self) -> dict[str, Any]:
        """The folders that got files since the last compaction, and when that was."""
        notes: dict[str, Any] | None = files.read_json(self._notes_path)
        if notes is None:
            notes = {"folders": [], "compacted_at": self._clock()}
            files.write_json(self._notes_path, notes)
        return notes

    def _compaction_due(self) -> bool:
        every = self._settings.compact_every
        return every > 0 and self._clock() >= self._notes()["compacted_at"] + every

    def _compact(self, spark: SparkSession) -> None:
        notes = self._notes()
        for folder in notes["folders"]:
            self.counts.merged += compaction.compact_folder(
                spark,
                self._path,
                self._state,
                folder,
                self._prefix,
                target_size=self._settings.target_size,
                compression=self._settings.compression,
            )
        files.write_json(self._notes_path, {"folders": [], "compacted_at": self._clock()})

    def _locked(self) -> AbstractContextManager[None]:
        # Two drivers on one checkpoint: Spark stops one of them, but not before its batch.
        return files.locked(os.path.join(self._state, "lock"))
