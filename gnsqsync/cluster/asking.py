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
from gnsqsync.runtime import Runtime, RuntimeLike, choose

__all__ = ["Outcomes", "ask_all"]

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

# Upper bound of calls at a time, so that a server that hangs does not delay the others.
AT_A_TIME = 16


@dataclass(frozen=True, slots=True)
class Outcomes(Generic[K, T]):
    """Answers and failures by the key of the call, each in the order of the calls.

    ``late``: the failures of which the call had not returned in time.
    """

    answers: dict[K, T]
    failures: dict[K, NSQError]
    late: tuple[K, ...] = ()


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
    work = _Work(calls, choose(runtime))
    return work.run(min(at_a_time, len(calls)), seconds)


class _Work(Generic[K, T]):
    """Calls that wait for a task, and the outcomes by key.

    No lock: tasks take single calls and set single items. ``_over`` is set when the last outcome is
    there, or when a call raised what is no NSQError.
    """

    def __init__(self, calls: Mapping[K, Callable[[], T]], runtime: Runtime) -> None:
        self._calls = calls
        self._runtime = runtime
        self._waiting = deque(calls.items())
        self._answers: dict[K, T] = {}
        self._failures: dict[K, NSQError] = {}
        self._raised: list[BaseException] = []
        self._over: Any = runtime.event()

    def run(self, tasks: int, seconds: float) -> Outcomes[K, T]:
        try:
            running = [self._runtime.spawn("nsq-ask", self._take_calls) for _ in range(tasks)]
            limit = None if seconds == math.inf else max(0.0, seconds)
            if tasks and self._over.wait(limit) and not self._raised:
                # All calls have returned, so no task is left when this function returns.
                for task in running:
                    task.join()
        finally:
            # After the time, or an exception here, no task begins another call.
            self._waiting.clear()
        if self._raised:
            raise self._raised[0]
        # Copies, because a late call may still set its own.
        answers, failures = dict(self._answers), dict(self._failures)
        late = ConnectionLost(f"no answer within {seconds:g} s")
        return Outcomes(
            {key: answers[key] for key in self._calls if key in answers},
            {key: failures.get(key, late) for key in self._calls if key not in answers},
            tuple(key for key in self._calls if key not in answers and key not in failures),
        )

    def _take_calls(self) -> None:
        while True:
            try:
                key, call = self._waiting.popleft()
            except IndexError:
                return
            try:
                self._answers[key] = call()
            except NSQError as error:
                self._failures[key] = error
            except BaseException as error:
                self._waiting.clear()
                self._raised.append(error)
                self._over.set()
                if ends_worker(error):
                    raise
            if len(self._answers) + len(self._failures) == len(self._calls):
                self._over.set()
