"""Warnings about options at the start: once for all processes, equal ones in one line."""

from __future__ import annotations

import pytest

from gnsqsync import Reader
from gnsqsync.reader.advice import Told
from gnsqsync.reader.group import advise_once


def reader(channel: str, **options: object) -> Reader:
    return Reader("t", channel, print, nsqd_tcp_addresses="127.0.0.1:1", **options)  # type: ignore[arg-type]


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_equal_warnings_are_one_line_and_come_once(caplog: pytest.LogCaptureFixture) -> None:
    readers = [reader("a"), reader("b"), reader("c", on_giving_up="discard")]
    readers.append(reader("d", max_attempts=7))
    advise_once(readers)
    advise_once(readers)
    first, second = texts(caplog)
    assert first.startswith("t/a, t/b: a message that fails on attempt 5 (max_attempts) or later")
    assert second.startswith("t/d: a message that fails on attempt 7 (max_attempts) or later")


def test_readers_of_a_topic_group_tell_once_each_kind_of_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told = Told()
    for name in ("a", "b"):
        advise_once([reader(name)], told)
        advise_once([reader(name, max_attempts=7)], told)
        advise_once([reader(name, on_giving_up="discard", concurrency=2, max_in_flight=1)], told)
    five, seven, in_flight = texts(caplog)
    assert five.startswith("t/a and further topics: a message that fails on attempt 5 ")
    assert seven.startswith("t/a and further topics: a message that fails on attempt 7 ")
    assert in_flight.startswith("t/a: max_in_flight is 1 for 2 workers")


def test_a_reader_alone_tells_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    one = reader("a")
    one.start(block=False)
    one.stop(0)
    one.join(10)
    assert len([text for text in texts(caplog) if "(max_attempts)" in text]) == 1


def test_a_reader_of_a_process_that_was_told_is_silent(caplog: pytest.LogCaptureFixture) -> None:
    one = reader("a")
    advise_once([one])
    caplog.clear()
    one.start(block=False)
    one.stop(0)
    one.join(10)
    assert not [text for text in texts(caplog) if "(max_attempts)" in text]
