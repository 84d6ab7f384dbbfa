"""Calls to many servers at a time: answers, failures, the time, and how many run at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from gnsqsync.cluster.asking import Calls, Workers, ask_all
from gnsqsync.errors import ConnectionLost, ProtocolError
from gnsqsync.runtime import Runtime, choose
from tests.support.world import World


@pytest.fixture
def runtime(world: World) -> Runtime:
    return choose(world.runtime)


def test_each_answer_and_failure_in_the_order_of_the_calls(runtime: Runtime) -> None:
    second_is_done = runtime.event()

    def first() -> int:
        assert second_is_done.wait(30)
        return 1

    def second() -> int:
        second_is_done.set()
        return 2

    def broken() -> int:
        raise ProtocolError("nonsense")

    found = ask_all({"a": first, "x": broken, "b": second}, runtime=runtime)
    assert list(found.answers.items()) == [("a", 1), ("b", 2)]
    assert {key: str(error) for key, error in found.failures.items()} == {"x": "nonsense"}
    assert found.late == ()


def test_nobody_to_ask(runtime: Runtime) -> None:
    calls: dict[str, Callable[[], int]] = {}
    found = ask_all(calls, runtime=runtime)
    assert (found.answers, found.failures) == ({}, {})


def test_a_call_that_hangs_is_late_and_delays_no_other(runtime: Runtime) -> None:
    end = runtime.event()

    def hang() -> int:
        end.wait(30)
        return 0

    try:
        found = ask_all({"a": hang, "b": lambda: 2}, runtime=runtime, seconds=0.05)
    finally:
        end.set()
    assert found.answers == {"b": 2}
    assert found.late == ("a",)
    assert isinstance(found.failures["a"], ConnectionLost)
    assert str(found.failures["a"]) == "no answer within 0.05 s"


def test_the_number_of_calls_at_a_time_is_bounded(runtime: Runtime) -> None:
    running = most = 0
    lock = runtime.lock()
    both = runtime.event()

    def call(number: int) -> int:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running == 2:
                both.set()
        # Each pair of calls meets here at least once.
        both.wait(30)
        with lock:
            running -= 1
        return number

    found = ask_all({n: partial(call, n) for n in range(9)}, runtime=runtime, at_a_time=2)
    assert list(found.answers.values()) == list(range(9))
    assert most == 2


def test_an_error_that_is_no_nsq_error_is_raised(runtime: Runtime) -> None:
    def wrong() -> int:
        raise KeyError("a mistake in a call")

    with pytest.raises(KeyError, match="a mistake"):
        ask_all({"a": wrong, "b": lambda: 2}, runtime=runtime)


def test_a_late_outcome_is_taken_later(runtime: Runtime) -> None:
    go = runtime.event()

    def late() -> int:
        assert go.wait(30)
        return 1

    calls = Calls[str, int](Workers(runtime, 2))
    calls.begin("late", late)
    calls.begin("quick", lambda: 2)
    key, outcome = calls.take(30.0)
    assert (key, outcome.result()) == ("quick", 2)
    with pytest.raises(TimeoutError):
        calls.take(0)
    with pytest.raises(TimeoutError):
        calls.take(0.01)
    go.set()
    key, outcome = calls.take(30.0)
    assert (key, outcome.result()) == ("late", 1)
    # Each task may have ended by now: a further call gets another one.
    calls.join()
    calls.begin("again", lambda: 3)
    assert calls.take(30.0)[0] == "again"


def test_dropped_calls_do_not_begin(runtime: Runtime) -> None:
    go, first_has_begun = runtime.event(), runtime.event()
    begun: list[int] = []

    def call(number: int) -> bool:
        begun.append(number)
        first_has_begun.set()
        return go.wait(30)

    calls = Calls[int, bool](Workers(runtime, 1))
    for number in range(3):
        calls.begin(number, partial(call, number))
    assert first_has_begun.wait(30)
    calls.drop()
    go.set()
    calls.join()
    assert begun == [0]


def test_several_questions_share_the_limit_of_their_workers(runtime: Runtime) -> None:
    go, first_has_begun = runtime.event(), runtime.event()

    def first() -> int:
        first_has_begun.set()
        assert go.wait(30)
        return 1

    workers = Workers(runtime, 1)
    one, other = Calls[str, int](workers), Calls[str, int](workers)
    one.begin("a", first)
    other.begin("b", lambda: 2)
    assert first_has_begun.wait(30)
    with pytest.raises(TimeoutError):
        other.take(0.01)
    go.set()
    assert [one.take(30.0)[0], other.take(30.0)[0]] == ["a", "b"]
    assert ask_all({"c": lambda: 3}, workers=workers).answers == {"c": 3}
    workers.join()


def test_a_task_that_cannot_start_takes_no_place(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    workers = Workers(runtime, 1)
    with monkeypatch.context() as patch:
        patch.setattr(type(workers.runtime), "spawn", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            ask_all({"a": lambda: 1}, workers=workers)
    assert ask_all({"b": lambda: 2}, workers=workers).answers == {"b": 2}
    workers.join()
