"""The waits and tasks of a test in one of the worlds: threads, greenlets, a patched process.

Scripts that tests start import this, too. So it knows neither pytest nor gnsqsync, which take
longer to import than most scripts run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tests.support.waiting import Describe, eventually

T = TypeVar("T")


class World:
    """One of the worlds, with its way to wait and to start tasks."""

    def __init__(self, name: str) -> None:
        self.name = name
        # The argument ``runtime`` of a user of that world; None in a patched process.
        self.runtime = None if name == "patched" else name
        self._tasks: list[Any] = []

    def sleep(self, seconds: float) -> None:
        if self.name == "gevent":
            import gevent

            gevent.sleep(seconds)
        else:
            time.sleep(seconds)

    def eventually(
        self, look: Callable[[], T], timeout: float = 15.0, *, describe: Describe = None
    ) -> T:
        """Call ``waiting.eventually()`` in this world."""
        return eventually(look, timeout, describe=describe, pause=0.01, sleep=self.sleep)

    def spawn(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run the function in a task. ``join`` raises its exception."""
        task = _Task(self, function, args)
        self._tasks.append(task)
        return task

    def close(self) -> None:
        for task in self._tasks:
            task.join(10.0)


class _Task:
    def __init__(self, world: World, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._world = world
        self._error: BaseException | None = None
        self.result: Any = None
        self.done = False

        def run() -> None:
            try:
                self.result = function(*args)
            except BaseException as error:
                self._error = error
            finally:
                self.done = True

        if world.name == "gevent":
            import gevent

            self._handle: Any = gevent.spawn(run)
        else:
            self._handle = threading.Thread(target=run, daemon=True)
            self._handle.start()

    def join(self, timeout: float = 15.0) -> Any:
        self._handle.join(timeout)
        assert self.done, "still running"
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        return self.result
