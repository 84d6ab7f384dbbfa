"""The commands that a demonstration ends with are commands, with options that they have."""

from __future__ import annotations

import click
import pytest

from gnsqsync.cli.app import gnsqsync
from gnsqsync.cli.demo import report
from gnsqsync.cli.demo_lines import NEXT, NEXT_WITH_SPARK, Verdict


@pytest.mark.parametrize("line", {**NEXT, **NEXT_WITH_SPARK})
def test_a_command_to_try_next_is_one(line: str) -> None:
    program, *words = line.split()
    assert program == gnsqsync.name
    command: click.Command | None = gnsqsync
    while isinstance(command, click.Group):
        name, *words = words
        command = command.get_command(click.Context(command), name)
    assert command is not None
    if words == ["--help"]:
        assert command.get_help(click.Context(command, info_name=name))
    else:
        command.make_context(name, words)


def test_a_demonstration_ends_with_what_to_do_next(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(Verdict((), (), 0), 3) == 0
    said, *lines = capsys.readouterr().out.splitlines()
    assert said == "every one of the 3 lines arrived"
    assert [line.split("  ")[1] for line in lines[1:]] == [*NEXT]
    assert report(Verdict((2,), (), 0), 3) == 1
    assert "gnsqsync cluster" not in capsys.readouterr().out
