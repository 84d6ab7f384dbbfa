"""Archives that are Delta tables. ``python -m tests.spark.maven`` runs this where there is a Delta.

Delta-rs reads the tables, which knows nothing of Spark.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs import compact, rollup
from gnsqsync.spark.jobs.archive import archive
from gnsqsync.spark.jobs.batches import Counts
from gnsqsync.spark.jobs.delta import SPARKS, DeltaWriter, need_delta, optimize, package
from gnsqsync.spark.jobs.layout import Place
from gnsqsync.spark.jobs.replay import replay
from tests.bench.progress import Progress
from tests.spark import maven
from tests.spark.kills import Campaign, Plan
from tests.spark.nsqds import Cluster
from tests.spark.test_archive import TIMEOUT, batch, command, environment, message, source
from tests.support import seeds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NSQDS = {"nsqdTcpAddresses": "127.0.0.1:1"}


@pytest.fixture(scope="module", autouse=True)
def delta_rs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Delta-rs keeps some sockets from its first table on: before the first test."""
    if maven.is_here():
        import deltalake
        import pyarrow as pa

        folder = str(tmp_path_factory.mktemp("delta-rs"))
        deltalake.write_deltalake(folder, pa.table({"value": [b"x"]}))
        assert list(maven.values(Place(folder))) == [b"x"]


