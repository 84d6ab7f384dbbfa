"""The rollup: what it counts, and that it counts again only what changed."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs.batches import ArchiveWriter
from gnsqsync.spark.jobs.layout import Place
from gnsqsync.spark.jobs.rollup import Rolled, rollup
from gnsqsync.spark.stores import FileStore
from tests.spark.conftest import Ran

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The package has a function of the same name.
jobs_rollup = importlib.import_module("gnsqsync.spark.jobs.rollup")

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
SCHEMA = (
    "value binary, topic string, id string, timestamp timestamp, attempts int, nsqd string,"
    " received_at timestamp"
)


class Archive:
    """An archive that grows by batches."""

    def __init__(self, spark: SparkSession, path: Path) -> None:
        self.path = str(path)
        self._spark = spark
        self._writer = ArchiveWriter(Place(self.path), "0123456789abcdef")
        self._batch = 0

    def add(self, rows: Iterable[tuple[str, float, int, int, float]]) -> None:
        """Messages: topic, seconds after noon, size, attempts, delay in seconds."""
        made = [
            (
                b"x" * size,
                topic,
                f"{self._batch:08x}{number:08x}",
                NOON + timedelta(seconds=seconds),
                attempts,
                "n:4150",
                NOON + timedelta(seconds=seconds + delay),
            )
            for number, (topic, seconds, size, attempts, delay) in enumerate(rows)
        ]
        self._writer(self._spark.createDataFrame(made, SCHEMA), self._batch)
        self._batch += 1


@pytest.fixture
def archive(spark: SparkSession, tmp_path: Path) -> Archive:
    return Archive(spark, tmp_path / "archive")


@pytest.fixture
def out(tmp_path: Path) -> str:
    return str(tmp_path / "rollup")


def windows(path: str) -> dict[tuple[str, int], dict[str, Any]]:
    """(topic, seconds after noon) -> the other columns."""
    from pyarrow import dataset

    rows = dataset.dataset(path, format="parquet").to_table().to_pylist()
    found = {}
    for row in rows:
        began = row.pop("window_start").replace(tzinfo=UTC)
        found[row.pop("topic"), int((began - NOON).total_seconds())] = row
    assert len(found) == len(rows)
    return found


def test_counts_of_the_rollup(spark: SparkSession, archive: Archive, out: str) -> None:
    spark.conf.set("spark.sql.session.timeZone", "America/St_Johns")
    archive.add(("orders", n * 0.5, 10, 1, 0.01 * (n + 1)) for n in range(100))  # 50 seconds
    archive.add([("orders", 70, 7, 3, 2.0), ("orders", 119.999, 3, 1, 4.0)])
    archive.add([("payments", 3599.5, 100, 2, -0.25), ("payments", 3600, 1, 1, 86400.0)])
    assert rollup(spark, archive.path, out) == Rolled(hours=2, windows=4, messages=104)
    found = windows(out)
    assert set(found) == {("orders", 0), ("orders", 60), ("payments", 3540), ("payments", 3600)}
    first = found["orders", 0]
    assert first["delay_p50"] == pytest.approx(0.5, abs=0.011)
    assert first["delay_p95"] == pytest.approx(0.95, abs=0.011)
    assert first["delay_max"] == pytest.approx(1.0)
    counts = {name: first[name] for name in ("messages", "bytes", "attempts", "redelivered")}
    assert counts == {"messages": 100, "bytes": 1000, "attempts": 100, "redelivered": 0}
    assert first["window_seconds"] == 60
    second = found["orders", 60]
    assert (second["messages"], second["bytes"]) == (2, 10)
    assert (second["attempts"], second["redelivered"]) == (4, 1)
    assert found["payments", 3540]["delay_max"] == pytest.approx(-0.25)
    assert found["payments", 3600]["delay_p50"] == pytest.approx(86400.0)
    names = sorted(str(name.relative_to(out)) for name in Path(out).rglob("*.parquet"))
    assert names == [f"date=2026-11-20/hour={hour}/windows.parquet" for hour in (12, 13)]


def test_only_hours_that_changed_are_counted(
    spark: SparkSession, archive: Archive, out: str
) -> None:
    archive.add(("orders", n * 60, 10, 1, 0.1) for n in range(180))
    assert rollup(spark, archive.path, out).hours == 3
    assert rollup(spark, archive.path, out) == Rolled(0, 0, 0)
    archive.add([("orders", 3601, 10, 1, 0.1), ("late", 3602, 10, 1, 0.1)])
    untouched = Path(out, "date=2026-11-20", "hour=12", "windows.parquet")
    before = untouched.stat().st_mtime_ns
    assert rollup(spark, archive.path, out) == Rolled(hours=1, windows=61, messages=62)
    assert untouched.stat().st_mtime_ns == before
    assert sum(row["messages"] for row in windows(out).values()) == 182
    assert rollup(spark, archive.path, out, whole=True).hours == 3
    assert sum(row["messages"] for row in windows(out).values()) == 182


def test_a_window_of_time(spark: SparkSession, archive: Archive, out: str) -> None:
    archive.add(("orders", n * 60, 10, 1, 0.1) for n in range(300))
    start, end = NOON + timedelta(minutes=90), NOON + timedelta(hours=3)
    assert rollup(spark, archive.path, out, start=start, end=end).hours == 2
    assert {seconds // 3600 for _, seconds in windows(out)} == {1, 2}
    assert rollup(spark, archive.path, out).hours == 3


def test_hours_that_are_gone_stay(spark: SparkSession, archive: Archive, out: str) -> None:
    archive.add(("orders", n * 60, 10, 1, 0.1) for n in range(120))
    rollup(spark, archive.path, out)
    gone = Path(archive.path, "topic=orders", "date=2026-11-20", "hour=12")
    for file in gone.iterdir():
        file.unlink()
    gone.rmdir()
    assert rollup(spark, archive.path, out).hours == 0
    assert len(windows(out)) == 120


def test_an_hour_that_changes_while_it_is_read_is_read_again(
    spark: SparkSession, archive: Archive, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.add([("orders", 0, 1, 1, 0.1), ("orders", 3600, 1, 1, 0.1)])
    count = jobs_rollup._count

    def count_late(rows: Any, window: int) -> Any:
        archive.add([("orders", 1, 1, 1, 0.1)])
        return count(rows, window)

    with monkeypatch.context() as patch:
        patch.setattr(jobs_rollup, "_count", count_late)
        rollup(spark, archive.path, out)
    assert windows(out)["orders", 0]["messages"] == 1
    assert rollup(spark, archive.path, out) == Rolled(hours=1, windows=1, messages=2)
    assert windows(out)["orders", 0]["messages"] == 2


def test_rollup_dies_and_is_run_again(
    spark: SparkSession, archive: Archive, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.add(("orders", n * 60, 10, 1, 0.1) for n in range(120))
    put = FileStore.put

    def die(store: FileStore, name: str, data: bytes) -> None:
        put(store, name, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FileStore, "put", die)
        with pytest.raises(KeyboardInterrupt):
            rollup(spark, archive.path, out)
    assert rollup(spark, archive.path, out) == Rolled(hours=2, windows=120, messages=120)
    assert len(windows(out)) == 120


def test_two_at_a_time_are_counted_again(
    spark: SparkSession, archive: Archive, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.add([("orders", 0, 1, 1, 0.1)])
    count = jobs_rollup._count

    def count_late(rows: Any, window: int) -> Any:
        monkeypatch.setattr(jobs_rollup, "_count", count)
        archive.add([("orders", 1, 1, 1, 0.1)])
        assert rollup(spark, archive.path, out).messages == 2
        return count(rows, window)

    monkeypatch.setattr(jobs_rollup, "_count", count_late)
    assert rollup(spark, archive.path, out).messages == 1
    assert rollup(spark, archive.path, out) == Rolled(hours=1, windows=1, messages=2)


@pytest.mark.parametrize("window", [0, 7, 3601])
def test_windows_that_do_not_fit(
    spark: SparkSession, archive: Archive, out: str, window: int
) -> None:
    with pytest.raises(ConfigError, match="must divide an hour"):
        rollup(spark, archive.path, out, window=window)


def test_one_length_of_window(spark: SparkSession, archive: Archive, out: str) -> None:
    archive.add(("orders", n, 10, 1, 0.1) for n in range(100))
    rollup(spark, archive.path, out, window=10)
    assert len(windows(out)) == 10
    with pytest.raises(ConfigError, match="has windows of 10 seconds, not 60: use another"):
        rollup(spark, archive.path, out)


def test_no_archive(spark: SparkSession, tmp_path: Path, out: str) -> None:
    with pytest.raises(ConfigError, match="there is no archive at"):
        rollup(spark, str(tmp_path), out)
    with pytest.raises(ConfigError, match="is not on storage that this knows"):
        rollup(spark, "hdfs://host/nsq", out)


def test_the_command(run_here: Callable[..., Ran], archive: Archive, out: str) -> None:
    archive.add(("orders", n, 10, 1, 0.1) for n in range(100))
    words = ["spark", "rollup", archive.path, out, "--json", "--master", "local[1]"]
    ran = run_here(*words, "--window", "20", "--start", "2026-11-20T12:00")
    told = json.loads(ran.stdout)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (told["hours"], told["windows"], told["messages"]) == (1, 5, 100)
