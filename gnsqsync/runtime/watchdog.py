"""OS thread beside all others, which runs even when greenlets or their hub hang.

Must not know what it looks at, or what is done then.

``run_aside`` runs a function on a new OS thread, and ``Watchdog`` calls one there again and again.

Surprise: it takes threads and locks as Python made them, even if gevent has replaced them. A
greenlet would hang together with its hub.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnsqsync.runtime import world

__all__ = ["Watchdog", "run_aside"]


def run_aside(fn: Callable[[], object]) -> Callable[[float], bool]:
    """Run ``fn`` on an OS thread, even if gevent has patched threads.

    Return a function that waits for its end, up to the given seconds, and returns True at its end.
    """
    ended: Any = world.native("_thread", "allocate_lock")()
    ended.acquire()

    def run() -> None:
        try:
            fn()
        finally:
            ended.release()

    world.native("_thread", "start_new_thread")(run, ())

    def wait(seconds: float) -> bool:
        has_ended: bool = ended.acquire(True, seconds)
        return has_ended

    return wait


class Watchdog:
    """Context manager that calls ``look()`` each ``seconds``, on an OS thread of its own."""

    def __init__(self, seconds: float, look: Callable[[], object]) -> None:
        self._seconds = seconds
        self._look = look
        self._stop: Any = None

    def __enter__(self) -> Watchdog:
        self._stop = world.native("_thread", "allocate_lock")()
        self._stop.acquire()
        run_aside(self._run)
        return self

    def __exit__(self, *raised: object) -> None:
        self._stop.release()

    def _run(self) -> None:
        while not self._stop.acquire(True, self._seconds):
            self._look()
