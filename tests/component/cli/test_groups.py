"""Groups of commands in the help page, and the old names of commands that moved below ``spark``."""

from __future__ import annotations

import importlib.util
import re
import runpy

import click
import pytest
from click.shell_completion import ShellComplete

from gnsqsync.cli.app import COMMANDS, GROUPS, RENAMED, SERVERS, SPARK, gnsqsync, run_command


def test_help_shows_each_command_once_below_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["--help"]) == 0
    page = capsys.readouterr().out
    _, *parts = re.split(r"^(Use|Operate|Servers|Spark):\n", page, flags=re.MULTILINE)
    shown = {
        heading: re.findall(r"^  (\S+(?: \S+)?)  ", body.partition("\n\n")[0], re.MULTILINE)
        for heading, body in zip(parts[::2], parts[1::2], strict=True)
    }
    assert shown == {
        **{heading: [*names] for heading, names in GROUPS.items()},
        "Spark": [f"spark {name}" for name in SPARK],
    }
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(
        {**COMMANDS, **SERVERS}
    )


def test_help_of_spark_shows_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["spark", "--help"]) == 0
    page = capsys.readouterr().out
    for name, (_, text) in SPARK.items():
        assert re.search(rf"^  {name} +{re.escape(text)}$", page, re.MULTILINE)


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_name_runs_the_command_and_says_the_new_name(
    old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([old, "--help"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith(f"Usage: gnsqsync spark {RENAMED[old]} ")
    (line,) = told.err.splitlines()
    assert f"'gnsqsync {old}' is now 'gnsqsync spark {RENAMED[old]}'" in line


@pytest.mark.parametrize("name", SPARK)
def test_a_new_name_says_nothing_on_stderr(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["spark", name, "--help"]) == 0
    assert capsys.readouterr().err == ""


def test_an_old_name_is_completed_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    shell = ShellComplete(gnsqsync, {}, "gnsqsync", "_GNSQSYNC_COMPLETE")
    found = [item.value for item in shell.get_completions(["archive"], "--interv")]
    assert found == ["--interval"]
    assert capsys.readouterr().err == ""


def test_old_names_are_neither_listed_nor_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert not RENAMED.keys() & set(gnsqsync.list_commands(click.Context(gnsqsync)))
    assert run_command(["spark-lag"]) == 2
    assert "spark-log" not in capsys.readouterr().err


def test_spark_submit_takes_the_words_after_gnsqsync_spark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["gnsqsync_job.py", "archive", "--help"])
    found = importlib.util.find_spec("gnsqsync.cli.submit.gnsqsync_job")
    assert found is not None and found.origin is not None
    with pytest.raises(SystemExit) as end:
        runpy.run_path(found.origin, run_name="__main__")
    assert end.value.code == 0
    told = capsys.readouterr()
    assert told.out.startswith("Usage: gnsqsync spark archive ")
    assert told.err == ""
