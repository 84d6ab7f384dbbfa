"""A Reader with one message in flight on one nsqd: its worker reads in the reading thread's place.

Whatever else the reading thread does, it goes on doing.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import pytest

from gnsqsync import Message
from gnsqsync.connection import messages
from gnsqsync.connection.read_turn import TurnState
from tests.component.conftest import Client, Gate, address
from tests.support import scripted
from tests.support.scripted import Command, ScriptedNsqd, automatic
from tests.support.worlds import World


class Stream:
    """An nsqd that answers each FIN with a message, until it is stopped."""

    def __init__(self) -> None:
        self.stopped = False
        self.script: list[scripted.Step] = [
            automatic(until="RDY"),
            scripted.message(b"0"),
            automatic(hooks={"FIN": self._next}),
        ]

    def _next(self, connection: scripted.Connection, command: Command) -> None:
        if not self.stopped:
            connection.message(b"next")


class Counting:
    """A handler that counts."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, message: Message) -> None:
        self.count += 1


def reads(reader: Any) -> bool:
    """Whether the worker has the turn to read, or may take it."""
    (connection,) = reader._running().subscription.connections()
    return bool(connection.messages._turn.is_lent)


def test_heartbeats_are_answered_while_its_handler_runs_long(
    client: Client, world: World, gate: Gate
) -> None:
    stream = Stream()
    count = 0

    def handler(message: Message) -> None:
        nonlocal count
        count += 1
        if count == 20:
            gate()

    with ScriptedNsqd(stream.script) as nsqd:
        reader = client.consume(handler, nsqd)
        world.eventually(lambda: count == 20)
        assert reads(reader)
        for number in range(1, 4):
            scripted.heartbeat()(nsqd.connections[0])
            world.eventually(lambda: len(nsqd.received("NOP")) == number)  # noqa: B023
        assert count == 20
        gate.open()
        world.eventually(lambda: count >= 60 and reads(reader))


def test_a_reading_worker_leaves_the_connection_when_nothing_comes(
    client: Client, world: World
) -> None:
    stream = Stream()
    handler = Counting()
    with ScriptedNsqd(stream.script) as nsqd:
        reader = client.consume(handler, nsqd)
        world.eventually(lambda: handler.count >= 20)
        assert reads(reader)
        stream.stopped = True
        world.eventually(lambda: not reads(reader))
        # It is the reading thread that reads now.
        scripted.heartbeat()(nsqd.connections[0])
        world.eventually(lambda: nsqd.received("NOP"))
        had = handler.count
        nsqd.connections[0].message(b"late")
        world.eventually(lambda: handler.count == had + 1)


def test_another_nsqd_is_not_forgotten(client: Client, world: World) -> None:
    stream, quiet = Stream(), [automatic(until="RDY"), scripted.message(b"other"), automatic()]
    got: list[bytes] = []
    with ScriptedNsqd(stream.script) as first, ScriptedNsqd(quiet) as second:
        reader = client.consume(lambda m: got.append(m.body), first, max_in_flight=2)
        reader.set_max_in_flight(1)
        world.eventually(lambda: len(got) >= 20 and reads(reader))
        reader.add_nsqd(address(second))
        reader.set_max_in_flight(2)
        world.eventually(lambda: b"other" in got)
        had = len(got)
        world.eventually(lambda: len(got) >= had + 20)
        assert not any(
            c.messages._turn.is_lent for c in reader._running().subscription.connections()
        )


@pytest.mark.parametrize(
    ("breaks", "said"),
    [
        (scripted.close(), "closed the connection"),
        (scripted.send(b"\x00\x00\x00\x06\x00\x00\x00\x07OK"), "7"),
        (scripted.error("E_INVALID no"), "E_INVALID"),
    ],
)
def test_a_fatal_error_is_logged_and_the_nsqd_is_dialled_again(
    client: Client,
    world: World,
    caplog: pytest.LogCaptureFixture,
    breaks: scripted.Step,
    said: str,
) -> None:
    caplog.set_level(logging.WARNING, "gnsqsync")
    handler, again = Counting(), Stream()
    script = [automatic(until="RDY")]
    for number in range(20):
        script += [scripted.message(b"%d" % number), automatic(until="FIN")]
    with ScriptedNsqd([*script, breaks], again.script) as nsqd:
        client.consume(handler, nsqd)
        world.eventually(lambda: handler.count >= 40, 20)
        assert len(nsqd.connections) == 2
    assert any(said in r.getMessage() for r in caplog.records), caplog.text


def test_a_stop_is_no_later_for_it(client: Client, world: World) -> None:
    stream = Stream()
    handler = Counting()
    with ScriptedNsqd(stream.script) as nsqd:
        reader = client.consume(handler, nsqd)
        world.eventually(lambda: handler.count >= 20 and reads(reader))
        reader.stop()
        result = reader.join(10)
    assert result is not None
    assert result.clean


@pytest.mark.parametrize(
    "options",
    [{"concurrency": 2}, {"rate_limit": 10000.0}, {"lanes": lambda message: message.body}],
)
def test_a_worker_does_not_read_beside_other_work(
    client: Client, world: World, options: dict[str, Any]
) -> None:
    stream = Stream()
    handler = Counting()
    with ScriptedNsqd(stream.script) as nsqd:
        reader = client.consume(handler, nsqd, **options)
        world.eventually(lambda: handler.count >= 20)
        assert not reads(reader)


def test_more_in_flight_is_read_by_the_reading_thread(client: Client, world: World) -> None:
    stream = Stream()
    handler = Counting()
    with ScriptedNsqd(stream.script) as nsqd:
        reader = client.consume(handler, nsqd)
        world.eventually(lambda: handler.count >= 20 and reads(reader))
        reader.set_max_in_flight(5)
        world.eventually(lambda: not reads(reader))
        had = handler.count
        world.eventually(lambda: handler.count >= had + 20)
        assert not reads(reader)


class Killed(BaseException):
    """As GreenletExit."""


@pytest.mark.reality("the interpreter throws into a system call, gevent into its hub")
def test_messages_of_a_killed_worker_are_not_lost(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed while it waits for a message, and the reading thread goes on."""
    monkeypatch.setattr(messages, "_WORKER_SECONDS", 20.0)
    stream = Stream()
    got: list[bytes] = []
    with ScriptedNsqd(stream.script) as nsqd:
        reader = client.consume(lambda message: got.append(message.body), nsqd)
        world.eventually(lambda: len(got) >= 20)
        stream.stopped = True
        (connection,) = reader._running().subscription.connections()
        turn = connection.messages._turn
        world.eventually(lambda: turn.state is TurnState.CALLER and not connection.in_flight)
        (task,) = reader._running().workers._tasks.values()
        if world.name == "gevent":
            task._greenlet.kill(Killed, block=False)  # type: ignore[attr-defined]
        else:
            # It is raised when the receive returns, with the message.
            ident = ctypes.c_ulong(task._thread.ident)  # type: ignore[attr-defined]
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Killed))
        nsqd.connections[0].message(b"late")
        world.eventually(lambda: b"late" in got)
        assert len(nsqd.connections) == 1
