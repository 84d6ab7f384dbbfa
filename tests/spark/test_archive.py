"""The archive: exactly the rows that were published, whoever dies when."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.spark.jobs import compact, reading
from gnsqsync.spark.jobs.archive import archive
from gnsqsync.spark.jobs.batches import ArchiveWriter, Counts, Settings
from gnsqsync.spark.jobs.layout import HIDDEN, Place
from tests.spark import session as sessions
from tests.spark.conftest import Ran
from tests.spark.nsqds import Cluster, number_of, numbered
from tests.spark.processes import Family
from tests.support.mortal import Killed, MortalStore
from tests.support.programs import Mortal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = "0123456789abcdef"
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
TIMEOUT = 240.0

SCHEMA = (
    "value binary, topic string, id string, timestamp timestamp, attempts int, nsqd string,"
    " received_at timestamp"
)


def message(number: int, attempts: int = 1, topic: str = "orders", nsqd: str = "n:4150") -> Any:
    """A row of the source, one published in each minute from noon on."""
    published = NOON + timedelta(minutes=number)
    received = published + timedelta(seconds=attempts)
    body = b"%d" % number
    return (body, topic, f"{number:016x}", published, attempts, nsqd, received)


def batch(spark: SparkSession, rows: Iterable[Any]) -> DataFrame:
    return spark.createDataFrame(list(rows), SCHEMA).repartition(2)


def content(path: Path) -> Counter[tuple[str, int]]:
    """(topic, number) of each row, as anybody reads Parquet."""
    from pyarrow import dataset

    found: Counter[tuple[str, int]] = Counter()
    for part in dataset.dataset(path, format="parquet", partitioning="hive").to_batches():
        topics = part.column("topic").to_pylist()
        found.update(zip(topics, map(int, part.column("value").to_pylist()), strict=True))
    return found


def exactly(numbers: Iterable[int], topic: str = "orders") -> Counter[tuple[str, int]]:
    return Counter((topic, number) for number in numbers)


def parquet_names(path: Path) -> list[str]:
    found = (str(name.relative_to(path)) for name in path.rglob("*.parquet"))
    return sorted(name for name in found if not name.startswith(HIDDEN))


def write(path: Path, stream: str = STREAM, **settings: Any) -> ArchiveWriter:
    """A writer of an archive in this folder."""
    return ArchiveWriter(Place(str(path)), stream, Settings(**settings))


def read_archive(spark: SparkSession, path: Path, **chosen: Any) -> DataFrame:
    times = {name: chosen[name] for name in ("start", "end") if name in chosen}
    return reading.find(Place(str(path)), **chosen).rows(spark, **times)


# Batches


def test_a_batch_lies_by_topic_and_hour(spark: SparkSession, tmp_path: Path) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    writer = write(tmp_path)
    rows = [message(n) for n in range(90)] + [message(5, topic="007")]
    writer(batch(spark, rows), 4)
    hours = {os.path.dirname(name) for name in parquet_names(tmp_path)}
    assert hours == {
        "topic=orders/date=2026-11-20/hour=12",
        "topic=orders/date=2026-11-20/hour=13",
        "topic=007/date=2026-11-20/hour=12",
    }
    for name in parquet_names(tmp_path):
        assert os.path.basename(name).startswith("part-01234567-000004-00")
    read = read_archive(spark, tmp_path)
    assert sorted(read.columns) == sorted(
        ["value", "id", "timestamp", "attempts", "nsqd", "received_at", "topic", "date", "hour"]
    )
    row = read.where("topic = '007'").collect()[0]
    assert (bytes(row.value), row.id, row.attempts, row.nsqd) == (b"5", f"{5:016x}", 1, "n:4150")
    assert row.timestamp.timestamp() == (NOON + timedelta(minutes=5)).timestamp()
    assert (str(row.date), row.hour) == ("2026-11-20", 12)
    assert writer.counts == Counts(batches=1, rows=91)


def test_anybody_reads_the_archive(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path)(batch(spark, map(message, range(100))), 0)
    assert spark.read.parquet(str(tmp_path)).count() == 100
    assert content(tmp_path) == exactly(range(100))


def test_statistics_are_there_to_skip_by(spark: SparkSession, tmp_path: Path) -> None:
    from pyarrow import parquet

    write(tmp_path)(batch(spark, map(message, range(10))), 0)
    for name in parquet_names(tmp_path):
        group = parquet.read_metadata(tmp_path / name).row_group(0)
        columns = {group.column(n).path_in_schema: group.column(n) for n in range(6)}
        assert columns["timestamp"].physical_type == "INT64"
        assert columns["timestamp"].statistics.has_min_max


def test_a_window_reads_no_other_folder(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path)(batch(spark, map(message, range(300))), 0)
    start, end = NOON + timedelta(minutes=70), NOON + timedelta(minutes=130)
    read = read_archive(spark, tmp_path, topics=["orders"], start=start, end=end)
    assert sorted(int(bytes(row.value)) for row in read.collect()) == list(range(70, 130))
    shutil.rmtree(tmp_path / "topic=orders" / "date=2026-11-20" / "hour=12")
    assert read_archive(spark, tmp_path, start=start, end=end).count() == 60


def test_no_archive(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no archive at"):
        read_archive(spark, tmp_path)


def test_a_replayed_batch_replaces_itself(spark: SparkSession, tmp_path: Path) -> None:
    rows = batch(spark, map(message, range(100)))
    write(tmp_path)(rows, 0)
    names = parquet_names(tmp_path)
    again = write(tmp_path)
    again.heal()
    again(rows, 0)
    again(batch(spark, map(message, range(100, 200))), 1)
    assert content(tmp_path) == exactly(range(200))
    assert set(names) < set(parquet_names(tmp_path))


def test_an_empty_batch_leaves_nothing(spark: SparkSession, tmp_path: Path) -> None:
    writer = write(tmp_path)
    writer(batch(spark, map(message, range(5))), 0)
    before = parquet_names(tmp_path)
    writer(batch(spark, []), 1)
    writer(batch(spark, []), 1)
    assert parquet_names(tmp_path) == before
    assert os.listdir(tmp_path / HIDDEN / STREAM / "staging") == []


def test_two_checkpoints_do_not_replace_each_others_files(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path)(batch(spark, map(message, range(10))), 0)
    write(tmp_path, "fedcba98")(batch(spark, map(message, range(10, 20))), 0)
    assert content(tmp_path) == exactly(range(20))


# Messages that come more than once


def test_redeliveries_are_looked_up(spark: SparkSession, tmp_path: Path) -> None:
    writer = write(tmp_path)
    writer(batch(spark, map(message, range(100))), 0)
    rows = [
        *(message(n, attempts=2) for n in range(90, 110)),  # 90 to 99 are there
        *(message(n) for n in range(110, 120)),
        *(message(n, attempts=2) for n in range(110, 115)),  # twice in one batch
        message(109, attempts=3),
        *(message(n, attempts=2, nsqd="other:4150") for n in range(3)),  # the same ids elsewhere
        *(message(n, attempts=2, topic="payments") for n in range(4)),
    ]
    writer(batch(spark, rows), 1)
    found = content(tmp_path)
    assert found == exactly(range(120)) + exactly(range(3)) + exactly(range(4), "payments")
    assert writer.counts.duplicates == 10 + 5 + 1
    assert writer.counts.rows == sum(found.values())


def test_a_redelivery_of_merged_files_and_other_checkpoints(
    spark: SparkSession, tmp_path: Path
) -> None:
    writer = write(tmp_path)
    for number in range(3):
        rows = map(message, range(number * 10, number * 10 + 10))
        writer(batch(spark, rows), number)
        compact(str(tmp_path))
    assert len(parquet_names(tmp_path)) == 1
    other = write(tmp_path, "fedcba98")
    other(batch(spark, (message(n, attempts=2) for n in range(40))), 0)
    assert content(tmp_path) == exactly(range(40))


def test_every_message_is_looked_up(spark: SparkSession, tmp_path: Path) -> None:
    """An nsqd that was killed delivers what it had on disk as if for the first time."""
    writer = write(tmp_path, look_up_all=True)
    writer(batch(spark, [*map(message, range(20)), *map(message, range(5))]), 0)
    writer(batch(spark, map(message, range(15, 30))), 1)
    assert content(tmp_path) == exactly(range(30))
    assert writer.counts.duplicates == 10


# Crashes


def test_archive_dies_before_each_change(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch with redeliveries, and the merge behind it; Spark replays the batch that died."""
    before, path = tmp_path / "before", tmp_path / "archive"
    write(before)(batch(spark, map(message, range(20))), 0)
    rows = batch(spark, [*map(message, range(20, 30)), *(message(n, 2) for n in range(15, 35))])
    rows.persist()
    left = [sys.maxsize]
    opened = Place.open
    monkeypatch.setattr(Place, "open", lambda place: MortalStore(opened(place), left))
    deaths, died = -1, True
    while died:
        deaths += 1
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(before, path)
        died = False
        try:
            writer = write(path)
            left[0] = deaths
            writer(rows, 1)
            compact(str(path))
        except Killed:
            died = True
        left[0] = sys.maxsize
        writer = write(path)
        writer.heal()
        writer(rows, 1)
        assert content(path) == exactly(range(35)), f"death {deaths}"
        compact(str(path))
        assert content(path) == exactly(range(35)), f"death {deaths}"
        assert len(parquet_names(path)) == 1
    assert deaths > 20


