"""Runtime of native threads, locks and queues.

Takes each of them as Python made it, so that it works even if gevent patched sockets only. Must not
know what runs in the threads.

Events and latches are made of bare locks, which are cheaper, and ``dial`` connects the sockets.

Surprise: ``threading.Event`` and a timed ``SimpleQueue`` are not used. A signal handler could hang
in the one, and the other may wait for ever before Python 3.13.
"""

from __future__ import annotations

import logging
import queue
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

from gnsqsync.addresses import Address
from gnsqsync.runtime import base, dial, world
from gnsqsync.runtime.mutex import new_mutex
from gnsqsync.runtime.native_sockets import NativeSocket

__all__ = ["ThreadRuntime"]

logger: logging.Logger = logging.getLogger("gnsqsync.runtime")

# Switch intervals that a runnable thread may be passed over, as chance chooses the next thread.
_PASSED_OVER = 5


class ThreadRuntime(base.Runtime):
    """Threads. Any thread may use every object."""

    name = "threads"

    def __init__(self) -> None:
        self._new_lock = world.native("threading", "Lock")
        self._new_queue = world.native("queue", "SimpleQueue")
        new_socket = world.native("socket", "socket")
        getaddrinfo = world.native("socket", "getaddrinfo")

        def look_up(host: str, port: int, timeout: float) -> list[Any]:
            # The look-up of the C library takes no limit. Its time counts as time to connect.
            found: list[Any] = getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return found

        self._net = dial.Net(new_socket, look_up)

    @property
    def kin(self) -> Hashable:
        return self.name

    def spawn(self, name: str, fn: Callable[..., object], *args: Any) -> base.Task:
        world.check()
        thread = threading.Thread(target=_run, args=(fn, args), name=name, daemon=True)
        thread.start()
        return _Task(thread)

    def longest_wait_to_run(self) -> float:
        # Each other thread may keep the interpreter for its switch interval, several times over.
        return threading.active_count() * sys.getswitchinterval() * _PASSED_OVER

    def current(self) -> int:
        return threading.get_ident()

    def lock(self) -> base.Lock:
        lock: base.Lock = self._new_lock()
        return lock

    def mutex(self) -> base.Mutex:
        return new_mutex()

    def event(self) -> base.Event:
        return _Event(self._new_lock)

    def latch(self) -> base.Latch:
        return _Latch(self._new_lock)

    def rough_latch(self) -> base.Latch:
        return _LoneLatch(self._new_lock)

    def gather(self) -> None:
        return  # threads run without it

    def queue(self) -> base.Queue:
        return _Queue(self._new_queue())

    def timed_queue(self) -> base.TimedQueue:
        return _TimedQueue(self._new_lock)

    def cutter(self) -> dial.Cutter:
        return dial.Cutter(self._new_lock(), _wake_dial)

    def connect(
        self,
        address: Address,
        timeout: float,
        local: Address | None = None,
        cutter: base.Cutter | None = None,
    ) -> base.Socket:
        assert cutter is None or isinstance(cutter, dial.Cutter)
        sock = dial.connect(self._net, address, timeout, local, cutter)
        return NativeSocket(sock, dial.peer_of(sock, address))

    def call_blocking(self, fn: Callable[..., Any], *args: Any) -> Any:
        return fn(*args)

    def time_limit(
        self, seconds: float, interrupt: type[BaseException], after: base.After
    ) -> base.Limit:
        # Imported here, so that ctypes is not loaded without a limit.
        from gnsqsync.runtime.thread_limit import ThreadLimit

        return ThreadLimit(seconds, interrupt, after, now=self.now, new_latch=self.latch)


