"""Messages that nsqd delivers again: to one that still waits, is at work, is held or forgotten."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from gnsqsync import Message, Observer, Reader
from gnsqsync.connection import in_flight
from gnsqsync.errors import MessageAnswered
from tests.component.conftest import Client
from tests.support.scripted import ScriptedNsqd, automatic, message_frame, send
from tests.support.worlds import World

ONE, TWO = b"0000000000000001", b"0000000000000002"


class Handler:
    """Notes what it gets; a body that begins with "slow" waits for ``let_go()``."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.got: list[Message] = []
        self.done: list[Message] = []
        self.released = False

    def __call__(self, message: Message) -> None:
        self.got.append(message)
        if message.body.startswith(b"slow"):
            self.world.eventually(lambda: self.released, 60)
        self.done.append(message)

    def let_go(self) -> None:
        self.released = True


@pytest.fixture
def handler(world: World) -> Handler:
    return Handler(world)


def finished(nsqd: ScriptedNsqd) -> list[bytes]:
    return [command.parameters[0].encode() for command in nsqd.received("FIN")]


def subscribed(world: World, nsqd: ScriptedNsqd) -> Any:
    world.eventually(lambda: nsqd.received("RDY"))
    return nsqd.connections[-1]


def test_a_waiting_copy_is_brought_up_to_date(
    client: Client, world: World, handler: Handler
) -> None:
    with ScriptedNsqd() as nsqd:
        reader = client.consume(handler, nsqd, max_in_flight=5)
        server = subscribed(world, nsqd)
        server.message(b"slow", id=ONE)
        world.eventually(lambda: handler.got)
        for attempts in (1, 2, 3):
            server.message(b"waits", id=TWO, attempts=attempts)
            world.eventually(lambda: reader.stats().received == attempts + 1)  # noqa: B023
            assert reader.stats().in_flight == 2
        handler.let_go()
        world.eventually(lambda: finished(nsqd) == [ONE, TWO])
        assert [(m.body, m.attempts) for m in handler.got] == [(b"slow", 1), (b"waits", 3)]
        assert handler.got[1].deadline > handler.got[0].deadline
        assert reader.stats().in_flight == 0


def test_an_answer_of_the_first_copy_is_one_of_the_second(
    client: Client, world: World, handler: Handler
) -> None:
    """nsqd goes by the id: that FIN finishes what it delivered again, which need not run."""
    with ScriptedNsqd() as nsqd:
        reader = client.consume(handler, nsqd, max_in_flight=5)
        server = subscribed(world, nsqd)
        server.message(b"slow", id=ONE)
        world.eventually(lambda: handler.got)
        server.message(b"slow", id=ONE, attempts=2)
        server.message(b"behind", id=TWO)
        world.eventually(lambda: reader.stats().received == 3)
        # Handlers at work count: with more than the limit there is RDY 0.
        assert reader.stats().in_flight == 3
        first = handler.got[0]
        assert first.is_alive and not first.timed_out
        handler.let_go()
        world.eventually(lambda: finished(nsqd) == [ONE, TWO])
        assert [message.body for message in handler.got] == [b"slow", b"behind"]
        assert first.is_answered and not first.is_alive
        assert reader.stats().in_flight == 0


def test_another_worker_takes_what_comes_again_while_a_handler_hangs(
    client: Client, world: World, handler: Handler
) -> None:
    with ScriptedNsqd() as nsqd:
        reader = client.consume(handler, nsqd, max_in_flight=5, concurrency=2)
        server = subscribed(world, nsqd)
        server.message(b"slow", id=ONE)
        world.eventually(lambda: handler.got)
        server.message(b"again", id=ONE, attempts=2)
        world.eventually(lambda: finished(nsqd) == [ONE])
        first, second = handler.got
        assert second.is_answered
        # It is still at work, so it still counts; but nobody waits for its answer.
        assert reader.stats().in_flight == 1
        assert not first.is_alive
        handler.let_go()
        world.eventually(lambda: reader.stats().in_flight == 0)
        world.sleep(0.2)
        assert finished(nsqd) == [ONE]


