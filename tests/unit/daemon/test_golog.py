"""Log lines in the form of the Go programs."""

from __future__ import annotations

import io
import re

import pytest

from gnsqsync.daemon.golog import Log


def test_form_of_a_line() -> None:
    stream = io.StringIO()
    Log("[nsqd] ", stream=stream).info("TCP: listening on %s:%d", "host", 4150)
    assert re.fullmatch(
        r"\[nsqd\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} INFO: TCP: listening on host:4150\n",
        stream.getvalue(),
    )


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("debug", ["DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]),
        ("info", ["INFO", "WARNING", "ERROR", "FATAL"]),
        ("warn", ["WARNING", "ERROR", "FATAL"]),
        ("error", ["ERROR", "FATAL"]),
        ("fatal", ["FATAL"]),
    ],
)
def test_levels(level: str, words: list[str]) -> None:
    stream = io.StringIO()
    log = Log("", stream=stream)
    log.level = level
    for write in (log.debug, log.info, log.warning, log.error, log.fatal):
        write("100%")
    assert re.findall(r"([A-Z]+): 100%\n", stream.getvalue()) == words


def test_stderr_of_the_moment(capsys: pytest.CaptureFixture[str]) -> None:
    Log("[x] ").error("here")
    assert capsys.readouterr().err.endswith(" ERROR: here\n")


def test_a_stream_that_is_gone_stops_nothing() -> None:
    stream = io.StringIO()
    stream.close()
    Log("", stream=stream).info("nobody reads this")
