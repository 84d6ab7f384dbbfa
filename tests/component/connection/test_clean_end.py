"""nsqd ends a connection between two publishes: what is published then is not in doubt.

The scripted nsqd sends its EOF and goes on to read, so that a publish which is written behind it
would be seen: nobody can say then that nsqd does not have it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from gnsqsync import Writer
from gnsqsync.connection.publish_queue import _ASK_SECONDS
from gnsqsync.connection.publish_slot import PublishSlot
from gnsqsync.connection.read_turn import TurnState
from gnsqsync.errors import NotSent
from tests.component.conftest import Client
from tests.component.connection.test_publishes import publishes_of
from tests.support import scripted
from tests.support.scripted import Command, ScriptedNsqd, automatic
from tests.support.worlds import World

LAST = b"last"


class EndsBehind:
    """Answers all publishes, and behind that of LAST sends EOF. It reads on."""

    def __init__(self) -> None:
        self.has_ended = threading.Event()

    def __call__(self, connection: scripted.Connection, command: Command) -> None:
        connection.answer(command)
        if command.body == LAST:
            scripted.half_close()(connection)
            self.has_ended.set()

    @property
    def scripts(self) -> list[Any]:
        """For the first connection; all later ones are served."""
        return [[automatic(hooks={"PUB": self})], [automatic()]]


def bodies(connection: scripted.Connection) -> list[bytes | None]:
    """What was published there."""
    return [c.body for c in list(connection.commands) if c.name in ("PUB", "MPUB")]


def run_up_to_the_end(world: World, writer: Writer, ends: EndsBehind) -> None:
    """Publish until nsqd's EOF is here, in the time in which the reading thread stands aside."""
    writer.publish("t", "first")
    publishes = publishes_of(writer)
    world.eventually(lambda: publishes._turn.state is TurnState.FREE)
    writer.publish("t", "second")
    writer.publish("t", LAST)
    world.eventually(ends.has_ended.is_set)
    # What the kernel said last may hold for a moment.
    world.sleep(2 * _ASK_SECONDS)


def publish_async(world: World, writer: Writer) -> None:
    future = writer.publish_async("t", "behind")
    world.eventually(future.done)
    future.result()


WAYS: dict[str, Callable[[World, Writer], None]] = {
    "publish": lambda world, writer: writer.publish("t", "behind"),
    "publish_many": lambda world, writer: writer.publish_many("t", ["behind", "it"]),
    "publish_async": publish_async,
}


@pytest.mark.parametrize("gap", [0.0, 0.02, 0.05])
@pytest.mark.parametrize("way", WAYS)
def test_a_publish_after_the_end_goes_to_a_new_connection(
    client: Client, world: World, way: str, gap: float
) -> None:
    ends = EndsBehind()
    with ScriptedNsqd(*ends.scripts) as nsqd:
        writer = client.writer(nsqd)
        run_up_to_the_end(world, writer, ends)
        world.sleep(gap)
        WAYS[way](world, writer)
        assert len(bodies(nsqd.connections[0])) == 3
        assert len(bodies(nsqd.connections[1])) == 1
        stats = writer.stats()
        assert (stats.outcome_unknown, stats.not_sent) == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_a_publish_after_the_end_goes_to_another_nsqd(
    client: Client, world: World, way: str
) -> None:
    ends = EndsBehind()
    with ScriptedNsqd(*ends.scripts) as one, ScriptedNsqd() as other:
        writer = client.writer(one, other, policy="failover")
        run_up_to_the_end(world, writer, ends)
        one.refuse_connections()
        WAYS[way](world, writer)
        assert len(bodies(one.connections[0])) == 3
        assert len(bodies(other.connections[0])) == 1


def test_a_second_publisher_writes_nothing_after_the_end(client: Client, world: World) -> None:
    """The one that has the turn to read is held up, and so does not see the EOF."""
    ends = EndsBehind()
    with ScriptedNsqd(*ends.scripts) as nsqd:
        writer = client.writer(nsqd)
        run_up_to_the_end(world, writer, ends)
        publishes = publishes_of(writer)
        held_up = PublishSlot(b"")
        assert publishes._turn.take(held_up, publishes._now() + 10.0)
        others = [world.spawn(writer.publish, "t", f"behind {n}") for n in range(3)]
        world.eventually(lambda: publishes._send_queue.broken is not None)
        publishes._turn.release(held_up, False, True)
        for other in others:
            other.join()
        assert len(bodies(nsqd.connections[0])) == 3
        assert len(bodies(nsqd.connections[1])) == 3


def test_a_future_that_meets_the_end_beside_another_one_is_not_in_doubt(
    client: Client, world: World
) -> None:
    """Another thread is writing when it is queued, and finds the end: then it is not sent."""
    ends = EndsBehind()
    with ScriptedNsqd(*ends.scripts) as nsqd:
        writer = client.writer(nsqd)
        run_up_to_the_end(world, writer, ends)
        send_queue = publishes_of(writer)._send_queue
        with send_queue._lock:
            future = writer.publish_async("t", "behind")
        send_queue.flush()
        world.eventually(future.done)
        assert isinstance(future.exception(), NotSent)
        assert len(bodies(nsqd.connections[0])) == 3
