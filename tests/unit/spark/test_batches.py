"""Who counts the rows of a batch, and what a batch that fails leaves behind. No Spark."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gnsqsync.spark.jobs.batches import ArchiveWriter, Counts
from gnsqsync.spark.jobs.layout import Place

FOLDER = "topic=t/date=2026-11-20/hour=05"


class File(NamedTuple):
    """The story that a task tells of a file that it has written."""

    name: str
    folder: str
    rows: int


class Writer(ArchiveWriter):
    """Stages one file for each batch. Another driver may write the same batch meanwhile."""

    meanwhile: ArchiveWriter | None = None
    failure: OSError | None = None

    def _stage(self, rows: Any, attempt: str) -> Any:
        name = f"{attempt}/first/one.parquet"
        self._store.create(name, b"rows")
        if self.failure is not None:
            raise self.failure
        self._duplicates = 2
        if self.meanwhile is not None:
            other, self.meanwhile = self.meanwhile, None
            other(rows, 0)
        return [File(name, FOLDER, 7)]


def writer(path: Path) -> Writer:
    return Writer(Place(str(path)), "0123456789abcdef")


def parquet_files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.parquet"))


def test_one_of_two_concurrent_runs_counts_the_rows(tmp_path: Path) -> None:
    rows: Any = None
    first, second = writer(tmp_path), writer(tmp_path)
    first.meanwhile = second
    first(rows, 0)
    assert (first.counts, second.counts) == (Counts(), Counts(batches=1, rows=7, duplicates=2))
    late = writer(tmp_path)
    late(rows, 0)
    assert late.counts == Counts()
    assert [path.parent for path in parquet_files(tmp_path)] == [tmp_path / FOLDER]


def test_a_batch_that_fails_leaves_no_file(tmp_path: Path) -> None:
    rows: Any = None
    full = writer(tmp_path)
    full.failure = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        full(rows, 0)
    assert parquet_files(tmp_path) == []
    assert full.counts == Counts()
    full.failure = None
    full(rows, 0)
    assert full.counts == Counts(batches=1, rows=7, duplicates=2)
