"""An OS thread beside all others, which runs also where greenlets or their hub hang.

Knows nothing of what it looks at, or what it does then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnsqsync.runtime import world

__all__ = ["Watchdog", "run_aside"]


def run_aside(fn: Callable[[], object]) -> Callable[[float], bool]:
    """Run it on an OS thread, also where gevent has patched threads.

    Returns what waits for its end, at most so many seconds, and says whether it has ended.
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
    """While it is entered: ``look()`` every so many seconds, on an OS thread of its own."""

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
