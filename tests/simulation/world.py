"""The simulated world of a test: its tasks, waits and timeouts take virtual time.

The test itself is one of the simulated tasks: time passes while the test waits, so that fixtures,
``pytest.raises`` and ``caplog`` are those of any other test. The same test takes the same turns in
each run.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import greenlet

from tests.simulation import environment
from tests.simulation.ground import SimGround
from tests.simulation.network import Network
from tests.simulation.runtime import SimRuntime
from tests.simulation.scheduler import Scheduler, SimTask
from tests.support import ground
from tests.support.world import World

__all__ = ["SimWorld", "TestScheduler", "simulated"]

# Seconds of virtual time that a test may wait for one thing.
_LONGEST_WAIT = 36_000.0
# Seconds of virtual time in which the tasks that a test leaves behind must end.
_GRACE = 5.0

logger = logging.getLogger("gnsqsync.runtime")


class TestScheduler(Scheduler):
    """A scheduler whose first task is the code that made it."""

    __test__ = False

    def __init__(self, seed: str, *, preempts: bool) -> None:
        super().__init__(seed, preempts=preempts)
        self.main = SimTask(0, "the test", "user")
        self.main.greenlet = greenlet.getcurrent()
        self.current = self.main
        self._hub = greenlet.greenlet(self._loop)
        self._waits = 0
        self.on_raised = _log_error

    def _loop(self) -> None:
        """Run the others while the test waits."""
        while True:
            waits = self._waits
            try:
                self.run(self.now + _LONGEST_WAIT)
            except BaseException as error:
                self.throw(self.main, error)
            else:
                if waits == self._waits or not self._ready:
                    text = f"nothing ends the wait for {self.main.waits_for}"
                    self.throw(self.main, AssertionError(text))

    def _switch(self, task: SimTask) -> None:
        if task is self.main:
            self._waits += 1
        super()._switch(task)


def _log_error(task: SimTask) -> None:
    """Tell what has ended a task of the package, as the real runtimes do."""
    error = task.raised
    if error is not None and not isinstance(error, SystemExit):
        logger.error("%s ended by an unexpected exception", task.name, exc_info=error)


class SimWorld(World):
    """A world of threads or of greenlets, by its name, on a scheduler and a network."""

    is_simulated = True

    def __init__(self, name: str, scheduler: Scheduler, network: Network) -> None:
        super().__init__(name)
        self.scheduler = scheduler
        self.network = network
        self.runtime = SimRuntime(scheduler, network, "client")
        self._aside = SimRuntime(scheduler, network, "client", "user")

    @property
    def now(self) -> float:
        """Seconds."""
        return self.scheduler.now

    def sleep(self, seconds: float) -> None:
        self.scheduler.park("its time", self.scheduler.now + seconds)

    def start(self, run: Callable[[], None]) -> Any:
        return self._aside.spawn("a task of the test", run)

    def throw(self, handle: Any, error: type[BaseException]) -> None:
        self.scheduler.throw(handle.task, error())

    def running(self) -> list[str]:
        """Return the names of the package's tasks, on both kinds."""
        return [task.name for task in self.scheduler.tasks.values() if task.owner == "client"]

    def left_behind(self) -> list[str]:
        """Return the tasks and connections of the process that there still are."""
        left = [task.name for task in self.scheduler.tasks.values()]
        return left + [repr(end) for end in self.network.open if end.host == "client"]


@contextmanager
def simulated(name: str, seed: str) -> Iterator[SimWorld]:
    """Make the caller the first task of a world; ``name``: threads or gevent.

    AssertionError at the end for what is left behind.
    """
    scheduler = TestScheduler(seed, preempts=name == "threads")
    network = Network(scheduler, random.Random(f"network {seed}"))
    network.names["localhost"] = ["127.0.0.1"]
    stage = SimGround(scheduler, network)
    with environment.entered(scheduler, network, seed), ground.entered(stage):
        world = SimWorld(name, scheduler, network)
        try:
            yield world
            world.close()
            until = scheduler.now + _GRACE
            while (left := world.left_behind()) and scheduler.now < until:
                world.sleep(0.01)
            for task in list(scheduler.tasks.values()):
                scheduler.throw(task, greenlet.GreenletExit())
            world.sleep(1.0)
            assert not left, f"left behind: {', '.join(left)}"
        finally:
            # A finalizer that the collector calls later would take its turn, and switch to this
            # greenlet amid a later test.
            scheduler.current = None
