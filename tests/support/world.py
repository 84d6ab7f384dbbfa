"""The waits and tasks of a test in one of the worlds: threads, greenlets, a patched process.

Scripts that tests start import this, too. So it knows neither pytest nor gnsqsync, which take
longer to import than most scripts run.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from tests.support.waiting import LIMIT, Describe, eventually

T = TypeVar("T")


class World:
    """A world, with its way to wait and to start tasks."""

    is_simulated = False
    # Seconds of the ``join()`` of a spawned task without a time.
    longest_join = LIMIT

    def __init__(self, name: str) -> None:
        self.name = name
        # The argument ``runtime`` of a user of that world; None in a patched process.
        self.runtime: Any = None if name == "patched" else name
        self._tasks: list[Spawned] = []

    def sleep(self, seconds: float) -> None:
        if self.name == "gevent":
            import gevent

            gevent.sleep(seconds)
        else:
            time.sleep(seconds)

    def eventually(
        self, look: Callable[[], T], timeout: float = LIMIT, *, describe: Describe = None
    ) -> T:
        """Call ``waiting.eventually()`` in this world."""
        # Hours of virtual time take no more looks than minutes.
        pause = max(0.01, timeout / 50_000)
        return eventually(look, timeout, describe=describe, pause=pause, sleep=self.sleep)

    def spawn(self, function: Callable[..., Any], *args: Any, **options: Any) -> Spawned:
        """Run the function in a task. ``join`` raises its exception."""
        task = Spawned(self, partial(function, *args, **options))
        self._tasks.append(task)
        return task

    def start(self, run: Callable[[], None]) -> Any:
        """Run it in a task of this world, which has ``join(timeout)``."""
        if self.name == "gevent":
            import gevent

            return gevent.spawn(run)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def throw(self, handle: Any, error: type[BaseException]) -> None:
        """Raise ``error`` in a task that ``start`` returned, where it is."""
        if self.name == "gevent":
            handle.kill(error, block=False)
        else:
            # Like Python's own interrupts, the error is raised when the system call returns.
            raised = ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(handle.ident or 0), ctypes.py_object(error)
            )
            assert raised == 1

    def running(self) -> list[str]:
        """Return the names of the threads of this process. Real greenlets are not among them."""
        return [thread.name for thread in threading.enumerate()]

    def close(self) -> None:
        for task in self._tasks:
            task.join()


class Spawned:
    """A task of the test, and what became of it."""

    def __init__(self, world: World, call: Callable[[], Any]) -> None:
        self._error: BaseException | None = None
        self._longest_join = world.longest_join
        self._call: Callable[[], Any] | None = call
        self.result: Any = None
        self.done = False
        self._handle = world.start(self._run)

    def _run(self) -> None:
        # The world keeps the task to its end. What the function holds goes when it returns.
        call, self._call = self._call, None
        assert call is not None
        try:
            self.result = call()
        except BaseException as error:
            self._error = error
        finally:
            del call
            self.done = True

    def join(self, timeout: float | None = None) -> Any:
        """Return its result, or raise what it raised."""
        self._handle.join(self._longest_join if timeout is None else timeout)
        assert self.done, "still running"
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self.result
