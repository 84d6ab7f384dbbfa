"""The streaming reader called as Spark's versions call it, beside embedded nsqds; no session."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from gnsqsync.errors import ConfigError, ConnectionLost, NSQError
from tests.spark.nsqds import Cluster, numbered
from tests.support.servers import ROOT

# A query's driver process, new for each run of it: options on top of those of all.
Driver = Callable[..., Any]


@pytest.fixture
def driver(
    pyspark: ModuleType, embedded_cluster: Cluster, topic: str, wal: str
) -> Iterator[Driver]:
    from pyspark.sql.types import BinaryType, StructField, StructType

    from gnsqsync.spark.options import SourceOptions
    from gnsqsync.spark.source import NsqStreamReader

    made = []

    def driver(**options: object) -> NsqStreamReader:
        given = {
            "lookupdHttpAddresses": embedded_cluster.lookupd,
            "subscribe": topic,
            "channel": "ch",
            "walPath": wal,
            "pollIntervalMs": 20,
            **options,
        }
        parsed = SourceOptions.parse({n: str(v) for n, v in given.items()}, streaming=True)
        made.append(NsqStreamReader(parsed, StructType([StructField("value", BinaryType())])))
        return made[-1]

    embedded_cluster.create(topic)
    yield driver
    for reader in made:
        reader.stop()


def logged(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark hands it back: by way of its offset log."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def rows(reader: Any, end: dict[str, Any]) -> int:
    """What the tasks of an epoch read."""
    parts = reader.partitions({}, end)
    return sum(batch.num_rows for part in parts for batch in reader.read(part))


def test_a_run_and_a_restart_of_4_2(driver: Driver, embedded_cluster: Cluster, topic: str) -> None:
    reader = driver()
    start = logged(reader.initialOffset())
    assert reader.initialOffset() == start
    assert json.dumps(reader.latestOffset(start, None)) == json.dumps(start)
    embedded_cluster.publish(topic, numbered(range(30)))
    end = logged(reader.latestOffset(start, None))
    assert end["epoch"] == 1
    # The run ends here; the next one is told that this batch was not finished.
    reader = driver()
    assert reader.initialOffset() != start
    assert rows(reader, end) == 30
    assert rows(driver(), end) == 30
    reader.commit(end)
    embedded_cluster.publish(topic, numbered(range(5)))
    after = logged(reader.latestOffset(end, None))
    assert (after["stream"], after["epoch"]) == (start["stream"], 2)
    assert rows(reader, after) == 5


def test_a_run_and_a_restart_of_4_0(driver: Driver, embedded_cluster: Cluster, topic: str) -> None:
    """latestOffset() is not told where it starts; partitions() is called first after a restart."""
    reader = driver(maxMessagesPerTrigger=20, availableNow="false")
    embedded_cluster.publish(topic, numbered(range(30)))
    reader.initialOffset()
    end = logged(reader.latestOffset())
    assert rows(reader, end) == 20
    after = logged(reader.latestOffset())
    assert (after["stream"], after["epoch"]) == (end["stream"], 2)
    reader = driver()
    reader.partitions(end, after)
    assert rows(reader, after) == 10
    assert json.dumps(reader.latestOffset()) == json.dumps(after)
    reader = driver()
    # Nothing was left to replay: Spark asks with the last offset twice.
    assert reader.partitions(after, after) == []
    embedded_cluster.publish(topic, numbered(range(5)))
    assert reader.latestOffset()["epoch"] == 3


def test_an_offset_that_spark_lost(driver: Driver, embedded_cluster: Cluster, topic: str) -> None:
    """The newest offset is lost in a power cut: Spark renames its file without fsync."""
    reader = driver()
    embedded_cluster.publish(topic, numbered(range(30)))
    first = logged(reader.latestOffset(logged(reader.initialOffset()), None))
    assert rows(reader, first) == 30
    embedded_cluster.publish(topic, numbered(range(20)))
    lost = logged(reader.latestOffset(first, None))
    assert rows(reader, lost) == 20
    embedded_cluster.publish(topic, numbered(range(7)))
    for restarted in (driver(), driver(minPartitions=5)):
        assert logged(restarted.latestOffset(first, None)) == lost
        assert rows(restarted, lost) == 20
    assert rows(restarted, logged(restarted.latestOffset(lost, None))) == 7


@pytest.mark.parametrize("beside_others", [False, True])
def test_answer_has_all_that_was_published_before_the_question(
    driver: Driver,
    embedded_cluster: Cluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    beside_others: bool,
) -> None:
    """processAllAvailable() relies on it, also where looks are dear and therefore rare."""
    monkeypatch.setattr("gnsqsync.spark.source._IDLE_SHARE", 1e-9)
    monkeypatch.setattr("gnsqsync.spark.source._LONGEST_PAUSE", 0.3)
    monkeypatch.setattr("gnsqsync.spark.pauses.LONGEST", 0.1)
    reader = driver()
    end = logged(reader.initialOffset())
    if beside_others:
        reader.commit(end)
    for number in range(1, 4):
        assert logged(reader.latestOffset(end, None)) == end
        embedded_cluster.publish(topic, numbered(range(5)))
        end = logged(reader.latestOffset(end, None))
        assert (end["epoch"], rows(reader, end)) == (number, 5)
        reader.commit(end)


def test_two_drivers_of_one_query(driver: Driver, embedded_cluster: Cluster, topic: str) -> None:
    from gnsqsync.spark.plans import TwoDrivers

    reader = driver()
    embedded_cluster.publish(topic, numbered(range(30)))
    first = logged(reader.latestOffset(logged(reader.initialOffset()), None))
    assert rows(reader, first) == 30
    other = driver()
    assert rows(other, first) == 30
    embedded_cluster.publish(topic, numbered(range(20)))
    # Both have seen that nobody has planned the next one.
    assert other._open_log(first).left_over(first) is None
    assert reader.latestOffset(first, None)["epoch"] == 2
    with pytest.raises(TwoDrivers, match="another driver has planned epoch 2"):
        other.latestOffset(first, None)


@pytest.mark.parametrize("call", ["latestOffset", "partitions"])
def test_an_old_checkpoint_with_another_channel(
    driver: Driver, embedded_cluster: Cluster, topic: str, call: str
) -> None:
    reader = driver()
    embedded_cluster.publish(topic, numbered(range(30)))
    end = logged(reader.latestOffset(logged(reader.initialOffset()), None))
    for option, sentence in [
        ({"channel": "new"}, "'channel' is 'new', and the checkpoint belongs to channel 'ch'"),
        ({"subscribe": "new"}, "'subscribe' is 'new', and the checkpoint belongs to"),
    ]:
        with pytest.raises(ConfigError, match=sentence):
            getattr(driver(**option), call)(end, end)


def test_a_drain_with_another_channel(
    driver: Driver, embedded_cluster: Cluster, topic: str, wal: str
) -> None:
    from pyspark.sql.types import BinaryType, StructField, StructType

    from gnsqsync.spark.batch import NsqBatchReader
    from gnsqsync.spark.options import SourceOptions

    embedded_cluster.publish(topic, numbered(range(5)))
    for channel in ("ch", "ch", "new"):
        given = {
            "lookupdHttpAddresses": embedded_cluster.lookupd,
            "subscribe": topic,
            "channel": channel,
            "walPath": wal,
            "drainId": "one",
        }
        schema = StructType([StructField("value", BinaryType())])
        reader = NsqBatchReader(SourceOptions.parse(given, streaming=False), schema, "")
        if channel == "ch":
            assert len(reader.partitions()) > 0
            continue
        with pytest.raises(ConfigError, match=r"'new', and drain 'one' in .* to channel 'ch'"):
            reader.partitions()


def test_a_run_with_an_end_of_4_0(
    driver: Driver, embedded_cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is one batch, which takes all; it is planned once, however often Spark asks."""
    options = {"maxMessagesPerTrigger": 20, "availableNow": "true"}
    reader = driver(**options)
    embedded_cluster.publish(topic, numbered(range(30)))
    end = logged(reader.latestOffset())
    assert "all that waits goes into one batch, and not 20 messages at most" in caplog.text
    embedded_cluster.publish(topic, numbered(range(5)))
    assert reader.latestOffset() == end
    assert rows(reader, end) == 30
    reader = driver(**options)
    assert reader.partitions(end, end) == []
    after = logged(reader.latestOffset())
    assert (after["stream"], after["epoch"]) == (end["stream"], 2)
    assert rows(reader, after) == 5
    reader = driver(**options)
    reader.partitions(after, after)
    assert reader.latestOffset() == after


