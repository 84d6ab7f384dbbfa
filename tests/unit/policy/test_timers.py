"""TimerHeap against a sorted list, and what cancelled jobs leave behind."""

from __future__ import annotations

import random
import weakref

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gnsqsync.policy.timers import Handle, TimerHeap


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


def test_a_cancelled_job_never_comes_and_is_let_go_at_once() -> None:
    heap = TimerHeap()
    job = Job()
    seen = weakref.ref(job)
    handle = heap.add(1.0, job)
    del job
    assert handle.pending
    assert heap.cancel(handle)
    assert not handle.pending
    assert seen() is None
    assert heap.next_at() is None
    assert heap.due(5.0) == []


def test_cancelling_twice_or_too_late_does_nothing() -> None:
    heap = TimerHeap()
    cancelled = heap.add(1.0, Job())
    assert heap.cancel(cancelled)
    assert not heap.cancel(cancelled)
    done = heap.add(1.0, Job())
    other = Job()
    heap.add(2.0, other)
    assert len(heap.due(1.0)) == 1
    assert not heap.cancel(done)
    assert len(heap) == 1
    assert heap.due(2.0) == [other]


def test_the_same_function_may_be_due_twice() -> None:
    heap = TimerHeap()
    job = Job()
    one = heap.add(1.0, job)
    heap.add(1.0, job)
    heap.cancel(one)
    assert heap.due(1.0) == [job]


def test_cancelled_jobs_do_not_pile_up() -> None:
    """A touch per message: each is added for later and cancelled by the answer."""
    heap = TimerHeap()
    kept = [heap.add(1000.0 + i, Job()) for i in range(10)]
    largest = 0
    for i in range(10_000):
        heap.cancel(heap.add(60.0 + i, Job()))
        largest = max(largest, len(heap._heap))
    assert largest <= 64
    assert len(heap) == 10
    assert all(handle.pending for handle in kept)
    assert heap.next_at() == 1000.0


def test_order_holds_after_most_jobs_were_cancelled() -> None:
    rng = random.Random(4)
    heap = TimerHeap()
    handles = [heap.add(rng.uniform(0, 100), Job()) for _ in range(500)]
    rng.shuffle(handles)
    for handle in handles[:450]:
        assert heap.cancel(handle)
    seen = []
    while (moment := heap.next_at()) is not None:
        assert len(heap.due(moment)) == 1
        seen.append(moment)
    assert seen == sorted(handle.when for handle in handles[450:])


class HeapMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.heap = TimerHeap()
        self.now = 0.0
        self.pending: list[tuple[float, int, Handle, Job]] = []
        self.added = 0

    @rule(delay=st.integers(0, 20))
    def add(self, delay: int) -> None:
        job = Job()
        handle = self.heap.add(self.now + delay, job)
        self.pending.append((handle.when, self.added, handle, job))
        self.added += 1

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.pending))
        self.pending.remove(entry)
        assert self.heap.cancel(entry[2])

    @precondition(lambda self: len(self.pending) > 3)
    @rule()
    def cancel_most(self) -> None:
        for entry in self.pending[1:]:
            assert self.heap.cancel(entry[2])
        del self.pending[1:]

    @rule(step=st.integers(0, 15))
    def run(self, step: int) -> None:
        self.now += step
        due = sorted(entry[:2] for entry in self.pending if entry[0] <= self.now)
        jobs = {entry[:2]: entry[3] for entry in self.pending}
        assert self.heap.due(self.now) == [jobs[key] for key in due]
        self.pending = [entry for entry in self.pending if entry[0] > self.now]

    @invariant()
    def agrees(self) -> None:
        assert len(self.heap) == len(self.pending)
        assert self.heap.next_at() == min((entry[0] for entry in self.pending), default=None)
        assert len(self.heap._heap) <= 2 * len(self.pending) + TimerHeap._TOLERATED + 1


TestHeap = HeapMachine.TestCase
TestHeap.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
