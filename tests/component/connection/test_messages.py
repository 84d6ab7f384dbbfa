"""A stream of messages one by one: replies and pieces between them, slow handlers, its end."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest

from gnsqsync import Message, Observer
from tests.component.conftest import Client, address
from tests.support import scripted
from tests.support.scripted import Command, ScriptedNsqd, automatic, frame, message_frame
from tests.support.worlds import World


class Feed:
    """An nsqd that sends the next message when it has the FIN of the one before, as with RDY 1."""

    def __init__(self) -> None:
        self.nsqd = ScriptedNsqd([automatic(hooks={"FIN": self._finished})])
        # What comes next in place of a plain message, and whether anything does.
        self.next: deque[bytes] = deque()
        self.flowing = True
        self.finished = 0

    def _finished(self, connection: scripted.Connection, command: Command) -> None:
        self.finished += 1
        if self.next:
            connection.send(self.next.popleft())
        elif self.flowing:
            connection.message(b"x")

    def go(self) -> None:
        self.flowing = True
        self.nsqd.connections[-1].message(b"x")


class Handler:
    """Notes bodies and threads; one whose body begins with "slow" waits for ``let_go``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.bodies: list[bytes] = []
        self.slow = False
        self.released = False

    def __call__(self, message: Message) -> None:
        self.bodies.append(message.body)
        if message.body.startswith(b"slow"):
            self.slow = True
            self.world.eventually(lambda: self.released, 60)

    def let_go(self) -> None:
        self.released = True


def flowing(world: World, feed: Feed) -> None:
    """Until messages come one by one."""
    world.eventually(lambda: feed.nsqd.received("RDY"))
    finished = feed.finished
    feed.go()
    world.eventually(lambda: feed.finished > finished + 10, 60)


@pytest.fixture
def handler(world: World) -> Handler:
    return Handler(world)


def test_heartbeats_behind_a_handler_that_suddenly_runs_long(
    client: Client, world: World, handler: Handler
) -> None:
    feed = Feed()
    with feed.nsqd as nsqd:
        reader = client.consume(handler, nsqd)
        flowing(world, feed)
        feed.next.append(message_frame(b"slow"))
        world.eventually(lambda: handler.slow)
        nsqd.connections[0].response(b"_heartbeat_")
        nsqd.connections[0].message(b"behind it")
        world.eventually(lambda: nsqd.received("NOP"))
        world.eventually(lambda: reader.stats().in_flight == 2)
        assert handler.bodies[-1] == b"slow"
        handler.let_go()
        world.eventually(lambda: b"behind it" in handler.bodies)
        done = feed.finished
        world.eventually(lambda: feed.finished > done + 50, 60)
        assert len(nsqd.connections) == 1


@pytest.mark.parametrize("end", [scripted.close(), scripted.reset()], ids=["FIN", "RST"])
@pytest.mark.parametrize("where", ["read", "handler"])
def test_a_loss(client: Client, world: World, handler: Handler, end: Any, where: str) -> None:
    feed = Feed()

    def cut(connection: scripted.Connection, command: Command) -> None:
        feed._finished(connection, command)
        if command.parameters[0] == "0" * 16:
            end(connection)

    feed.nsqd.scripts = [[automatic(hooks={"FIN": cut})]]
    with feed.nsqd as nsqd:
        reader = client.consume(handler, nsqd)
        flowing(world, feed)
        if where == "read":
            feed.next.extend([message_frame(b"last", id=b"0" * 16), b""])
        else:
            feed.next.append(message_frame(b"slow"))
            world.eventually(lambda: handler.slow)
            nsqd.connections[0].shutdown()
        world.eventually(lambda: len(nsqd.connections) == 2)
        world.eventually(lambda: reader.stats().connections)
        assert reader.stats().in_flight == 0
        handler.let_go()
        before = len(handler.bodies)
        world.eventually(lambda: nsqd.connections[1].commands[-1].name == "RDY")
        feed.go()
        world.eventually(lambda: len(handler.bodies) > before + 50, 60)


def test_several_at_once_pieces_and_replies(client: Client, world: World, handler: Handler) -> None:
    feed = Feed()
    told: list[str] = []

    class Watching(Observer):
        def answer_failed(self, nsqd_address: str, message_id: str, error: Any) -> None:
            told.append(threading.current_thread().name)

    with feed.nsqd as nsqd:
        reader = client.consume(handler, nsqd, max_in_flight=10, observer=Watching())
        flowing(world, feed)
        feed.flowing = False
        feed.next.append(b"".join(message_frame(b"%d" % n) for n in range(5)))
        world.eventually(lambda: b"4" in handler.bodies)
        assert handler.bodies[-5:] == [b"%d" % n for n in range(5)]

        flowing(world, feed)
        large = message_frame(b"y" * 200_000)
        feed.next.extend([large[:70_000], b"", b""])
        feed.flowing = False
        world.eventually(lambda: not feed.next or feed.finished)
        world.eventually(lambda: len(feed.next) == 2)
        nsqd.connections[0].send(large[70_000:70_007])
        nsqd.connections[0].send(large[70_007:])
        world.eventually(lambda: handler.bodies[-1] == b"y" * 200_000)
        feed.next.clear()

        flowing(world, feed)
        refusal = frame(
            scripted.ERROR, b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight"
        )
        feed.next.append(refusal + message_frame(b"behind the error"))
        world.eventually(lambda: b"behind the error" in handler.bodies)
        world.eventually(lambda: told)
        if world.name == "threads":
            assert told == [f"nsq-read {address(nsqd)}"]
        feed.flowing = False
        world.eventually(lambda: reader.stats().in_flight == 0)
        assert len(nsqd.connections) == 1


def test_a_stop_while_messages_come(client: Client, world: World, handler: Handler) -> None:
    feed = Feed()
    with feed.nsqd as nsqd:
        reader = client.consume(handler, nsqd)
        flowing(world, feed)
        reader.stop(10)
        result = reader.join(30)
        assert result is not None
        assert result.clean
        assert len(nsqd.received("CLS")) == 1
