"""The worlds that Reader and Writer live in: threads, greenlets without patching, patched.

A test that asks for ``world`` runs in threads and on greenlets in this process; a patched process
(python -m tests.support.patched) runs the same tests once more in the third world.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

PATCHED = "GNSQSYNC_TEST_PATCHED"


class World:
    """How a test waits and starts tasks in one of the worlds."""

    def __init__(self, name: str) -> None:
        self.name = name
        # What a user of that world would pass: nothing, where the process says it.
        self.runtime = None if name == "patched" else name
        self._tasks: list[Any] = []

    def sleep(self, seconds: float) -> None:
        if self.name == "gevent":
            import gevent

            gevent.sleep(seconds)
        else:
            time.sleep(seconds)

    def eventually(self, look: Callable[[], T], timeout: float = 15.0) -> T:
        """The first true result of ``look``; AssertionError after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while not (result := look()):
            assert time.monotonic() < deadline, f"still {result!r} after {timeout} s"
            self.sleep(0.01)
        return result

    def spawn(self, function: Callable[..., Any], *args: Any) -> Any:
        """Run it aside; what it raises is raised by ``join``."""
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        names = ["patched"] if os.environ.get(PATCHED) else ["threads", "gevent"]
        metafunc.parametrize("world", names, indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Any:
    world = World(request.param)
    yield world
    world.close()