def test_a_message_after_a_requeue_is_another_delivery(client: Client, world: World) -> None:
    got: list[Message] = []

    def keep(message: Message) -> None:
        message.detach()
        got.append(message)

    with ScriptedNsqd() as nsqd:
        client.consume(keep, nsqd, max_in_flight=5)
        server = subscribed(world, nsqd)
        server.message(b"x", id=ONE)
        world.eventually(lambda: len(got) == 1)
        assert got[0].requeue(0, backoff=False)
        server.message(b"x", id=ONE, attempts=2)
        world.eventually(lambda: len(got) == 2)
        assert not got[0].is_alive and got[1].is_alive
        with pytest.raises(MessageAnswered):
            got[0].finish()
        assert got[1].is_alive
        assert got[1].finish()
        world.eventually(lambda: finished(nsqd) == [ONE])


def test_a_detached_message_counts_until_it_is_answered(client: Client, world: World) -> None:
    """``max_in_flight`` bounds the jobs under way, also those that nsqd has given up."""
    got: list[Message] = []

    def keep(message: Message) -> None:
        message.detach()
        got.append(message)

    with ScriptedNsqd() as nsqd:
        reader = client.consume(keep, nsqd, max_in_flight=2)
        server = subscribed(world, nsqd)
        for attempts in (1, 2, 3):
            server.message(b"x", id=ONE, attempts=attempts)
            world.eventually(lambda: len(got) == attempts)  # noqa: B023
        world.eventually(lambda: nsqd.received("RDY")[-1].parameters == ("0",))
        assert reader.stats().in_flight == 3
        assert got[0].finish()
        assert not got[2].is_alive and got[2].timed_out
        assert not got[1].finish()
        assert not got[2].finish()
        world.eventually(lambda: finished(nsqd) == [ONE])
        assert reader.stats().in_flight == 0


def test_waiting_messages_of_a_lost_connection_are_dropped(
    client: Client, world: World, handler: Handler
) -> None:
    """Or each new connection of an nsqd that closes them would add to it."""
    with ScriptedNsqd() as nsqd:
        reader = client.consume(handler, nsqd, max_in_flight=5)
        server = subscribed(world, nsqd)
        server.message(b"slow", id=ONE)
        world.eventually(lambda: handler.got)
        server.message(b"waits", id=TWO)
        world.eventually(lambda: reader.stats().received == 2)
        connection = reader._running().subscription.connections()[0]
        waiting = weakref.ref(connection.in_flight[TWO])
        del connection
        nsqd.drop_connections()
        world.eventually(lambda: len(nsqd.received("SUB")) == 2 and reader.stats().connections)
        gc.collect()
        assert waiting() is None
        nsqd.connections[-1].message(b"new", id=TWO, attempts=2)
        handler.let_go()
        world.eventually(lambda: finished(nsqd) == [TWO])
        assert [message.body for message in handler.got] == [b"slow", b"new"]


