"""The simulated runtime: every call is a point where another task may run.

The contract is that of ``gnsqsync.runtime.base``; the code above it cannot tell the difference.
"""

from __future__ import annotations

import math
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gnsqsync.addresses import Address
from gnsqsync.runtime import base
from tests.simulation.scheduler import Scheduler, SimTask

if TYPE_CHECKING:
    from tests.simulation.network import Network

__all__ = ["SimRuntime", "Waiters"]


class SimRuntime(base.Runtime):
    """Threads where the scheduler preempts, else greenlets.

    ``owner``: the Reader or Writer whose tasks and connections these are.
    """

    name = "simulated"

    def __init__(
        self, scheduler: Scheduler, network: Network, host: str, owner: str = "client"
    ) -> None:
        self.owner = owner
        self._scheduler = scheduler
        self._network = network
        self._host = host
        self.gathers = not scheduler.preempts
        self.now = scheduler.monotonic  # type: ignore[method-assign]

    @property
    def kin(self) -> Hashable:
        return self._scheduler, self.owner

    def spawn(self, name: str, fn: Callable[..., object], *args: Any) -> base.Task:
        self._scheduler.point()
        if self._scheduler.refuses_thread(name):
            raise RuntimeError("can't start new thread")
        task = self._scheduler.spawn(name, lambda: fn(*args), self.owner)
        self._scheduler.point()
        return _Task(self._scheduler, task)

    def current(self) -> int:
        task = self._scheduler.current
        return 0 if task is None else task.number

    def lock(self) -> base.Lock:
        return _Lock(self._scheduler)

    def mutex(self) -> base.Mutex:
        return _Mutex(self._scheduler)

    def event(self) -> base.Event:
        return _Event(self._scheduler)

    def latch(self) -> base.Latch:
        return _Latch(self._scheduler)

    def gather(self) -> None:
        if self.gathers:
            self._scheduler.give_way()

    def queue(self) -> base.Queue:
        return _Queue(self._scheduler)

    def timed_queue(self) -> base.TimedQueue:
        return _Queue(self._scheduler)

    def cutter(self) -> base.Cutter:
        return self._network.cutter()

    def connect(
        self,
        address: Address,
        timeout: float,
        local: Address | None = None,
        cutter: base.Cutter | None = None,
    ) -> base.Socket:
        self._scheduler.point()
        return self._network.connect(self._host, address, timeout, cutter)

    def call_blocking(self, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(*args)

    def time_limit(
        self, seconds: float, interrupt: type[BaseException], after: base.After
    ) -> base.Limit:
        scheduler = self._scheduler

        def limit(fn: Callable[[Any], Any], argument: Any) -> Any:
            task = scheduler.current
            assert task is not None
            timer = scheduler.after(seconds, lambda: scheduler.throw(task, interrupt()))
            try:
                return fn(argument)
            finally:
                timer.cancel()

        return limit


class _Task:
    def __init__(self, scheduler: Scheduler, task: SimTask) -> None:
        self._scheduler = scheduler
        self.task = task
        self.name = task.name

    @property
    def alive(self) -> bool:
        return not self.task.ended

    @property
    def is_current(self) -> bool:
        return self._scheduler.current is self.task

    def join(self, timeout: float | None = None) -> bool:
        if self.is_current:
            return False
        scheduler = self._scheduler
        scheduler.point()
        until = None if timeout is None else scheduler.now + max(0.0, timeout)
        me = scheduler.current
        assert me is not None
        while not self.task.ended:
            if until is not None and scheduler.now >= until:
                return False
            self.task.joiners.append(me)
            try:
                scheduler.park(f"the end of {self.name}", until)
            finally:
                self.task.joiners.remove(me)
        return True

    def stack(self) -> str:
        frame = self.task.greenlet.gr_frame
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def __repr__(self) -> str:
        return f"<simulated task {self.name}{'' if self.alive else ' ended'}>"


class Waiters:
    """Tasks that wait for one thing. All are woken, and look for themselves."""

    __slots__ = ("scheduler", "tasks", "what")

    def __init__(self, scheduler: Scheduler, what: str) -> None:
        self.scheduler = scheduler
        self.tasks: list[SimTask] = []
        self.what = what

    def wake(self) -> None:
        for task in self.tasks:
            self.scheduler.wake(task)

    def wait(self, is_there: Callable[[], object], timeout: float | None) -> bool:
        """Whether it is there within ``timeout`` seconds."""
        scheduler = self.scheduler
        if is_there():
            return True
        until = None
        if timeout is not None and timeout < math.inf:
            until = scheduler.now + max(0.0, timeout)
        task = scheduler.current
        if task is None:
            raise AssertionError(f"a timer or a server waits for {self.what}")
        self.tasks.append(task)
        try:
            while not is_there():
                if until is not None and scheduler.now >= until:
                    return False
                scheduler.park(self.what, until)
            return True
        finally:
            self.tasks.remove(task)


class _Lock:
    """Free again, it may be taken by any task, also by one that has not waited."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters = Waiters(scheduler, "a lock")
        self._is_held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._scheduler.point()
        if not self._is_held:
            self._is_held = True
            return True
        if not blocking:
            return False
        if not self._waiters.wait(lambda: not self._is_held, None if timeout < 0 else timeout):
            return False
        self._is_held = True
        return True

    def release(self) -> None:
        if not self._is_held:
            raise RuntimeError("release unlocked lock")
        self._is_held = False
        self._waiters.wake()
        self._scheduler.point()

    def locked(self) -> bool:
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class _Mutex:
    """Reentrant. Greenlets do not switch under one, so there nobody ever waits for it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters = Waiters(scheduler, "a mutex")
        self._owner: SimTask | None = None
        self._depth = 0

    def __enter__(self) -> object:
        scheduler = self._scheduler
        me = scheduler.current
        if me is None:
            return self  # a finalizer, or a test that looks from outside
        scheduler.point()
        if self._owner is not me and self._depth:
            self._waiters.wait(lambda: not self._depth, None)
        self._owner = me
        self._depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._scheduler.current is None:
            return
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._waiters.wake()
            self._scheduler.point()


class _Event:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters = Waiters(scheduler, "an event")
        self._is_set = False

    def set(self) -> None:
        self._scheduler.point()
        self._is_set = True
        self._waiters.wake()

    def clear(self) -> None:
        self._scheduler.point()
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        self._scheduler.point()
        # As threads: who was woken returns True also when it is cleared by then.
        if self._is_set:
            return True
        scheduler, waiters = self._scheduler, self._waiters
        until = None
        if timeout is not None and timeout < math.inf:
            until = scheduler.now + max(0.0, timeout)
        task = scheduler.current
        assert task is not None
        waiters.tasks.append(task)
        try:
            return scheduler.park("an event", until)
        finally:
            waiters.tasks.remove(task)


class _Latch:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters = Waiters(scheduler, "a latch")
        self.released = False

    def release(self) -> None:
        self._scheduler.point()
        self.released = True
        self._waiters.wake()

    def wait(self, timeout: float | None = None) -> bool:
        self._scheduler.point()
        return self._waiters.wait(lambda: self.released, timeout)


class _Queue:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiters = Waiters(scheduler, "a queue")
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        self._scheduler.point()
        self._items.append(item)
        self._waiters.wake()

    def empty(self) -> bool:
        return not self._items

    def get_nowait(self) -> Any:
        self._scheduler.point()
        if not self._items:
            raise TimeoutError("nothing in the queue")
        return self._items.popleft()

    def get(self, timeout: float | None = None) -> Any:
        self._scheduler.point()
        if not self._waiters.wait(lambda: self._items, timeout):
            raise TimeoutError(f"nothing in the queue for {timeout:g} seconds")
        return self._items.popleft()
