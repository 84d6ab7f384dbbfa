"""Calls with a time limit: struck in the call, once, and never after it."""

from __future__ import annotations

import gc
import random
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

import pytest

from gnsqsync.runtime import Limit, Runtime, choose
from gnsqsync.runtime.thread_limit import ThreadLimit
from gnsqsync.runtime.timer import Timer
from tests.support.interpreter import run_script
from tests.support.marks import few_and_many

NEEDS = {"sockets"}

LONG = 20.0


class Strike(BaseException):
    pass


@pytest.fixture(autouse=True)
def _no_finalizers() -> Iterator[None]:
    """What strikes in one, or in the callback of a weak reference, Python prints and drops."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def timer(runtime: Runtime) -> Iterator[Timer]:
    timer = Timer(runtime, "limits")
    timer.start()
    yield timer
    assert timer.stop(LONG)


def wait_for(runtime: Runtime, seconds: float) -> None:
    """As a handler that works for so long, and can be struck at any time."""
    end = runtime.now() + seconds
    while runtime.now() < end:
        if runtime.gathers:
            runtime.gather()


def outcome(limit: Limit, fn: Callable[[Any], Any]) -> str:
    """What became of one call; anything that strikes later than that is raised."""
    try:
        found = str(limit(fn, "done"))
    except Strike:
        found = "struck"
    except ValueError:
        found = "failed"
    for _ in range(50):
        found = "".join(found)
    return found


def test_a_call_that_takes_too_long_is_struck_where_it_is(runtime: Runtime, timer: Timer) -> None:
    limit = runtime.time_limit(0.05, Strike, timer.after)
    seen: list[str] = []

    def slow(argument: str) -> None:
        try:
            wait_for(runtime, LONG)
        except Exception:
            seen.append("an Exception")
        finally:
            seen.append("finally")

    began = runtime.now()
    with pytest.raises(Strike):
        limit(slow, "x")
    assert 0.05 <= runtime.now() - began < LONG
    assert seen == ["finally"]


def test_a_quick_call_returns_and_raises_as_without_a_limit(runtime: Runtime, timer: Timer) -> None:
    limit = runtime.time_limit(LONG, Strike, timer.after)
    assert limit(str.upper, "x") == "X"
    with pytest.raises(ZeroDivisionError) as raised:
        limit(lambda argument: 1 / 0, "x")
    assert raised.value.__context__ is None


def test_a_call_that_goes_on_is_struck_no_second_time(runtime: Runtime, timer: Timer) -> None:
    limit = runtime.time_limit(0.02, Strike, timer.after)

    def stubborn(argument: str) -> str:
        try:
            wait_for(runtime, LONG)
        except Strike:
            wait_for(runtime, 0.1)
        return argument

    assert limit(stubborn, "x") == "x"


@few_and_many(200, 700)
def test_ends_that_meet_the_deadline(runtime: Runtime, timer: Timer, count: int) -> None:
    """Hundreds of calls end when they are due: each has one outcome, and nothing strikes later."""
    seconds = 0.002
    limit = runtime.time_limit(seconds, Strike, timer.after)
    chance = random.Random(1)
    found: list[str] = []
    returned = [0]

    def nearly(argument: str) -> str:
        wait_for(runtime, seconds + chance.uniform(-1e-4, 2e-4))
        if chance.random() < 0.5:
            raise ValueError
        returned[0] += 1
        return argument

    def work() -> None:
        for _ in range(count):
            found.append(outcome(limit, nearly))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        tasks = [runtime.spawn(f"caller {number}", work) for number in range(3)]
        assert all(task.join(60.0) for task in tasks)
    finally:
        sys.setswitchinterval(interval)
    # None was ended by what came late.
    assert len(found) == 3 * count
    assert {*found} == {"done", "struck", "failed"}
    # One may be struck between its last line and its return.
    assert 0 <= returned[0] - found.count("done") <= found.count("struck")


# Prints what becomes of calls whose deadline comes at the 1st, 2nd, ... instruction of ThreadLimit:
# there the trace function stops the thread, until another one has looked for calls that are due.
# Each in a process of its own: CPython 3.11 loops in one whose trace function has raised.
AT_EACH_INSTRUCTION = """
    import os, sys, threading
    from gnsqsync.runtime import choose, thread_limit
    from tests.unit.runtime.test_time_limit import Strike, outcome

    OUTCOMES = ["done", "failed", "struck", "no such instruction", "hangs"]

    class Deadline:
        def __init__(self, instruction):
            self.jobs = []
            self.time = 0.0
            self.left = instruction
            # Bare locks, as the thread is struck where it uses them.
            self.stops, self.looked = threading.Lock(), threading.Lock()
            self.stops.acquire()
            self.looked.acquire()
            self.limit = thread_limit.ThreadLimit(
                1.0,
                Strike,
                lambda seconds, job: self.jobs.append(job),
                now=lambda: self.time,
                new_latch=choose("threads").latch,
            )

        def be_due(self):
            self.stops.acquire()
            self.time += 2.0
            self.jobs.pop()()
            self.looked.release()

        def trace(self, frame, event, argument):
            if frame.f_code.co_filename != thread_limit.__file__:
                return None
            frame.f_trace_opcodes = True
            if event == "opcode":
                self.left -= 1
                if not self.left:
                    self.stops.release()
                    self.looked.acquire()
            return self.trace

    def child(instruction, fn):
        deadline = Deadline(instruction)
        found = []
        threading.Thread(target=deadline.be_due, daemon=True).start()

        def run():
            # CPython 3.12 looks at the begin of tracing whether any frame wants instructions.
            sys._getframe().f_trace_opcodes = True
            sys.settrace(deadline.trace)
            found.append(outcome(deadline.limit, fn))

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(20.0)
        if deadline.left > 0:
            return "no such instruction"
        return found[0] if found else "hangs"

    def returns(argument):
        return "done"

    def fails(argument):
        raise ValueError(argument)

    for function in (returns, fails):
        found = []
        while "no such instruction" not in found:
            pid = os.fork()
            if not pid:
                os._exit(OUTCOMES.index(child(len(found) + 1, function)))
            found.append(OUTCOMES[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])])
        print(*found, sep=",")
