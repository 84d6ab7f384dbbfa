"""Readers and Writers beside scripted nsqds; whatever a test leaves open ends with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gnsqsync import Reader, Writer
from tests.support.scripted import ScriptedNsqd
from tests.support.worlds import Clients, World, client_fixture


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


class Client(Clients):
    """Readers and Writers beside scripted nsqds."""

    def writer(self, *nsqds: ScriptedNsqd, **options: Any) -> Writer:
        options.setdefault("runtime", self.world.runtime)
        return self.keep(Writer([address(nsqd) for nsqd in nsqds], **options))

    def reader(
        self, handler: Any, *nsqds: ScriptedNsqd, kind: type[Reader] = Reader, **options: Any
    ) -> Reader:
        options.setdefault("runtime", self.world.runtime)
        options.setdefault("nsqd_tcp_addresses", [address(nsqd) for nsqd in nsqds])
        return self.keep(kind("t", "ch", handler, **options))

    def consume(self, handler: Any, *nsqds: ScriptedNsqd, **options: Any) -> Reader:
        """A Reader that has started."""
        reader = self.reader(handler, *nsqds, **options)
        reader.start(block=False)
        return reader


client = client_fixture(Client)


@pytest.fixture(autouse=True)
def exact_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Delays of requeues without chance: scripted nsqds see each to the millisecond."""
    monkeypatch.setattr("gnsqsync.policy.requeue.JITTER", 0.0)


class Gate:
    """Holds up whoever comes, in its world, until the end of the test."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open = threading.Event()
        self.came = 0

    def __call__(self, *args: Any) -> None:
        self.came += 1
        self._world.eventually(self._open.is_set)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate(world: World) -> Iterator[Gate]:
    gate = Gate(world)
    yield gate
    gate.open()
