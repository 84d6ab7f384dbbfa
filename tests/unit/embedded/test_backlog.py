"""Topics and channels whose messages do not fit in memory, on a disk in memory."""

from __future__ import annotations

import errno
import io

import pytest

from gnsqsync.daemon.golog import Log
from gnsqsync.embedded.disk.queue import DiskQueue
from gnsqsync.embedded.queueing import DiskFailed
from tests.support.memoryfiles import MemoryFiles, failure
from tests.unit.embedded import test_broker
from tests.unit.embedded.disk.queues import LIMITS


class Bench(test_broker.Bench):
    """A broker with a disk."""

    def __init__(self, files: MemoryFiles | None = None, sync_every: int = 1, **options: object):
        super().__init__(**options)
        self.files = files or MemoryFiles()
        self.failures: list[tuple[str, str]] = []
        limits = LIMITS._replace(sync_every=sync_every)
        log = Log("", stream=io.StringIO())
        self.broker.open_queue = lambda name: DiskQueue(
            name, self.files, limits, self.clock.now, log
        )
        self.broker.on_write_failed = lambda who, error: self.failures.append((who, error))

    def publish(self, *bodies: bytes, delay: float = 0.0) -> None:
        for body in bodies:
            # So that each has a time of its own.
            self.clock.seconds += 0.001
            super().publish(body, delay=delay)

    def meta(self, queue: str) -> str:
        return self.files.contents[f"{queue}.diskqueue.meta.dat"].decode()

    def disk_names(self) -> set[str]:
        return {name for name in self.files.contents if "meta" not in name}


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"m%d" % number for number in range(start, start + count)]


def test_messages_that_do_not_fit_in_memory_go_to_disk() -> None:
    bench = Bench(mem_queue_size=5)
    topic = bench.topic()
    bench.publish(*numbers(12))
    assert (topic.depth, topic.backend_depth, topic.message_count) == (12, 7, 12)
    assert bench.meta("t") == "7\n0,0\n0,226\n"
    channel = topic.channel("c")
    assert (topic.depth, channel.depth, channel.backend_depth) == (0, 12, 7)
    # Not in nsqd's order, which is chance: the oldest first.
    assert bench.consumer(limit=100).bodies == numbers(12)


def test_a_long_queue_is_copied_in_rounds() -> None:
    """Between them other connections are served."""
    bench = Bench(mem_queue_size=0)
    topic = bench.topic()
    bench.publish(*numbers(1200))
    channel = topic.channel("c")
    assert bench.broker.schedule.next_at() == bench.clock.now()
    found = [topic.depth]
    while topic.depth:
        assert topic.depth + channel.depth == 1200
        topic.expire(bench.clock.now())
        found.append(topic.depth)
    assert found == [700, 200, 0]
    assert bench.consumer(limit=2000).bodies == numbers(1200)


def test_old_messages_on_disk_come_before_new_ones_in_memory() -> None:
    bench = Bench(mem_queue_size=3)
    sink = bench.consumer()
    bench.publish(*numbers(10))
    channel = bench.topic().channel("c")
    for number in range(20):
        bench.publish(b"m%d" % (number + 10))
        channel.finish(sink.messages[-1].id, sink)
        bench.settle()
    assert sink.bodies == numbers(21)
    assert channel.depth == 9


def test_everything_on_disk_with_no_memory() -> None:
    bench = Bench(mem_queue_size=0)
    first, second = bench.consumer(), bench.consumer(channel="d", limit=3)
    bench.publish(*numbers(5))
    assert (first.bodies, second.bodies) == (numbers(1), numbers(3))
    assert bench.disk_names() == {f"t:{name}.diskqueue.000000.dat" for name in "cd"}
    # The positions are synced when they have been handed over.
    assert bench.meta("t:c").split("\n")[:2] == ["4", "0,32"]
    assert bench.meta("t:d").split("\n")[:2] == ["2", "0,96"]
    channel = bench.topic().channel("c")
    assert (channel.depth, channel.backend_depth, len(channel.in_flight)) == (4, 4, 1)


def test_a_requeued_message_is_appended() -> None:
    bench = Bench(mem_queue_size=0)
    sink = bench.consumer()
    bench.publish(*numbers(4))
    channel = bench.topic().channel("c")
    assert channel.requeue(sink.messages[0].id, sink, 0.0) is None
    for _ in range(4):
        bench.settle()
        channel.finish(sink.messages[-1].id, sink)
    assert sink.bodies == numbers(4) + numbers(1)
    assert sink.messages[-1].attempts == 2
    assert len(bench.files.contents["t:c.diskqueue.000000.dat"]) == 5 * 32


def test_a_message_that_timed_out_and_one_that_was_deferred_come_from_disk() -> None:
    bench = Bench(mem_queue_size=0)
    sink = bench.consumer(timeout=5.0)
    bench.publish(b"m0")
    bench.publish(b"m1", delay=1.0)
    sink.limit = 0
    bench.advance(6.0)
    channel = bench.topic().channel("c")
    assert (channel.backend_depth, len(channel.deferred), len(channel.in_flight)) == (2, 0, 0)
    sink.limit = 5
    bench.settle()
    assert [(m.body, m.attempts) for m in sink.messages[1:]] == [(b"m1", 1), (b"m0", 2)]


