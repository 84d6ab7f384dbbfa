"""A worker that reads for itself: when it may, what it leaves to the reading thread, its end."""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from gnsqsync import Message, Observer, Reader
from gnsqsync.connection import message_turn
from gnsqsync.connection.message_turn import MessageTurn
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
        self.threads: set[str] = set()
        self.slow = False
        self.released = False

    def __call__(self, message: Message) -> None:
        self.bodies.append(message.body)
        self.threads.add(threading.current_thread().name)
        if message.body.startswith(b"slow"):
            self.slow = True
            self.world.eventually(lambda: self.released, 60)

    def let_go(self) -> None:
        self.released = True


def intake_of(reader: Reader) -> MessageTurn:
    running: Any = reader._running()
    return running.subscription.connections()[0].message_turn  # type: ignore[no-any-return]


def lent(world: World, feed: Feed, reader: Reader) -> MessageTurn:
    """The turn, once a worker reads from it."""
    world.eventually(lambda: feed.nsqd.received("RDY"))
    found = intake_of(reader)
    turns = found._turns
    feed.go()
    world.eventually(lambda: found._turns > turns + 10, 60)
    return found


def is_the_reading_threads(found: MessageTurn) -> bool:
    return found._wanted and found._right.locked()


@pytest.fixture
def handler(world: World) -> Handler:
    return Handler(world)


def test_messages_one_by_one_are_read_by_the_worker(
    client: Client, world: World, handler: Handler
) -> None:
    feed = Feed()
    with feed.nsqd as nsqd:
        reader = client.consume(handler, nsqd)
        found = lent(world, feed, reader)
        world.eventually(lambda: found._turns > 100, 60)
        feed.flowing = False
        # Nothing comes: the reading thread reads again, and answers.
        world.eventually(lambda: is_the_reading_threads(found))
        nsqd.connections[0].response(b"_heartbeat_")
        world.eventually(lambda: nsqd.received("NOP"))
        if world.name == "threads":
            assert handler.threads == {"nsq-work 0"}
        stats = reader.stats()
        assert stats.received == stats.finished == len(handler.bodies) == feed.finished
        lent(world, feed, reader)


def test_heartbeats_behind_a_handler_that_suddenly_runs_long(
    client: Client, world: World, handler: Handler
) -> None:
    feed = Feed()
    with feed.nsqd as nsqd:
        reader = client.consume(handler, nsqd)
        lent(world, feed, reader)
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
        lent(world, feed, reader)
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
        lent(world, feed, reader)
        feed.flowing = False
        feed.next.append(b"".join(message_frame(b"%d" % n) for n in range(5)))
        world.eventually(lambda: b"4" in handler.bodies)
        assert handler.bodies[-5:] == [b"%d" % n for n in range(5)]

        lent(world, feed, reader)
        large = message_frame(b"y" * 200_000)
        feed.next.extend([large[:70_000], b"", b""])
        feed.flowing = False
        world.eventually(lambda: not feed.next or feed.finished)
        world.eventually(lambda: len(feed.next) == 2)
        nsqd.connections[0].send(large[70_000:70_007])
        nsqd.connections[0].send(large[70_007:])
        world.eventually(lambda: handler.bodies[-1] == b"y" * 200_000)
        feed.next.clear()

        lent(world, feed, reader)
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


class Killed(BaseException):
    """As GreenletExit and KeyboardInterrupt."""


def killer(world: World, reader: Reader) -> Callable[[], None]:
    """Throws Killed into the worker."""
    running: Any = reader._running()
    task = [*running.workers._tasks][-1]
    if world.name == "threads":
        ident = ctypes.c_ulong(task._thread.ident)
        return lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(Killed))
    return lambda: task._greenlet.kill(Killed, block=False)


def test_a_worker_that_is_killed_while_it_reads(
    client: Client, world: World, handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was received then is handled by the worker that takes its place."""
    monkeypatch.setattr(message_turn, "_TURN_SECONDS", 60.0)
    # On a slow machine, too, the worker and not the reading thread.
    monkeypatch.setattr(message_turn, "_LOOK_SECONDS", 5.0)
    feed = Feed()
    with feed.nsqd as nsqd:
        reader = client.consume(handler, nsqd)
        found = lent(world, feed, reader)
        feed.flowing = False
        world.eventually(lambda: reader.stats().in_flight == 0 and found._right.locked())
        world.sleep(0.05)
        handled = len(handler.bodies)
        killer(world, reader)()
        # An exception from another thread is raised when the system call returns.
        world.sleep(0.05)
        nsqd.connections[0].message(b"after the kill")
        world.eventually(lambda: len(handler.bodies) == handled + 1)
        assert handler.bodies[-1] == b"after the kill"
        world.eventually(lambda: reader.stats().in_flight == 0)
        world.eventually(lambda: is_the_reading_threads(found))
        if world.name == "threads":
            assert handler.threads == {"nsq-work 0"}
        assert len(nsqd.connections) == 1
        assert not nsqd.received("REQ")


def test_a_right_that_is_never_given_back(
    client: Client, world: World, handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill between two instructions: the connection ends, and another one serves."""
    monkeypatch.setattr(message_turn, "_GRACE_SECONDS", 0.2)
    feed = Feed()
    with feed.nsqd as nsqd:
        reader = client.consume(handler, nsqd)
        found = lent(world, feed, reader)
        monkeypatch.setattr(found, "_let_go", lambda kept: None)
        world.eventually(lambda: len(nsqd.connections) == 2)


def test_a_stop_while_the_worker_reads(client: Client, world: World, handler: Handler) -> None:
    feed = Feed()
    with feed.nsqd as nsqd:
        reader = client.consume(handler, nsqd)
        lent(world, feed, reader)
        reader.stop(10)
        result = reader.join(30)
        assert result is not None
        assert result.clean
        assert len(nsqd.received("CLS")) == 1


def test_a_second_nsqd_ends_it(client: Client, world: World, handler: Handler) -> None:
    feed = Feed()
    with feed.nsqd as nsqd, ScriptedNsqd() as other:
        reader = client.consume(handler, nsqd, max_in_flight=2)
        found = lent(world, feed, reader)
        reader.add_nsqd(address(other))
        world.eventually(lambda: other.received("RDY"))
        other.connections[0].message(b"from the other")
        world.eventually(lambda: b"from the other" in handler.bodies)
        world.eventually(lambda: is_the_reading_threads(found))
        turns, done = found._turns, feed.finished
        world.eventually(lambda: feed.finished > done + 100, 60)
        assert found._turns == turns


def test_four_workers_do_not_read(client: Client, world: World, handler: Handler) -> None:
    feed = Feed()
    with feed.nsqd as nsqd:
        reader = client.consume(handler, nsqd, concurrency=4, max_in_flight=4)
        world.eventually(lambda: nsqd.received("RDY"))
        feed.go()
        world.eventually(lambda: feed.finished > 100, 60)
        assert intake_of(reader)._turns == 0