def test_a_thousand_messages_after_a_lower_rdy_close_no_connection(
    client: Client, world: World, handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was allowed once may come, however large it is."""
    monkeypatch.setattr(in_flight, "MOST_BEYOND", 1000)
    losses = Losses()
    with ScriptedNsqd() as nsqd:
        reader = client.consume(handler, nsqd, max_in_flight=1000, observer=losses)
        server = subscribed(world, nsqd)
        reader.set_max_in_flight(1)
        server.send(b"".join(message_frame(b"x" * 1000) for _ in range(1000)))
        world.eventually(lambda: reader.stats().finished == 1000)
        assert not losses.reasons


class Losses(Observer):
    def __init__(self) -> None:
        self.reasons: list[Exception] = []

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        self.reasons.append(reason)


# -- the pull form --------------------------------------------------------------------------------


def take(reader: Reader, world: World, count: int) -> list[Message]:
    taken: list[Message] = []

    def enough() -> bool:
        taken.extend(next(reader.batches(count - len(taken), 0.1)))
        return len(taken) == count

    world.eventually(enough)
    return taken


def short_timeout() -> Any:
    """An nsqd whose messages time out after half a second."""
    return automatic(msg_timeout=500, until="RDY")


def test_a_message_taken_and_forgotten_frees_its_slot(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(in_flight, "TIME_OUT_GRACE", 0.5)
    burst = b"".join(message_frame(b"x", id=b"%016d" % n) for n in range(5))
    with ScriptedNsqd([short_timeout(), send(burst), automatic()]) as nsqd:
        with client.reader(None, nsqd, max_in_flight=5, latency="throughput") as reader:
            taken = take(reader, world, 4)
            assert taken[0].finish()
            assert reader.stats().in_flight == 4
            assert all(message.is_alive for message in taken[1:])
            world.eventually(lambda: reader.stats().in_flight == 1)
            # The one that nobody has taken waits, as one for a handler does.
            assert len(take(reader, world, 1)) == 1
            for message in taken[1:]:
                assert message.timed_out and not message.is_alive
                assert message.finish() is False
                assert message.requeue(0) is False
            assert taken[0].is_answered and not taken[0].timed_out
            assert len(finished(nsqd)) == 1
            # Told after they were forgotten.
            world.eventually(lambda: "not answered within" in caplog.text)
            assert "3 messages" in caplog.text


def test_a_touch_and_the_grace_keep_what_was_taken(
    client: Client, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FIN that nsqd may still accept is sent."""
    monkeypatch.setattr(in_flight, "TIME_OUT_GRACE", 30.0)
    burst = b"".join(message_frame(b"x", id=b"%016d" % n) for n in range(2))
    with ScriptedNsqd([short_timeout(), send(burst), automatic()]) as nsqd:
        with client.reader(None, nsqd, max_in_flight=5) as reader:
            late, touched = take(reader, world, 2)
            world.sleep(0.8)
            assert touched.touch()
            assert late.finish()
            monkeypatch.setattr(in_flight, "TIME_OUT_GRACE", 0.0)
            world.sleep(0.2)
            assert touched.finish()
            world.eventually(lambda: len(finished(nsqd)) == 2)


def test_a_forgotten_message_that_comes_again_is_taken_again(client: Client, world: World) -> None:
    """At once, not when the first copy is given up; and either copy's answer is one."""
    with ScriptedNsqd() as nsqd:
        with client.reader(None, nsqd, max_in_flight=5) as reader:
            world.eventually(lambda: reader.stats().connections and nsqd.received("RDY"))
            nsqd.connections[0].message(b"x", id=ONE)
            (first,) = take(reader, world, 1)
            nsqd.connections[0].message(b"x", id=ONE, attempts=2)
            (second,) = take(reader, world, 1)
            assert second.attempts == 2
            assert first.is_alive and second.is_alive
            assert first.finish()
            assert second.finish() is False
            world.eventually(lambda: finished(nsqd) == [ONE])
            assert reader.stats().in_flight == 0


def test_handlers_at_work_keep_their_places(
    client: Client, world: World, handler: Handler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nsqd would send more and more to who is too slow for what it has."""
    monkeypatch.setattr(in_flight, "TIME_OUT_GRACE", 0.0)
    with ScriptedNsqd([automatic(msg_timeout=100)]) as nsqd:
        reader = client.consume(handler, nsqd, max_in_flight=2)
        server = subscribed(world, nsqd)
        server.message(b"slow", id=ONE)
        server.message(b"waits", id=TWO)
        world.sleep(0.6)
        assert reader.stats().in_flight == 2
        assert not handler.got[0].timed_out
        handler.let_go()
        world.eventually(lambda: finished(nsqd) == [ONE, TWO])


def test_a_waiting_message_whose_touch_failed_is_not_handled(
    client: Client, world: World, handler: Handler
) -> None:
    """It keeps its place until its turn, so that a liar cannot fill the queue; it comes again."""

    def refuse(connection: Any, command: Any) -> None:
        if command.parameters[0].encode() == TWO:
            connection.error(f"E_TOUCH_FAILED TOUCH {TWO.decode()} failed ID not in flight")

    with ScriptedNsqd([automatic(msg_timeout=1000, hooks={"TOUCH": refuse})]) as nsqd:
        reader = client.consume(handler, nsqd, max_in_flight=2, auto_touch=True)
        server = subscribed(world, nsqd)
        server.message(b"slow", id=ONE)
        world.eventually(lambda: handler.got)
        server.message(b"waits", id=TWO)
        world.eventually(lambda: reader.stats().answers_failed)
        assert reader.stats().in_flight == 2
        handler.let_go()
        world.eventually(lambda: reader.stats().in_flight == 0)
        world.eventually(lambda: finished(nsqd) == [ONE])
        assert [message.body for message in handler.got] == [b"slow"]
