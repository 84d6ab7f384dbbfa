"""The contract of a runtime: what the floors above may ask of threads or greenlets.

Knows no implementation; nothing here creates a thread, lock or socket.
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
"""Has a function called in so many seconds, as ``Timer.after``."""
Limit: TypeAlias = Callable[[Callable[[Any], Any], Any], Any]
"""``limit(fn, argument)``: calls it, for a limited time."""


class Mutex(Protocol):
    """A lock to use by ``with`` only."""

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

    # Without a timeout (seconds) there is no limit.
    def acquire(self, blocking: bool = True, timeout: float = ...) -> bool: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...


class Event(Protocol):
    """A flag to wait for. ``set()`` may be called by a signal handler; any number may wait."""

    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Latch(Protocol):
    """An event that is set once. ``release()`` may be repeated; any number may wait."""

    @property
    def released(self) -> bool: ...
    def release(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Queue(Protocol):
    """Unbounded and first in, first out. ``put()`` never blocks; signal handlers may call it.

    ``get()`` waits for ever; ``get_nowait()`` raises the builtin TimeoutError when it is empty.
    """

    @property
    def put(self) -> Callable[[Any], None]: ...
    @property
    def empty(self) -> Callable[[], bool]: ...
    @property
    def get(self) -> Callable[[], Any]: ...
    def get_nowait(self) -> Any: ...


class TimedQueue(Queue, Protocol):
    """A Queue, dearer, whose ``get()`` raises TimeoutError after ``timeout`` seconds."""

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
        """Wait for its end; whether it has ended. False at once when called by the task itself."""

    def stack(self) -> str:
        """Where its code is, as a traceback shows it; "" where it has ended. From any thread."""


class Socket(Protocol):
    """A connected stream socket. One task receives; the others may send and shut down.

    ``peer`` and ``local`` are texts, ``host:port`` or ``unix:///path``.
    """

    peer: str
    local: str

    def recv(self, size: int) -> bytes:
        """What has arrived, at most ``size`` bytes; b"" at EOF and after ``shutdown()``.

        Waits at most the read timeout, then raises TimeoutError; OSError when broken.
        """

    def receive(self, chunks: deque[bytes], size: int) -> None:
        """As ``recv``, but appends to ``chunks``. If another task or a signal throws an exception
        in, what was received is there."""

    def send(self, data: bytes | memoryview) -> int:
        """Give ``data`` to the kernel without waiting: the bytes it took, 0 when it is full.

        Raises OSError when the connection is broken.
        """

    def wait_writable(self, timeout: float | None) -> bool:
        """Wait until ``send()`` can take bytes, or would raise; False after ``timeout`` seconds."""

    def set_read_timeout(self, seconds: float | None) -> None:
        """How long ``recv()`` waits, from its next call on. None is for ever."""

    def peer_has_ended(self) -> bool:
        """Whether the peer's EOF has arrived, whatever is unread before it. Never switches.

        False where the kernel does not tell. A unix socket needs no such question: once the peer
        has ended it, ``send()`` takes nothing.
        """

    def end_sending(self) -> None:
        """Send EOF after what was sent; receiving goes on. Never raises."""

    def shutdown(self) -> None:
        """End both directions: wakes ``recv()`` and ``wait_writable()`` of others. Never raises."""

    def close(self) -> None:
        """Close the descriptor. ``shutdown()`` and the end of other tasks' calls come first."""

    def abandon(self) -> None:
        """For a fork's child: let go of the descriptor at once; the parent's connection lives on.

        A later ``shutdown()`` here does not reach the parent's connection either.
        """

    def fileno(self) -> int: ...


class Cutter(Protocol):
    """Ends the one ``connect()`` that it is given to."""

    def cut(self) -> None:
        """Make it raise OSError soon. From any task, also before it; takes no lock, never raises.

        A look-up of the host name that is under way ends first.
        """


