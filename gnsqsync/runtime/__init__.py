"""Seam between threads and greenlets: ``choose()`` picks one, ``Runtime`` says what both offer.

Nothing outside this package names threading, queue or gevent, or makes a socket.

``base`` is the contract; ``threads`` and ``greenlets`` fulfil it. ``world`` knows what gevent has
patched, ``fork`` runs hooks in a child, ``at_exit`` at the end of the interpreter. ``dial``
connects, for both kinds of sockets. ``timer`` and ``watchdog`` are built on the contract or beside
it.

Surprise: gevent may patch a process after it has imported this package. So the runtime is chosen at
the first use, and ``world.check`` refuses a process that was patched between two uses.
"""

from __future__ import annotations

from gnsqsync.errors import ConfigError
from gnsqsync.runtime import fork, world
from gnsqsync.runtime.base import (
    After,
    Cutter,
    Event,
    Latch,
    Limit,
    Lock,
    Mutex,
    Queue,
    Runtime,
    RuntimeLike,
    Socket,
    Task,
    TimedQueue,
)

__all__ = [
    "After",
    "Cutter",
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
    "choose",
]


def choose(runtime: RuntimeLike | None = None) -> Runtime:
    """Return the runtime for a Reader or Writer. Called at their first use, not in constructors.

    ``None``: greenlets if gevent has patched socket and threading, threads if neither.
    ``"gevent"``: greenlets, patched or not; they run in the hub of the calling thread.
    ``"threads"``: native threads and sockets, even if gevent has patched sockets only.
    A Runtime is returned as it is.

    Raises ConfigError for ``None`` if gevent has patched only one of the two, for ``"threads"`` if
    threads are greenlets, for another value, and if gevent patched the process after the first use.
    """
    if isinstance(runtime, Runtime):
        world.check()
        return runtime
    if runtime not in (None, "threads", "gevent"):
        raise ConfigError(f"runtime is {runtime!r}; it must be None, 'threads' or 'gevent'")
    name = runtime or _fitting(world.current())
    if name == "threads" and world.current().threading:
        raise ConfigError(
            "runtime='threads', but gevent has patched threading in this process, so threads are"
            " greenlets; use runtime='gevent', or patch with thread=False"
        )
    world.check()
    fork.install()
    if name == "gevent":
        from gnsqsync.runtime.greenlets import GreenletRuntime

        return GreenletRuntime()
    from gnsqsync.runtime.threads import ThreadRuntime

    return ThreadRuntime()


def _fitting(patched: world.World) -> str:
    if patched.socket and not patched.threading:
        raise ConfigError(
            "gevent has patched socket but not threading; say which to use: runtime='gevent', or"
            " runtime='threads' for native threads and sockets, or patch both"
        )
    if patched.threading and not patched.socket:
        raise ConfigError(
            "gevent has patched threading but not socket; say runtime='gevent', or patch both"
        )
    return "gevent" if patched.socket else "threads"
