"""``gnsqsync demo --spark``: as a user sees it, stopped, and when something is missing."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import click
import pytest

from tests.spark.demos import TIMEOUT, Run

MESSAGES = 20_000


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    """Put a Run in here, and nobody of it outlives the test."""
    runs: list[Run] = []
    yield runs
    for run in runs:
        run.close()


@pytest.mark.timeout(TIMEOUT + 60)
def test_the_demo(pyspark: ModuleType, tmp_path: Path, runs: list[Run]) -> None:
    pytest.importorskip("matplotlib")
    from pyarrow import dataset

    kept = tmp_path / "kept"
    run = Run(tmp_path, "--messages", str(MESSAGES), "--keep", str(kept))
    runs.append(run)
    assert run.family.process.wait(TIMEOUT) == 0, run.text
    lines = run.text.splitlines()
    assert any(line.startswith("SIGKILL: Spark's worker ") for line in lines), run.text
    assert f"every one of the {MESSAGES:,} lines is in the Parquet files exactly once" in lines
    assert any(line.endswith("lines again, as nobody had finished them") for line in lines), (
        run.text
    )
    assert f"picture:  {kept / 'report.png'}" in lines
    assert lines[-1].split()[0] == "gnsqsync"
    assert (kept / "report.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in kept.iterdir()) == ["archive", "report.png", "rollup"]
    archive = dataset.dataset(kept / "archive", format="parquet")
    numbers = [int(body.split(b"\t")[0]) for body in archive.to_table()["value"].to_pylist()]
    assert sorted(numbers) == list(range(1, MESSAGES + 1))
    assert "Traceback" not in run.text
    run.wait_until_gone()


@pytest.mark.timeout(TIMEOUT + 60)
@pytest.mark.parametrize("text", ["starting Spark", "in Parquet files after "])
def test_ctrl_c_leaves_nothing(
    text: str, pyspark: ModuleType, tmp_path: Path, runs: list[Run]
) -> None:
    """``python -m tests.spark.ctrl_c`` does it at many moments."""
    pytest.importorskip("matplotlib")
    run = Run(tmp_path)
    runs.append(run)
    run.wait_for(text)
    run.interrupt()


def write(folder: Path, lines: list[bytes]) -> None:
    """An archive whose rows are these lines with their numbers."""
    import pyarrow as pa
    from pyarrow import parquet

    hour = folder / "topic=demo" / "date=2026-11-20" / "hour=18"
    hour.mkdir(parents=True)
    bodies = [b"%d\t%b" % pair for pair in enumerate(lines, 1)]
    table = pa.table({"value": bodies, "attempts": [1] * len(bodies)})
    parquet.write_table(table, hour / "part-0.parquet")


def test_the_lines_in_the_files(pyspark: ModuleType, tmp_path: Path) -> None:
    from gnsqsync.cli.demo_spark import numbers

    lines = [b"one", b"two", b"three"]
    write(tmp_path, [b"one", b"TWO", b"three", b"four"])
    assert [*numbers(str(tmp_path), lines)] == [1, 0, 3, 0]


class Query:
    """A query that does not end."""

    def awaitTermination(self, seconds: float) -> bool:
        return False


class Nsqd:
    """An nsqd with one consumer, which has this number of messages at each look."""

    def __init__(self, client_id: str, *in_flight: int) -> None:
        self._client_id = client_id
        self._in_flight = [*in_flight]

    def stats(self, topic: str, channel: str, *, include_mem: bool) -> Any:
        count = self._in_flight.pop(0) if self._in_flight[1:] else self._in_flight[0]
        client = SimpleNamespace(client_id=self._client_id, in_flight_count=count)
        channels = [SimpleNamespace(clients=[client])]
        return SimpleNamespace(topics=[SimpleNamespace(channels=channels)])


def test_the_worker_that_holds_messages_is_killed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gnsqsync.cli import demo_spark

    with subprocess.Popen(["sleep", "600"]) as worker:
        try:
            nsqds: Any = [Nsqd("another", 5), Nsqd(f"spark-{worker.pid}", 0, 0, 3)]
            query: Any = Query()
            assert demo_spark.kill_a_worker(query, nsqds)
            assert worker.wait(60) == -signal.SIGKILL
        finally:
            worker.kill()
    assert f"SIGKILL: Spark's worker {worker.pid} is dead" in capsys.readouterr().out
    # The pid is gone by now, so that nothing can be stopped.
    monkeypatch.setattr(demo_spark, "STOPPED_SECONDS", 0.1)
    assert not demo_spark.kill_a_worker(query, nsqds)


def test_the_pace_until_all_lines_are_archived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the lines wait for Spark's first batch. A worker is killed when it is there."""
    from gnsqsync.cli import demo_spark
    from gnsqsync.spark.jobs.batches import Counts

    clock = [100.0]
    batches = [Counts()]
    steps: list[tuple[float, int]] = []
    killed: list[float] = []

    class Run(Query):
        def awaitTermination(self, seconds: float) -> bool:
            clock[0] += 1.0
            steps.append((sender.limit, batches[-1].rows))
            sender.published = int(sender.limit)
            # The first batch ends after 100 seconds, each later one after a second.
            if len(steps) > 100:
                batches.append(Counts(len(batches), sender.published, 0))
            return len(steps) > 1000

    def kill(query: Any, clients: Any) -> bool:
        killed.append(sender.published)
        return True

    sender: Any = SimpleNamespace(total=2000, limit=0.0, published=0)
    sender.is_done = lambda: sender.published == 2000
    shown: list[str] = []
    view: Any = SimpleNamespace(show=lambda counts, line, title, rows: shown.append(line))
    query: Any = Run()
    monkeypatch.setattr(demo_spark, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(demo_spark, "kill_a_worker", kill)
    monkeypatch.setattr(demo_spark, "figures", lambda address, client: (address, 0, 0, 5, 0))
    demo_spark.watch(query, batches, sender, {"a:1": query, "b:1": query}, view)
    assert max(limit for limit, rows in steps if not rows) == 1000
    assert killed == [1000]
    assert batches[-1].rows == 2000
    assert shown[0].startswith("0 of 2,000 lines published, 0 in Parquet files after 0 batches")
    assert len(steps) < 120


def test_a_worker_that_gets_no_message_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from gnsqsync.cli import demo_spark

    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(demo_spark.os, "kill", lambda *each: sent.append(each))
    monkeypatch.setattr(demo_spark, "STOPPED_SECONDS", 0.1)
    nsqds: Any = [Nsqd("spark-7", 0)]
    query: Any = Query()
    assert not demo_spark.kill_a_worker(query, nsqds)
    assert sent == [(7, signal.SIGSTOP), (7, signal.SIGCONT)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--spark", "--messages", "10"], "--spark needs --messages 1000 or more"),
        (["--spark", "--work", "1"], "--work is of the demo without --spark"),
        (["--keep", "x"], "--keep needs --spark"),
    ],
)
def test_options_that_do_not_fit(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from gnsqsync.cli.app import run_command

    assert run_command(["demo", *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_only_an_empty_folder_is_kept(tmp_path: Path) -> None:
    from gnsqsync.cli.demo_spark import empty_folder
    from gnsqsync.errors import ConfigError

    (tmp_path / "mine").write_text("x")
    with pytest.raises(ConfigError, match="the folder is not empty"):
        empty_folder(str(tmp_path))
    with pytest.raises(click.ClickException, match="mine is not a folder"):
        empty_folder(str(tmp_path / "mine" / "below"))
    assert empty_folder(str(tmp_path / "a" / "b")) == str(tmp_path / "a" / "b")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
