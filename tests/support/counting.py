"""A runtime that counts the calls of the code above it, and notes broken rules.

It wraps threads or greenlets. The rules: a task holds at most one lock, and no lock while it dials,
waits, joins or runs user code. A closed Reader or Writer leaves no task behind.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gnsqsync.addresses import Address
from gnsqsync.runtime import (
    After,
    Cutter,
    Event,
    Latch,
    Limit,
    Lock,
    Mutex,
    Queue,
    Runtime,
    Socket,
    Task,
    TimedQueue,
)
from tests.support.waiting import LIMIT

T = TypeVar("T")


@dataclasses.dataclass
class Counts:
    """Numbers of calls by kind. A recv counts when it returns, whatever it returns."""

    spawns: int = 0
    connects: int = 0
    blocking_calls: int = 0
    locks: int = 0
    failed_tries: int = 0
    mutexes: int = 0
    waits: int = 0
    hops: int = 0
    sends: int = 0
    recvs: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0

    def __sub__(self, before: Counts) -> Counts:
        mine, other = dataclasses.asdict(self), dataclasses.asdict(before)
        return Counts(**{name: mine[name] - other[name] for name in mine})


class CountingRuntime(Runtime):
    """``inner`` with counters (``counts``) and a list of broken rules (``violations``).

    A lock has the name of its maker, ``module.Class`` or ``module.function``. A lock whose maker is
    in ``leaves`` may be taken under another lock, because no lock is ever taken under it.
    Sockets that a test accepts come from ``inner`` and are not counted: they belong to its servers.
    """

    def __init__(self, inner: Runtime, leaves: Collection[str] = ()) -> None:
        self.inner = inner
        self.name = inner.name
        self.gathers = inner.gathers
        # Time of the inner runtime, whose clock may be virtual.
        self.now = inner.now
        self.leaves = frozenset(leaves)
        self.counts = Counts()
        self.violations: list[str] = []
        self.tasks: list[Task] = []
        # Seconds of each wait for an exact latch.
        self.exact_waits: list[float | None] = []
        # This is a native lock even for greenlets, because none switches while it is held.
        self._mutex = threading.Lock()
        self._held: dict[int, list[CountingLock | CountingMutex]] = {}

    # -- called by tests

    @contextmanager
    def measure(self) -> Iterator[Counts]:
        """Yield the counts of the block, which are valid after the block."""
        before = dataclasses.replace(self.counts)
        result = Counts()
        try:
            yield result
        finally:
            for name, value in dataclasses.asdict(self.counts - before).items():
                setattr(result, name, value)

    def no_lock_held(self, what: str = "user code") -> bool:
        """Return True if the calling task holds no lock. Otherwise note the violation ``what``.

        The user code of a test calls this, because it may run where exceptions are caught.
        """
        held = self._held.get(self.inner.current())
        if not held:
            return True
        self._violation(f"{what} runs under {_names(held)}")
        return False

    def user_code(self, fn: Callable[..., T]) -> Callable[..., T]:
        """Return ``fn`` with a call of ``no_lock_held()`` before, for handlers and observers."""

        def checked(*args: Any, **kwargs: Any) -> T:
            self.no_lock_held(getattr(fn, "__name__", repr(fn)))
            return fn(*args, **kwargs)

        return checked

    def check(self) -> None:
        """Raise AssertionError with every broken rule, and every lock that is still held."""
        held = [f"{_names(locks)} is still held" for locks in self._held.values() if locks]
        broken = self.violations + held
        assert not broken, "broken rules:\n  " + "\n  ".join(broken)

    def check_ended(self, timeout: float = LIMIT) -> None:
        """Call ``check()``, and check that each spawned task ends within ``timeout`` seconds.

        Call this at the end of a test, after everything was closed.
        """
        deadline = self.now() + timeout
        alive = [t for t in self.tasks if not t.join(deadline - self.now())]
        assert not alive, f"alive after close: {alive}"
        self.check()

    # -- called by the wrappers

    def count(self, **amounts: int) -> None:
        with self._mutex:
            for name, amount in amounts.items():
                setattr(self.counts, name, getattr(self.counts, name) + amount)

    def taking(self, lock: CountingLock) -> None:
        """Note the begin of a blocking acquire of ``lock``."""
        held = self._held.get(self.inner.current(), [])
        leaf = [o for o in held if o.maker in self.leaves or isinstance(o, CountingMutex)]
        if leaf or (held and lock.maker not in self.leaves):
            self._violation(f"{lock.maker} is waited for under {_names(held)}")

    def taken(self, lock: CountingLock) -> None:
        self.count(locks=1)
        # Only the task itself touches its list, so no lock is needed.
        self._held.setdefault(self.inner.current(), []).append(lock)

    def entered(self, mutex: CountingMutex) -> None:
        self.count(mutexes=1)
        self._held.setdefault(self.inner.current(), []).append(mutex)

    def released(self, lock: CountingLock | CountingMutex) -> None:
        me = self.inner.current()
        held = self._held.get(me, [])
        if lock in held:
            held.remove(lock)
            if not held:
                # Another task may get the same number later.
                self._held.pop(me, None)
        else:
            self._violation(f"{lock.maker} is released by a task that did not take it")

    def blocking(self, what: str) -> None:
        """Check that no lock is held at the begin of a call that may block for long."""
        self.no_lock_held(what)

    def _violation(self, text: str) -> None:
        self.violations.append(f"{text}\n    {_where()}")

    # -- the methods of Runtime

    def spawn(self, name: str, fn: Callable[..., object], *args: Any) -> Task:
        self.count(spawns=1)
        task = CountingTask(self, self.inner.spawn(name, fn, *args))
        self.tasks.append(task)
        return task

    def check_thread(self) -> None:
        self.inner.check_thread()

    def current(self) -> int:
        return self.inner.current()

    def lock(self) -> Lock:
        return CountingLock(self, self.inner.lock(), _maker(sys._getframe(1)))

    def mutex(self) -> Mutex:
        return CountingMutex(self, self.inner.mutex())

    def event(self) -> Event:
        return CountingEvent(self, self.inner.event())

    def latch(self) -> Latch:
        return CountingLatch(self, self.inner.latch(), self.exact_waits)

    def rough_latch(self) -> Latch:
        return CountingLatch(self, self.inner.rough_latch())

    def gather(self) -> None:
        self.inner.gather()

    def queue(self) -> Queue:
        return CountingQueue(self, self.inner.queue())

    def timed_queue(self) -> TimedQueue:
        return CountingTimedQueue(self, self.inner.timed_queue())

    def cutter(self) -> Cutter:
        return self.inner.cutter()

    def connect(
        self,
        address: Address,
        timeout: float,
        local: Address | None = None,
        cutter: Cutter | None = None,
    ) -> Socket:
        self.blocking(f"connect({address})")
        self.count(connects=1)
        return CountingSocket(self, self.inner.connect(address, timeout, local, cutter))

    def call_blocking(self, fn: Callable[..., Any], *args: Any) -> Any:
        self.blocking(f"call_blocking({getattr(fn, '__name__', fn)})")
        self.count(blocking_calls=1)
        return self.inner.call_blocking(fn, *args)

    def time_limit(self, seconds: float, interrupt: type[BaseException], after: After) -> Limit:
        return self.inner.time_limit(seconds, interrupt, after)


class CountingLock:
    """A lock that its runtime counts. ``maker``: name of the code that made it."""

    def __init__(self, runtime: CountingRuntime, inner: Lock, maker: str) -> None:
        self._runtime = runtime
        self._inner = inner
        self.maker = maker

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if blocking:
            self._runtime.taking(self)
        if self._inner.acquire(blocking, timeout):
            self._runtime.taken(self)
            return True
        self._runtime.count(failed_tries=1)
        return False

    def release(self) -> None:
        self._runtime.released(self)
        self._inner.release()

    def locked(self) -> bool:
        return self._inner.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc_info: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<lock of {self.maker}>"


class CountingMutex:
    """A mutex that its runtime counts. Under it no lock may be taken, and no task may wait."""

    maker = "a mutex"

    def __init__(self, runtime: CountingRuntime, inner: Mutex) -> None:
        self._runtime = runtime
        self._inner = inner

    def __enter__(self) -> object:
        self._inner.__enter__()
        self._runtime.entered(self)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._runtime.released(self)
        self._inner.__exit__(*exc_info)

    def __repr__(self) -> str:
        return "<mutex>"


class CountingEvent:
    """An event whose waits are counted. Waiting under a lock is noted."""

    def __init__(self, runtime: CountingRuntime, inner: Event) -> None:
        self._runtime = runtime
        self.set = inner.set
        self.clear = inner.clear
        self.is_set = inner.is_set
        self._wait = inner.wait

    def wait(self, timeout: float | None = None) -> bool:
        self._runtime.blocking("Event.wait()")
        self._runtime.count(waits=1)
        return self._wait(timeout)


class CountingLatch:
    """A latch whose waits are counted. Waiting under a lock is noted."""

    def __init__(
        self, runtime: CountingRuntime, inner: Latch, exact_waits: list[float | None] | None = None
    ) -> None:
        self._runtime = runtime
        self._inner = inner
        self._exact_waits = exact_waits
        self.release = inner.release

    @property
    def released(self) -> bool:
        return self._inner.released

    def wait(self, timeout: float | None = None) -> bool:
        self._runtime.blocking("Latch.wait()")
        self._runtime.count(waits=1)
        if self._exact_waits is not None:
            self._exact_waits.append(timeout)
        return self._inner.wait(timeout)


class CountingQueue:
    """A queue whose puts are counted as hops. Waiting under a lock is noted."""

    def __init__(self, runtime: CountingRuntime, inner: Queue) -> None:
        self._runtime = runtime
        self._inner = inner
        self.empty = inner.empty
        self.get_nowait = inner.get_nowait

    def put(self, item: Any) -> None:
        self._runtime.count(hops=1)
        self._inner.put(item)

    def get(self) -> Any:
        self._runtime.blocking("Queue.get()")
        return self._inner.get()


class CountingTimedQueue(CountingQueue):
    """A queue whose waits with a timeout are counted, because each of them polls."""

    def __init__(self, runtime: CountingRuntime, inner: TimedQueue) -> None:
        super().__init__(runtime, inner)
        self._timed = inner

    def get(self, timeout: float | None = None) -> Any:
        self._runtime.blocking("Queue.get()")
        if timeout is not None:
            self._runtime.count(waits=1)
        return self._timed.get(timeout)


class CountingTask:
    """A task. A join under a lock is noted."""

    def __init__(self, runtime: CountingRuntime, inner: Task) -> None:
        self._runtime = runtime
        self._inner = inner
        self.name = inner.name

    @property
    def alive(self) -> bool:
        return self._inner.alive

    @property
    def is_current(self) -> bool:
        return self._inner.is_current

    def join(self, timeout: float | None = None) -> bool:
        self._runtime.blocking(f"join() of {self.name}")
        return self._inner.join(timeout)

    def stack(self) -> str:
        return self._inner.stack()

    def __repr__(self) -> str:
        return repr(self._inner)


class CountingSocket:
    """A socket whose sends and recvs are counted. A recv under a lock is noted.

    ``send()`` and ``wait_writable()`` may be called under the lock that guards writes.
    """

    def __init__(self, runtime: CountingRuntime, inner: Socket) -> None:
        self._runtime = runtime
        self.inner = inner
        self.peer = inner.peer
        self.local = inner.local
        self.wait_writable = inner.wait_writable
        self.set_read_timeout = inner.set_read_timeout
        self.shutdown = inner.shutdown
        self.peer_has_ended = inner.peer_has_ended
        self.end_sending = inner.end_sending
        self.close = inner.close
        self.abandon = inner.abandon
        self.fileno = inner.fileno

    def recv(self, size: int) -> bytes:
        self._runtime.blocking("recv()")
        received = 0
        try:
            data = self.inner.recv(size)
            received = len(data)
        finally:
            self._runtime.count(recvs=1, bytes_received=received)
        return data

    def receive(self, chunks: deque[bytes], size: int) -> None:
        self._runtime.blocking("receive()")
        before = len(chunks)
        try:
            self.inner.receive(chunks, size)
        finally:
            received = sum(map(len, list(chunks)[before:]))
            self._runtime.count(recvs=1, bytes_received=received)

    def send(self, data: bytes | memoryview) -> int:
        sent = 0
        try:
            sent = self.inner.send(data)
        finally:
            self._runtime.count(sends=1, bytes_sent=sent)
        return sent


def _names(locks: list[CountingLock | CountingMutex]) -> str:
    return " and ".join(lock.maker for lock in locks)


def _maker(frame: Any) -> str:
    module = frame.f_globals.get("__name__", "?")
    owner = frame.f_locals.get("self")
    return f"{module}.{frame.f_code.co_name if owner is None else type(owner).__name__}"


def _where() -> str:
    """Return the callers outside of this module, innermost last, to find a broken rule."""
    frame: Any = sys._getframe(1)
    lines: list[str] = []
    while frame is not None and len(lines) < 6:
        module = frame.f_globals.get("__name__")
        if module != __name__:
            lines.append(f"{module}:{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return " > ".join(reversed(lines))
