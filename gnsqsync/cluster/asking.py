"""Calls to many servers side by side: which server answered, which one failed, and why.

Knows tasks and deadlines of a Runtime. Must not know HTTP, or what a call asks.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gnsqsync.errors import ConnectionLost, NSQError
from gnsqsync.foreign import ends_worker
from gnsqsync.runtime import RuntimeLike, Task, choose

__all__ = ["Calls", "Outcome", "Outcomes", "ask_all"]

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


class Calls(Generic[K, T]):
    """Calls that run side by side, whose outcomes are taken one by one, in the order of their ends.

    Tasks run while there are calls. A call needs a time limit of its own.

    Threads:
        A single one begins calls and takes outcomes.
    """

    def __init__(self, runtime: RuntimeLike | None = None, at_a_time: int = AT_A_TIME) -> None:
        self._runtime = choose(runtime)
        self._at_a_time = at_a_time
        # Guards ``_waiting`` and ``_running``.
        self._mutex = self._runtime.mutex()
        self._waiting: deque[tuple[K, Callable[[], T]]] = deque()
        # Number of tasks that will look for another call.
        self._running = 0
        self._tasks: list[Task] = []
        self._ended = self._runtime.timed_queue()

    def begin(self, key: K, call: Callable[[], T]) -> None:
        """Run a call as soon as a task is free."""
        with self._mutex:
            self._waiting.append((key, call))
            is_task_missing = self._running < self._at_a_time
            self._running += is_task_missing
        if is_task_missing:
            self._tasks = [task for task in self._tasks if task.alive]
            self._tasks.append(self._runtime.spawn("nsq-ask", self._run))

    def take(self, timeout: float | None) -> tuple[K, Outcome[T]]:
        """Return the key and the outcome of a call that has ended. TimeoutError if there is none.

        ``timeout``: seconds to wait for one; None: without a limit.
        """
        ended: tuple[K, Outcome[T]] = (
            self._ended.get_nowait() if timeout == 0 else self._ended.get(timeout)
        )
        return ended

    def drop(self) -> None:
        """Begin no further call."""
        with self._mutex:
            self._waiting.clear()

    def join(self) -> None:
        """Wait for the ends of the calls under way."""
        for task in self._tasks:
            task.join()

    def _run(self) -> None:
        while True:
            with self._mutex:
                if not self._waiting:
                    self._running -= 1
                    return
                key, call = self._waiting.popleft()
            try:
                outcome = Outcome[T](call())
            except BaseException as error:  # whoever takes the outcome raises it
                self._ended.put((key, Outcome[T](None, error)))
                if ends_worker(error):
                    with self._mutex:
                        self._running -= 1
                    raise
            else:
                self._ended.put((key, outcome))


def ask_all(
    calls: Mapping[K, Callable[[], T]],
    *,
    runtime: RuntimeLike | None = None,
    at_a_time: int = AT_A_TIME,
    seconds: float = math.inf,
) -> Outcomes[K, T]:
    """Run all calls side by side, and return the outcome of each.

    A call fails with its NSQError, or with ConnectionLost if it has not returned after ``seconds``.
    Its task goes on then, and nobody waits for the task: the call needs a time limit of its own.
    Any other exception of a call is raised here.
    """
    kept = choose(runtime)
    work = Calls[K, T](kept, at_a_time)
    deadline = kept.now() + seconds
    answers: dict[K, T] = {}
    failures: dict[K, NSQError] = {}
    try:
        for key, call in calls.items():
            work.begin(key, call)
        while len(answers) + len(failures) < len(calls):
            left = None if seconds == math.inf else max(0.0, deadline - kept.now())
            try:
                key, outcome = work.take(left)
            except TimeoutError:
                break
            try:
                answers[key] = outcome.result()
            except NSQError as error:
                failures[key] = error
    finally:
        # After the time, or an exception here, no task begins another call.
        work.drop()
    late = tuple(key for key in calls if key not in answers and key not in failures)
    if not late:
        # Each call has returned, so no task is left when this function returns.
        work.join()
    failures.update((key, ConnectionLost(f"no answer within {seconds:g} s")) for key in late)
    return Outcomes(
        {key: answers[key] for key in calls if key in answers},
        {key: failures[key] for key in calls if key in failures},
        late,
    )
