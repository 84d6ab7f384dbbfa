"""The worlds of Reader and Writer: threads, greenlets without patching, a patched process.

A test that asks for ``world`` runs in threads and on greenlets in this process; a patched process
(python -m tests.support.patched) runs the same tests again in the third world.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TypeVar

import pytest

from gnsqsync import Reader, Writer
from gnsqsync.errors import NSQError
from tests.support.waiting import LIMIT
from tests.support.world import World

Thing = TypeVar("Thing", Reader, Writer)
Maker = TypeVar("Maker", bound="Clients")

PATCHED = "GNSQSYNC_TEST_PATCHED"


class Clients:
    """A maker of Readers and Writers of one world, which closes them at the end of the test."""

    # Seconds for running handlers and publishes at the close.
    grace = 0.1

    def __init__(self, world: World) -> None:
        self.world = world
        self._open: list[Reader | Writer] = []

    def keep(self, thing: Thing) -> Thing:
        """Close the thing at the end of the test."""
        self._open.append(thing)
        return thing

    def forget(self, thing: Reader | Writer) -> None:
        """Drop the reference, because the test closes the thing itself."""
        self._open.remove(thing)

    def close(self) -> None:
        for thing in self._open:
            if isinstance(thing, Writer):
                thing.close(self.grace)
            elif thing._run is not None:
                thing.stop(self.grace)
                try:
                    assert thing.join(LIMIT) is not None, f"{thing} did not stop"
                except NSQError:
                    pass  # The Reader ended by itself, and the test has seen its error.


def client_fixture(maker: type[Maker]) -> Callable[[World], Iterator[Maker]]:
    """Return the fixture ``client`` of a folder of tests."""

    @pytest.fixture(name="client")
    def client(world: World) -> Iterator[Maker]:
        client = maker(world)
        yield client
        client.close()

    return client


# Folders whose tests run in the simulated worlds: in virtual time, in the same way in each run.
SIMULATED = (
    "tests/component/connection/",
    "tests/component/discovery/",
    "tests/component/reader/",
    "tests/component/runtime/test_short_of_threads.py",
    "tests/component/runtime/test_timer.py",
    "tests/component/test_costs.py",
    "tests/component/test_manners.py",
    "tests/component/writer/",
)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "reality(reason): the test runs in the real worlds; only reality shows the reason",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        if os.environ.get(PATCHED):
            names = ["patched"]
        elif _is_simulated(metafunc.definition):
            names = ["simulated-threads", "simulated-gevent"]
        else:
            names = ["threads", "gevent"]
        metafunc.parametrize("world", names, indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Make the simulated world before all else, so that servers of other fixtures stand in it."""
    names = getattr(item, "fixturenames", [])
    if "world" in names and _is_simulated(item):
        names.remove("world")
        names.insert(0, "world")


def _is_simulated(test: pytest.Item) -> bool:
    place = test.nodeid.startswith(SIMULATED)
    return place and test.get_closest_marker("reality") is None


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """The world of the test; the last of all that ends."""
    kind, _, name = request.param.rpartition("-")
    if kind:
        from tests.simulation.world import simulated

        with simulated(name, request.node.nodeid) as made:
            yield made
    else:
        world = World(name)
        yield world
        world.close()
