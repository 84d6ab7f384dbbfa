"""What a Reader says of its threads: a stuck one is seen without a lock; a broker away is none."""

from __future__ import annotations

import re
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gnsqsync import Message, Observer, Reader
from gnsqsync.discovery.polling import Discovery
from gnsqsync.reader import health
from gnsqsync.reader.chunks import Chunks
from gnsqsync.runtime import choose
from gnsqsync.runtime.timer import Timer
from gnsqsync.writer import health as writer_health
from tests.component.conftest import Client, Gate
from tests.support.scripted import (
    Command,
    Connection,
    ScriptedNsqd,
    automatic,
    message,
    silence,
    wait_until,
)

LATE = 0.3
READING = r"t/ch: the thread that reads from 127.0.0.1:\d+ has been stuck for ([2-9]|\d\d) s"
TIMER = r"t/ch: the timer thread has been stuck for \d+ s"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "LATE_SECONDS", LATE)
    monkeypatch.setattr(writer_health, "LATE_SECONDS", LATE)
    monkeypatch.setattr(writer_health, "_QUESTION_SECONDS", LATE)


def says(client: Client, reader: Reader, line: str, limit: float | None = None) -> None:
    """Wait until it says this line (a pattern) alone. On a busy machine others may come and go."""

    def is_all() -> bool:
        found = reader.health(limit).stuck
        return len(found) == 1 and re.fullmatch(line, found[0]) is not None

    client.world.eventually(is_all, describe=lambda: reader.health(limit).stuck)


def says_nothing(client: Client, reader: Reader, limit: float | None = None) -> None:
    """Wait until it says nothing. A thread that only a busy machine holds up comes round."""
    client.world.eventually(lambda: reader.health(limit).stuck == [])


def connected(client: Client, reader: Reader) -> None:
    client.world.eventually(lambda: reader.health().is_ready)


def timer_of(reader: Reader) -> Timer:
    assert reader._run is not None
    return reader._run._timer


def test_a_reader_that_lives_from_its_start_to_its_end(client: Client) -> None:
    with ScriptedNsqd() as nsqd:
        reader = client.reader(lambda message: None, nsqd)
        assert reader.health().not_ready == ("t/ch has not started",)
        reader.start(block=False)
        connected(client, reader)
        client.world.sleep(2 * LATE)
        # The worker waits for the next message.
        says_nothing(client, reader, LATE)
        reader.stop()
        (why,) = reader.health().not_ready
        assert why in ("t/ch is stopping", "t/ch has stopped")
        reader.join()
        assert reader.health().not_ready == ("t/ch has stopped",)
        assert reader.health(LATE).stuck == [], "its threads have ended"


def test_a_timer_thread_that_was_killed(client: Client) -> None:
    class Killed(BaseException):
        """As gevent.Timeout, and whatever else an exception from outside is."""

    def kill() -> None:
        raise Killed

    with ScriptedNsqd() as nsqd:
        reader = client.consume(lambda message: None, nsqd)
        timer_of(reader).after(0.0, kill)
        says(client, reader, "t/ch: the timer thread has died")


def test_a_timer_thread_whose_job_does_not_end(client: Client, gate: Gate) -> None:
    with ScriptedNsqd() as nsqd:
        reader = client.consume(lambda message: None, nsqd)
        timer_of(reader).after(0.0, gate)
        says(client, reader, TIMER)
        gate.open()
        says_nothing(client, reader)


def test_a_lock_that_is_never_given_back(client: Client) -> None:
    """Of the subscription; stats() would wait for it, too."""
    with ScriptedNsqd() as nsqd:
        reader = client.consume(lambda message: None, nsqd, rdy_redistribute_interval=0.1)
        connected(client, reader)
        assert reader._run is not None
        with reader._run.subscription._lock:
            says(client, reader, TIMER)


def test_a_lock_of_the_timer_that_is_never_given_back(client: Client) -> None:
    with ScriptedNsqd() as nsqd:
        reader = client.consume(lambda message: None, nsqd, rdy_redistribute_interval=0.1)
        connected(client, reader)
        with timer_of(reader)._lock:
            says(client, reader, TIMER)


def test_a_reading_thread_that_a_hook_holds_up(client: Client, gate: Gate) -> None:
    class Holding(Observer):
        def connected(self, nsqd_address: str) -> None:
            gate()

    with ScriptedNsqd() as nsqd:
        reader = client.consume(
            lambda message: None, nsqd, observer=Holding(), heartbeat_interval=1.0
        )
        # Two heartbeats at least.
        says(client, reader, READING)


