"""``df.write`` and ``df.writeStream`` to NSQ, on embedded and real nsqds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gnsqsync import NsqdHTTP, Reader
from tests.spark.nsqds import Cluster, OwnCluster
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Fresh = Callable[[], str]


@pytest.fixture(params=["embedded", "real"])
def nsqds(request: pytest.FixtureRequest) -> Cluster:
    """A cluster of both kinds, one after the other."""
    name = "cluster" if request.param == "real" else "embedded_cluster"
    found: Cluster = request.getfixturevalue(name)
    return found


def messages(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    """The bodies of so many messages, or of those that there are."""
    reader = Reader(topic, "ch", nsqd_tcp_addresses=cluster.tcp_addresses, max_in_flight=2000)
    bodies: list[bytes] = []
    for batch in reader.batches(500, 30.0, 0.3):
        bodies += [message.body for message in batch]
        for message in batch:
            message.finish()
        if len(bodies) >= count or not batch:
            break
    reader.stop()
    reader.join()
    return bodies


def write(df: DataFrame, cluster: Cluster, topic: str | None, **options: Any) -> None:
    writer = df.write.format("nsq").mode("append")
    options = {"nsqdTcpAddresses": ",".join(cluster.tcp_addresses), "topic": topic, **options}
    writer.options(**{name: value for name, value in options.items() if value is not None}).save()


def counts(cluster: Cluster, topic: str) -> list[int]:
    """Messages published to the topic on each nsqd."""
    found = []
    for address in cluster.http_addresses:
        topics = NsqdHTTP(address).stats(topic).topics
        found.append(sum(entry.message_count for entry in topics))
    return found


def waiting(cluster: Cluster, topic: str) -> list[int]:
    """Messages on each nsqd that are not in the channel yet."""
    clients = map(NsqdHTTP, cluster.http_addresses)
    return [sum(entry.depth for entry in client.stats(topic).topics) for client in clients]


def sentence(error: BaseException) -> str:
    """The line of a Spark error that is ours: the last one of the Python traceback."""
    lines = [line for line in str(error).splitlines() if "gnsqsync.errors." in line]
    assert lines, str(error)
    return lines[-1]


# -- batch -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["binary", "string"])
def test_every_row_is_a_message(
    spark: SparkSession, nsqds: Cluster, topic: str, column: str
) -> None:
    nsqds.create(topic)
    df = spark.range(0, 25_000, numPartitions=3).selectExpr(
        f"cast(string(id) AS {column}) AS value"
    )
    write(df, nsqds, topic)
    # Partition i begins at nsqd i mod n.
    assert sorted(counts(nsqds, topic)) == [8333, 8333, 8334]
    bodies = messages(nsqds, topic, 25_000)
    assert sorted(map(int, bodies)) == list(range(25_000))


def test_nsqds_found_by_nsqlookupd(spark: SparkSession, nsqds: Cluster, topic: str) -> None:
    nsqds.create(topic)
    df = spark.range(0, 300, numPartitions=3).selectExpr("string(id) AS value")
    write(df, nsqds, topic, nsqdTcpAddresses=None, lookupdHttpAddresses=nsqds.lookupd)
    assert counts(nsqds, topic) == [100, 100, 100]


def test_the_column_names_the_topic_unless_the_option_does(
    spark: SparkSession, nsqds: Cluster, fresh: Fresh
) -> None:
    first, second, third = fresh(), fresh(), fresh()
    for topic in (first, second, third):
        nsqds.create(topic)
    rows = [(b"1", first, 5), (b"2", second, 5), (b"3", first, 5)]
    df = spark.createDataFrame(rows, "value binary, topic string, other int").coalesce(1)
    write(df, nsqds, None)
    assert sorted(messages(nsqds, first, 2)) == [b"1", b"3"]
    assert messages(nsqds, second, 1) == [b"2"]
    write(df, nsqds, third)
    assert sorted(messages(nsqds, third, 3)) == [b"1", b"2", b"3"]
    assert sum(counts(nsqds, first)) == 2


def test_defer_ms_holds_messages_back(spark: SparkSession, nsqds: Cluster, topic: str) -> None:
    nsqds.create(topic)
    rows = [("now", None), ("soon", 600_000), ("late", 600_000), ("too", 0)]
    df = spark.createDataFrame(rows, "value string, defer_ms int").coalesce(1)
    write(df, nsqds, topic)
    found = [sum(column) for column in zip(*nsqds.depths(topic), strict=True)]
    assert found == [2, 0, 2]


def test_a_round_trip(spark: SparkSession, nsqds: Cluster, fresh: Fresh, wal: str) -> None:
    source, target = fresh(), fresh()
    nsqds.create(source)
    nsqds.create(target)
    bodies = [bytes([number % 256, number // 256]) for number in range(3000)]
    nsqds.publish(source, bodies)
    df = (
        spark.read.format("nsq")
        .option("lookupdHttpAddresses", nsqds.lookupd)
        .options(subscribe=source, channel="ch", walPath=wal)
        .load()
    )
    write(df, nsqds, target)
    assert Counter(messages(nsqds, target, 3000)) == Counter(bodies)


# -- streams ---------------------------------------------------------------------------------------


def test_a_stream_publishes_each_row_once_per_batch(
    spark: SparkSession, nsqds: Cluster, topic: str, tmp_path: Path
) -> None:
    nsqds.create(topic)
    folder = tmp_path / "in"
    for part in range(3):
        df = spark.range(part * 1000, part * 1000 + 1000).selectExpr("string(id) AS value")
        df.write.mode("append").parquet(str(folder))
    query = (
        spark.readStream.schema("value string")
        .option("maxFilesPerTrigger", 2)
        .parquet(str(folder))
        .writeStream.format("nsq")
        .option("nsqdTcpAddresses", ",".join(nsqds.tcp_addresses))
        .option("topic", topic)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert query.exception() is None
    assert sum(counts(nsqds, topic)) == 3000
    assert sorted(map(int, messages(nsqds, topic, 3000))) == list(range(3000))


# -- an nsqd that is down --------------------------------------------------------------------------


def test_an_nsqd_that_is_down_is_passed_over(spark: SparkSession, topic: str) -> None:
    with OwnCluster("embedded", 2) as cluster:
        cluster.nsqds[0].kill()
        df = spark.range(0, 400, numPartitions=4).selectExpr("string(id) AS value")
        write(df, cluster, topic)
        address = cluster.http_addresses[1]
        assert NsqdHTTP(address).stats(topic).topics[0].message_count == 400


def test_an_nsqd_that_stops_on_the_way_loses_no_row(spark: SparkSession, topic: str) -> None:
    rows = 300_000
    with OwnCluster("real", 2) as cluster:
        cluster.create(topic)
        first = cluster.nsqds[0]

        def stop_on_the_way() -> None:
            eventually(lambda: counts(cluster, topic)[0] >= 1000, pause=0.01)
            first.stop()

        thread = threading.Thread(target=stop_on_the_way)
        thread.start()
        df = spark.range(0, rows, numPartitions=1).selectExpr("lpad(string(id), 100, '0') AS value")
        write(df, cluster, topic)
        thread.join()
        first.start()
        # What the topic itself still has goes on into its channel.
        eventually(lambda: not any(waiting(cluster, topic)))
        before, after = map(sum, cluster.depths(topic))
        assert before > 0 and after > 0, "it stopped too early or too late"
        # An MPUB whose answer did not come is published again.
        assert rows <= before + after <= rows + 1000
        bodies = messages(cluster, topic, before + after)
        assert set(map(int, bodies)) == set(range(rows))


# -- what ends with a sentence ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "options", "text"),
    [
        ("SELECT 1 AS body", {}, "no column 'value' to publish, but 'body'"),
        ("SELECT 1 AS value", {}, "column 'value' is INT; it must be STRING or BINARY"),
        ("SELECT map('a', 1) AS value", {}, "column 'value' is MAP<STRING,INT>"),
        ("SELECT 'a' AS value", {"topic": None}, "option 'topic' is missing"),
        ("SELECT 'a' AS value, 1 AS topic", {"topic": None}, "column 'topic' is INT"),
        ("SELECT 'a' AS value, 'x' AS defer_ms", {}, "'defer_ms' is STRING; it must be INT"),
        ("SELECT 'a' AS value", {"topic": "a b"}, "topic name 'a b' is not valid"),
        ("SELECT 'a' AS value", {"nsqdTcpAddresses": None}, "'nsqdTcpAddresses' is missing"),
        ("SELECT 'a' AS value", {"maxBatchBytes": "x"}, "'maxBatchBytes' is 'x'"),
        ("SELECT 'a' AS value", {"mode": "overwrite"}, "set .mode('append')"),
        ("SELECT string(null) AS value", {}, "column 'value' has a null"),
        ("SELECT '' AS value", {}, "column 'value' has an empty value"),
        ("SELECT repeat('x', 1048577) AS value", {}, "has a value of 1048577 bytes"),
        (
            "SELECT 'a' AS value, string(null) AS topic",
            {"topic": None},
            "column 'topic' has a null",
        ),
        (
            "SELECT 'a' AS value, 'a b' AS topic",
            {"topic": None},
            "topic name 'a b' is not valid",
        ),
        ("SELECT 'a' AS value, -1 AS defer_ms", {}, "column 'defer_ms' has -1"),
        (
            "SELECT 'a' AS value",
            {"nsqdTcpAddresses": "127.0.0.1:1", "publishTimeoutMs": "300"},
            "set option 'nsqdTcpAddresses'",
        ),
    ],
)
def test_bad_input_is_one_sentence(
    spark: SparkSession,
    embedded_cluster: Cluster,
    topic: str,
    query: str,
    options: dict[str, Any],
    text: str,
) -> None:
    options = {
        "nsqdTcpAddresses": ",".join(embedded_cluster.tcp_addresses),
        "topic": topic,
        **options,
    }
    mode = options.pop("mode", "append")
    given = {name: value for name, value in options.items() if value is not None}
    with pytest.raises(Exception) as caught:
        spark.sql(query).write.format("nsq").mode(mode).options(**given).save()
    assert text in sentence(caught.value)
    assert counts(embedded_cluster, topic) == [0, 0, 0]


def test_a_stream_that_rewrites_its_result(
    spark: SparkSession, embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    source = spark.readStream.format("rate").load().groupBy().count()
    query = (
        source.selectExpr("string(count) AS value")
        .writeStream.format("nsq")
        .outputMode("complete")
        .option("nsqdTcpAddresses", embedded_cluster.tcp_addresses[0])
        .option("topic", topic)
        .option("checkpointLocation", str(tmp_path))
    )
    with pytest.raises(Exception) as caught:
        query.start().awaitTermination(60)
    assert "outputMode 'complete' would publish the whole result again" in str(caught.value)
