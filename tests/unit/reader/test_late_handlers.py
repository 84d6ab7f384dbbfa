"""The time of a handler whose FIN nsqd refuses: what is kept of it, and what the line says."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from gnsqsync.errors import server_error
from gnsqsync.message import Message
from gnsqsync.reader.chunks import Chunks
from gnsqsync.reader.events import Events
from gnsqsync.reader.timings import Late
from gnsqsync.runtime import choose


class Clock:
    """A runtime whose time is set by hand."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self._real: Any = choose("threads")

    def now(self) -> float:
        return self.seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def message(id: bytes, received_at: float) -> Message:
    return Message(id, b"x", 1, 0, None, received_at=received_at)  # type: ignore[arg-type]


CONNECTION: Any = SimpleNamespace(nsqd_address="a:1", msg_timeout=60.0, delivers=True)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def chunks(clock: Clock) -> Chunks:
    runtime: Any = clock
    return Chunks(runtime.queue(), runtime, cuts=True)


def test_a_handler_that_outlives_the_timeout_is_remembered_once(
    clock: Clock, chunks: Chunks
) -> None:
    slow = message(b"slow", 90.0)
    chunks.begin(0, (CONNECTION, [slow]))
    clock.seconds = 160.0
    chunks.end_of(0)
    assert chunks.late("slow") == Late(60.0, 1, 10.0)
    assert chunks.late("slow") is None


def test_a_handler_in_time_is_not_late(clock: Clock, chunks: Chunks) -> None:
    for number in range(2000):
        chunks.begin(0, (CONNECTION, [message(b"%d" % number, clock.seconds)]))
        clock.seconds += 59.0
        chunks.end_of(0)
    assert all(chunks.late(str(number)) is None for number in range(2000))


def test_a_handler_that_has_answered_and_goes_on_has_its_time_until_now(
    clock: Clock, chunks: Chunks
) -> None:
    messages = [message(b"one", 100.0), message(b"two", 100.0)]
    left, _ = chunks.begin(0, (CONNECTION, messages))
    next(left)
    clock.seconds = 175.0
    assert chunks.late("one") == Late(75.0, 1, 0.0)
    assert chunks.late("two") is None


def test_only_a_thousand_are_remembered(clock: Clock, chunks: Chunks) -> None:
    for number in range(1500):
        chunks.begin(0, (CONNECTION, [message(b"%d" % number, 0.0)]))
        chunks.end_of(0)
    assert chunks.late("499") is None
    assert chunks.late("500") == Late(0.0, 1, 100.0)


@pytest.mark.parametrize(
    ("late", "told"),
    [
        (None, ""),
        (Late(65.0, 1, 0.0), ", and its handler took 65 s"),
        (
            Late(1.5, 1, 61.0),
            ", and its handler took 1.5 s, after the message had waited here for 61 s",
        ),
        (Late(65.0, 3, 0.0), ", and its handler took 65 s for 3 messages"),
    ],
)
def test_the_line_has_both_times(
    late: Late | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    flow = SimpleNamespace(auto_touch=False, time_limit=None)
    setup: Any = SimpleNamespace(
        name="t/c", log_fields={}, handler_name="f", flow=flow, observers=()
    )
    error = server_error(b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")
    Events(setup).answer_failed(CONNECTION, "0123456789abcdef", error, late)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    text = record.getMessage()
    start = (
        "t/c: a:1: E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight; it comes again, or"
        " was delivered again; msg_timeout is 60 s"
    )
    assert text.startswith(start + told)
    assert "handler" in text[len(start) :] or late is None
