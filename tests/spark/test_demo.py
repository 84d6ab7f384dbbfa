"""``gnsqsync demo --spark``: as a user sees it, stopped, and when something is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

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


def test_what_is_missing_or_twice_is_told(
    pyspark: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gnsqsync.cli.demo_spark import count, report
    from gnsqsync.cli.demo_spark import verify as compare

    lines = [b"one", b"two", b"three"]
    for name, archived, sentence in (
        ("whole", lines, ""),
        ("short", lines[:2], "1 of 3 lines is missing in the Parquet files: 3"),
        ("other", [b"one", b"TWO", b"three"], "1 rows are not what was published"),
    ):
        write(tmp_path / name, archived)
        verdict = count(str(tmp_path / name), lines)
        assert report(verdict, 3) == int(bool(sentence))
        output = capsys.readouterr()
        assert sentence in output.err
        assert ("exactly once" in output.out) is not bool(sentence)
    assert report(compare(3, [1, 2, 2, 3, 3], 0), 3) == 1
    assert "2 of 3 lines are there more than once: 2, 3" in capsys.readouterr().err


def test_what_must_be_installed(pyspark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from gnsqsync.cli.demo_spark_setup import require

    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = importlib.util.find_spec
    here = object()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: here)
    with pytest.raises(
        click.ClickException, match="Spark needs Java 17 or later, and there is no java on"
    ):
        require()
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(click.ClickException, match=r"no java in JAVA_HOME \(/nowhere\)"):
        require()
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "pyspark" else found(name)
    )
    with pytest.raises(click.ClickException, match=r'pip install "gnsqsync\[cli,spark,report\]"'):
        require()


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
    from gnsqsync.cli.demo_spark_setup import working_folder
    from gnsqsync.errors import ConfigError

    (tmp_path / "mine").write_text("x")
    with pytest.raises(ConfigError, match="the folder is not empty"):
        with working_folder(str(tmp_path)):
            pass
    with pytest.raises(click.ClickException, match="mine is not a folder"):
        with working_folder(str(tmp_path / "mine" / "below")):
            pass
    with pytest.raises(ConfigError, match="without ;"):
        with working_folder(str(tmp_path / "a;b")):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]
