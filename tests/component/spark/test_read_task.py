"""One partition read into the log, without Spark: races, deaths, retries, limits, the end.

On the embedded nsqd and on the real one.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from gnsqsync import NsqdHTTP, Reader, Writer  # noqa: E402
from gnsqsync.errors import ConnectionLost, NegotiationFailed  # noqa: E402
from gnsqsync.spark import read_task  # noqa: E402
from gnsqsync.spark.read_plan import PartitionPlan, ReadSettings  # noqa: E402
from gnsqsync.spark.read_task import (  # noqa: E402
    peek_partitions,
    read_partitions,
    try_to_reach,
)
from gnsqsync.spark.rows import ALL_SCHEMA, Entry  # noqa: E402
from gnsqsync.spark.stores import FileStore  # noqa: E402
from gnsqsync.spark.wal import EpochCommitted, LogDamaged, Wal  # noqa: E402
from tests.support.read_faults import POINTS, read_with_faults  # noqa: E402
from tests.support.scripted import ScriptedNsqd, automatic, message_frame, send  # noqa: E402
from tests.support.servers import ROOT, Server, Site, unique  # noqa: E402

# One attempt in a process of its own, that a fault may kill.
ATTEMPT = """
import sys, json
from gnsqsync.spark.read_plan import PartitionPlan, ReadSettings
from tests.support.read_faults import read_with_faults
plan, settings, fault = json.loads(sys.argv[1])
batches = read_with_faults(PartitionPlan(**plan), ReadSettings(**settings), ["value"], fault)
print(json.dumps([value.decode() for batch in batches for value in batch["value"].to_pylist()]))
"""
# Seconds of silence that end a read which has all that there is, however late nsqd is.
SILENCE = 3.0
# Attempts at a time meet at the entries of the log.
DELAYS = "before_create:delay=0-0.05;after_create:delay=0-0.05"


class Source:
    """A topic on one nsqd, a log, and attempts to read an epoch."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server = server
        self.nsqd = "{}:{}".format(*server.tcp_address)
        self.topic = unique("spark")
        # A read whose budget is there ends with its last message: no delay of nsqd ends it before.
        self.settings = ReadSettings(str(folder / "wal"), poll_timeout=30.0, msg_timeout=60.0)
        self.wal = Wal(FileStore(str(folder / "wal")), "stream", retention=0)
        self.wal.announce()
        self._http = NsqdHTTP("http://{}:{}".format(*server.http_address))
        self._http.create_topic(self.topic)
        self._http.create_channel(self.topic, "ch")

    def close(self) -> None:
        self._http.close()

    def publish(self, count: int, size: int = 0) -> list[bytes]:
        bodies = [(b"%06d" % n).ljust(size, b".") for n in range(count)]
        with Writer(self.nsqd) as writer:
            writer.publish_many(self.topic, bodies)
        return bodies

    def plan(self, budget: int, epoch: int = 0, **changes: Any) -> PartitionPlan:
        plan = PartitionPlan("stream", epoch, 0, self.topic, "ch", self.nsqd, budget)
        return replace(plan, **changes)

    def batches(self, budget: int, epoch: int = 0, **settings: Any) -> list[Any]:
        changed = replace(self.settings, **settings)
        return list(read_partitions([self.plan(budget, epoch)], changed, ["value"]))

    def struck(self, fault: str, budget: int, **settings: Any) -> list[bytes]:
        """As ``read()`` of epoch 0, by an attempt that the faults strike."""
        changed = replace(self.settings, **settings)
        return values(list(read_with_faults(self.plan(budget), changed, ["value"], fault)))

    def read(self, budget: int, epoch: int = 0, **settings: Any) -> list[bytes]:
        return values(self.batches(budget, epoch, **settings))

    def rest(self, budget: int, epoch: int, **settings: Any) -> list[bytes]:
        """What this and later epochs give, until they have ``budget`` messages in all."""
        rows: list[bytes] = []
        for number in range(epoch, epoch + 20):
            rows += self.read(budget - len(rows), number, poll_timeout=8.0, **settings)
            if len(rows) == budget:
                return rows
        raise AssertionError(f"{len(rows)} of {budget} messages after 20 epochs")

    def attempt(self, fault: str, budget: int, **settings: Any) -> subprocess.Popen[str]:
        words = [asdict(self.plan(budget)), asdict(replace(self.settings, **settings)), fault]
        return subprocess.Popen(
            [sys.executable, "-c", ATTEMPT, json.dumps(words)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def entries(self, epoch: int = 0) -> list[Entry]:
        found = []
        while (entry := self.wal.read(epoch, 0, len(found))) is not None:
            found.append(entry)
        return found

    def channel(self) -> Any:
        (topic,) = self._http.stats(topic=self.topic, channel="ch").topics
        (channel,) = topic.channels
        return channel


def values(batches: list[Any]) -> list[bytes]:
    return [value for batch in batches for value in batch["value"].to_pylist()]


@pytest.fixture(autouse=True)
def fast_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, the log counts as fast."""
    monkeypatch.setattr(read_task, "_SLOW_CREATE", math.inf)


@pytest.fixture
def source(site: Site, tmp_path: Path) -> Iterator[Source]:
    source = Source(site.nsqd(), tmp_path)
    yield source
    source.close()


# -- one attempt ----------------------------------------------------------------------------------


def test_a_task_reads_several_partitions_each_into_its_own_log(source: Source, site: Site) -> None:
    other = Source(source.server, Path(source.settings.wal_path).parent)
    away = replace(source.plan(5), nsqd="127.0.0.1:1", partition=11, judged=True)
    plans = [away]
    wanted = set()
    try:
        for number, topic in enumerate([source, other] * 5):
            plans.append(replace(topic.plan(30), partition=number))
        for topic in (source, other):
            wanted |= {(topic.topic, body) for body in topic.publish(150)}
        batches = list(read_partitions(plans, source.settings, ["topic", "value"]))
        rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
        assert len(rows) == 300
        assert set(rows) == wanted
        folders = {name.split("/")[2] for name in source.wal.names()}
        assert folders == {f"p={plan.partition}" for plan in plans}
        entry = source.wal.read(0, 11, 0)
        assert entry is not None
        assert "refused" in entry.problem.lower()
        # In another order and in other groups, as after a restart with other options.
        again = list(read_partitions(plans[:0:-1], source.settings, ["topic", "value"]))
        assert {tuple(row.values()) for batch in again for row in batch.to_pylist()} == wanted
    finally:
        other.close()


def test_requests_of_a_task_to_the_log(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an object store each of these is a request, see docs/spark/sizing."""
    source.publish(40)
    asked: list[tuple[str, str]] = []
    for method in ("read", "create", "put", "list"):
        usual = getattr(FileStore, method)

        def noted(store: FileStore, *args: Any, method: str = method, usual: Any = usual) -> Any:
            asked.append((method, re.sub(r"\d+$", "", args[0].rpartition("/")[2])))
            return usual(store, *args)

        monkeypatch.setattr(FileStore, method, noted)
    plans = [replace(source.plan(10), partition=number) for number in range(4)]
    list(read_partitions(plans, source.settings, ["value"]))
    assert {what: asked.count(what) for what in asked} == {
        ("read", "plan"): 1,
        ("list", "p="): 4,
        ("read", "committed"): 8,
        ("create", "000000.arrow"): 4,
        ("create", "000001.arrow"): 4,
    }


def test_the_first_error_ends_a_task_whose_other_partitions_are_in_the_log(source: Source) -> None:
    source.publish(20)
    refused = replace(source.settings, connection={"tls": True})
    plans = [source.plan(10), replace(source.plan(10), partition=1)]
    # One partition has its log already, so it needs no nsqd.
    first = values(list(read_partitions(plans[:1], source.settings, ["value"])))
    with pytest.raises(NegotiationFailed):
        list(read_partitions(plans, refused, ["value"]))
    assert values(list(read_partitions(plans[:1], refused, ["value"]))) == first
    assert len(values(list(read_partitions(plans, source.settings, ["value"])))) == 20


def test_every_message_once_and_the_same_again(source: Source) -> None:
    bodies = source.publish(100)
    assert sorted(source.read(100)) == bodies
    first = list(read_partitions([source.plan(100)], source.settings, ALL_SCHEMA.names))
    again = list(read_partitions([source.plan(100)], source.settings, ALL_SCHEMA.names))
    assert first == again
    assert [batch.schema for batch in first] == [ALL_SCHEMA]
    (batch,) = first
    assert set(batch["nsqd"].to_pylist()) == {source.nsqd}
    assert set(batch["attempts"].to_pylist()) == {1}


def test_when_it_ends_every_fin_has_arrived(source: Source) -> None:
    source.publish(300)
    source.read(300, max_in_flight=20)
    channel = source.channel()
    # No look again: nsqd had answered CLS, behind the FINs.
    assert (channel.depth, channel.in_flight_count, channel.requeue_count) == (0, 0, 0)


def test_the_budget_is_exact(source: Source) -> None:
    bodies = source.publish(300)
    rows = source.read(117, max_in_flight=20)
    assert len(rows) == 117
    channel = source.channel()
    # Nothing was taken that had to be given back.
    assert (channel.depth, channel.in_flight_count, channel.requeue_count) == (183, 0, 0)
    assert sorted(rows + source.read(500, 1, poll_timeout=SILENCE)) == bodies


def test_entries_are_half_of_what_may_be_in_flight(source: Source) -> None:
    source.publish(95)
    source.read(95, max_in_flight=20)
    sizes = [entry.rows for entry in source.entries()]
    assert sizes == [10, 10, 10, 10, 10, 10, 10, 10, 15, 0]
    assert [entry.end for entry in source.entries()] == [False] * 9 + [True]


def test_a_slow_log_gets_larger_entries(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_task, "_SLOW_CREATE", -1.0)
    source.publish(95)
    source.read(95, max_in_flight=20)
    assert [entry.rows for entry in source.entries()] == [10, 20, 20, 20, 20, 5, 0]


def test_a_budget_that_fits_is_one_entry(source: Source) -> None:
    source.publish(95)
    source.read(95)
    assert [(entry.rows, entry.end) for entry in source.entries()] == [(95, False), (0, True)]


def test_fewer_messages_than_the_budget(source: Source) -> None:
    bodies = source.publish(30)
    assert sorted(source.read(100, poll_timeout=SILENCE)) == bodies
    assert [(entry.rows, entry.end) for entry in source.entries()] == [(30, False), (0, True)]


def test_no_message_at_all(source: Source) -> None:
    assert source.batches(100, poll_timeout=0.2) == []
    assert [(entry.rows, entry.end) for entry in source.entries()] == [(0, True)]


def test_a_lower_limit_of_the_server(site: Site, tmp_path: Path) -> None:
    source = Source(site.nsqd("-max-rdy-count=20"), tmp_path)
    bodies = source.publish(100)
    assert sorted(source.read(100)) == bodies
    assert all(entry.rows <= 20 for entry in source.entries())
    source.close()


def test_entries_have_a_size(source: Source) -> None:
    bodies = source.publish(100, size=10_000)
    assert sorted(source.read(100, segment_bytes=50_000)) == bodies
    sizes = [entry.rows for entry in source.entries()]
    # The first look is taken before anything is known.
    assert sizes[0] <= 10
    assert max(sizes[1:]) <= 6


def test_rows_that_memory_has_no_room_for_come_from_the_log(source: Source) -> None:
    bodies = source.publish(100, size=1000)
    kept = source.batches(100, max_in_flight=20)
    read = source.batches(100, 1, max_in_flight=20, poll_timeout=0.2)
    assert read == []
    source.publish(100, size=1000)
    read = source.batches(100, 2, max_in_flight=20, max_bytes_in_memory=20_000)
    assert sorted(values(read)) == sorted(values(kept)) == bodies


def test_peeking_takes_nothing(source: Source) -> None:
    bodies = source.publish(30)
    settings = replace(source.settings, poll_timeout=SILENCE)
    for attempts in (1, 2):
        (batch,) = peek_partitions([source.plan(100)], settings, ["value", "attempts"])
        assert sorted(batch["value"].to_pylist()) == bodies
        assert set(batch["attempts"].to_pylist()) == {attempts}
    channel = source.channel()
    assert (channel.depth, channel.in_flight_count) == (30, 0)
    assert source.wal.names() == {}


def test_peeking_at_some(source: Source) -> None:
    source.publish(30)
    (batch,) = peek_partitions([source.plan(7)], source.settings, ["id"])
    assert batch.num_rows == 7
    assert source.channel().depth == 30


# -- several attempts -----------------------------------------------------------------------------


def together(*runs: Callable[[], Any]) -> list[Any]:
    """What each returns or raises, all at once."""
    results: list[Any] = [None] * len(runs)

    def run(at: int) -> None:
        try:
            results[at] = runs[at]()
        except Exception as error:
            results[at] = error

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


def test_attempts_at_once_in_threads(source: Source) -> None:
    bodies = source.publish(400)
    # An attempt whose messages others have ends by its silence.
    some = {"max_in_flight": 50, "poll_timeout": 0.5}
    results = together(*[lambda: source.struck(DELAYS, 400, **some)] * 4)
    assert all(rows == results[0] for rows in results), results
    assert sorted(results[0] + source.rest(400 - len(results[0]), 1)) == bodies


def test_attempts_at_once_in_processes(source: Source) -> None:
    bodies = source.publish(400)
    attempts = [source.attempt(DELAYS, 400, max_in_flight=50, poll_timeout=0.5) for _ in range(3)]
    outputs = [attempt.communicate(timeout=60) for attempt in attempts]
    assert [attempt.returncode for attempt in attempts] == [0, 0, 0], outputs
    assert len({out for out, _ in outputs}) == 1
    rows = source.read(400, poll_timeout=0.5)
    assert sorted(rows + source.rest(400 - len(rows), 1)) == bodies


def test_a_create_whose_answer_got_lost(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = source.publish(100)
    create = FileStore.create

    def lose_answer(store: FileStore, name: str, data: bytes) -> bool:
        create(store, name, data)
        return False

    monkeypatch.setattr(FileStore, "create", lose_answer)
    assert sorted(source.read(100, max_in_flight=20)) == bodies
    channel = source.channel()
    assert (channel.depth, channel.in_flight_count, channel.requeue_count) == (0, 0, 0)


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_attempt(source: Source, point: str) -> None:
    bodies = source.publish(100)
    number = "" if point in ("before_close", "emit") else "#2"
    killed = source.attempt(f"{point}{number}:kill", 100, max_in_flight=20, msg_timeout=1.0)
    _, errors = killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL, errors
    before = [entry.rows for entry in source.entries()]
    rows = source.read(100, max_in_flight=20, poll_timeout=8.0)
    assert [entry.rows for entry in source.entries()][: len(before)] == before
    rows += source.rest(100 - len(rows), 1)
    assert sorted(rows) == bodies
    # What came again and is in the log gets its FIN, too, by one of the next reads.
    # nsqd looks for messages whose time is over in the channels that it knew up to 5 s ago.
    for epoch in range(30, 35):
        source.read(1, epoch, poll_timeout=2.0)
        channel = source.channel()
        waiting = (channel.depth, channel.in_flight_count, channel.deferred_count)
        if waiting == (0, 0, 0):
            break
    assert waiting == (0, 0, 0)


@pytest.mark.parametrize("deduplicate", [True, False])
def test_an_attempt_that_fails_between_entry_and_fin(source: Source, deduplicate: bool) -> None:
    bodies = source.publish(100)
    with pytest.raises(OSError, match="at after_create"):
        source.struck("after_create#2:fail", 100, max_in_flight=20)
    # It has given back what was in hand: 10 of the second entry.
    rows = source.read(100, deduplicate=deduplicate)
    rows += source.read(100, 1, deduplicate=deduplicate, poll_timeout=SILENCE)
    assert sorted(set(rows)) == bodies
    assert len(rows) == (100 if deduplicate else 110)
    assert source.channel().depth == 0


def test_an_attempt_that_fails_gives_back_what_is_in_hand(source: Source) -> None:
    bodies = source.publish(100)
    with pytest.raises(OSError, match="at before_create"):
        source.struck("before_create#2:fail", 100, max_in_flight=20)
    channel = source.channel()
    assert (channel.depth, channel.in_flight_count) == (90, 0)
    assert sorted(source.read(100)) == bodies


# -- late attempts --------------------------------------------------------------------------------


def test_an_attempt_that_wakes_up_after_the_commit(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    bodies = source.publish(50)
    asleep, awake = threading.Event(), threading.Event()
    check = read_task._Task._check_not_committed

    def check_late(task: read_task._Task) -> None:
        asleep.set()
        assert awake.wait(60)
        check(task)

    def late() -> list[bytes]:
        return source.read(50)

    def others() -> None:
        # Another attempt closed the log, its rows went through the sink, and the log is gone.
        assert asleep.wait(60)
        plan = source.plan(50)
        FileStore(source.settings.wal_path).create(
            "stream/e=0/p=0/000000.arrow",
            Entry.of([], [], plan, end=True).encode(),
        )
        source.wal.commit(0, 0, 0)
        assert source.wal.epochs() == []
        awake.set()

    monkeypatch.setattr(read_task._Task, "_check_not_committed", check_late)
    error, _ = together(late, others)
    monkeypatch.undo()
    assert isinstance(error, EpochCommitted)
    assert source.wal.epochs() == []
    channel = source.channel()
    assert (channel.depth, channel.in_flight_count) == (50, 0)
    assert sorted(source.read(50, 1)) == bodies


def test_messages_held_too_long_go_back(source: Source) -> None:
    bodies = source.publish(50)
    # nsqd has taken the messages back before the entry could be made.
    rows = source.struck("before_create#1:delay=1.2", 50, msg_timeout=1.0, poll_timeout=5.0)
    assert sorted(rows + source.rest(50 - len(rows), 1)) == bodies


def test_a_message_that_comes_twice_at_once_is_one_row(tmp_path: Path) -> None:
    # This process was halted, and nsqd took the message back that still waited in its socket.
    twice = [message_frame(b"x", id=b"%016x" % 7, attempts=n) for n in (1, 2)]
    once = message_frame(b"y")
    with ScriptedNsqd([automatic(until="RDY"), send(*twice, once), automatic()]) as nsqd:
        settings = ReadSettings(str(tmp_path))
        Wal(FileStore(str(tmp_path)), "stream").announce()
        address = "{}:{}".format(*nsqd.address)
        plan = PartitionPlan("stream", 0, 0, "t", "ch", address, 10)
        assert values(list(read_partitions([plan], settings, ["value"]))) == [b"x", b"y"]
        finished = [command.parameters[0] for command in nsqd.received("FIN")]
        # nsqd goes by the id: one FIN is for both.
        assert finished[0] == f"{7:016x}"
        assert len(finished) == 2


def test_nsqd_sends_nothing_more_for_what_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RDY 0 comes before the first REQ, even if this thread then comes late to the CLS."""
    frames = [message_frame(b"x", id=b"%016x" % number) for number in (1, 2)]
    stop = Reader.stop
    with ScriptedNsqd([automatic(until="RDY"), send(*frames), automatic()]) as nsqd:

        def late(reader: Reader, timeout: float) -> None:
            nsqd.wait_for("REQ", 2)
            stop(reader, timeout)

        monkeypatch.setattr(Reader, "stop", late)
        settings = ReadSettings(str(tmp_path), poll_timeout=30.0)
        address = "{}:{}".format(*nsqd.address)
        plan = PartitionPlan("stream", 0, 0, "t", "ch", address, 2)
        assert len(values(list(peek_partitions([plan], settings, ["value"])))) == 2
        said = [(command.name, *command.parameters[:1]) for command in nsqd.commands]
    first, last = ("REQ", f"{1:016x}"), ("REQ", f"{2:016x}")
    assert said[-5:] == [("RDY", "2"), ("RDY", "0"), first, last, ("CLS",)]


def test_a_committed_epoch_that_is_kept_is_read_again(source: Source) -> None:
    bodies = source.publish(20)
    source.read(20)
    source.wal._retention = 60
    source.wal.commit(0, 0, 0)
    assert sorted(source.read(20)) == bodies


def test_a_committed_epoch_that_is_gone(source: Source) -> None:
    source.publish(20)
    source.wal.commit(0, 0, 0)
    with pytest.raises(LogDamaged, match="set failOnDataLoss=false"):
        source.read(20)
    assert source.read(20, fail_on_data_loss=False) == []
    assert source.channel().depth == 20


def test_a_log_on_storage_that_is_not_shared(source: Source, tmp_path: Path) -> None:
    with pytest.raises(LogDamaged, match="set walPath to storage that all of them share"):
        source.read(20, wal_path=str(tmp_path / "elsewhere"))


# -- nsqd -----------------------------------------------------------------------------------------


def test_an_nsqd_that_cannot_be_reached_has_no_rows(site: Site, tmp_path: Path) -> None:
    server = site.own_nsqd()
    source = Source(server, tmp_path)
    bodies = source.publish(20)
    source.close()
    server.stop()
    assert source.read(20) == []
    server.start()
    # The epoch is closed; its messages stay for the next one.
    assert source.read(20) == []
    assert sorted(source.read(20, 1)) == bodies


def test_a_replay_needs_no_nsqd(site: Site, tmp_path: Path) -> None:
    server = site.own_nsqd()
    source = Source(server, tmp_path)
    bodies = source.publish(20)
    rows = source.read(20)
    source.close()
    server.kill()
    assert source.read(20) == rows
    assert sorted(rows) == bodies


def test_an_nsqd_that_dies_meanwhile(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = site.own_nsqd()
    source = Source(server, tmp_path)
    source.publish(100)
    source.close()
    create = FileStore.create

    def create_and_kill(store: FileStore, name: str, data: bytes) -> bool:
        made = create(store, name, data)
        server.kill()
        return made

    monkeypatch.setattr(FileStore, "create", create_and_kill)
    rows = source.read(100, max_in_flight=20, poll_timeout=0.5)
    # Of what had arrived before, some may have gone into the log before the end was seen.
    assert 10 <= len(rows) <= 20
    assert source.entries()[-1].end
    assert source.read(100) == rows


def test_an_nsqd_that_refuses_us_for_good(source: Source) -> None:
    source.publish(20)
    with pytest.raises(NegotiationFailed):
        source.read(20, connection={"tls": True})
    # Nothing is closed: with the right options the epoch goes on.
    assert source.wal.names() == {}
    assert len(source.read(20)) == 20


def test_an_nsqd_that_must_be_reached(source: Source) -> None:
    settings = replace(source.settings, must_reach=True)
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1 cannot be reached.*is 'any'"):
        list(read_partitions([source.plan(20, nsqd="127.0.0.1:1")], settings, ["value"]))
    # Nothing says that it is done: the next attempt tries again.
    assert source.entries() == []


def test_the_last_entry_tells_what_the_task_did(source: Source) -> None:
    source.publish(100)
    # The first attempt dies with an entry in the log, whose messages nsqd delivers again. The entry
    # has each message that was in flight, as the budget is all that may be in flight.
    with pytest.raises(OSError, match="a fault"):
        source.struck("after_create:fail", 10, max_in_flight=10)
    (left,) = source.entries(0)
    assert left.rows == 10
    source.rest(70, 1)
    assert len(source.read(30, 0)) == 30
    *firsts, last = source.entries(0)
    assert not any(entry.tally for entry in firsts)
    assert last.tally["received"] == 30
    assert 0 < last.tally["seconds"] < 60
    assert last.tally["log_bytes"] > 0
    # The messages of the first entry are left. A read that takes none of them is too early.
    later = itertools.count(50)
    while source.channel().depth:
        assert source.read(left.rows, next(later), poll_timeout=0.5) == []
    epochs = sorted(set(source.wal.names().values()))
    entries = [entry for epoch in epochs for entry in source.entries(epoch)]
    told = [entry.tally for entry in entries if entry.end]
    assert sum(tally["received"] for tally in told) == 100
    assert [tally["redelivered"] for tally in told] == [0] * len(told)
    assert sum(tally["deduplicated"] for tally in told) == left.rows


def test_the_last_entry_tells_what_came_again(source: Source) -> None:
    source.publish(20)
    # Taken, and given back by the end of the connection.
    with pytest.raises(OSError, match="a fault"):
        source.struck("before_create:fail", 20)
    assert len(source.read(20)) == 20
    last = source.entries()[-1]
    (batch,) = read_partitions([source.plan(20)], source.settings, ["attempts"])
    again = sum(attempts > 1 for attempts in batch["attempts"].to_pylist())
    assert last.tally["redelivered"] == again > 0


def test_a_judged_task_notes_why_it_was_refused(source: Source) -> None:
    source.publish(20)
    settings = replace(source.settings, connection={"tls": True})
    plan = source.plan(20, judged=True)
    assert list(read_partitions([plan], settings, ["value"])) == []
    (entry,) = source.entries()
    assert (entry.rows, entry.end) == (0, True)
    assert "does not offer TLS" in entry.problem
    assert "does not offer TLS" in try_to_reach([plan], settings)[0]
    assert source.channel().depth == 20


def test_a_task_notes_why_nsqd_was_not_reached(source: Source) -> None:
    http = "{}:{}".format(*source.server.http_address)
    for epoch, (nsqd, problem) in enumerate(
        [("127.0.0.1:1", "cannot connect to 127.0.0.1:1"), (http, "this is an HTTP port")]
    ):
        plan = source.plan(20, epoch, nsqd=nsqd, judged=True)
        assert list(read_partitions([plan], source.settings, ["value"])) == []
        (entry,) = source.entries(epoch)
        assert problem in entry.problem
        assert problem in try_to_reach([plan], source.settings)[0]


def test_an_nsqd_that_takes_the_connection_and_says_nothing(source: Source) -> None:
    """A black hole, as a firewall or a halted nsqd makes one."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nsqd = "{}:{}".format(*silent.getsockname())
        plan = source.plan(20, nsqd=nsqd, judged=True)
        settings = replace(source.settings, connection={"connect_timeout": 0.3})
        assert list(read_partitions([plan], settings, ["value"])) == []
    (entry,) = source.entries()
    assert nsqd in entry.problem


def test_a_task_that_reaches_nsqd_notes_no_problem(source: Source) -> None:
    assert source.batches(20, poll_timeout=0.2) == []
    assert [entry.problem for entry in source.entries()] == [""]


def test_a_try_takes_nothing(source: Source) -> None:
    source.publish(20)
    here, away = source.plan(20, judged=True), source.plan(20, nsqd="127.0.0.1:1", judged=True)
    assert [not p for p in try_to_reach([away, here, away], source.settings)] == [0, 1, 0]
    channel = source.channel()
    assert (channel.depth, channel.in_flight_count, channel.requeue_count) == (20, 0, 0)
    assert source.wal.names() == {}


def test_options_of_the_connection(source: Source) -> None:
    bodies = source.publish(20)
    assert sorted(source.read(20, connection={"snappy": True, "client_id": "spark"})) == bodies