"""


def test_a_deadline_at_each_instruction() -> None:
    """Before the call has begun and after it has ended, the outcome is that of the call."""
    lines = run_script(AT_EACH_INSTRUCTION).splitlines()
    for unstruck, line in zip(("done", "failed"), lines, strict=True):
        phases = [(name, len([*group])) for name, group in groupby(line.split(","))]
        names = [name for name, _ in phases]
        assert names == [unstruck, "struck", unstruck, "no such instruction"], phases
        assert all(count > 10 for name, count in phases if name == unstruck)


def test_somebody_elses_exception_leaves_no_deadline_behind() -> None:
    """One that is raised where the limit takes the call out, as a program that stops threads."""
    jobs: list[Callable[[], None]] = []
    clock = [0.0]
    runtime = choose("threads")

    class Hit(ThreadLimit):
        hits = 1

        def _end(self, call: Any) -> None:
            if self.hits:
                self.hits -= 1
                raise KeyboardInterrupt
            super()._end(call)

    limit = Hit(
        1.0,
        Strike,
        lambda seconds, job: jobs.append(job),
        now=lambda: clock[0],
        new_latch=runtime.latch,
    )
    with pytest.raises(KeyboardInterrupt):
        limit(str.upper, "x")
    clock[0] = 5.0
    jobs.pop()()
    for _ in range(100):
        "".join("not struck")
    assert not limit._running


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="a new thread has an id of its own")
@few_and_many(50, 200)
def test_threads_that_the_call_starts_are_not_struck(count: int) -> None:
    """CPython 3.11 would strike those, and the call would wait for them for ever."""
    runtime = choose("threads")
    timer = Timer(runtime, "limits")
    timer.start()
    limit = runtime.time_limit(0.003, Strike, timer.after)
    started: list[threading.Thread] = []

    def start_on(argument: str) -> None:
        while True:
            started.append(threading.Thread(target=str.upper, args=("x",)))
            started[-1].start()
            started[-1].join()

    found = [0]

    def work() -> None:
        for _ in range(count):
            assert outcome(limit, start_on) == "struck"
            found[0] += 1

    assert runtime.spawn("caller", work).join(60.0)
    assert found[0] == count
    timer.stop(LONG)


def test_without_a_limit_ctypes_is_not_loaded() -> None:
    script = """
        import sys
        from gnsqsync import Reader
        from gnsqsync.runtime import choose
        choose("threads").spawn("x", int).join()
        print("ctypes" in sys.modules)
    """
    assert run_script(script) == "False"


def test_the_place_where_a_task_is(runtime: Runtime) -> None:
    latch = runtime.latch()
    began = runtime.latch()

    def stand_here() -> None:
        began.release()
        latch.wait()

    task = runtime.spawn("stands", stand_here)
    assert began.wait(LONG)
    assert "in stand_here" in task.stack()
    latch.release()
    assert task.join(LONG)
    assert task.stack() == ""
