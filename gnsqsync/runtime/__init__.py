"""The seam between threads and greenlets: ``choose()`` says which, ``Runtime`` what they offer.

Nothing outside this package names threading, queue or gevent, or makes a socket.
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
    """The runtime for a Reader or Writer; called at their first use, not in constructors.

    ``None``: greenlets when gevent has patched socket and threading, threads when neither.
    ``"gevent"``: greenlets, patched or not; they run in the hub of the calling thread.
    ``"threads"``: native threads and sockets, also when gevent has patched sockets only.
    A Runtime is returned as it is. ConfigError when gevent patched only one of the two and
    nothing was said, for ``"threads"`` when threads are greenlets, for another value, and when
    gevent patched the process after the first use.
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
