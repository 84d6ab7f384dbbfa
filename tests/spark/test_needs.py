"""What is missing or mistyped: one sentence and exit code 1, in each command on Spark."""

from __future__ import annotations

import importlib.util
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gnsqsync.cli.app import run_command

Say = Callable[..., str]


def commands(folder: Path) -> dict[str, list[str]]:
    """Each command that starts Spark, with what it needs to get so far."""
    hour = folder / "archive" / "topic=orders" / "date=2026-11-20" / "hour=18"
    hour.mkdir(parents=True)
    archive = str(hour.parents[2])
    return {
        "archive": ["spark", "archive", "orders", "-c", "c", "--to", str(folder / "to")],
        "replay": ["spark", "replay", archive, "again", "--state", str(folder / "state")],
        "rollup": ["spark", "rollup", archive, str(folder / "rollup")],
        "demo": ["demo", "--spark"],
    }


NAMES = ["archive", "replay", "rollup", "demo"]


@pytest.fixture
def say(pyspark: ModuleType, capsys: pytest.CaptureFixture[str]) -> Say:
    """Runs a command that fails: its one line on stderr."""

    def run(*arguments: str, code: int = 1) -> str:
        assert run_command(arguments) == code
        output = capsys.readouterr()
        (line,) = output.err.splitlines()
        assert output.out == ""
        return line

    return run


@pytest.mark.parametrize("name", NAMES)
def test_no_java(name: str, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    command = commands(tmp_path)[name]
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "Spark needs Java 17 or later, and there is no java on the PATH: install" in say(
        *command
    )
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert "there is no java in JAVA_HOME (/nowhere): install" in say(*command)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ("echo 'openjdk version \"11.0.2\" 2019-01-15' >&2", "is Java 11: install a JDK 17"),
        ("echo 'java version \"1.8.0_402\"' >&2", "is Java 8: install a JDK 17"),
    ],
)
def test_an_old_java(
    told: str, sentence: str, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{told}\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert sentence in say(*commands(tmp_path)["rollup"])
    java.write_bytes(b"\x7fELF, but for another machine")
    assert f"{java} does not run (" in say(*commands(tmp_path / "2")["rollup"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "matplotlib"])
def test_no_package(
    name: str, package: str, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == package else found(name)
    )
    for module in [each for each in sys.modules if each.split(".")[0] == package]:
        monkeypatch.setitem(sys.modules, module, None)
    command = commands(tmp_path)[name]
    if package == "matplotlib" and name != "demo":
        command = ["spark", "report", command[2], str(tmp_path / "week.png")]
    line = say(*command)
    assert f'needs {package}, which is not installed here: pip install "gnsqsync[' in line


def test_no_package_for_an_object_store(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fsspec")
    for module in [each for each in sys.modules if each.split(".")[0] == "s3fs"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    command = commands(tmp_path)["archive"]
    line = say(*command, "--option", "walPath=s3://bucket/wal")
    assert 'pip install "s3fs' in line


@pytest.mark.parametrize("name", ["archive", "replay", "rollup"])
def test_a_master_that_there_is_not(name: str, say: Say, tmp_path: Path) -> None:
    command = commands(tmp_path)[name]
    line = say(*command, "--master", "locl[2]")
    assert "--master locl[2]: Spark has no such master: write local[2], spark://host:7077" in line
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        line = say(*command, "--master", f"spark://127.0.0.1:{port},127.0.0.1:{port}")
    assert "no master can be reached: 127.0.0.1:" in line
    assert "Connection refused" in line


@pytest.mark.parametrize(
    ("name", "option"),
    [("archive", "--to"), ("archive", "--checkpoint"), ("replay", "--state"), ("demo", "--keep")],
)
def test_a_target_that_cannot_be_written(name: str, option: str, say: Say, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "file").touch()
    line = say(*commands(tmp_path)[name], option, str(tmp_path / "file" / "below"))
    assert f"{option} {tmp_path}/file/below: {tmp_path}/file is not a folder; name a" in line


def test_a_rollup_or_picture_that_cannot_be_written(say: Say, tmp_path: Path) -> None:
    command = commands(tmp_path)["rollup"]
    assert "/proc/version is not a folder" in say("spark", "rollup", command[2], "/proc/version/x")


def test_a_folder_of_somebody_else(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write everywhere, and tests run as root.
    monkeypatch.setattr("os.access", lambda path, mode: False)
    line = say(*commands(tmp_path)["archive"])
    assert f"--to {tmp_path}/to: this user may not write in {tmp_path}; name a folder" in line


def test_a_topic_that_the_archive_has_not(tmp_path: Path) -> None:
    from gnsqsync.errors import NSQError
    from gnsqsync.spark.jobs.replay import replay

    for topic in ("orders", "payments%23ephemeral"):
        (tmp_path / f"topic={topic}").mkdir()
    # Told before Spark is asked for anything.
    no_spark: Any = None
    with pytest.raises(NSQError, match="has no topic 'ordrs'; it has orders, payments#ephemeral"):
        replay(
            no_spark,
            str(tmp_path),
            "again",
            topics=["orders", "ordrs"],
            options={"nsqdTcpAddresses": "127.0.0.1:4150"},
            dry_run=True,
        )


def test_an_error_of_the_disk_while_a_job_runs(pyspark: ModuleType, tmp_path: Path) -> None:
    import click

    from gnsqsync.cli.spark_options import spark_errors

    with pytest.raises(click.ClickException, match="nothing: No such file or directory"):
        with spark_errors(verbose=False):
            (tmp_path / "nothing").read_bytes()
