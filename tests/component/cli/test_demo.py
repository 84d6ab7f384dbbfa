"""The demonstration in this process: its lines, its verdict, its figures, its last words."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from gnsqsync.cli.app import gnsqsync, run_command
from gnsqsync.cli.demo import failing_calls
from gnsqsync.cli.demo_parts import NEXT, NEXT_WITH_SPARK, judge, number_of, read_lines
from gnsqsync.cli.progress import Figures

FILES = " in the Parquet files"


@pytest.mark.parametrize("line", {**NEXT, **NEXT_WITH_SPARK})
def test_a_command_to_try_next_exists(line: str) -> None:
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


@pytest.mark.parametrize("content", [b"only one", b"\n\n\n", b"a\r\n\xff\x00\tb\n\n" * 300])
def test_a_line_is_known_by_its_number(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "lines"
    file.write_bytes(content)
    lines = read_lines(str(file))
    assert b"\n".join(lines) == content.removesuffix(b"\n")
    bodies = [b"%d\t%b" % pair for pair in enumerate(lines, 1)]
    assert [number_of(body, lines) for body in bodies] == [*range(1, len(lines) + 1)]
    others = b"", b"1", b"0\t" + lines[0], b"1\t" + lines[0] + b"!", b"%d\t" % (len(lines) + 1)
    assert {number_of(body, lines) for body in others} - {1} == {0}
    assert read_lines(str(file), 7) == (lines * 7)[:7]


def test_all_lines_arrive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\r\n\xff\x00\tb\n\n" * 300)
    assert run_command(["demo", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "every one of the 900 lines arrived" in lines
    assert any(line.startswith("20 handlers failed on purpose, ") for line in lines)
    assert [line.split("  ")[1] for line in lines[-len(NEXT) :]] == [*NEXT]


@pytest.mark.parametrize(
    ("arrivals", "files", "out", "err"),
    [
        ([3, 1, 2], "", "every one of the 3 lines arrived", ""),
        ([3, 1, 2], FILES, "every one of the 3 lines is in the Parquet files exactly once", ""),
        (
            [3, 1, 2, 3],
            "",
            "delivered more than once, as NSQ may do: 1 line\nevery one of the 3 lines arrived",
            "",
        ),
        (
            [2, 2, 3, 3, 1],
            FILES,
            "",
            "2 of 3 lines arrived more than once in the Parquet files: 2, 3",
        ),
        ([1, 2], FILES, "", "1 of 3 lines did not arrive in the Parquet files: 3"),
        (
            [2, 2],
            "",
            "delivered more than once, as NSQ may do: 1 line",
            "2 of 3 lines did not arrive: 1, 3",
        ),
        ([1, 2, 3, 0], "", "", "not what was published: 1 message"),
    ],
)
def test_the_verdict(
    arrivals: list[int], files: str, out: str, err: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert judge(3, arrivals, files) == int(bool(err))
    said = capsys.readouterr()
    assert said.out == (f"{out}\n" if out else "")
    assert said.err == (f"gnsqsync: {err}\n" if err else "")


def test_a_long_list_of_lines_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert judge(2000, []) == 1
    assert capsys.readouterr().err.endswith(
        ": 2,000 of 2,000 lines did not arrive: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 1,990 more\n"
    )


def test_calls_that_fail() -> None:
    assert failing_calls(1000) == {*range(301, 312), *range(701, 712)}
    assert failing_calls(1) == {1}
    assert max(failing_calls(3)) <= 3


def test_a_terminal_shows_bars_and_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with Figures(("published", "consumed"), 5000, ("RDY", "in flight")) as view:
        view.show((3000, 1234), "a line", "consumer", [("b:1", 1, 2000), ("a:1", 3, 4)], "so far")
        click.echo("a line that stays")
    text = capsys.readouterr().out
    assert "3000/5000" in text
    assert "1234/5000" in text
    assert text.index("a:1") < text.index("b:1")
    assert "2,000" in text
    assert "so far" in text
    assert "a line that stays" in text
    assert "a line\n" not in text