def test_a_driver_that_does_not_see_the_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = write(tmp_path)
    monkeypatch.setattr(writer._store, "list", lambda prefix="": [])
    with pytest.raises(NSQError, match=r"wrote 7 rows .* driver and all executors share"):
        writer(batch(spark, map(message, range(7))), 0)


def test_a_driver_that_was_away_adds_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """It has staged its batch when another driver has recorded, named and merged the same one."""
    rows = batch(spark, [*map(message, range(20)), message(70)])
    late = write(tmp_path)
    stage = late._stage

    def stage_late(*args: Any) -> Any:
        staged = stage(*args)
        other = write(tmp_path)
        other(rows, 0)
        other(batch(spark, map(message, range(20, 30))), 1)
        compact(str(tmp_path))
        return staged

    late._stage = stage_late  # type: ignore[method-assign]
    late(rows, 0)
    assert content(tmp_path) == exactly([*range(30), 70])


# The whole job


def source(cluster: Cluster) -> dict[str, str]:
    return {"lookupdHttpAddresses": cluster.lookupd, "lookupdPollIntervalMs": "200"}


def test_waiting_messages_are_archived_and_none_twice(
    spark: SparkSession, embedded_cluster: Cluster, fresh: Callable[[], str], tmp_path: Path
) -> None:
    cluster, topics = embedded_cluster, [fresh(), fresh()]
    counts = []
    for number in range(3):
        for topic in topics:
            cluster.create(topic, "archive")
            cluster.publish(topic, (b"%d" % n for n in range(number * 1000, number * 1000 + 1000)))
        query = archive(
            spark,
            topics,
            str(tmp_path),
            channel="archive",
            options=source(cluster),
            available_now=True,
            on_batch=lambda so_far: counts.append(so_far.rows),
        )
        assert query.awaitTermination(TIMEOUT)
    assert content(tmp_path) == exactly(range(3000), topics[0]) + exactly(range(3000), topics[1])
    assert counts and counts[-1] == 2000
    assert all(cluster.left(topic, "archive") == 0 for topic in topics)


