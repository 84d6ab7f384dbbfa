"""Contract of a runtime: the services that threads or greenlets offer to the floors above.

Knows no implementation. Creates no thread, lock or socket.

``threads`` and ``greenlets`` fulfil it, and ``choose()`` returns one of them.

Surprise: a kill may end any call that waits. Callers are written so that no lock stays taken and no
received byte is lost.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable
from types import MethodType, TracebackType
from typing import Any, Literal, Protocol, TypeAlias

from gnsqsync.addresses import Address
from gnsqsync.runtime import fork

__all__ = [
    "After",
    "Event",
    "Latch",
    "Limit",
    "Lock",
    "Mutex",
    "Queue",
    "Runtime",
    "RuntimeLike",
    "Socket",
    "Task",
    "TimedQueue",
]

After: TypeAlias = Callable[[float, Callable[[], None]], None]
"""``after(seconds, function)`` calls the function in that many seconds, as ``Timer.after``."""
Limit: TypeAlias = Callable[[Callable[[Any], Any], Any], Any]
"""``limit(fn, argument)`` returns ``fn(argument)``, which it interrupts after a limited time."""


class Mutex(Protocol):
    """A lock for use with ``with`` only."""

    def __enter__(self) -> object: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> bool | None: ...


class Lock(Mutex, Protocol):
    """Mutual exclusion, not reentrant. A failed try-lock returns at once and never switches."""

    # A missing timeout (seconds) means no limit.
    def acquire(self, blocking: bool = True, timeout: float = ...) -> bool: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...


class Event(Protocol):
    """A flag to wait for. A signal handler may call ``set()``; any number of tasks may wait."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Latch(Protocol):
    """An event that is set once. ``release()`` may be repeated; any number of tasks may wait."""

    @property
    def released(self) -> bool: ...
    def release(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Queue(Protocol):
    """Unbounded, first in first out. ``put()`` never blocks; signal handlers may call it.

    ``get()`` waits for ever. ``get_nowait()`` raises the builtin TimeoutError on an empty queue.
    """

    @property
    def put(self) -> Callable[[Any], None]: ...
    @property
    def empty(self) -> Callable[[], bool]: ...
    @property
    def get(self) -> Callable[[], Any]: ...
    def get_nowait(self) -> Any: ...


class TimedQueue(Queue, Protocol):
    """A more expensive Queue, whose ``get()`` raises TimeoutError after ``timeout`` seconds."""

    def get(self, timeout: float | None = None) -> Any: ...


class Task(Protocol):
    """A running daemon thread or greenlet."""

    @property
    def name(self) -> str: ...
    @property
    def alive(self) -> bool: ...
    @property
    def is_current(self) -> bool: ...
    def join(self, timeout: float | None = None) -> bool:
        """Wait for its end. Return True if it has ended; False at once if it waits for itself."""

    def stack(self) -> str:
        """Return its stack as a traceback shows it, or "" after its end. From any thread."""


class Socket(Protocol):
    """A connected stream socket. One task receives; the others may send and shut down.

    ``peer`` and ``local`` are texts, ``host:port`` or ``unix:///path``.
    """

    peer: str
    local: str

    def recv(self, size: int) -> bytes:
        """Return at most ``size`` bytes that have arrived; b"" at EOF and after ``shutdown()``.

        Waits at most the read timeout, then raises TimeoutError. Raises OSError if it is broken.
        """

    def receive(self, chunks: deque[bytes], size: int) -> None:
        """Do as ``recv``, but append to ``chunks``.

        If a kill or signal throws an exception in, all received bytes are there.
        """

    def send(self, data: bytes | memoryview) -> int:
        """Pass ``data`` to the kernel without a wait. Return the bytes it took, 0 if it is full.

        Raises OSError if the connection is broken.
        """

    def wait_writable(self, timeout: float | None) -> bool:
        """Wait until ``send()`` can take bytes or would raise. False after ``timeout`` seconds."""

    def set_read_timeout(self, seconds: float | None) -> None:
        """Set the seconds that ``recv()`` waits, from its next call on. None means no limit."""

    def peer_has_ended(self) -> bool:
        """Return True if the peer's EOF has arrived, even behind unread bytes. Never switches.

        Returns False if the kernel does not tell. A unix socket does not need this: once the peer
        has ended it, ``send()`` takes nothing.
        """

    def end_sending(self) -> None:
        """Send EOF after what was sent; receiving goes on. Never raises."""

    def shutdown(self) -> None:
        """End both directions. Wakes waiting ``recv()`` and ``wait_writable()``. Never raises."""

    def close(self) -> None:
        """Close the descriptor. ``shutdown()`` and the end of other tasks' calls come first."""

    def abandon(self) -> None:
        """Let go of the descriptor at once, in a forked child. The parent's connection lives on.

        A later ``shutdown()`` here does not reach the parent's connection either.
        """

    def fileno(self) -> int: ...


class Cutter(Protocol):
    """Handle to end the one ``connect()`` that it is given to."""

    def cut(self) -> None:
        """Make that call raise OSError soon. From any task, even before it. No lock, never raises.

        A look-up of the host name that is under way is not interrupted.
        """


class Runtime(ABC):
    """Threads or greenlets: the only maker of tasks, locks, queues and sockets in the package.

    Made by ``gnsqsync.runtime.choose()`` at first use, never at import. A BaseException
    (GreenletExit, gevent.Timeout, KeyboardInterrupt) may end any blocking call. Nothing stays
    locked after it.
    """

    name: str
    # True if tasks run until they wait, so that gather() is cheap and has an effect.
    gathers: bool = False
    # True if all objects of the runtime belong to one OS thread.
    has_home_thread: bool = False
    now: Callable[[], float] = staticmethod(time.monotonic)

    @property
    def kin(self) -> Hashable:
        """Key of the runtimes that may use each other's tasks, locks and events."""
        return self

    @abstractmethod
    def spawn(self, name: str, fn: Callable[..., object], *args: Any) -> Task:
        """Run ``fn(*args)`` in a daemon task called ``name``. Its exceptions are logged.

        Raises ConfigError if gevent patched the process after the first use.
        """

    def check_thread(self) -> None:
        """Raise ConfigError if the calling OS thread cannot use objects of this runtime."""
        return

    def longest_wait_to_run(self) -> float:
        """Return an estimate in seconds of how long a runnable task may wait for others."""
        return 0.0

    @abstractmethod
    def current(self) -> int:
        """Return a number that is unique among running threads or greenlets."""

    @abstractmethod
    def lock(self) -> Lock:
        """Return a new, free lock."""

    @abstractmethod
    def mutex(self) -> Mutex:
        """Return a new lock for a few instructions. No task waits while it holds the lock.

        The lock is reentrant, so that a signal handler that publishes does not wait for the code
        that it interrupts. It is native, and so cheap around greenlets, too: no greenlet switches
        while it holds the lock.
        """

    @abstractmethod
    def event(self) -> Event:
        """Return a new event that is not set."""

    @abstractmethod
    def latch(self) -> Latch:
        """Return a new latch. Cheap, because each publish may make one."""

    def rough_latch(self) -> Latch:
        """Return a latch for one waiter, whose waits may end 10 ms late. The cheapest latch."""
        return self.latch()

    @abstractmethod
    def gather(self) -> None:
        """Let every runnable task run before the caller goes on, if ``gathers`` is true."""

    @abstractmethod
    def queue(self) -> Queue:
        """Return a new, empty queue."""

    @abstractmethod
    def timed_queue(self) -> TimedQueue:
        """Return a new, empty queue that supports waits with a limit."""

    @abstractmethod
    def cutter(self) -> Cutter:
        """Return a handle for a ``connect()`` that another task may end early."""

    @abstractmethod
    def connect(
        self,
        address: Address,
        timeout: float,
        local: Address | None = None,
        cutter: Cutter | None = None,
    ) -> Socket:
        """Connect to ``address`` within ``timeout`` seconds, from ``local`` if given.

        All addresses of a name are tried, each with its share of the time. TCP connections get
        TCP_NODELAY and SO_KEEPALIVE. Raises OSError (TimeoutError when out of time); the text
        names the address. ``local`` with port 0 lets the kernel choose the port.
        """

    @abstractmethod
    def call_blocking(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Return ``fn(*args)``, a call that blocks on sockets of its own (requests)."""

    @abstractmethod
    def time_limit(self, seconds: float, interrupt: type[BaseException], after: After) -> Limit:
        """Return a Limit, which calls a function and returns or raises what the function does.

        When the function has run for ``seconds``, ``interrupt`` is raised in it. On threads this
        happens as soon as the thread runs Python code, on greenlets where it waits. It happens at
        most once in a call and never after its end, so the caller is not interrupted.
        ``after`` must work for as long as the limit is used.
        """

    def on_fork(self, method: Callable[[], object]) -> None:
        """Call the bound ``method`` in the child after each fork. It is held weakly.

        Methods are called in the order of registration. Exceptions are logged.
        """
        if not isinstance(method, MethodType):
            raise TypeError(f"on_fork() takes a bound method, not {method!r}")
        fork.register(method)


# Values that users give. A Runtime object is for tests.
RuntimeLike: TypeAlias = Literal["threads", "gevent"] | Runtime
