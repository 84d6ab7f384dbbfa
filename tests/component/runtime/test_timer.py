"""The thread of jobs: their order, their cancellation, and what a job that fails or adds does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gnsqsync.runtime import choose
from gnsqsync.runtime.timer import Timer
from tests.support.counting import CountingRuntime
from tests.support.worlds import World


@pytest.fixture
def runtime(world: World) -> CountingRuntime:
    return CountingRuntime(choose(world.runtime))


@pytest.fixture
def timer(runtime: CountingRuntime) -> Iterator[Timer]:
    timer = Timer(runtime, "nsq-timer test")
    timer.start()
    yield timer
    assert timer.stop(10)
    runtime.check_ended()


@contextmanager
def one_moment(runtime: CountingRuntime) -> Iterator[None]:
    """The clock stands still, however long a busy machine takes for what is done meanwhile."""
    clock, moment = runtime.now, runtime.now()
    runtime.now = lambda: moment
    try:
        yield
    finally:
        runtime.now = clock


def test_jobs_come_in_the_order_of_their_time(
    timer: Timer, world: World, runtime: CountingRuntime
) -> None:
    came: list[str] = []
    with one_moment(runtime):
        timer.after(0.08, lambda: came.append("third"))
        # Each is before the one that the thread waits for.
        timer.after(0.05, lambda: came.append("second"))
        timer.after(0.02, lambda: came.append("first"))
        timer.after(0, lambda: came.append("at once"))
    world.eventually(lambda: len(came) == 4)
    assert came == ["at once", "first", "second", "third"]


def test_a_job_may_add_the_next_one(timer: Timer, world: World, runtime: CountingRuntime) -> None:
    came: list[int] = []

    @runtime.user_code
    def job() -> None:
        came.append(len(came))
        if len(came) < 20:
            timer.after(0, job)

    timer.after(0, job)
    world.eventually(lambda: len(came) == 20)


def test_a_job_that_fails_does_not_end_the_others(
    timer: Timer, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    came: list[str] = []

    def fail() -> None:
        raise ValueError("of the job")

    with caplog.at_level(logging.ERROR, "gnsqsync.timer"):
        timer.after(0, fail)
        timer.after(0.01, lambda: came.append("the next"))
        world.eventually(lambda: came)
    assert "of the job" in caplog.text
    assert "nsq-timer test" in caplog.text


def test_stop_does_not_wait_for_what_is_not_due(timer: Timer, world: World) -> None:
    came: list[str] = []
    timer.after(3600, lambda: came.append("never"))
    assert timer.stop(10)
    timer.after(0, lambda: came.append("too late"))
    world.sleep(0.05)
    assert came == []


def test_stop_from_a_job(timer: Timer, world: World, runtime: CountingRuntime) -> None:
    stopped: list[bool] = []
    timer.after(0, lambda: stopped.append(timer.stop(10)))
    world.eventually(lambda: stopped)
    # It cannot wait for itself, but it ends.
    assert stopped == [True]
    runtime.check_ended()


def test_an_idle_timer_sleeps(timer: Timer, world: World, runtime: CountingRuntime) -> None:
    timer.after(0, lambda: None)
    timer.after(3600, lambda: None)

    def sleeps() -> bool:
        with runtime.measure() as counts:
            world.sleep(0.2)
        return counts.waits == counts.locks == 0

    # A busy machine may let its thread come to that late.
    world.eventually(sleeps)