def test_archive_goes_on_until_it_is_stopped(
    spark: SparkSession, embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster = embedded_cluster
    cluster.create(topic, "archive")
    query = archive(
        spark,
        topic,
        str(tmp_path / "archive"),
        channel="archive",
        options=source(cluster),
        checkpoint=str(tmp_path / "checkpoint"),
        interval=0.2,
        max_messages=400,
    )
    for number in range(3):
        cluster.publish(topic, (b"%d" % n for n in range(number * 500, number * 500 + 500)))
        query.processAllAvailable()
    query.stop()
    assert content(tmp_path / "archive") == exactly(range(1500), topic)
    assert (tmp_path / "checkpoint" / "nsq-wal").is_dir()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"path": "s3a://bucket"}, "the archive's path 's3a://bucket' has no folder: write"),
        ({"checkpoint": "hdfs:///nsq"}, "the checkpoint's path 'hdfs:///nsq' is not on storage"),
        ({"interval": -1.0}, "interval is -1"),
        ({"compression": "rar"}, "compression is 'rar'; allowed are zstd, snappy"),
    ],
)
def test_arguments_that_the_archive_refuses(
    spark: SparkSession, tmp_path: Path, given: dict[str, Any], sentence: str
) -> None:
    options = {"path": str(tmp_path), "channel": "c", "options": {}, **given}
    with pytest.raises(ConfigError) as raised:
        archive(spark, "t", **options)
    assert sentence in str(raised.value)


# As a user starts it: a process, its JVM and its workers


def command(cluster: Cluster, topic: str, folder: Path, *more: str) -> list[str]:
    words = [
        sys.executable,
        "-m",
        "gnsqsync.cli",
        "spark",
        "archive",
        topic,
        "--channel",
        "archive",
    ]
    words += ["--to", str(folder / "archive"), "-l", cluster.lookupd, "--master", sessions.MASTER]
    for key, value in sessions.settings(folder).items():
        words += ["--conf", f"{key}={value}"]
    return [*words, *more]


def environment() -> dict[str, str]:
    return {**os.environ, **sessions.environment()}