def test_a_run_with_an_end_of_4_0_that_reaches_nobody(
    driver: Driver, embedded_cluster: Cluster, topic: str
) -> None:
    embedded_cluster.publish(topic, numbered(range(20)), nsqd=0)
    options = {
        "lookupdHttpAddresses": "",
        "nsqdTcpAddresses": "127.0.0.1:1",
        "nsqdHttpAddresses": embedded_cluster.http_addresses[0],
        "availableNow": "true",
    }
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:1, where 20 messages wait"):
        driver(**options).latestOffset()
    assert driver(**options, failOnUnreachable="never").latestOffset()["epoch"] == 1


def test_4_0_wants_to_be_told_whether_a_capped_run_has_an_end(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gnsqsync.spark import source

    monkeypatch.setattr(source, "KNOWS_AVAILABLE_NOW", False)
    with pytest.raises(ConfigError, match=r"option 'availableNow' is missing.*4\.2 does"):
        driver(maxMessagesPerTrigger=20)
    for options in ({}, {"maxMessagesPerTrigger": 20, "availableNow": "false"}):
        driver(**options)


def test_reader_reports_read_and_waiting_messages(
    driver: Driver,
    embedded_cluster: Cluster,
    topic: str,
    wal: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gnsqsync.spark import read_task, source
    from gnsqsync.spark.tally import Costs

    monkeypatch.setattr(source, "KNOWS_AVAILABLE_NOW", True)
    # This process ran other tasks before.
    costs = Costs()
    monkeypatch.setattr(read_task, "costs_of_process", lambda: costs)
    # Segments of 5 messages, so that the last entry of a task is not its first.
    reader = driver(maxInFlight=10, pollTimeoutMs=20_000)
    end = reader.initialOffset()
    read = 0
    for count in (30, 12):
        embedded_cluster.publish(topic, numbered(range(count)), nsqd=0)
        end = logged(reader.latestOffset(end, None))
        told = reader.reportLatestOffset()
        assert (told["channel"], told["backlog"], told["unreachable"]) == ("ch", count, [])
        assert told["topics"][topic][embedded_cluster.tcp_addresses[0]]["depth"] == count
        # Of the batches before.
        assert told["received"] == read
        read += rows(reader, end)
    embedded_cluster.publish(topic, numbered(range(1)))
    reader.latestOffset(end, None)
    told = json.loads(json.dumps(reader.reportLatestOffset()))
    assert (told["batches"], told["received"], read) == (2, 42, 42)
    assert (told["redelivered"], told["deduplicated"]) == (0, 0)
    entries = list(Path(wal).rglob("*.arrow"))
    assert len(entries) > 4
    # All of it but the last entry, which the next task tells.
    size = sum(path.stat().st_size for path in entries)
    assert size / 2 < told["log_bytes"] < size
    seconds = told["seconds"]
    assert set(seconds) == {"receive", "log", "fin", "longest_task"}
    assert all(0 < value < 60 for value in seconds.values()), seconds


def test_reader_reports_nsqds_that_it_did_not_reach(
    driver: Driver,
    embedded_cluster: Cluster,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from gnsqsync.spark import source

    monkeypatch.setattr(source, "KNOWS_AVAILABLE_NOW", True)
    reader = driver(
        lookupdHttpAddresses="",
        nsqdTcpAddresses="127.0.0.1:1",
        nsqdHttpAddresses=embedded_cluster.http_addresses[0],
    )
    embedded_cluster.publish(topic, numbered(range(20)), nsqd=0)
    end = logged(reader.latestOffset(reader.initialOffset(), None))
    assert rows(reader, end) == 0
    reader.latestOffset(end, None)
    told = reader.reportLatestOffset()
    assert (told["unreachable"], told["backlog"], told["received"]) == (["127.0.0.1:1"], 20, 0)


def test_the_plan_is_the_same_for_whoever_asks(
    driver: Driver, embedded_cluster: Cluster, topic: str
) -> None:
    reader = driver(minPartitions=7)
    embedded_cluster.publish(topic, numbered(range(100)))
    end = logged(reader.latestOffset(reader.initialOffset(), None))
    embedded_cluster.publish(topic, numbered(range(100)))
    first, second = (driver().partitions({}, end) for _ in range(2))
    assert [part.value for part in first] == [part.value for part in second]
    assert len(first) >= 7
    assert sum(plan.budget for task in first for plan in task.value) == 100


def test_a_commit_that_cannot_be_written_does_not_end_the_query(
    driver: Driver,
    embedded_cluster: Cluster,
    topic: str,
    wal: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader = driver()
    embedded_cluster.publish(topic, numbered(range(10)))
    end = logged(reader.latestOffset(reader.initialOffset(), None))
    assert rows(reader, end) == 10
    away = Path(f"{wal}-away")
    Path(wal).rename(away)
    Path(wal).write_text("in the way")
    reader.commit(end)
    assert "the commit of epoch 1 is not written" in caplog.text
    Path(wal).unlink()
    away.rename(wal)
    reader.commit(end)
    assert json.loads(Path(wal, end["stream"], "committed").read_text())[0] == 1


def test_nothing_is_committed_before_there_was_anything(driver: Driver, wal: str) -> None:
    reader = driver()
    reader.commit(reader.initialOffset())
    assert reader.partitions({}, reader.initialOffset()) == []
    assert not Path(wal).exists()


def test_reader_waits_for_messages_a_while(
    driver: Driver, embedded_cluster: Cluster, topic: str
) -> None:
    """Spark asks again after 10 ms, at its own cost."""
    reader = driver()
    start = reader.initialOffset()
    began = time.monotonic()
    # The first call may leave the waiting to the second one, when looks are expensive here.
    reader.latestOffset(start, None)
    reader.latestOffset(start, None)
    assert time.monotonic() - began > 0.5
    embedded_cluster.publish(topic, numbered(range(10)))
    assert reader.latestOffset(start, None)["epoch"] == 1


def test_an_idle_source_holds_up_no_batch_of_others(
    driver: Driver, embedded_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark commits all sources when it makes a batch, those without new rows, too."""
    from gnsqsync.spark import source

    slept: list[float] = []
    monkeypatch.setattr(
        source,
        "time",
        SimpleNamespace(monotonic=lambda: sum(slept), process_time=lambda: 0.0, sleep=slept.append),
    )
    reader = driver()
    start = reader.initialOffset()
    reader.latestOffset(start, None)
    assert sum(slept) > 0.5
    for _ in range(5):
        reader.commit(start)
        slept.append(0.1)  # the batch of another source
        before = sum(slept)
        assert reader.latestOffset(start, None) == start
        assert sum(slept) == before
    embedded_cluster.publish(topic, numbered(range(10)))
    reader.commit(start)
    slept.append(0.1)
    assert reader.latestOffset(start, None)["epoch"] == 1


# -- a run with an end -------------------------------------------------------------------------


def away(cluster: Cluster, *tcp: str) -> dict[str, str]:
    """The first nsqds by HTTP as they are, and at these TCP addresses."""
    return {
        "lookupdHttpAddresses": "",
        "nsqdTcpAddresses": ",".join(tcp),
        "nsqdHttpAddresses": ",".join(cluster.http_addresses[: len(tcp)]),
    }


def run(reader: Any, limit: int | None = None) -> list[int]:
    """Rows of each epoch, until there are no more: what Spark 4.2 does with availableNow."""
    end = logged(reader.initialOffset())
    reader.prepareForTriggerAvailableNow()
    sizes = []
    while True:
        after = logged(reader.latestOffset(end, SimpleNamespace(max_rows=limit)))
        if after == end:
            return sizes
        end = after
        sizes.append(rows(reader, end))


def test_a_run_that_reaches_nobody_fails_after_one_epoch(
    driver: Driver, embedded_cluster: Cluster, topic: str
) -> None:
    embedded_cluster.publish(topic, numbered(range(100)), nsqd=0)
    with pytest.raises(
        ConnectionLost, match=r"127\.0\.0\.1:1, where 100 messages wait: cannot con"
    ):
        run(driver(**away(embedded_cluster, "127.0.0.1:1")), limit=10)
    assert embedded_cluster.waiting(topic) == 100
    assert run(driver()) == [100]


def test_a_run_leaves_out_who_cannot_be_reached(
    driver: Driver,
    embedded_cluster: Cluster,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    embedded_cluster.publish(topic, numbered(range(20)), nsqd=0)
    embedded_cluster.publish(topic, numbered(range(100)), nsqd=1)
    tcp = embedded_cluster.tcp_addresses[0]
    assert sum(run(driver(**away(embedded_cluster, tcp, "127.0.0.1:1")), limit=20)) == 20
    assert "not read: nsqd 127.0.0.1:1, where 100 messages wait: cannot connect" in caplog.text
    assert tcp not in caplog.text


def test_a_run_that_is_refused_for_good_fails_like_one_that_reaches_nobody(
    driver: Driver, embedded_cluster: Cluster, topic: str
) -> None:
    embedded_cluster.publish(topic, numbered(range(20)), nsqd=2)
    with pytest.raises(ConnectionLost, match=r"where 20 messages wait: .*does not offer TLS"):
        run(driver(**{"nsq.tls": "true"}))


def test_an_empty_run_fails_when_an_nsqd_could_not_be_asked(
    driver: Driver, embedded_cluster: Cluster, topic: str
) -> None:
    options = away(embedded_cluster, *embedded_cluster.tcp_addresses[:1], "127.0.0.1:2")
    http = f"{embedded_cluster.http_addresses[0]},127.0.0.1:1"
    with pytest.raises(ConnectionLost, match=r"127\.0\.0\.1:2, where nobody knows what waits"):
        run(driver(**{**options, "nsqdHttpAddresses": http}))
    embedded_cluster.publish(topic, numbered(range(20)), nsqd=0)
    assert run(driver(**{**options, "nsqdHttpAddresses": http})) == [20]


def test_an_empty_run_needs_no_tcp(driver: Driver, embedded_cluster: Cluster) -> None:
    assert run(driver(**away(embedded_cluster, "127.0.0.1:1"))) == []


def test_a_run_that_took_nothing_of_what_waits(
    driver: Driver, embedded_cluster: Cluster, topic: str
) -> None:
    embedded_cluster.publish(topic, numbered(range(20)), nsqd=0)
    embedded_cluster.pause(topic)
    with pytest.raises(NSQError, match=r"20 of .* \(paused\).*unpause it"):
        run(driver())
    # PySpark before 4.2 asks once, and so does spark.read.
    with pytest.raises(NSQError, match=r"20 of .* \(paused\).*unpause it"):
        driver(availableNow="true").latestOffset()
    embedded_cluster.unpause(topic)
    reader = driver()
    end = logged(reader.initialOffset())
    reader.prepareForTriggerAvailableNow()
    # Here the tasks find it paused: the plan was made before.
    after = logged(reader.latestOffset(end, None))
    embedded_cluster.pause(topic)
    assert rows(reader, after) == 0
    with pytest.raises(NSQError, match=r"messages waited at the start \(20\)"):
        reader.latestOffset(after, None)
    embedded_cluster.unpause(topic)
    assert run(driver()) == [20]


def test_a_run_whose_rows_nobody_asks_for(
    driver: Driver, embedded_cluster: Cluster, topic: str
) -> None:
    """As behind a sink that looks at the first row of a batch only."""
    embedded_cluster.publish(topic, numbered(range(20)), nsqd=0)
    reader = driver(**away(embedded_cluster, "127.0.0.1:1"))
    end = logged(reader.initialOffset())
    reader.prepareForTriggerAvailableNow()
    after = logged(reader.latestOffset(end, None))
    assert after["epoch"] == 1
    assert logged(reader.latestOffset(after, None)) == after


# PySpark's runner when its loop ends: stop(), then it reports what ended it, or fails to.
RUNNER = """
import sys
from gnsqsync.spark.options import SourceOptions
from gnsqsync.spark.source import NsqStreamReader
from pyspark.sql.types import StructType

given = {"nsqdTcpAddresses": "127.0.0.1:1", "subscribe": "t", "channel": "c", "walPath": "/nowhere"}
reader = NsqStreamReader(SourceOptions.parse(given, streaming=True), StructType())
ended_by, reported = (getattr(__builtins__, name)(name) for name in sys.argv[1:])
try:
    try:
        raise ended_by
    finally:
        reader.stop()
except Exception:
    raise reported
"""


@pytest.mark.parametrize(
    ("ended_by", "reported", "printed"),
    [
        ("EOFError", "BrokenPipeError", False),
        ("ConnectionResetError", "BrokenPipeError", False),
        ("EOFError", "ValueError", True),
        ("ValueError", "BrokenPipeError", True),
    ],
)
def test_a_query_that_stops_prints_no_traceback(
    pyspark: ModuleType, ended_by: str, reported: str, printed: bool
) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", RUNNER, ended_by, reported],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert ("Traceback" in ended.stderr) is printed, ended.stderr
