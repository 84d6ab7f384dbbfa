"""One publisher reads the answers of all. The turn to read is never lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from gnsqsync import Writer
from gnsqsync.connection.publish_slot import PublishSlot
from gnsqsync.connection.publishes import Publishes
from gnsqsync.connection.read_turn import TurnState
from gnsqsync.errors import OutcomeUnknown, PublishError
from gnsqsync.wire import commands
from tests.component.conftest import Client
from tests.support import scripted
from tests.support.scripted import Command, ScriptedNsqd, automatic
from tests.support.worlds import World


class Killed(BaseException):
    """As GreenletExit and KeyboardInterrupt."""


class Held:
    """Answers no publish whose body begins with "hold" before ``let_go()``."""

    def __init__(self) -> None:
        self._go_on = threading.Event()
        self.held = 0

    def __call__(self, connection: scripted.Connection, command: Command) -> None:
        if (command.body or b"").startswith(b"hold"):
            self.held += 1
            scripted.wait_until(self._go_on)(connection)
        connection.answer(command)

    def let_go(self) -> None:
        self._go_on.set()

    @property
    def script(self) -> Any:
        return [automatic(hooks={"PUB": self})]


def publishes_of(writer: Writer) -> Publishes:
    return writer._publisher().pool.table.connections()[0].publishes


def turn_of(publishes: Publishes) -> TurnState:
    return publishes._turn.state


def lent(world: World, writer: Writer) -> Publishes:
    """The publishes, once its reading thread stands aside."""
    writer.publish("t", "first")
    publishes = publishes_of(writer)
    world.eventually(lambda: turn_of(publishes) is TurnState.FREE)
    return publishes


def outcome(writer: Writer, body: str, timeout: float = 30.0) -> str:
    try:
        writer.publish("t", body, timeout=timeout)
    except PublishError as error:
        return type(error).__name__
    return "OK"


def all_sent(publishes: Publishes, count: int) -> bool:
    """So many publishes have left and have no answer."""
    send_queue = publishes._send_queue
    return len(send_queue.pending) == count and not send_queue._lock.locked()


def is_free(publishes: Publishes) -> bool:
    """No publisher reads."""
    return turn_of(publishes) in (TurnState.FREE, TurnState.READING_THREAD)


def test_the_deadline_of_the_one_that_reads_passes_while_others_wait(
    client: Client, world: World
) -> None:
    held = Held()
    with ScriptedNsqd(held.script) as nsqd:
        writer = client.writer(nsqd)
        lent(world, writer)
        leader = world.spawn(outcome, writer, "hold", 0.3)
        world.eventually(lambda: held.held)
        others = [world.spawn(outcome, writer, f"{n}") for n in range(5)]
        started = time.monotonic()
        assert leader.join() == "OutcomeUnknown"
        assert time.monotonic() - started < 5
        assert not any(other.done for other in others)
        held.let_go()
        assert [other.join() for other in others] == ["OK"] * 5
        assert len(nsqd.connections) == 1
        assert writer.stats().published == 7


def test_an_nsqd_is_near_when_it_has_once_answered_at_once(client: Client, world: World) -> None:
    """Then publishes wait for each other, to share a send."""
    slow = [True] * 5

    def answer(connection: scripted.Connection, command: Command) -> None:
        if slow and slow.pop():
            time.sleep(0.002)
        connection.answer(command)

    with ScriptedNsqd([automatic(hooks={"PUB": answer})]) as nsqd:
        writer = client.writer(nsqd)
        publishes = lent(world, writer)
        while slow:
            assert not publishes._is_near
            writer.publish("t", "far")

        def has_become_near() -> bool:
            writer.publish("t", "near")
            return publishes._is_near

        world.eventually(has_become_near)
        slow.append(True)
        writer.publish("t", "held up once")
        assert publishes._is_near


def test_a_reader_that_is_killed(client: Client, world: World) -> None:
    """By an exception thrown into its task: the others have their answers, nsqd its connection."""
    held = Held()
    ended: list[BaseException] = []

    def publish() -> None:
        try:
            writer.publish("t", "hold", timeout=30)
        except BaseException as error:
            ended.append(error)

    with ScriptedNsqd(held.script) as nsqd:
        writer = client.writer(nsqd)
        publishes = lent(world, writer)
        kill = start_victim(world, publish, Killed)
        world.eventually(lambda: held.held)
        others = [world.spawn(outcome, writer, f"{n}") for n in range(5)]
        world.eventually(
            lambda: len(publishes._send_queue.pending) + len(publishes._send_queue.slots) == 6
        )
        kill()
        if world.name == "threads":
            # An exception from another thread is raised when the system call returns.
            held.let_go()
        world.eventually(lambda: ended)
        held.let_go()
        assert isinstance(ended[0], Killed)
        assert [other.join() for other in others] == ["OK"] * 5
        assert len(nsqd.connections) == 1
        writer.publish("t", "x")
        world.eventually(lambda: is_free(publishes))


def start_victim(
    world: World, body: Callable[[], None], error: type[BaseException]
) -> Callable[[], None]:
    """Run it; the result throws ``error`` into it."""
    return partial(world.throw, world.start(body), error)


def test_followers_that_are_killed_and_followers_out_of_time(client: Client, world: World) -> None:
    """Each may have been given the turn at that moment."""
    hooks = {"PUB": lambda connection, command: connection.answer(command)}
    with ScriptedNsqd([automatic(hooks=hooks)]) as nsqd:
        writer = client.writer(nsqd)
        publishes = lent(world, writer)
        stopping: list[bool] = []

        def steady() -> list[str]:
            outcomes = []
            while not stopping:
                outcomes.append(outcome(writer, "steady"))
            return outcomes

        def hasty(timeout: float) -> list[str]:
            return [outcome(writer, "hasty", timeout) for _ in range(40)]

        def victim(killed: list[bool]) -> None:
            try:
                while True:
                    outcome(writer, "victim")
            except Killed:
                killed.append(True)

        steadies = [world.spawn(steady) for _ in range(3)]
        hasties = [world.spawn(hasty, 0.0005 * n + 0.0505) for n in range(6)]
        for _ in range(20):
            killed: list[bool] = []
            kill = start_victim(world, partial(victim, killed), Killed)
            world.sleep(0.01)
            kill()
            world.eventually(partial(bool, killed))
        outcomes = {result for task in hasties for result in task.join(60)}
        stopping.append(True)
        outcomes |= {result for task in steadies for result in task.join(60)}
        # A thread may be killed in the middle of a send, which ends the connection.
        assert "OK" in outcomes
        assert outcomes <= {"OK", "OutcomeUnknown", "NotSent"}
        assert outcome(writer, "x") == "OK"
        publishes = publishes_of(writer)
        world.eventually(lambda: is_free(publishes))


@pytest.mark.parametrize("end", [scripted.close(), scripted.reset()], ids=["FIN", "RST"])
def test_a_loss_under_the_one_that_reads(client: Client, world: World, end: Any) -> None:
    go_on = threading.Event()
    first = [automatic(until="PUB"), scripted.expect("PUB"), scripted.wait_until(go_on), end]
    with ScriptedNsqd(first, [automatic()]) as nsqd:
        writer = client.writer(nsqd)
        publishes = lent(world, writer)
        tasks = [world.spawn(outcome, writer, f"{n}") for n in range(6)]
        world.eventually(lambda: all_sent(publishes, 6))
        go_on.set()
        # All had left when it came.
        assert [task.join() for task in tasks] == ["OutcomeUnknown"] * 6
        assert outcome(writer, "x") == "OK"
        assert len(nsqd.connections) == 2


def test_a_refusal_read_by_another(client: Client, world: World) -> None:
    """It is that of the oldest; what is behind it was not read, and goes over a new connection."""
    go_on = threading.Event()
    refuse = [automatic(until="PUB"), scripted.expect("PUB"), scripted.wait_until(go_on)]
    refuse += [scripted.error("E_BAD_MESSAGE no"), scripted.close()]
    with ScriptedNsqd(refuse, [automatic()]) as nsqd:
        writer = client.writer(nsqd)
        publishes = lent(world, writer)
        bad = world.spawn(outcome, writer, "bad")
        world.eventually(lambda: publishes._send_queue.pending)
        others = [world.spawn(outcome, writer, f"{n}") for n in range(4)]
        world.eventually(lambda: all_sent(publishes, 5))
        go_on.set()
        assert bad.join() == "Refused"
        assert [other.join() for other in others] == ["OK"] * 4
        assert len(nsqd.connections) == 2


def test_heartbeats_in_a_run_of_publishes(client: Client, world: World) -> None:
    """Who reads answers them, and a lone publish after another does not wait for that."""

    def beat(connection: scripted.Connection, command: Command) -> None:
        scripted.heartbeat()(connection)
        connection.answer(command)

    with ScriptedNsqd([automatic(hooks={"PUB": beat})]) as nsqd:
        writer = client.writer(nsqd)
        lent(world, writer)
        for n in range(50):
            writer.publish("t", f"{n}")
        world.eventually(lambda: len(nsqd.received("NOP")) == 51)
        assert len(nsqd.connections) == 1


def test_an_idle_connection_is_read_again(client: Client, world: World) -> None:
    """The reading thread takes over: it answers heartbeats and sees the end."""
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        publishes = lent(world, writer)
        world.eventually(lambda: turn_of(publishes) is TurnState.READING_THREAD)
        scripted.heartbeat()(nsqd.connections[0])
        world.eventually(lambda: nsqd.received("NOP"))
        nsqd.drop_connections()
        world.eventually(lambda: not writer.is_connected)
        writer.publish("t", "x")
        assert len(nsqd.connections) == 2


def test_an_end_between_two_publishes_is_seen_without_a_publish(
    client: Client, world: World
) -> None:
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        lent(world, writer)
        nsqd.drop_connections()
        world.eventually(lambda: not writer.is_connected)


def test_futures_end_on_the_reading_thread(client: Client, world: World) -> None:
    """Also those whose answer a publisher has read."""
    runtime_current = []
    held = Held()
    with ScriptedNsqd(held.script) as nsqd:
        writer = client.writer(nsqd)
        publishes = lent(world, writer)
        current = publishes._runtime.current

        def note(future: Future[None]) -> None:
            runtime_current.append(current())

        publishers: list[int] = []

        def publish(body: str) -> None:
            publishers.append(current())
            writer.publish("t", body, timeout=30)

        leader = world.spawn(publish, "hold")
        world.eventually(lambda: held.held)
        futures = [writer.publish_async("t", f"{n}") for n in range(3)]
        for future in futures:
            future.add_done_callback(note)
        behind = world.spawn(publish, "behind")
        held.let_go()
        leader.join()
        behind.join()
        world.eventually(lambda: len(runtime_current) == 3)
        assert len(set(runtime_current)) == 1
        assert not set(runtime_current) & {*publishers, current()}


def test_publishes_of_many_sides_are_all_answered(client: Client, world: World) -> None:
    """Threads that publish one by one, futures, and ends of connections, all at once."""
    with ScriptedNsqd() as nsqd:
        writer = client.writer(nsqd)
        lent(world, writer)

        def steady(who: int) -> list[str]:
            return [outcome(writer, f"{who}-{n}") for n in range(200)]

        def futures(who: int) -> list[str]:
            pending = [writer.publish_async("t", f"{who}-{n}") for n in range(200)]
            world.eventually(lambda: all(future.done() for future in pending))
            return ["OK" if future.exception() is None else "bad" for future in pending]

        tasks = [world.spawn(steady, who) for who in range(6)]
        tasks += [world.spawn(futures, who) for who in range(6, 8)]
        assert {result for task in tasks for result in task.join()} == {"OK"}
        bodies = [command.body for command in nsqd.received("PUB")]
        assert len(bodies) == len(set(bodies)) == 8 * 200 + 1
        assert writer.stats().published == 8 * 200 + 1
        assert len(nsqd.connections) == 1


def leave(future: Future[None]) -> None:
    # Of what callbacks raise, futures catch what is an Exception.
    raise Killed


def futures_that_leave(writer: Writer) -> list[Future[None]]:
    futures = [writer.publish_async("t", f"hold {n}") for n in range(3)]
    for future in futures:
        future.add_done_callback(leave)
    return futures


def test_callbacks_that_end_the_thread_end_no_other_future(client: Client, world: World) -> None:
    """Neither the futures behind theirs, nor the Writer; whether nsqd answers or is lost."""
    held = Held()
    with ScriptedNsqd(held.script, [automatic()]) as nsqd:
        writer = client.writer(nsqd)
        futures = futures_that_leave(writer)
        world.eventually(lambda: held.held)
        nsqd.connections[0].send(scripted.frame(scripted.RESPONSE, b"OK") * 2)
        world.eventually(lambda: all(future.done() for future in futures))
        assert [type(future.exception()) for future in futures] == [
            type(None),
            type(None),
            OutcomeUnknown,
        ]
        writer.publish("t", "x")
        assert len(nsqd.connections) == 2
        held.let_go()


def test_callbacks_that_end_the_thread_at_a_loss(client: Client, world: World) -> None:
    held = Held()
    with ScriptedNsqd(held.script, [automatic()]) as nsqd:
        writer = client.writer(nsqd)
        futures = futures_that_leave(writer)
        world.eventually(lambda: held.held)
        nsqd.connections[0].shutdown()
        world.eventually(lambda: all(future.done() for future in futures))
        assert {type(future.exception()) for future in futures} == {OutcomeUnknown}
        writer.publish("t", "x")
        held.let_go()


def test_an_answer_just_before_the_end_reaches_its_future(client: Client, world: World) -> None:
    """Read by a publisher, who then meets the end while the reading thread looks elsewhere."""

    def answer(connection: scripted.Connection, command: Command) -> None:
        if command.body == b"last":
            connection.response()
            scripted.close()(connection)
        elif command.body != b"async":
            connection.answer(command)

    with ScriptedNsqd([automatic(hooks={"PUB": answer})]) as nsqd:
        writer = client.writer(nsqd)
        publishes = lent(world, writer)
        tell = publishes.replies.end_futures
        told = threading.Event()

        def tell_and_dawdle() -> None:
            tell()
            told.set()
            world.eventually(lambda: turn_of(publishes) is TurnState.FAILED)

        publishes.replies.end_futures = tell_and_dawdle  # type: ignore[method-assign]
        world.eventually(told.is_set)
        future: Future[None] = Future()
        # As submit() begins, by another thread, just before somebody publishes.
        publishes._send_queue.slots.append(PublishSlot(commands.pub("t", b"async"), None, future))
        assert world.spawn(outcome, writer, "last").join() == "OutcomeUnknown"
        assert future.result(10) is None
