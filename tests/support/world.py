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
        return eventually(look, timeout, describe=describe, pause=0.01, sleep=self.sleep)

    def spawn(self, function: Callable[..., Any], *args: Any, **options: Any) -> Spawned:
        """Run the function in a task. ``join`` raises its exception."""
        task = Spawned(self.start, partial(function, *args, **options))
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

    def close(self) -> None:
        for task in self._tasks:
            task.join()


class Spawned:
    """A task of the test, and what became of it."""

    def __init__(self, start: Callable[[Callable[[], None]], Any], call: Callable[[], Any]) -> None:
        self._error: BaseException | None = None
        self._call = call
        self.result: Any = None
        self.done = False
        self._handle = start(self._run)

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self._error = error
        finally:
            self.done = True

    def join(self, timeout: float = LIMIT) -> Any:
        """Return its result, or raise what it raised."""
        self._handle.join(timeout)
        assert self.done, "still running"
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self.result
