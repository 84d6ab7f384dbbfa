"""Where no thread can be started for a while: nothing half started stays, nothing is given up."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from gnsqsync import Message, Reader, TopicGroup, Writer
from gnsqsync.errors import NotSent
from gnsqsync.runtime import Runtime, Task, choose
from gnsqsync.stats import StopResult
from tests.component.conftest import Client, address
from tests.component.writer.test_discovery import nodes
from tests.support import scripted
from tests.support.scripted import ScriptedNsqd, automatic
from tests.support.serving import fake_server
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


def test_an_nsqlookupd_without_a_thread_is_asked_later(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd, fake_server() as lookupd:
        lookupd.answer({"producers": []})
        reader = client.consume(print, nsqd, runtime=short_of(world, "nsq-lookup"))
        reader.add_lookupd(lookupd.address)
        assert not lookupd.requests
        world.eventually(lambda: lookupd.requests)


def connections_behind_a_publish(writer: Writer) -> int:
    writer.publish("t", "x", timeout=15)
    return len(writer.stats().connections)


def test_a_writer_connects_to_the_others(client: Client, world: World) -> None:
    with ScriptedNsqd() as one, ScriptedNsqd() as two, ScriptedNsqd() as three:
        writer = client.writer(one, two, three, runtime=short_of(world, "nsq-read"))
        writer.connect(15)
        assert len(writer.stats().connections) == 2
        # And to that one with a later publish.
        world.eventually(lambda: connections_behind_a_publish(writer) == 3)


def test_a_publish_goes_where_there_is_a_connection(client: Client, world: World) -> None:
    with ScriptedNsqd() as one, ScriptedNsqd() as two:
        writer = client.writer(one, two, runtime=short_of(world, "nsq-read", 1))
        writer.publish("t", "x", timeout=15)
        # The other one is dialled aside, as soon as a thread can be started.
        world.eventually(lambda: connections_behind_a_publish(writer) == 2)


def test_a_writer_that_could_not_ask_asks_again(client: Client, world: World) -> None:
    with ScriptedNsqd() as nsqd, fake_server() as lookupd:
        lookupd.answer(nodes(nsqd))
        writer = client.keep(
            Writer(lookupd_http_addresses=lookupd.address, runtime=short_of(world, "nsq-lookup"))
        )
        with pytest.raises(NotSent, match=f"no thread asks for nsqds: http:.*: {MESSAGE}"):
            writer.publish("t", "x")
        writer.publish("t", "x", timeout=15)


@pytest.mark.parametrize("name", ["nsq-topics", "nsq-group"])
def test_a_topic_group_ends_whole(world: World, name: str) -> None:
    """It has no thread for itself, or none that watches the Reader it has just started."""

    made: list[Reader] = []

    def reader(topic: str) -> Reader:
        made.append(
            Reader(topic, "ch", print, nsqd_tcp_addresses=address(nsqd), runtime=world.runtime)
        )
        return made[-1]

    with ScriptedNsqd() as nsqd, fake_server() as lookupd:
        lookupd.answer({"topics": ["t"]})
        group = TopicGroup(
            "t",
            reader,
            lookupd_http_addresses=lookupd.address,
            lookupd_poll_interval=0.05,
            runtime=short_of(world, name),
        )
        with pytest.raises(RuntimeError, match=MESSAGE):
            world.spawn(group.start).join()
        assert [reader.join(10) for reader in made] == [StopResult(0, 0)] * len(made)
        assert len(made) == (name == "nsq-group")


class Gone(BaseException):
    pass


def test_a_worker_that_cannot_be_replaced_holds_up_no_stop(client: Client, world: World) -> None:
    def handler(message: Message) -> None:
        if message.body == b"bad":
            raise Gone

    with ScriptedNsqd() as nsqd:
        runtime = short_of(world, "nsq-work", 2)
        reader = client.consume(handler, nsqd, concurrency=2, runtime=runtime)
        world.eventually(lambda: nsqd.received("RDY"))
        nsqd.connections[0].message(b"bad")
        world.eventually(lambda: nsqd.received("REQ"))
        nsqd.connections[0].message(b"good")
        world.eventually(lambda: nsqd.received("FIN"))
        reader.stop(30.0)
        assert reader.join(10.0) == StopResult(0, 0)


def test_a_publish_that_waits_for_a_thread_does_not_spin(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    runtime = choose(world.runtime)
    spawn = runtime.spawn
    tried: list[str] = []

    def limited(called: str, fn: Callable[..., object], *args: Any) -> Task:
        if called.startswith("nsq-read"):
            tried.append(called)
            raise RuntimeError(MESSAGE)
        return spawn(called, fn, *args)

    runtime.spawn = limited  # type: ignore[method-assign]
    writer = client.keep(Writer("127.0.0.1:1", runtime=runtime, outage="wait"))
    with pytest.raises(NotSent):
        writer.publish("t", "x", timeout=1.1)
    # One each 0.25 s.
    assert 1 <= len(tried) <= 6
    assert caplog.text.count(MESSAGE) == 1
