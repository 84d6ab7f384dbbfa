"""Where no thread can be started for a while: nothing half started stays, nothing is given up."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from gnsqsync.runtime import Runtime, Task, choose
from tests.component.conftest import Client
from tests.support import scripted
from tests.support.scripted import ScriptedNsqd, automatic
from tests.support.worlds import World

MESSAGE = "can't start new thread"


def short_of(world: World, name: str, number: int = 0) -> Runtime:
    """A runtime that cannot start one of the tasks whose names begin with ``name``."""
    runtime = choose(world.runtime)
    spawn = runtime.spawn
    numbers = itertools.count()

    def limited(called: str, fn: Callable[..., object], *args: Any) -> Task:
        if called.startswith(name) and next(numbers) == number:
            raise RuntimeError(MESSAGE)
        return spawn(called, fn, *args)

    runtime.spawn = limited  # type: ignore[method-assign]
    return runtime


@pytest.mark.parametrize("name", ["nsq-timer", "nsq-work 1", "nsq-lookup", "nsq-reader"])
def test_a_reader_that_cannot_start_leaves_nothing(client: Client, world: World, name: str) -> None:
    with ScriptedNsqd() as nsqd:
        reader = client.reader(
            print,
            nsqd,
            concurrency=2,
            lookupd_http_addresses="127.0.0.1:1",
            runtime=short_of(world, name),
        )
        client.forget(reader)
        with pytest.raises(RuntimeError, match=MESSAGE):
            reader.start(block=False)
        with pytest.raises(RuntimeError, match=MESSAGE):
            reader.join(0)
        world.eventually(lambda: not reader.stats().connections)


@pytest.mark.parametrize("number", [0, 1])
def test_an_nsqd_without_a_reading_thread_is_dialled_again(
    client: Client, world: World, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    short = [automatic(until="RDY"), scripted.close()]
    with ScriptedNsqd(*[short] * number, [automatic()]) as nsqd:
        reader = client.consume(print, nsqd, runtime=short_of(world, "nsq-read ", number))
        world.eventually(lambda: MESSAGE in caplog.text)
        world.eventually(lambda: reader.stats().connections)