@pytest.fixture
def delta_spark(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, where it has Delta."""
    try:
        need_delta(spark)
    except ConfigError as error:
        pytest.skip(str(error))
    yield spark


@pytest.fixture
def delta_here(pyspark: ModuleType) -> ModuleType:
    """For tests whose processes start sessions with Delta."""
    if not maven.is_here():
        pytest.skip("python -m tests.spark.maven runs this")
    return pyspark


def writer(spark: SparkSession, folder: Path) -> DeltaWriter:
    """A writer of a table in this folder, which it makes."""
    made = DeltaWriter(f"file://{folder}")
    made.create(spark)
    return made


def content(folder: Path) -> Counter[int]:
    """The numbers in the rows."""
    return Counter(map(int, maven.values(Place(str(folder)))))


def files(folder: Path) -> list[str]:
    import deltalake

    return deltalake.DeltaTable(str(folder)).file_uris()


def refuse_all(spark: SparkSession, folder: Path, state: Path) -> Iterator[Any]:
    """What each job that wants Parquet files says of a table."""
    calls = (
        lambda: compact(str(folder)),
        lambda: archive(spark, "t", str(folder), channel="c", options=NSQDS),
        lambda: rollup(spark, str(folder), str(state / "rollup")),
        lambda: replay(
            spark,
            str(folder),
            "t",
            state=str(state / "state"),
            options=NSQDS,
        ),
    )
    for call in calls:
        with pytest.raises(ConfigError) as raised:
            call()
        yield str(raised.value)


# With every PySpark


@pytest.mark.parametrize("spark", SPARKS)
def test_a_package_for_each_spark(spark: str) -> None:
    assert package(f"{spark}.1") == f"io.delta:delta-spark_{spark}_2.13:4.4.0"


def test_no_package() -> None:
    assert package("4.9.0") is None


def test_the_sentence_without_delta(spark: SparkSession, tmp_path: Path) -> None:
    if maven.is_here():
        pytest.skip("Delta is here")
    with pytest.raises(ConfigError) as raised:
        archive(spark, "t", str(tmp_path), channel="c", options=NSQDS, format="delta")
    coordinates = package(spark.version)
    if coordinates is None:
        assert f"none for Spark {spark.version}: take PySpark 4.2" in str(raised.value)
    else:
        assert f"--conf spark.jars.packages={coordinates}" in str(raised.value)


def test_a_format_that_there_is_not(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="format is 'orc'; allowed are parquet, delta"):
        archive(spark, "t", str(tmp_path), channel="c", options=NSQDS, format="orc")


def test_jobs_on_parquet_refuse_a_table(spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    (table / "_delta_log").mkdir(parents=True)
    (table / "topic=t" / "date=2026-11-20").mkdir(parents=True)
    for sentence in refuse_all(spark, table, tmp_path):
        assert sentence.startswith(f"{table} is a Delta table: ")


# With Delta


def test_a_batch_is_in_the_table_once(delta_spark: SparkSession, tmp_path: Path) -> None:
    delta_spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    write = writer(delta_spark, tmp_path)
    rows = batch(delta_spark, map(message, range(800)))
    write(rows, 4)
    write(rows, 4)
    assert content(tmp_path) == Counter(range(800))
    assert write.counts == Counts(batches=2, rows=800, duplicates=800)
    days = {str(name).partition("/date=")[2][:10] for name in tmp_path.rglob("*.parquet")}
    assert days == {"2026-11-20", "2026-11-21"}
    found = delta_spark.read.format("delta").load(str(tmp_path)).where("id = 5")
    assert found.columns == [
        *("value", "id", "timestamp", "attempts", "nsqd", "received_at", "topic", "date")
    ]


def test_a_redelivery_is_left_out(delta_spark: SparkSession, tmp_path: Path) -> None:
    write = writer(delta_spark, tmp_path)
    write(batch(delta_spark, map(message, range(100))), 0)
    again = [message(n, attempts=2) for n in range(50, 150)]
    # Within the batch, too; and what is no copy: other nsqds and topics have the same ids.
    others = [message(60, nsqd="m:4150"), message(60, topic="payments")]
    write(batch(delta_spark, [*again, *again, *others]), 1)
    assert content(tmp_path) == Counter([*range(150), 60, 60])
    assert write.counts == Counts(batches=2, rows=152, duplicates=150)


def test_an_empty_batch(delta_spark: SparkSession, tmp_path: Path) -> None:
    write = writer(delta_spark, tmp_path)
    write(batch(delta_spark, []), 0)
    assert content(tmp_path) == Counter()
    assert write.counts == Counts(batches=1)


def test_writers_beside_each_other_and_a_compaction(
    delta_spark: SparkSession, tmp_path: Path
) -> None:
    writer(delta_spark, tmp_path)
    failures: list[BaseException] = []

    def write(rows: Iterable[Any], number: int) -> None:
        try:
            DeltaWriter(f"file://{tmp_path}")(batch(delta_spark, rows), number)
        except BaseException as error:
            failures.append(error)

    threads = [
        threading.Thread(target=write, args=(map(message, range(n * 10, n * 10 + 20)), n))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    merged = optimize(delta_spark, f"file://{tmp_path}", target_size=1 << 20, compression="zstd")
    for thread in threads:
        thread.join()
    assert not failures
    merged += optimize(delta_spark, f"file://{tmp_path}", target_size=1 << 20, compression="zstd")
    assert merged > 0
    assert len(files(tmp_path)) == 1
    assert content(tmp_path) == Counter(range(50))


def test_a_real_table_is_refused(delta_spark: SparkSession, tmp_path: Path) -> None:
    table = tmp_path / "table"
    writer(delta_spark, table)(batch(delta_spark, map(message, range(5))), 0)
    for sentence in refuse_all(delta_spark, table, tmp_path):
        assert sentence.startswith(f"{table} is a Delta table: ")


def test_the_job(
    delta_spark: SparkSession, embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster = embedded_cluster
    counts = []
    for number in range(2):
        cluster.create(topic, "archive")
        cluster.publish(topic, (b"%d" % n for n in range(number * 1000, number * 1000 + 1000)))
        query = archive(
            delta_spark,
            topic,
            str(tmp_path),
            channel="archive",
            options=source(cluster),
            format="delta",
            available_now=True,
            compression="snappy",
            on_batch=lambda so_far: counts.append(so_far.rows),
        )
        assert query.awaitTermination(TIMEOUT)
    assert content(tmp_path) == Counter(range(2000))
    assert counts[-1] == 1000
    assert cluster.left(topic, "archive") == 0
    assert all(name.endswith("snappy.parquet") for name in files(tmp_path))


def test_the_command(
    delta_here: ModuleType, embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster = embedded_cluster
    cluster.create(topic, "archive")
    cluster.publish(topic, (b"%d" % n for n in range(100)))
    words = command(cluster, topic, tmp_path, "--once", "--json", "--format", "delta")
    words += ["--conf", f"spark.jars.packages={package(delta_here.__version__)}"]
    alone = {k: v for k, v in environment().items() if k != "PYSPARK_SUBMIT_ARGS"}
    ran = subprocess.run(words, env=alone, capture_output=True, check=True)
    assert json.loads(ran.stdout)["archived"] == 100
    assert content(tmp_path / "archive") == Counter(range(100))


@pytest.mark.timeout(600)
def test_every_number_is_in_the_table_once_under_kill_9(
    delta_here: ModuleType, own_cluster: Cluster, tmp_path: Path
) -> None:
    plan = Plan(messages=20_000, kills=2, seed=seeds.seed(), format="delta")
    report = Campaign(plan, own_cluster, tmp_path, Progress()).run()
    assert report.is_right, f"\n{report}"
