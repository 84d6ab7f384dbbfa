"""``replay``: an archive back into a topic, on embedded and real nsqds, through crashes too."""

from __future__ import annotations

import itertools
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gnsqsync.errors import ConfigError
from tests.spark import session as sessions
from tests.spark.nsqds import Cluster
from tests.spark.processes import Family
from tests.spark.test_sink import messages, nsqds
from tests.support.servers import ROOT
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gnsqsync.spark.jobs.replay import Replayed

__all__ = ["nsqds"]

BEGIN = datetime(2026, 11, 20, 22, 30, tzinfo=UTC)


def write_archive(
    folder: Path, rows: list[tuple[str, datetime, bytes]], columns: tuple[str, ...] = ()
) -> str:
    """Rows of (topic, publish time, body) as `archive` lays them out, a file for each hour."""
    import pyarrow as pa
    from pyarrow import parquet

    hours: dict[str, list[tuple[int, datetime, bytes]]] = {}
    for number, (topic, at, body) in enumerate(rows):
        hour = at.astimezone(UTC).strftime(f"topic={topic}/date=%Y-%m-%d/hour=%H")
        hours.setdefault(hour, []).append((number, at, body))
    for hour, found in hours.items():
        # As they come from several nsqds: in no order.
        found = found[1::2] + found[::2]
        times = pa.array([at for _, at, _ in found], pa.timestamp("us", "UTC"))
        table = pa.table(
            {
                "value": pa.array([body for _, _, body in found], pa.binary()),
                "id": [f"{number:016x}" for number, _, _ in found],
                "timestamp": times,
                "attempts": pa.array([1] * len(found), pa.int32()),
                "nsqd": ["127.0.0.1:4150"] * len(found),
                "received_at": times,
            }
        )
        path = folder / hour
        path.mkdir(parents=True)
        parquet.write_table(table, path / "part-0.parquet")
    return str(folder)


def by_second(count: int, topic: str = "orders") -> list[tuple[str, datetime, bytes]]:
    return [(topic, BEGIN + timedelta(seconds=n), str(n).encode()) for n in range(count)]


def addresses(cluster: Cluster) -> dict[str, str]:
    return {"nsqdTcpAddresses": ",".join(cluster.tcp_addresses)}


def run(spark: SparkSession, *arguments: Any, **options: Any) -> Replayed:
    from gnsqsync.spark.jobs.replay import replay

    return replay(spark, *arguments, **options)


def records(state: Path) -> list[str]:
    return sorted(p.name for p in (state / "done").iterdir() if not p.name.startswith("."))


