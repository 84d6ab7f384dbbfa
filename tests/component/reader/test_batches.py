"""Batches out of chunks: how many, for how long, and what becomes of what nobody gets."""

from __future__ import annotations

from typing import Any

import pytest

from gnsqsync import Message
from gnsqsync.message import Fate
from gnsqsync.reader.batches import Batches
from gnsqsync.reader.chunks import Chunks
from gnsqsync.runtime import choose
from tests.component.reader.test_workers import FakeConnection, Killed
from tests.support.worlds import World


class Bench:
    """Batches from a connection of the test's."""

    def __init__(self, world: World) -> None:
        runtime = choose(world.runtime)
        queue = runtime.timed_queue()
        self.connection = FakeConnection()
        self.chunks = Chunks(queue, runtime, cuts=False)
        self.take = Batches(runtime, self.chunks, queue, 5, self.give_up).take

    def put(self, *bodies: bytes, attempts: int = 1) -> None:
        messages = self.connection.messages(*bodies, attempts=attempts)
        self.chunks.put(self.connection, messages)  # type: ignore[arg-type]

    def give_up(self, connection: Any, message: Message, error: BaseException | None) -> Fate:
        raise Killed


@pytest.fixture
def bench(world: World) -> Bench:
    return Bench(world)


def bodies(batch: list[Message] | None) -> list[bytes]:
    assert batch is not None
    return [message.body for message in batch]


def test_a_batch_is_as_many_as_asked_for_and_the_rest_stays(bench: Bench, world: World) -> None:
    assert bench.take(2, 0) == []
    bench.put(b"a", b"b", b"c")
    assert bodies(bench.take(2, 0)) == [b"a", b"b"]
    bench.put(b"d")
    assert bodies(bench.take(5, 0)) == [b"c", b"d"]
    task = world.spawn(bench.take, 1, 10)
    world.sleep(0.02)
    assert not task.done
    bench.put(b"e")
    task.join()
    assert bodies(task.result) == [b"e"]


def test_lost_messages_of_a_batch_are_left_out_and_go_back(bench: Bench) -> None:
    bench.put(b"lost")
    bench.connection.delivers = False
    assert bench.take(1, 0) == []
    # Not lost but stopping: then it goes back.
    assert bench.connection.requeued == [(b"lost", 0)]


def test_a_rest_is_given_back_too_and_a_stop_ends_the_wait(bench: Bench, world: World) -> None:
    bench.put(b"f", b"g", b"h")
    assert bodies(bench.take(1, 0)) == [b"f"]
    bench.connection.delivers = False
    bench.chunks.give_back()
    assert bench.connection.requeued == [(b"g", 0), (b"h", 0)]
    task = world.spawn(bench.take, 1, 10)
    world.sleep(0.02)
    bench.chunks.end(0)
    task.join()
    assert task.result is None


def test_giving_back_leaves_what_is_of_others(bench: Bench) -> None:
    other: Any = FakeConnection()
    bench.put(b"a", b"b")
    bench.take(1, 0)
    bench.chunks.put(other, other.messages(b"of the other"))
    bench.put(b"c")
    bench.connection.delivers = False
    bench.chunks.give_back()
    assert bench.connection.requeued == [(b"b", 0), (b"c", 0)]
    assert bodies(bench.take(5, 0)) == [b"of the other"]


def test_messages_taken_when_the_wait_ends_go_back(bench: Bench) -> None:
    """As by a gevent.Timeout, or by Ctrl-C: nobody else knows of these messages."""
    bench.put(b"one", b"two")
    bench.put(b"poison", attempts=6)
    bench.put(b"three")
    with pytest.raises(Killed):
        bench.take(10, 1.0)
    assert bench.connection.requeued == [(b"one", 0), (b"two", 0), (b"poison", 0)]
    assert bodies(bench.take(10, 0.0)) == [b"three"]


def test_a_stop_ends_every_thread_that_waits(bench: Bench, world: World) -> None:
    waiting = [world.spawn(bench.take, 1, 60.0) for _ in range(3)]
    world.sleep(0.05)
    bench.chunks.end(0)
    for task in waiting:
        task.join()
        assert task.result is None
