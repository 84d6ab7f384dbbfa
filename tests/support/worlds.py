"""The worlds of Reader and Writer: threads, greenlets without patching, a patched process.

A test that asks for ``world`` runs in threads and on greenlets in this process; a patched process
(python -m tests.support.patched) runs the same tests again in the third world.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from gnsqsync import Reader, Writer
from gnsqsync.errors import NSQError
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
                    assert thing.join(20.0) is not None, f"{thing} did not stop"
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        names = ["patched"] if os.environ.get(PATCHED) else ["threads", "gevent"]
        metafunc.parametrize("world", names, indirect=True)


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Any:
    world = World(request.param)
    yield world
    world.close()
