"""Calls to many servers side by side: which server answered, which one failed, and why.

Knows tasks and deadlines of a Runtime. Must not know HTTP, or what a call asks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from gnsqsync.errors import ConnectionLost, NSQError
from gnsqsync.foreign import ends_worker
from gnsqsync.runtime import Runtime, RuntimeLike, Task, choose

__all__ = ["Calls", "Outcome", "Outcomes", "Workers", "ask_all"]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# Upper bound of calls at a time, so that a server that hangs does not delay the others.
AT_A_TIME = 16


class Outcome(Generic[T]):
    """The end of a call: its result, or what it raised."""

    def __init__(self, value: Any, error: BaseException | None = None) -> None:
        self._value = value
        self.error: BaseException | None = error

    def result(self) -> T:
        """Return the result, or raise what the call raised."""
        if self.error is not None:
            raise self.error
        value: T = self._value
        return value


@dataclass(frozen=True, slots=True)
class Outcomes(Generic[K, T]):
    """Answers and failures by the key of the call, each in the order of the calls.

    ``late``: the failures of which the call had not returned in time.
    """

    answers: dict[K, T]
    failures: dict[K, NSQError]
    late: tuple[K, ...] = ()


class Workers:
    """Tasks that run jobs side by side, ``at_a_time`` at most. They end when no job waits.

    Threads:
        Any thread may call.
    """

    def __init__(
        self, runtime: RuntimeLike | None = None, at_a_time: int = AT_A_TIME, name: str = "nsq-ask"
    ) -> None:
        self.runtime: Runtime = choose(runtime)
        self._at_a_time = at_a_time
        self._name = name
        # Guards the next three fields.
        self._mutex = self.runtime.mutex()
        # Jobs that no task has begun.
        self._waiting: deque[Callable[[], object]] = deque()
        # Number of tasks that will look for another job.
        self._running = 0
        # Tasks that may be alive.
        self._tasks: list[Task] = []

    def begin(self, job: Callable[[], object]) -> None:
        """Run a job as soon as a task is free."""
        with self._mutex:
            self._waiting.append(job)
            is_task_missing = self._running < self._at_a_time
            self._running += is_task_missing
        if not is_task_missing:
            return
        try:
            task = self.runtime.spawn(self._name, self._run)
        except BaseException:  # no thread, or what strikes this one: the caller is told
            with self._mutex:
                self._running -= 1
                if job in self._waiting:
                    self._waiting.remove(job)
            raise
        with self._mutex:
            self._tasks = [*(each for each in self._tasks if each.alive), task]

    def join(self) -> None:
        """Wait for the ends of the jobs under way."""
        with self._mutex:
            tasks = self._tasks
        for task in tasks:
            task.join()

    def _run(self) -> None:
        while True:
            with self._mutex:
                if not self._waiting:
                    self._running -= 1
                    return
                job = self._waiting.popleft()
            try:
                job()
            except BaseException:  # whatever ends this task
                with self._mutex:
                    self._running -= 1
                raise


class Calls(Generic[K, T]):
    """Calls that run side by side, whose outcomes are taken one by one, in the order of their ends.

    A call needs a time limit of its own.

    Threads:
        A single one begins calls and takes outcomes.
    """

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._ended = workers.runtime.timed_queue()
        # True after ``drop``.
        self._is_dropped = False

    def begin(self, key: K, call: Callable[[], T]) -> None:
        """Run a call as soon as a worker is free."""
        self._workers.begin(partial(self._make, key, call))

    def take(self, timeout: float | None) -> tuple[K, Outcome[T]]:
        """Return the key and the outcome of a call that has ended. TimeoutError if there is none.

        ``timeout``: seconds to wait for one; None: without a limit.
        """
        ended: tuple[K, Outcome[T]] = (
            self._ended.get_nowait() if timeout == 0 else self._ended.get(timeout)
        )
        return ended

    def within(self, seconds: float) -> Iterator[tuple[K, Outcome[T]]]:
        """Yield outcomes as ``take`` returns them, for ``seconds`` at most, which may be inf."""
        deadline = self._workers.runtime.now() + seconds
        while True:
            left = max(0.0, deadline - self._workers.runtime.now())
            try:
                ended = self.take(None if left == math.inf else left)
            except TimeoutError:
                return
            yield ended

    def drop(self) -> None:
        """Begin no further call."""
        self._is_dropped = True

    def join(self) -> None:
        """Wait for the ends of the calls under way, and of all others of the same workers."""
        self._workers.join()

    def _make(self, key: K, call: Callable[[], T]) -> None:
        if self._is_dropped:
            return
        try:
            outcome = Outcome[T](call())
        except BaseException as error:  # whoever takes the outcome raises it
            self._ended.put((key, Outcome[T](None, error)))
            if ends_worker(error):
                raise
        else:
            self._ended.put((key, outcome))


def ask_all(
    calls: Mapping[K, Callable[[], T]],
    *,
    runtime: RuntimeLike | None = None,
    at_a_time: int = AT_A_TIME,
    seconds: float = math.inf,
    workers: Workers | None = None,
) -> Outcomes[K, T]:
    """Run all calls side by side, and return the outcome of each.

    A call fails with its NSQError, or with ConnectionLost if it has not returned after ``seconds``.
    Its task goes on then, and nobody waits for the task: the call needs a time limit of its own.
    Any other exception of a call is raised here. ``workers`` bound the calls of several questions
    together; without them this question has ``at_a_time`` of its own.
    """
    work = Calls[K, T](workers or Workers(runtime, at_a_time))
    answers: dict[K, T] = {}
    failures: dict[K, NSQError] = {}
    try:
        for key, call in calls.items():
            work.begin(key, call)
        for key, outcome in work.within(seconds) if calls else ():
            try:
                answers[key] = outcome.result()
            except NSQError as error:
                failures[key] = error
            if len(answers) + len(failures) == len(calls):
                break
    finally:
        # After the time, or an exception here, no task begins another call.
        work.drop()
    late = tuple(key for key in calls if key not in answers and key not in failures)
    if not late and workers is None:
        # Each call has returned, so no task is left when this function returns.
        work.join()
    failures.update((key, ConnectionLost(f"no answer within {seconds:g} s")) for key in late)
    return Outcomes(
        {key: answers[key] for key in calls if key in answers},
        {key: failures[key] for key in calls if key in failures},
        late,
    )
