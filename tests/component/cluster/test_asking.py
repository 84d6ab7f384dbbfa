"""Calls to many servers at a time: answers, failures, the time, and how many run at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from gnsqsync.cluster.asking import ask_all
from gnsqsync.errors import ConnectionLost, NSQError, ProtocolError
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


def test_at_most_so_many_run_at_a_time(runtime: Runtime) -> None:
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


def test_what_is_no_error_of_nsq_is_raised(runtime: Runtime) -> None:
    def wrong() -> int:
        raise KeyError("a mistake in a call")

    with pytest.raises(KeyError, match="a mistake"):
        ask_all({"a": wrong, "b": lambda: 2}, runtime=runtime)


def test_after_a_mistake_no_further_call_begins(runtime: Runtime) -> None:
    begun: list[int] = []

    def call(number: int) -> int:
        begun.append(number)
        if number == 0:
            raise KeyError(number)
        raise NSQError(str(number))

    with pytest.raises(KeyError):
        ask_all({n: partial(call, n) for n in range(5)}, runtime=runtime, at_a_time=1)
    assert begun == [0]