class Runtime(ABC):
    """Threads or greenlets: the only maker of tasks, locks, queues and sockets in the package.

    Made by ``gnsqsync.runtime.choose()`` at first use, never at import. Blocking calls may be
    left by a BaseException (GreenletExit, gevent.Timeout, KeyboardInterrupt). Then nothing stays
    locked.
    """

    name: str
    # Whether tasks run until they wait, so that gather() is cheap and does something.
    gathers: bool = False
    # Whether all that it makes belongs to one OS thread.
    has_home_thread: bool = False
    now: Callable[[], float] = staticmethod(time.monotonic)

    @property
    def kin(self) -> Hashable:
        """Runtimes with an equal ``kin`` may use each other's tasks, locks and events."""
        return self

    @abstractmethod
    def spawn(self, name: str, fn: Callable[..., object], *args: Any) -> Task:
        """Run ``fn(*args)`` in a daemon task called ``name``; what it raises is logged.

        Raises ConfigError when gevent patched the process after the first use.
        """

    def check_thread(self) -> None:
        """ConfigError where the calling OS thread cannot use what the runtime has made."""
        return

    def longest_wait_to_run(self) -> float:
        """Seconds that a task which could go on may wait for others, as far as that is known."""
        return 0.0

    @abstractmethod
    def current(self) -> int:
        """A number that tells the running thread or greenlet from all others that are alive."""

    @abstractmethod
    def lock(self) -> Lock:
        """A new, free lock."""

    @abstractmethod
    def mutex(self) -> Mutex:
        """A new lock for a few instructions. Nothing waits while it is held.

        Reentrant, so that a signal handler that publishes does not wait for what it interrupts.
        Cheap, also around greenlets: it is a native lock, and no greenlet switches under it.
        """

    @abstractmethod
    def event(self) -> Event:
        """A new event that is not set."""

    @abstractmethod
    def latch(self) -> Latch:
        """A new latch. Cheap: a publish makes one."""

    def rough_latch(self) -> Latch:
        """A new latch for one waiter, whose waits may end 10 ms late. The cheapest there is."""
        return self.latch()

    @abstractmethod
    def gather(self) -> None:
        """Let every task run that could run now, before the caller goes on; if ``gathers``."""

    @abstractmethod
    def queue(self) -> Queue:
        """A new, empty queue."""

    @abstractmethod
    def timed_queue(self) -> TimedQueue:
        """A new, empty queue to wait at with a limit."""

    @abstractmethod
    def cutter(self) -> Cutter:
        """For a ``connect()`` that another task may cut short."""

    @abstractmethod
    def connect(
        self,
        address: Address,
        timeout: float,
        local: Address | None = None,
        cutter: Cutter | None = None,
    ) -> Socket:
        """Connect to ``address`` within ``timeout`` seconds, from ``local`` when given.

        All addresses of a name are tried, each with its share of the time. TCP connections get
        TCP_NODELAY and SO_KEEPALIVE. Raises OSError (TimeoutError when out of time); the text
        names the address. ``local`` with port 0 lets the kernel choose the port.
        """

    @abstractmethod
    def call_blocking(self, fn: Callable[..., Any], *args: Any) -> Any:
        """``fn(*args)``, a call that blocks on sockets of its own (requests), and its result."""

    @abstractmethod
    def time_limit(self, seconds: float, interrupt: type[BaseException], after: After) -> Limit:
        """A Limit: the call returns and raises what the function does.

        When it has run for ``seconds``, ``interrupt`` is raised in it: on threads as soon as the
        thread runs Python code, on greenlets where it waits. That happens once in a call, and not
        after its end: not in the caller, not in the next call. ``after`` may be used for as long as
        the limit is.
        """

    def on_fork(self, method: Callable[[], object]) -> None:
        """Call the bound ``method`` in the child after each fork; it is held weakly.

        Order is that of registration. An exception is logged and does not stop the others.
        """
        if not isinstance(method, MethodType):
            raise TypeError(f"on_fork() takes a bound method, not {method!r}")
        fork.register(method)


# What users say; a Runtime is for tests.
RuntimeLike: TypeAlias = Literal["threads", "gevent"] | Runtime