def test_kill_nine_in_the_middle(
    pyspark: Any, embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    """The whole family dies three times while messages are published; then it may finish."""
    cluster, total = embedded_cluster, 30_000
    cluster.create(topic, "archive")
    published = 0
    chance = random.Random(4)
    fast = ("--interval", "0", "--compact-every", "1", "--max-messages", "4000")
    for _ in range(3):
        family = Family(
            command(cluster, topic, tmp_path, *fast), sessions.environment(), tmp_path / "log"
        )
        try:
            before = last_batch(tmp_path / "archive")
            deadline = time.monotonic() + 60
            # It dies somewhere in a batch after its first one.
            while last_batch(tmp_path / "archive") == before:
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                if published < total:
                    cluster.publish(topic, numbered(range(published, published + 500)))
                    published += 500
                time.sleep(0.1)
            time.sleep(chance.random())
        finally:
            family.kill(chance)
    cluster.publish(topic, numbered(range(published, total)))
    # What the dead ones held comes back after the source's msg_timeout.
    deadline = time.monotonic() + 100
    while cluster.left(topic, "archive"):
        assert time.monotonic() < deadline
        subprocess.run(command(cluster, topic, tmp_path, "--once"), env=environment(), check=True)
    found = Counter(map(number_of, values(tmp_path / "archive")))
    assert found == Counter(range(total))


def last_batch(path: Path) -> int:
    """The number of the batch that was put into the archive last, or -1."""
    records = path.glob(f"{HIDDEN}/*/batches/*.json")
    return max((int(record.stem) for record in records), default=-1)


def values(path: Path) -> list[bytes]:
    from pyarrow import dataset

    table = dataset.dataset(path, format="parquet").to_table(columns=["value"])
    found: list[bytes] = table.column("value").to_pylist()
    return found


def test_the_command(
    run_here: Callable[..., Ran], embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster = embedded_cluster
    cluster.create(topic, "archive")
    cluster.publish(topic, numbered(range(100)))
    words = ["spark", "archive", topic, "--channel", "archive", "--to", str(tmp_path / "archive")]
    ran = run_here(*words, "-l", cluster.lookupd, "--once", "--json")
    told = json.loads(ran.stdout)
    assert (told["archived"], told["duplicates_left_out"], told["topics"]) == (100, 0, [topic])
    assert (ran.returncode, "Traceback" in ran.stderr) == (0, False)


def test_the_command_ends_at_a_signal(
    pyspark: Any, embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster = embedded_cluster
    cluster.create(topic, "archive")
    cluster.publish(topic, numbered(range(100)))
    words = command(cluster, topic, tmp_path, "--interval", "0")
    with Mortal(words, env=environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            assert not line.startswith("Traceback"), process.stderr.read()
            if line.startswith("archived 100 messages"):
                break
        process.send_signal(signal.SIGTERM)
        assert "Traceback" not in process.stderr.read()
        assert process.wait(TIMEOUT) == 0


def test_the_command_under_spark_submit(
    pyspark: Any, embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster = embedded_cluster
    cluster.create(topic, "archive")
    cluster.publish(topic, numbered(range(100)))
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    printed = subprocess.run(
        [sys.executable, "-m", "gnsqsync.cli", "spark", "script"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    words = [str(submit), "--master", sessions.MASTER]
    for key, value in sessions.settings(tmp_path).items():
        words += ["--conf", f"{key}={value}"]
    words += [printed.stdout.strip(), "archive", topic, "-c", "archive", "-l", cluster.lookupd]
    words += ["--to", str(tmp_path / "archive"), "--once", "--json"]
    ran = subprocess.run(words, env=environment(), capture_output=True, check=True)
    assert json.loads(ran.stdout)["archived"] == 100
    assert len(values(tmp_path / "archive")) == 100


@pytest.mark.parametrize(
    ("more", "code", "sentence"),
    [
        (("--option", "startingOffsets=earliest"), 2, "NSQ has no offsets"),
        (("--option", "oops"), 2, "'oops' is not KEY=VALUE"),
        (("--to", "hdfs://host/nsq"), 2, "is not on storage that this knows: set it to"),
    ],
)
def test_the_command_says_what_to_set(
    pyspark: Any, tmp_path: Path, more: tuple[str, ...], code: int, sentence: str
) -> None:
    words = [
        sys.executable,
        "-m",
        "gnsqsync.cli",
        "spark",
        "archive",
        "t",
        "-c",
        "c",
        "--to",
        str(tmp_path),
    ]
    words += ["--master", "local[1]", *more]
    ran = subprocess.run(words, env=environment(), capture_output=True, text=True)
    told = [line for line in ran.stderr.splitlines() if not line.startswith("WARNING: Using")]
    assert ran.returncode == code, ran.stderr
    assert sentence in told[-1]
    assert "Traceback" not in ran.stderr