def parts_of(state: Path) -> list[list[int]]:
    """The numbers of by_second() in each part of the plan."""
    bounds = json.loads((state / "plan").read_text())["bounds"]
    begin = round(BEGIN.timestamp())
    firsts = [-(-bound // 1_000_000) - begin for bound in bounds]
    return [list(range(first, end)) for first, end in itertools.pairwise(firsts)]


def test_window_and_filter(spark: SparkSession, nsqds: Cluster, topic: str, tmp_path: Path) -> None:
    nsqds.create(topic)
    # Over the hour and over midnight.
    archive = write_archive(tmp_path / "archive", [*by_second(9000), *by_second(9000, "007")])
    told: list[Replayed] = []
    result = run(
        spark,
        archive,
        topic,
        state=str(tmp_path / "state"),
        options=addresses(nsqds),
        topics=["007"],
        start=BEGIN + timedelta(seconds=1000),
        end=BEGIN + timedelta(seconds=8000),
        filter="cast(string(value) AS int) % 2 = 0",
        part_messages=500,
        progress=told.append,
    )
    wanted = [str(n).encode() for n in range(1000, 8000, 2)]
    assert (result.messages, result.before, result.published) == (3500, 0, 3500)
    assert (result.first, result.last) == (
        BEGIN + timedelta(seconds=1000),
        BEGIN + timedelta(seconds=7998),
    )
    assert told[0].published == 0 and told[-1] == result
    assert Counter(messages(nsqds, topic, 3500)) == Counter(wanted)
    # Done is done.
    again = run(
        spark,
        archive,
        topic,
        state=str(tmp_path / "state"),
        options=addresses(nsqds),
        topics=["007"],
        start=BEGIN + timedelta(seconds=1000),
        end=BEGIN + timedelta(seconds=8000),
        filter="cast(string(value) AS int) % 2 = 0",
    )
    assert (again.before, again.published) == (3500, 0)
    assert nsqds.left(topic) == 0


def test_one_task_keeps_the_order(
    spark: SparkSession, embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    embedded_cluster.create(topic)
    archive = write_archive(tmp_path / "archive", by_second(5000))
    one = {"nsqdTcpAddresses": embedded_cluster.tcp_addresses[0]}
    run(
        spark,
        archive,
        topic,
        state=str(tmp_path / "state"),
        options=one,
        parallelism=1,
        part_messages=700,
    )
    assert [int(body) for body in messages(embedded_cluster, topic, 5000)] == list(range(5000))


def test_parts_follow_the_times_however_uneven(
    spark: SparkSession, embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    embedded_cluster.create(topic)
    rows = [("t", BEGIN + timedelta(days=n), b"%d" % n) for n in range(50)]
    burst = BEGIN + timedelta(days=20, seconds=1)
    rows += [("t", burst + timedelta(microseconds=n), b"b%d" % n) for n in range(3000)]
    rows += [("t", burst + timedelta(seconds=1), b"s%d" % n) for n in range(250)]
    archive = write_archive(tmp_path / "archive", rows)
    result = run(
        spark,
        archive,
        topic,
        state=str(tmp_path / "state"),
        options=addresses(embedded_cluster),
        part_messages=100,
    )
    plan = json.loads((tmp_path / "state" / "plan").read_text())
    assert sum(plan["counts"]) == result.published == 3300
    # Only what has one and the same time cannot be divided.
    assert sorted(plan["counts"])[-2:] == [100, 250] or max(plan["counts"]) == 250
    assert 33 <= result.parts <= 80
    assert Counter(messages(embedded_cluster, topic, 3300)) == Counter(b for _, _, b in rows)


def test_a_dry_run_counts(spark: SparkSession, tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "archive", by_second(1000))
    result = run(
        spark,
        archive,
        "t",
        options={"nsqdTcpAddresses": "127.0.0.1:1"},
        dry_run=True,
        filter="length(value) = 3",
        part_messages=400,
    )
    assert (result.messages, result.published, result.parts) == (900, 0, 3)
    assert (result.first, result.last) == (
        BEGIN + timedelta(seconds=100),
        BEGIN + timedelta(seconds=999),
    )


def test_an_empty_window(
    spark: SparkSession, embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    archive = write_archive(tmp_path / "archive", by_second(10))
    result = run(
        spark,
        archive,
        topic,
        state=str(tmp_path / "state"),
        options=addresses(embedded_cluster),
        start=BEGIN + timedelta(days=9),
    )
    assert (result.messages, result.parts, result.first) == (0, 0, None)


def test_the_rate_belongs_to_the_whole_job(
    spark: SparkSession, embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    embedded_cluster.create(topic)
    archive = write_archive(tmp_path / "archive", by_second(1200))
    began = time.monotonic()
    run(
        spark,
        archive,
        topic,
        state=str(tmp_path / "state"),
        options=addresses(embedded_cluster),
        rate=400,
        parallelism=2,
        part_messages=100,
    )
    # A lower bound that no slow machine breaks.
    assert time.monotonic() - began >= 3.0
    assert len(messages(embedded_cluster, topic, 1200)) == 1200


def test_a_failed_run_is_gone_on_with(
    spark: SparkSession, nsqds: Cluster, topic: str, tmp_path: Path
) -> None:
    """What parts are finished stays so, though other tasks and the run fail."""
    nsqds.create(topic)
    state = tmp_path / "state"
    archive = write_archive(tmp_path / "archive", by_second(4000))
    options = addresses(nsqds)
    arguments = (spark, archive, topic)
    common: dict[str, Any] = {"state": str(state), "part_messages": 100, "parallelism": 1}
    # A message that the sink refuses, in the middle.
    with pytest.raises(Exception, match="more than 'maxMessageBytes'"):
        run(*arguments, options={**options, "maxMessageBytes": "3"}, **common)
    finished = [part for part in parts_of(state) if part[-1] < 1000]
    assert len(records(state)) == len(finished) >= 8
    result = run(*arguments, options=options, **common)
    before = sum(map(len, finished))
    assert (result.before, result.published) == (before, 4000 - before)
    bodies = Counter(map(int, messages(nsqds, topic, nsqds.left(topic))))
    assert set(bodies) == set(range(4000))
    # Of the part that failed, something may have left before; it tried three times.
    assert {n for n, times in bodies.items() if times > 1} <= set(parts_of(state)[len(finished)])


def test_another_replay_in_the_same_folder(
    spark: SparkSession, embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    archive = write_archive(tmp_path / "archive", by_second(10))
    common: dict[str, Any] = {
        "state": str(tmp_path / "state"),
        "options": addresses(embedded_cluster),
    }
    run(spark, archive, topic, **common)
    with pytest.raises(ConfigError, match="holds a replay with filter None, now it is 'attempts"):
        run(spark, archive, topic, filter="attempts > 1", **common)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"state": None}, "a replay needs a state folder"),
        ({"state": "hdfs://a/b"}, "the state folder 'hdfs://a/b': hdfs: has no exclusive create"),
        ({"filter": "no_such = 1"}, "filter 'no_such = 1' is not a condition over value, id"),
        ({"filter": "value ="}, "filter 'value =' is not a condition"),
        ({"filter": "attempts"}, "filter 'attempts' is not a condition"),
        ({"rate": 0}, "rate is 0 messages per second"),
        ({"parallelism": 0}, "parallelism is 0"),
        ({"options": {}}, "'nsqdTcpAddresses' is missing"),
        ({"topic": "a b"}, "topic name 'a b' is not valid"),
        ({"archive": "/no/such"}, "there is no archive at /no/such"),
        ({"archive": "hdfs://a/b"}, "is not on storage that this knows"),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    spark: SparkSession, tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    given: dict[str, Any] = {
        "archive": write_archive(tmp_path / "archive", by_second(3)),
        "topic": "t",
        "state": str(tmp_path / "state"),
        "options": {"nsqdTcpAddresses": "127.0.0.1:1"},
        **options,
    }
    with pytest.raises(ConfigError) as caught:
        run(spark, given.pop("archive"), given.pop("topic"), **given)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


# -- kill -9 ---------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_killed_in_the_middle_and_gone_on_with(
    pyspark: Any, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create(topic)
    count, size, tasks = 6000, 200, 2
    archive = write_archive(tmp_path / "archive", by_second(count))
    state = tmp_path / "state"
    arguments = [
        archive,
        topic,
        "--state",
        str(state),
        "--master",
        "local[2]",
        "--part-messages",
        str(size),
        "--parallelism",
        str(tasks),
        "-t",
        cluster.tcp_addresses[0],
        "-t",
        cluster.tcp_addresses[1],
    ]
    for key, value in sessions.settings(tmp_path / "spark").items():
        arguments += ["--conf", f"{key}={value}"]
    log = tmp_path / "log"
    words = [sys.executable, "-m", "gnsqsync.cli", "spark", "replay", *arguments]
    before = 0
    for _ in range(2):
        family = Family([*words, "--rate", "600"], sessions.environment(), log)
        done = before + 3

        def has_gone_on(family: Family = family, done: int = done) -> bool:
            assert family.process.poll() is None, log.read_text()
            return (state / "done").exists() and len(records(state)) >= done

        eventually(has_gone_on, 120, describe=log.read_text)
        assert family.kill(random.Random(1)) >= 3, "JVM and workers belong to it"
        before = len(records(state))
        assert before < count // size
    parts = parts_of(state)
    finished = [number for name in records(state) for number in parts[int(name)]]
    last = subprocess.run(
        [*words, "--json"],
        env={**os.environ, **sessions.environment()},
        cwd=ROOT,
        capture_output=True,
    )
    assert last.returncode == 0, last.stderr
    result = json.loads(last.stdout)
    assert result["before"] == len(finished)
    assert result["published"] == count - result["before"]
    bodies = Counter(map(int, messages(cluster, topic, cluster.left(topic))))
    assert set(bodies) == set(range(count)), "lost"
    # Only parts that were under way at a kill are there twice.
    twice = {number for number, times in bodies.items() if times > 1}
    assert sum(1 for part in parts if twice & set(part)) <= 2 * tasks
    assert max(bodies.values()) <= 3
