"""Tasks, and virtual time. The seed decides who runs next, and where a task is interrupted.

Knows greenlets; knows nothing of sockets, of NSQ and of what the tasks do.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from typing import Any

import greenlet

__all__ = ["EPOCH", "Hung", "Scheduler", "SimTask", "Timer"]

# What the simulated clocks show first: seconds since the machine started, and since 1970.
_FIRST = 1000.0
EPOCH = 1_700_000_000.0
# Computing takes time, too: without it a loop that looks at the clock would never end.
_LOOK_SECONDS = 1e-7
# So many turns within one millisecond of time are a loop that waits for nothing.
_MOST_TURNS = 200_000


class Hung(Exception):
    """Tasks run, and time does not pass: somebody loops without waiting."""


class Timer:
    """A call at a time. ``cancel()`` may come at any moment, also after it."""

    __slots__ = ("_call", "when")

    def __init__(self, when: float, call: Callable[[], object]) -> None:
        self.when = when
        self._call: Callable[[], object] | None = call

    @property
    def is_due(self) -> bool:
        return self._call is not None

    def cancel(self) -> None:
        self._call = None

    def run(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call()


class SimTask:
    """A thread or greenlet of the simulated process. ``number`` is never given to another one."""

    __slots__ = (
        "ended",
        "greenlet",
        "is_gone",
        "is_queued",
        "joiners",
        "killed",
        "name",
        "number",
        "owner",
        "raised",
        "thrown",
        "waits_for",
        "was_woken",
    )

    def __init__(self, number: int, name: str, owner: str) -> None:
        self.number = number
        self.name = name
        # Whose it is: the Reader or Writer for which the library made it, or "user".
        self.owner = owner
        self.greenlet: Any = None
        self.ended = False
        # A fork has left it behind: it does not go on in this process.
        self.is_gone = False
        # What it waits for, as words for the log; "" while it runs or could run.
        self.waits_for = ""
        self.was_woken = False
        self.is_queued = False
        self.killed = False
        # Raised in it when it runs next.
        self.thrown: BaseException | None = None
        # What ended it.
        self.raised: BaseException | None = None
        self.joiners: list[SimTask] = []

    def __repr__(self) -> str:
        return f"<task {self.number} {self.name}{' ended' if self.ended else ''}>"


class Scheduler:
    """Runs tasks one at a time. All methods but ``run`` are called by tasks and timers.

    ``preempts``: tasks are threads, which lose the processor anywhere; else they are greenlets,
    which lose it where they wait. ``gap``: how many points (see ``point``) a thread passes between
    two interruptions, on the average. ``turn_seconds``: what each turn of a task takes.
    """

    def __init__(
        self, seed: str, *, preempts: bool = True, gap: float = 20.0, turn_seconds: float = 4e-6
    ) -> None:
        self.rng = random.Random(f"scheduler {seed}")
        self._turn_seconds = turn_seconds
        self.preempts = preempts
        self.now = _FIRST
        # Of the wall clock, which may be set back and forth.
        self.wall_offset = EPOCH - _FIRST
        self.current: SimTask | None = None
        self.tasks: dict[int, SimTask] = {}
        self.turns = 0
        self.switches = 0
        # Threads that cannot be started: (name) -> whether.
        self.refuses_thread: Callable[[str], bool] = lambda name: False
        # Called after each turn: the invariants.
        self.after_turn: Callable[[], object] | None = None
        # Called when nothing can happen any more, or the time is over.
        self.on_dead_end: Callable[[], object] = lambda: None
        # While the hooks of a fork run.
        self.is_forking = False
        # Called with a task that an exception ended.
        self.on_raised: Callable[[SimTask], object] = lambda task: None
        # Pairs of places: where a thread was interrupted, and where the one went on that was next.
        self.pairs: dict[tuple[int, int], None] = {}
        self._place = 0
        self._gap = gap
        # Asked at each point: True if a thread is interrupted there. A greenlet never is.
        self.strikes: Callable[[], bool] = repeat(False).__next__
        if preempts:
            self.strikes = chain.from_iterable(self._answers(self._next_gap())).__next__
        self._numbers = 0
        self._ready: list[SimTask] = []
        self._timers: list[tuple[float, int, Timer]] = []
        self._order = 0
        self._hub = greenlet.getcurrent()
        self._frozen_until = 0.0

    # -- time ------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        self.now += _LOOK_SECONDS
        return self.now

    def wall(self) -> float:
        return self.now + self.wall_offset

    def at(self, when: float, call: Callable[[], object]) -> Timer:
        """Call it at ``when``, outside of all tasks; it must not wait."""
        timer = Timer(when, call)
        self._order += 1
        heapq.heappush(self._timers, (when, self._order, timer))
        return timer

    def after(self, seconds: float, call: Callable[[], object]) -> Timer:
        return self.at(self.now + max(0.0, seconds), call)

    def freeze(self, seconds: float) -> None:
        """No task of the process runs for so long, as when the machine is paused."""
        self._frozen_until = max(self._frozen_until, self.now + seconds)

    # -- tasks -----------------------------------------------------------------------------------

    def spawn(self, name: str, call: Callable[[], object], owner: str = "client") -> SimTask:
        self._numbers += 1
        task = SimTask(self._numbers, name, owner)

        def run() -> None:
            try:
                if task.thrown is not None:
                    raise task.thrown
                call()
            except greenlet.GreenletExit:
                task.killed = True
            except BaseException as error:
                task.raised = error
                self.on_raised(task)
            finally:
                task.ended = True
                del self.tasks[task.number]
                for joiner in task.joiners:
                    self.wake(joiner)

        task.greenlet = greenlet.greenlet(run, self._hub)
        self.tasks[task.number] = task
        self._queue(task)
        return task

    def _queue(self, task: SimTask) -> None:
        if not task.is_queued and not task.is_gone:
            task.is_queued = True
            self._ready.append(task)

    def wake(self, task: SimTask) -> None:
        """Let a task go on that is in ``park``. Of several calls before it runs, one counts."""
        if task.waits_for and not task.is_queued:
            task.was_woken = True
            self._queue(task)

    def throw(self, task: SimTask, error: BaseException) -> None:
        """Raise it in the task, where it waits or was interrupted."""
        if not task.ended:
            task.thrown = error
            self._queue(task)

    def keep_only(self, kept: SimTask) -> None:
        """After a fork: no other task is in this process."""
        for task in self.tasks.values():
            task.is_gone = task is not kept
        self.tasks = {kept.number: kept}
        self._ready.clear()

    # -- what the running task calls -------------------------------------------------------------

    def park(self, waits_for: str, until: float | None = None) -> bool:
        """Wait for a ``wake``, or until a time: whether it was woken.

        What is raised here from outside leaves nothing behind.
        """
        task = self.current
        if task is None:
            raise AssertionError(f"a timer or a server waits for {waits_for}")
        if self.is_forking:
            raise AssertionError(f"a hook of a fork waits for {waits_for}")
        timer = None
        task.waits_for = waits_for
        task.was_woken = False
        if until is not None:
            timer = self.at(until, lambda: self._queue(task))
        try:
            self._switch(task)
        finally:
            task.waits_for = ""
            if timer is not None:
                timer.cancel()
        return task.was_woken

    def point(self) -> None:
        """A thread may lose the processor here."""
        if self.strikes():
            self.interrupt()

    def interrupt(self, place: int = 0) -> None:
        """Take the processor from a thread. ``place``: a number for this line of code."""
        if self.preempts and self.current is not None:
            self._place = place
            self.give_way()
            self.pairs[self._place, place] = None

    def give_way(self) -> None:
        """Let others run; this one goes on when it is its turn."""
        task = self.current
        if task is not None:
            self._queue(task)
            self._switch(task)

    def _switch(self, task: SimTask) -> None:
        self._hub.switch()
        thrown, task.thrown = task.thrown, None
        if thrown is not None:
            raise thrown

    def _answers(self, gap: int) -> Iterator[Iterable[bool]]:
        """Answer each point, in C but for one point of each gap."""
        while True:
            yield repeat(False, gap - 1)
            gap = self._next_gap()
            yield (True,)

    def _next_gap(self) -> int:
        return 1 + int(self.rng.expovariate(1.0 / self._gap))

    # -- the loop --------------------------------------------------------------------------------

    def run(self, until: float) -> None:
        """Run tasks and timers until that time, or until nothing can happen any more."""
        ready, timers = self._ready, self._timers
        random_below_one = self.rng.random
        after_turn, turn_seconds = self.after_turn, self._turn_seconds
        turns_from, time_from = self.turns, self.now
        while True:
            while timers and timers[0][0] <= self.now:
                heapq.heappop(timers)[2].run()
            if not ready or self.now < self._frozen_until:
                while timers and not timers[0][2].is_due:
                    heapq.heappop(timers)
                next_at = timers[0][0] if timers else None
                if ready:
                    next_at = min(next_at or until, self._frozen_until)
                if next_at is None or next_at > until:
                    self.now = max(self.now, until) if next_at is not None else self.now
                    self.on_dead_end()
                    return
                self.now = max(self.now, next_at)
                continue
            if self.now > until:
                self.on_dead_end()
                return
            if self.preempts and len(ready) > 1:
                at = int(random_below_one() * len(ready))
                ready[at], ready[-1] = ready[-1], ready[at]
                task = ready.pop()
            else:
                task = ready.pop(0)
            task.is_queued = False
            self.turns += 1
            self.now += turn_seconds
            if self.turns - turns_from > _MOST_TURNS:
                if self.now - time_from < 0.001 + _MOST_TURNS * turn_seconds:
                    raise Hung(f"{_MOST_TURNS} turns in no time; the last one was {task.name}'s")
                turns_from, time_from = self.turns, self.now
            self.current = task
            task.greenlet.switch()
            self.current = None
            if after_turn is not None:
                after_turn()