def test_ephemeral_ones_have_no_disk() -> None:
    bench = Bench(mem_queue_size=3)
    bench.topic("e#ephemeral").publish(numbers(6))
    bench.topic("e#ephemeral").channel("c")
    assert bench.topic("e#ephemeral").channels["c"].depth == 3
    bench.topic().channel("c#ephemeral")
    bench.publish(*numbers(6))
    assert bench.topic().channels["c#ephemeral"].depth == 3
    assert bench.files.contents == {}


def test_the_sync_by_time() -> None:
    bench = Bench(sync_every=0, mem_queue_size=0)
    bench.publish(*numbers(3))
    assert "t.diskqueue.meta.dat" not in bench.files.contents
    bench.advance(1.9)
    assert "t.diskqueue.meta.dat" not in bench.files.contents
    bench.advance(0.2)
    assert bench.meta("t") == "3\n0,0\n0,96\n"


def test_a_full_disk() -> None:
    bench = Bench(mem_queue_size=2)
    bench.files.room = 0
    bench.publish(*numbers(2))
    assert bench.broker.health == "OK"
    with pytest.raises(DiskFailed) as caught:
        bench.topic().publish([b"x", b"y"])
    text = "write /Data/t.diskqueue.000000.dat: no space left on device"
    assert str(caught.value) == text
    assert bench.broker.health == f"NOK - {text}"
    assert bench.failures == [("TOPIC(t) ERROR", text)]
    assert (bench.topic().depth, bench.topic().message_count) == (2, 2)
    bench.files.room = None
    bench.publish(b"m2")
    assert bench.broker.health == "OK"
    assert bench.consumer(limit=9).bodies == numbers(3)


def test_messages_before_the_failure_in_an_mpub_stay() -> None:
    bench = Bench(mem_queue_size=0, sync_every=0)
    bench.files.room = 100
    with pytest.raises(DiskFailed):
        bench.topic().publish([b"1", b"x" * 100, b"2"])
    topic = bench.topic()
    assert (topic.depth, topic.message_count, topic.message_bytes) == (1, 1, 1)


@pytest.mark.parametrize("mem_queue_size", [0, 2])
def test_messages_stay_in_the_topic_while_a_channel_cannot_write(mem_queue_size: int) -> None:
    bench = Bench(mem_queue_size=mem_queue_size)
    bench.publish(*numbers(10))

    def fail(operation: str, name: str) -> None:
        if name.startswith("t:d") and operation == "write":
            raise failure(errno.ENOSPC, name)

    bench.files.before = fail
    topic = bench.topic()
    topic.pause(True)
    for name in ("c", "d"):
        topic.channel(name)
    topic.channel("e#ephemeral")
    topic.pause(False)
    bench.broker.schedule.settle()
    depths = {name: channel.depth for name, channel in topic.channels.items()}
    # As many as fit in memory.
    assert depths == dict.fromkeys(depths, mem_queue_size)
    assert topic.depth == 10 - mem_queue_size
    bench.publish(b"m10")
    assert topic.depth == 11 - mem_queue_size
    sinks = [bench.consumer(channel=name, limit=99) for name in ("c", "d")]
    bench.files.before = lambda operation, name: None
    bench.advance(1.1)
    assert [sink.bodies for sink in sinks] == [numbers(11)] * 2
    assert (topic.depth, topic.channels["d"].message_count) == (0, 11)


def test_a_requeued_message_stays_in_memory_when_the_disk_fails() -> None:
    bench = Bench(mem_queue_size=0)
    sink = bench.consumer()
    bench.publish(b"m0")
    bench.files.room = 0
    channel = bench.topic().channel("c")
    assert channel.requeue(sink.messages[0].id, sink, 0.0) is None
    assert (channel.depth, channel.backend_depth) == (1, 0)
    bench.settle()
    assert sink.bodies == [b"m0", b"m0"]


def test_emptying_and_deleting() -> None:
    bench = Bench(mem_queue_size=1)
    bench.publish(*numbers(4))
    bench.topic().empty()
    assert (bench.topic().depth, bench.files.contents) == (0, {})
    bench.topic().channel("c")
    bench.publish(*numbers(4))
    assert bench.topic().channels["c"].backend_depth == 3
    bench.topic().channels["c"].empty()
    assert (bench.topic().channels["c"].depth, bench.files.contents) == (0, {})
    bench.publish(*numbers(4))
    bench.broker.delete_channel("t", "c")
    bench.advance(10.0)
    assert bench.files.contents == {}
    assert bench.topic().channel("c").depth == 0


def test_a_new_broker_over_what_was_there() -> None:
    bench = Bench(mem_queue_size=0)
    bench.topic().channel("c")
    bench.publish(*numbers(5))
    again = Bench(bench.files.copy(), mem_queue_size=0)
    assert again.topic().channel("c").depth == 5
    assert again.consumer(limit=9).bodies == numbers(5)
    assert again.topic().channel("c").message_count == 0