def _wake_dial(sock: Any) -> None:
    """End the wait in connect() on Linux. Elsewhere the dialler looks at the Cutter itself."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # not connected: the waiting dialler is woken all the same


def _run(fn: Callable[..., object], args: tuple[Any, ...]) -> None:
    try:
        fn(*args)
    except SystemExit:
        pass  # ends this thread only, as in threading
    except BaseException:  # the task ends here, so nothing else would report it
        logger.exception("%s ended by an unexpected exception", threading.current_thread().name)


def _waited(timeout: float) -> float:
    """Return a timeout that a lock accepts: infinity, as in ``stop(math.inf)``, overflows."""
    return min(max(timeout, 0.0), threading.TIMEOUT_MAX)


class _Task:
    __slots__ = ("_thread", "name")

    def __init__(self, thread: threading.Thread) -> None:
        self._thread = thread
        self.name = thread.name

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        # The ident of an ended thread may belong to a new one.
        return self._thread.ident == threading.get_ident() and self._thread.is_alive()

    def join(self, timeout: float | None = None) -> bool:
        if self.is_current:
            return False
        self._thread.join(None if timeout is None else _waited(timeout))
        return not self._thread.is_alive()

    def stack(self) -> str:
        frame = sys._current_frames().get(self._thread.ident or 0) if self.alive else None
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def __repr__(self) -> str:
        return f"<thread {self.name}{'' if self.alive else ' ended'}>"


class _Event:
    """An event. threading.Event is no choice: its set() hangs in a signal handler that interrupts
    its own wait(), and signal handlers call Reader.stop()."""

    __slots__ = ("_flag", "_waiters")

    def __init__(self, new_lock: Callable[[], Any]) -> None:
        # True while the event is set.
        self._flag = False
        self._waiters = _Waiters(new_lock)

    def set(self) -> None:
        self._flag = True
        self._waiters.wake()

    def clear(self) -> None:
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    def wait(self, timeout: float | None = None) -> bool:
        return self._flag or self._waiters.wait(self.is_set, timeout)


class _Queue:
    """A SimpleQueue. Its put() is reentrant, so signal handlers may use it."""

    __slots__ = ("_get_nowait", "empty", "get", "put")

    def __init__(self, inner: queue.SimpleQueue[Any]) -> None:
        self.put: Callable[[Any], None] = inner.put
        self.empty = inner.empty
        self.get: Callable[[], Any] = inner.get
        self._get_nowait = inner.get_nowait

    def get_nowait(self) -> Any:
        try:
            return self._get_nowait()
        except queue.Empty:
            raise TimeoutError("nothing in the queue") from None


class _TimedQueue:
    """A queue with waits. SimpleQueue is no choice: before CPython 3.13 its get(timeout) waits for
    ever if the thread looks at the clock too late, after a delay or a signal handler."""

    __slots__ = ("_items", "_waiters")

    def __init__(self, new_lock: Callable[[], Any]) -> None:
        self._items: deque[Any] = deque()
        self._waiters = _Waiters(new_lock)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._waiters.wake()

    def empty(self) -> bool:
        return not self._items

    def get_nowait(self) -> Any:
        try:
            return self._items.popleft()
        except IndexError:
            raise TimeoutError("nothing in the queue") from None

    def get(self, timeout: float | None = None) -> Any:
        deadline = None if timeout is None else base.Runtime.now() + timeout
        while True:
            try:
                return self._items.popleft()
            except IndexError:
                pass
            left = None if deadline is None else deadline - base.Runtime.now()
            if left is not None and left <= 0:
                raise TimeoutError(f"nothing in the queue for {timeout:g} seconds")
            self._waiters.wait(self._items.__len__, left)


class _Waiters:
    """Waiting threads, each with a lock of its own, which ``wake()`` opens."""

    __slots__ = ("_locks", "_new_lock")

    def __init__(self, new_lock: Callable[[], Any]) -> None:
        self._new_lock = new_lock
        self._locks: list[Any] = []

    def wake(self) -> None:
        for lock in list(self._locks):
            try:
                lock.release()
            except RuntimeError:
                pass  # another wake() opened it, and its owner has not run yet

    def wait(self, due: Callable[[], object], timeout: float | None) -> bool:
        """Wait up to ``timeout`` seconds. Return True if woken, or if ``due()`` is true."""
        lock = self._new_lock()
        lock.acquire()
        self._locks.append(lock)
        try:
            # Checked after the append: an earlier wake() did not see this lock.
            if due():
                return True
            woken: bool = lock.acquire(True, -1 if timeout is None else _waited(timeout))
            return woken
        finally:
            self._locks.remove(lock)


class _Latch:
    """A bare lock that is taken at creation. It costs a twentieth of an Event."""

    __slots__ = ("_lock", "released")

    def __init__(self, new_lock: Callable[[], Any]) -> None:
        self._lock = new_lock()
        self._lock.acquire()
        # True once ``release`` was called, for good.
        self.released = False

    def release(self) -> None:
        self.released = True
        try:
            self._lock.release()
        except RuntimeError:
            pass  # already open: released twice, or passed on by a waiter

    def wait(self, timeout: float | None = None) -> bool:
        if self.released:
            return True
        if not self._lock.acquire(True, -1 if timeout is None else _waited(timeout)):
            return self.released
        self.release()  # for the next waiter
        return True


class _LoneLatch(_Latch):
    """A latch for one waiter, which does not open it for further ones."""

    __slots__ = ()

    def wait(self, timeout: float | None = None) -> bool:
        if not self.released:
            self._lock.acquire(True, -1 if timeout is None else timeout)
        return self.released