def test_an_nsqd_that_falls_silent_or_is_away_is_no_stuck_thread(client: Client) -> None:
    with ScriptedNsqd([automatic(until="SUB"), silence()]) as nsqd:
        reader = client.consume(lambda message: None, nsqd, heartbeat_interval=1.0)
        connected(client, reader)
        # Two heartbeats of silence end it.
        nsqd.refuse_connections()
        client.world.eventually(lambda: not reader.health().is_ready)
        client.world.sleep(2 * LATE)
        assert reader.health().not_ready == ("t/ch has no connection to an nsqd",)
        says_nothing(client, reader, LATE)


def test_a_poll_thread_that_a_hook_holds_up(client: Client, gate: Gate) -> None:
    class Holding(Observer):
        def lookup_failed(self, url: str, error: Exception) -> None:
            gate()

    where = "127.0.0.1:1"
    reader = client.reader(
        lambda message: None,
        nsqd_tcp_addresses=[],
        lookupd_http_addresses=where,
        lookupd_poll_interval=0.05,
        observer=Holding(),
    )
    reader.start(block=False)
    says(client, reader, rf"t/ch: the thread that asks http://{where} has been stuck for \d+ s")


def test_an_nsqlookupd_that_is_away(client: Client) -> None:
    where = "127.0.0.1:1"
    reader = client.reader(
        lambda message: None,
        nsqd_tcp_addresses=[],
        lookupd_http_addresses=where,
        lookupd_poll_interval=0.05,
    )
    reader.start(block=False)
    client.world.eventually(lambda: where in "".join(reader.health().not_ready))
    client.world.sleep(2 * LATE)
    says_nothing(client, reader)
    assert "".join(reader.health().not_ready).startswith("t/ch has no connection to an nsqd; ")


def test_a_writer_of_dead_letters_that_hangs(client: Client, gate: Gate) -> None:
    def fails(message: Message) -> None:
        raise ValueError

    told = threading.Event()

    def answer(connection: Connection, command: Command) -> None:
        if command.body == b"held":
            wait_until(told)(connection)
        connection.answer(command)

    script = [automatic(until="RDY"), message(b"x"), automatic()]
    with ScriptedNsqd(script, [automatic(hooks={"PUB": answer})]) as nsqd:
        reader = client.consume(
            *(fails, nsqd),
            max_attempts=1,
            dead_letter_topic="dead",
            heartbeat_interval=1.0,
        )
        assert reader._run is not None
        writers = reader._run._dead_letters._writers
        client.world.eventually(lambda: reader.stats().gave_up)
        (writer,) = writers.values()
        # Its callback runs on the reading thread.
        writer.publish_async("dead", "held").add_done_callback(gate)
        told.set()
        says(client, reader, "t/ch, dead letters: the thread that reads from 127.0.0.1:.*")


def test_a_handler_may_run_for_ever_unless_there_is_a_limit(client: Client, gate: Gate) -> None:
    with ScriptedNsqd([automatic(until="RDY"), message(b"x"), automatic()]) as nsqd:
        reader = client.consume(gate, nsqd)
        client.world.eventually(lambda: gate.came)
        client.world.sleep(2 * LATE)
        says_nothing(client, reader)
        says_nothing(client, reader, 60.0)
        says(client, reader, r"t/ch: a handler has run for \d+ s; the limit is 0\.3 s", LATE)
        gate.open()
        says_nothing(client, reader, LATE)


class FakeClock:
    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


def test_the_limit_is_of_a_message_and_not_of_a_chunk() -> None:
    """A worker may take several messages at once; each has the whole limit."""
    runtime = choose("threads")
    clock = FakeClock()
    fake: Any = SimpleNamespace(now=clock.now, mutex=runtime.mutex)
    chunks = Chunks(runtime.queue(), fake, cuts=True)
    others: Any = SimpleNamespace(msg_timeout=60.0)
    times = health.HandlerTimes(chunks, clock.now)
    messages: list[Any] = [SimpleNamespace(timestamp=0, _received_at=clock.now()) for _ in range(3)]
    left, _ = chunks.begin(0, (others, messages))
    for _ in range(3):
        next(left)
        assert times.above(10.0) == []
        clock.time += 6.0
        assert times.above(10.0) == []
    clock.time += 5.0
    assert times.above(10.0) == [(0, 11.0, messages[2])]
    chunks.end_of(0)
    assert times.above(10.0) == []


def test_a_poll_thread_that_has_not_begun_is_not_late() -> None:
    runtime = choose("threads")
    unused: Any = None
    lookups: Any = SimpleNamespace(urls=(), poll_interval=1.0, poll_jitter=0.0)
    polls: Any = Discovery(unused, lookups, unused, unused, runtime)
    assert polls.not_asked(0.0) == []
