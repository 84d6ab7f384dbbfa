"""Readers and Writers beside scripted nsqds; whatever a test leaves open ends with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gnsqsync import Reader, Writer
from gnsqsync.errors import NSQError
from tests.support.scripted import ScriptedNsqd
from tests.support.worlds import World


def address(nsqd: ScriptedNsqd) -> str:
    host, port = nsqd.address
    return f"{host}:{port}"


def names(nsqd: ScriptedNsqd, *, without: tuple[str, ...] = ("IDENTIFY", "NOP")) -> list[str]:
    """The commands so far as lines, each without its body."""
    return [
        " ".join((command.name, *command.parameters))
        for command in list(nsqd.commands)
        if command.name not in without
    ]


class Client:
    """Makes Readers and Writers of one world and closes them at the end of the test."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._open: list[Reader | Writer] = []

    def writer(self, *nsqds: ScriptedNsqd, **options: Any) -> Writer:
        options.setdefault("runtime", self.world.runtime)
        writer = Writer([address(nsqd) for nsqd in nsqds], **options)
        self._open.append(writer)
        return writer

    def reader(self, handler: Any, *nsqds: ScriptedNsqd, **options: Any) -> Reader:
        options.setdefault("runtime", self.world.runtime)
        options.setdefault("nsqd_tcp_addresses", [address(nsqd) for nsqd in nsqds])
        reader = Reader("t", "ch", handler, **options)
        self._open.append(reader)
        return reader

    def consume(self, handler: Any, *nsqds: ScriptedNsqd, **options: Any) -> Reader:
        """A Reader that has started."""
        reader = self.reader(handler, *nsqds, **options)
        reader.start(block=False)
        return reader

    def forget(self, thing: Reader | Writer) -> None:
        """The test closes it and holds the last reference."""
        self._open.remove(thing)

    def close(self) -> None:
        for thing in self._open:
            if isinstance(thing, Writer):
                thing.close(0.1)
            elif thing._run is not None:
                thing.stop(0)
                try:
                    assert thing.join(20.0) is not None, f"{thing} did not stop"
                except NSQError:
                    pass  # it ended by itself; the test has seen that already


@pytest.fixture
def client(world: World) -> Iterator[Client]:
    client = Client(world)
    yield client
    client.close()
