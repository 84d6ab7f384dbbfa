"""nsqds and nsqlookupds that come and go while a Reader runs; channels made before messages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import gevent
import pytest

from gnsqsync import Message, Reader
from gnsqsync.errors import ConfigError, ConnectionLost
from gnsqsync.stats import StopResult
from tests.component.conftest import Client, address, names
from tests.component.discovery.test_lies import (
    OFTEN,
    UNKNOWN,
    Discovering,
    discover,
    listing,
    lookupd,
    make_lookupd,
    nsqd,
)
from tests.support import scripted
from tests.support.scripted import Command, Connection, ScriptedNsqd, automatic, message_frame
from tests.support.serving import FakeServer
from tests.support.worlds import World

__all__ = ["discover", "lookupd", "make_lookupd", "nsqd"]

SUBSCRIBED = automatic(until="RDY")


def lookup_threads(reader: Reader) -> list[str]:
    """The names of the poll threads or greenlets that live."""
    run = reader._run
    assert run is not None
    return [task.name for task in run._discovery.tasks if task.alive]


# nsqds


def test_addresses_added_and_removed_before_the_start_count(client: Client, world: World) -> None:
    with ScriptedNsqd() as one, ScriptedNsqd() as two:
        reader = client.reader(print, one)
        reader.add_nsqd(address(two))
        reader.remove_nsqd(address(one))
        reader.start(block=False)
        world.eventually(lambda: two.received("RDY"))
        assert not one.connections
        assert [c.address for c in reader.stats().connections] == [address(two)]


def test_an_nsqd_is_added_while_it_runs(client: Client, world: World) -> None:
    with ScriptedNsqd() as one, ScriptedNsqd() as two:
        reader = client.consume(print, one, max_in_flight=4, latency="throughput")
        world.eventually(lambda: one.received("RDY"))
        world.spawn(reader.add_nsqd, address(two)).join()
        reader.add_nsqd(address(two))
        world.eventually(lambda: names(two)[-1:] == ["RDY 2"])
        world.eventually(lambda: names(one)[-2:] == ["RDY 4", "RDY 2"])
        assert len(two.connections) == 1


def test_a_removed_nsqd_is_left_in_good_order(client: Client, world: World) -> None:
    begun: list[Message] = []
    go = threading.Event()

    def handler(message: Message) -> None:
        begun.append(message)
        world.eventually(go.is_set)

    frames = b"".join(message_frame(b"%d" % n) for n in range(3))
    with (
        ScriptedNsqd([SUBSCRIBED, scripted.send(frames), automatic()]) as one,
        ScriptedNsqd() as two,
    ):
        reader = client.consume(handler, one, two, max_in_flight=6, latency="throughput")
        world.eventually(lambda: begun and two.received("RDY") and reader.stats().in_flight == 3)
        reader.remove_nsqd(address(one))
        # What no handler has begun is back at once, although the only worker is busy.
        world.eventually(lambda: len(one.received("REQ")) == 2)
        assert all(command.parameters[1] == "0" for command in one.received("REQ"))
        assert names(one).index("CLS") < names(one).index(
            " ".join(("REQ", *one.received("REQ")[0].parameters))
        )
        assert begun[0].is_alive
        # The slot of the message at work is not given away yet.
        world.eventually(lambda: names(two)[-1] == "RDY 5", 4.0)
        go.set()
        world.eventually(lambda: [c.address for c in reader.stats().connections] == [address(two)])
        world.eventually(lambda: names(one)[-1] == f"FIN {begun[0].id}")
        world.eventually(lambda: names(two)[-1] == "RDY 6")
        assert len(begun) == 1
        # No redial.
        nodes = reader._run.subscription._nodes  # type: ignore[union-attr]
        assert [str(known) for known in nodes._nodes] == [address(two)]
        assert len(one.connections) == 1


def test_messages_that_cross_with_the_removal_go_back(client: Client, world: World) -> None:
    def late(connection: Connection, command: Command) -> None:
        connection.message(b"late")
        connection.answer(command)

    with ScriptedNsqd([automatic(hooks={"CLS": late})]) as one:
        got: list[Message] = []
        reader = client.consume(got.append, one)
        world.eventually(lambda: one.received("RDY"))
        reader.remove_nsqd(address(one))
        world.eventually(lambda: not reader.stats().connections)
        world.eventually(lambda: len(one.received("REQ")) == 1)
        assert not got


def test_a_removal_beside_a_stop(client: Client, world: World) -> None:
    """It holds what it took out of the queue in its hands while the stop looks there."""
    go = threading.Event()
    begun: list[Message] = []

    def handler(message: Message) -> None:
        begun.append(message)
        world.eventually(go.is_set)

    two_frames = message_frame(b"1") + message_frame(b"2")
    with (
        ScriptedNsqd([SUBSCRIBED, scripted.send(two_frames), automatic()]) as one,
        ScriptedNsqd() as two,
    ):
        reader = client.consume(handler, one, two, max_in_flight=6, latency="throughput")
        world.eventually(lambda: begun and two.received("RDY") and reader.stats().in_flight == 2)
        chunks = reader._running().subscription._chunks
        take_out = chunks._taken_out

        def take_out_slowly() -> Any:
            taken = list(take_out())
            chunks._taken_out = take_out  # type: ignore[method-assign]
            reader.stop()
            world.eventually(lambda: chunks.is_over)
            go.set()
            yield from taken

        chunks._taken_out = take_out_slowly  # type: ignore[method-assign]
        reader.remove_nsqd(address(two))
        assert reader.join(10) == StopResult(0, 0)
        assert [command.parameters[1] for command in one.received("REQ")] == ["0"]


def test_a_removal_in_a_handler_and_an_addition_again(client: Client, world: World) -> None:
    readers: list[Reader] = []

    def handler(message: Message) -> None:
        world.eventually(lambda: readers)[0].remove_nsqd(address(one))

    with ScriptedNsqd([SUBSCRIBED, scripted.message(b"x"), automatic()], [automatic()]) as one:
        reader = client.consume(handler, one)
        readers.append(reader)
        world.eventually(lambda: one.received("FIN") and not reader.stats().connections)
        assert names(one)[-1].startswith("FIN")
        reader.add_nsqd(address(one))
        world.eventually(lambda: len(one.connections) == 2 and reader.stats().connections)


def test_an_nsqd_that_is_added_while_it_leaves_comes_back(client: Client, world: World) -> None:
    go = threading.Event()
    with ScriptedNsqd([SUBSCRIBED, scripted.message(b"x"), automatic()], [automatic()]) as one:
        reader = client.consume(lambda m: world.eventually(go.is_set), one)
        world.eventually(lambda: reader.stats().in_flight)
        reader.remove_nsqd(address(one))
        reader.add_nsqd(address(one))
        go.set()
        world.eventually(lambda: len(one.connections) == 2 and reader.stats().connections)


def test_a_removal_ends_redials(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedNsqd() as one:
        one.refuse_connections()
        reader = client.consume(print, one)
        world.eventually(lambda: "tried again" in caplog.text)
        reader.remove_nsqd(address(one))
        assert not reader._run.subscription._nodes._nodes  # type: ignore[union-attr]


def test_a_removal_cuts_a_dial_short(
    client: Client, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gnsqsync")
    hooks: Any = {"IDENTIFY": lambda connection, command: None}
    with ScriptedNsqd([automatic(hooks=hooks)]) as one:
        reader = client.consume(print, one, connect_timeout=60, on_giving_up="discard")
        world.eventually(lambda: one.received("IDENTIFY"))
        reader.remove_nsqd(address(one))
        nodes = reader._run.subscription._nodes  # type: ignore[union-attr]
        world.eventually(lambda: not nodes._nodes)
        assert not [r for r in caplog.records if r.levelno >= logging.WARNING]


def test_a_removed_nsqd_that_was_refused_does_not_end_the_reader(
    client: Client, world: World
) -> None:
    def refuse(connection: Connection, command: Command) -> None:
        connection.error("E_BAD_TOPIC SUB topic name is not valid")

    with ScriptedNsqd([automatic(hooks={"SUB": refuse})]) as bad, ScriptedNsqd() as good:
        reader = client.consume(print, bad, good)
        world.eventually(lambda: bad.received("SUB") and good.received("RDY"))
        reader.remove_nsqd(address(bad))
        world.sleep(0.05)
        assert reader.join(0) is None
        assert len(reader.stats().connections) == 1


@pytest.mark.parametrize("wrong", ["", "http://x:4150", "h:99999", 7, None])
def test_an_address_must_be_one(wrong: Any) -> None:
    reader = Reader("t", "c", print, nsqd_tcp_addresses="h")
    for method in (reader.add_nsqd, reader.remove_nsqd):
        with pytest.raises(ConfigError):
            method(wrong)
    for method in (reader.add_lookupd, reader.remove_lookupd):
        with pytest.raises(ConfigError):
            method("ftp://x" if wrong else wrong)


# nsqlookupds


def test_an_nsqlookupd_is_added_and_removed_while_it_runs(
    client: Client, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    lookupd.answer(listing(nsqd))
    with ScriptedNsqd() as direct:
        reader = client.consume(print, direct, lookupd_poll_interval=OFTEN)
        world.eventually(lambda: direct.received("RDY"))
        reader.add_lookupd(lookupd.address)
        reader.add_lookupd(f"http://{lookupd.address}")
        world.eventually(lambda: len(reader.stats().connections) == 2)
        assert len(lookup_threads(reader)) == 1
        reader.remove_lookupd(lookupd.address)
        world.eventually(lambda: not lookup_threads(reader))
        asked = len(lookupd.requests)
        # Its nsqd stays while it lives, and is not dialled after that.
        assert len(reader.stats().connections) == 2
        nsqd.drop_connections()
        world.eventually(lambda: len(reader.stats().connections) == 1)
        # The dial would have come within half a second.
        world.sleep(0.7)
        assert len(nsqd.connections) == 1
        assert len(lookupd.requests) == asked


def test_nsqlookupds_set_before_the_start_are_asked(
    client: Client, world: World, make_lookupd: Callable[[], FakeServer]
) -> None:
    first, second = make_lookupd(), make_lookupd()
    reader = client.reader(
        print,
        nsqd_tcp_addresses=(),
        lookupd_http_addresses=first.address,
        lookupd_poll_interval=OFTEN,
        lookupd_authorization="geheim",
    )
    reader.add_lookupd(second.address)
    reader.remove_lookupd(first.address)
    reader.start(block=False)
    world.eventually(lambda: second.requests)
    assert second.requests[0]["headers"]["Authorization"] == "Bearer geheim"
    assert not first.requests


def test_a_removed_nsqd_comes_back_while_it_is_listed(
    discover: Discovering, world: World, lookupd: FakeServer, nsqd: ScriptedNsqd
) -> None:
    lookupd.answer(listing(nsqd))
    reader = discover(lookupd)
    world.eventually(lambda: reader.stats().connections)
    reader.remove_nsqd(address(nsqd))
    world.eventually(lambda: len(nsqd.connections) == 2)


# ensure_channel


def test_ensure_channel_makes_it_everywhere(
    client: Client, world: World, make_lookupd: Callable[[], FakeServer]
) -> None:
    lookupd, http = make_lookupd(), make_lookupd()
    with ScriptedNsqd() as direct, ScriptedNsqd() as found, ScriptedNsqd() as walled:
        lookupd.answer(
            {
                "producers": [
                    {
                        "broadcast_address": "127.0.0.1",
                        "tcp_port": found.address[1],
                        "http_port": http.server_port,
                    },
                    # Nobody listens at its HTTP port.
                    {
                        "broadcast_address": "127.0.0.1",
                        "tcp_port": walled.address[1],
                        "http_port": 1,
                    },
                    *listing(direct)["producers"],
                ]
            }
        )
        reader = client.reader(print, direct, lookupd_http_addresses=lookupd.address)
        reader.ensure_channel()
        assert not found.connections
        assert names(direct) == names(walled) == ["SUB t ch"]
        asked = [(r["method"], r["path"], r["params"]) for r in lookupd.requests]
        both = {"topic": "t", "channel": "ch"}
        assert asked == [("POST", "/channel/create", both), ("GET", "/lookup", {"topic": "t"})]
        assert [(r["path"], r["params"]) for r in http.requests] == [
            ("/topic/create", {"topic": "t"}),
            ("/channel/create", both),
        ]
        # It is not started by that, and can be.
        reader.start(block=False)
        reader.ensure_channel()


def test_ensure_channel_says_where_it_failed(client: Client, world: World) -> None:
    with ScriptedNsqd() as good, ScriptedNsqd() as dead:
        dead.refuse_connections()
        reader = client.reader(print, good, dead)
        with pytest.raises(ConnectionLost, match=rf"t/ch .*{dead.address[1]}"):
            reader.ensure_channel()
        assert names(good) == ["SUB t ch"]


def test_ensure_channel_ends_in_time(client: Client, world: World) -> None:
    hooks: Any = {"IDENTIFY": lambda connection, command: None}
    with ScriptedNsqd([automatic(hooks=hooks)]) as silent, ScriptedNsqd() as good:
        reader = client.reader(print, silent, good)
        with pytest.raises(ConnectionLost, match="could not be made everywhere"):
            reader.ensure_channel(timeout=0.3)
        assert names(good) == ["SUB t ch"]
        silent.drop_connections()


def test_one_of_several_nsqlookupds_is_enough(
    client: Client,
    world: World,
    lookupd: FakeServer,
    nsqd: ScriptedNsqd,
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader = client.reader(
        print,
        nsqd_tcp_addresses=(),
        lookupd_http_addresses=["127.0.0.1:1", lookupd.address],
    )
    reader.ensure_channel()
    assert lookupd.requests and "127.0.0.1:1" in caplog.text
    lookupd.answer({"message": "FORBIDDEN"}, 403)
    with pytest.raises(ConnectionLost, match="FORBIDDEN"):
        reader.ensure_channel()
    lookupd.answer(UNKNOWN, 404)


def test_an_ephemeral_channel_cannot_be_made_ahead() -> None:
    reader = Reader("t", "c#ephemeral", print, nsqd_tcp_addresses="h")
    with pytest.raises(ConfigError, match="ephemeral"):
        reader.ensure_channel()
    with pytest.raises(ConfigError, match="timeout"):
        Reader("t", "c", print, nsqd_tcp_addresses="h").ensure_channel(timeout=0)


@pytest.mark.reality("there is a second OS thread")
def test_a_call_refused_to_another_os_thread_changes_nothing(client: Client, world: World) -> None:
    """On gevent; on threads any may add and remove."""
    with ScriptedNsqd() as first, ScriptedNsqd() as second:
        reader = client.consume(print, first)
        world.eventually(lambda: reader.stats().connections)
        changes: list[tuple[Callable[[object], None], str]] = [
            (reader.add_nsqd, address(second)),
            (reader.remove_nsqd, address(first)),
            (reader.add_lookupd, "127.0.0.1:1"),
            (reader.remove_lookupd, "127.0.0.1:1"),
        ]
        wanted = reader._current_setup()
        for change, where in changes:
            if world.name != "threads":
                with pytest.raises(ConfigError, match="give each OS thread a Reader or Writer of"):
                    gevent.get_hub().threadpool.apply(change, (where,))
                assert reader._current_setup() == wanted
            else:
                gevent.get_hub().threadpool.apply(change, (where,))
        if world.name != "threads":
            assert [c.address for c in reader.stats().connections] == [address(first)]
