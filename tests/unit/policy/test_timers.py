"""TimerHeap against a sorted list."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from gnsqsync.policy.timers import TimerHeap


class Job:
    def __call__(self) -> None:
        raise AssertionError("the heap must not run jobs")


def test_due_gives_jobs_in_order_of_time_then_of_adding() -> None:
    heap = TimerHeap()
    late, first, second, early = Job(), Job(), Job(), Job()
    heap.add(3.0, late)
    heap.add(2.0, first)
    heap.add(2.0, second)
    heap.add(1.0, early)
    assert heap.next_at() == 1.0
    assert heap.due(0.5) == []
    assert heap.due(2.0) == [early, first, second]
    assert heap.next_at() == 3.0
    assert heap.due(10.0) == [late]
    assert heap.next_at() is None


def test_the_same_function_may_be_due_twice() -> None:
    heap = TimerHeap()
    job = Job()
    heap.add(1.0, job)
    heap.add(1.0, job)
    assert heap.due(1.0) == [job, job]


class HeapMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.heap = TimerHeap()
        self.now = 0.0
        self.pending: list[tuple[float, int, Job]] = []
        self.added = 0

    @rule(delay=st.integers(0, 20))
    def add(self, delay: int) -> None:
        job = Job()
        self.heap.add(self.now + delay, job)
        self.pending.append((self.now + delay, self.added, job))
        self.added += 1

    @rule(step=st.integers(0, 15))
    def run(self, step: int) -> None:
        self.now += step
        due = sorted(entry[:2] for entry in self.pending if entry[0] <= self.now)
        jobs = {entry[:2]: entry[2] for entry in self.pending}
        assert self.heap.due(self.now) == [jobs[key] for key in due]
        self.pending = [entry for entry in self.pending if entry[0] > self.now]

    @invariant()
    def agrees(self) -> None:
        assert self.heap.next_at() == min((entry[0] for entry in self.pending), default=None)


TestHeap = HeapMachine.TestCase
TestHeap.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
