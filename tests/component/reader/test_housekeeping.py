"""The sweep: it does not fall asleep while there is something to look after."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gnsqsync.message import BEGUN
from gnsqsync.policy.latency import RdyLevel
from gnsqsync.reader.chunks import Chunks
from gnsqsync.reader.housekeeping import Housekeeping
from gnsqsync.reader.options import ReaderOptions
from gnsqsync.runtime import choose


class FakeTimer:
    """Keeps the jobs; the test runs them."""

    def __init__(self) -> None:
        self.jobs: list[Callable[[], None]] = []

    def after(self, seconds: float, job: Callable[[], None]) -> None:
        self.jobs.append(job)


class FakeOutbox:
    """``meanwhile`` happens at look number ``looks_before`` at ``has_unsent``, the last one."""

    def __init__(self) -> None:
        self.looks_before = 0
        self.meanwhile: Callable[[], None] = lambda: None

    @property
    def has_unsent(self) -> bool:
        self.looks_before -= 1
        if self.looks_before == 0:
            self.meanwhile()
        return False


class FakeConnection:
    def __init__(self) -> None:
        self.level = RdyLevel(True)
        self.in_flight: set[object] = set()
        self.send_queue = FakeOutbox()


def housekeeping(connection: Any, flow: ReaderOptions, timer: Any) -> Housekeeping:
    runtime = choose("threads")
    chunks = Chunks(runtime.queue(), runtime, cuts=True)
    workers: Any = SimpleNamespace(replace_killed=lambda: None)
    return Housekeeping(lambda: [connection], flow, runtime, timer, chunks, workers)


@pytest.mark.parametrize("what", ["a message", "a stream that is over"])
def test_work_that_comes_as_housekeeping_falls_asleep_keeps_it_awake(what: str) -> None:
    connection: Any = FakeConnection()
    timer: Any = FakeTimer()
    sweep = housekeeping(connection, ReaderOptions(), timer)

    def arrives() -> None:
        if what == "a message":
            connection.in_flight.add(object())
        else:
            # Handled as soon as they came: nothing is in flight, but RDY is the whole share.
            now = choose("threads").now()
            connection.level.note(now - 0.1, 1)
            connection.level.note(now, 1000)
            assert connection.level.streaming
        sweep.wake()

    sweep.wake()
    # The first look is the one that decides whether to flush; what follows comes too late.
    connection.send_queue.looks_before = 2
    connection.send_queue.meanwhile = arrives
    timer.jobs.pop()()
    assert len(timer.jobs) == 1, "it sleeps, and RDY stays where it is"


def test_housekeeping_sleeps_when_there_is_nothing_to_do() -> None:
    connection: Any = FakeConnection()
    timer: Any = FakeTimer()
    sweep = housekeeping(connection, ReaderOptions(), timer)
    sweep.wake()
    timer.jobs.pop()()
    assert not timer.jobs


def test_a_touch_that_does_not_leave_is_not_repeated() -> None:
    """Or an nsqd that takes a byte now and then, and names a short timeout, fills the memory."""

    class Stuck(FakeOutbox):
        is_stuck = True

    connection: Any = FakeConnection()
    connection.send_queue = Stuck()
    connection.msg_timeout = connection.max_msg_timeout = 0.001
    timer: Any = FakeTimer()
    flow = ReaderOptions(auto_touch=True)
    touched: list[object] = []
    message: Any = SimpleNamespace(_received_at=0.0, _touched_at=0.0, _status=BEGUN)
    connection.in_flight = {b"0": message}
    connection.max_msg_timeout = float("inf")
    connection.touch = touched.append
    sweep = housekeeping(connection, flow, timer)
    sweep.wake()
    timer.jobs.pop()()
    assert not touched
    connection.send_queue.is_stuck = False
    timer.jobs.pop()()
    assert touched == [message]
