"""Standard output and error that are closed, full, or without a reader."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TextIO

import pytest

from gnsqsync.cli import app
from gnsqsync.process.output import CannotWrite, drop_unwritten, flush, mention, say, send_nowhere
from tests.support.interpreter import run_script


@pytest.fixture
def left() -> Iterator[TextIO]:
    """A pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream:
        yield stream
        # The rest that is still in its buffer.
        send_nowhere(stream)


def test_a_line_beside_work_is_dropped_and_the_output_stays_as_it_is(left: TextIO) -> None:
    """A handler that prints must still learn that nobody reads."""
    mention(left, "a line")
    mention(left, "x" * 100_000)
    with pytest.raises(BrokenPipeError):
        print("a handler's", file=left, flush=True)


def test_a_line_that_is_a_result_leads_the_output_nowhere(left: TextIO) -> None:
    say(left, "a result")
    print("and what follows", file=left, flush=True)


def test_a_closed_stream_drops_lines_beside_work() -> None:
    with open(os.devnull, "w") as stream:
        pass
    mention(stream, "a line")


def test_unwritten_output_at_the_end_of_a_command(
    left: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", left)
    print("not flushed")
    flush()
    drop_unwritten()
    print("goes nowhere", flush=True)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_a_full_disk_is_told_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        mention(full, "a line")
        with pytest.raises(CannotWrite, match="No space left"):
            drop_unwritten()


def test_no_socket_gets_the_number_of_a_closed_stream() -> None:
    """Else what a child process of a handler prints would reach nsqd."""
    out = run_script("""
        import os
        from gnsqsync.process.output import replace_closed
        out = os.dup(1)
        for number in (0, 1, 2):
            os.close(number)
        replace_closed()
        assert all(os.get_inheritable(number) for number in (0, 1, 2))
        opened = os.open("/", os.O_RDONLY)
        os.write(out, str(opened > 2).encode())
    """)
    assert out == "True"


@pytest.mark.parametrize(
    ("command", "code"), [("tail", 0), ("stat", 0), ("pub", 1), ("consume", 1), ("topic", 1)]
)
def test_only_a_command_that_shows_is_done_when_nobody_looks(
    command: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short(*args: object, **options: object) -> None:
        raise app.ReaderLeft(command)

    monkeypatch.setattr(app.gnsqsync, "main", cut_short)
    monkeypatch.setattr(app, "send_nowhere", lambda stream: None)
    assert app.run_command([command]) == code
