"""The streaming source: when it makes a batch, of which size, and what it says to mistakes."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gnsqsync import NsqdHTTP
from tests.spark.nsqds import Cluster, OwnCluster, number_of, numbered
from tests.spark.queries import Numbers, Reading, numbers_in, once
from tests.spark.session import WORKER_PYTHON
from tests.support.authserver import AuthServer, grant, rule
from tests.support.servers import Certificates
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

OFTEN = {"pollIntervalMs": 50, "lookupdPollIntervalMs": 200}


@pytest.fixture
def reading(spark: SparkSession, cluster: Cluster, topic: str, tmp_path: Path) -> Reading:
    return Reading(spark, cluster, topic, tmp_path, **OFTEN)


@pytest.fixture
def admits(spark: SparkSession) -> bool:
    """Whether this Spark asks the source how much one batch may have (4.2 and newer)."""
    return tuple(int(word) for word in spark.version.split(".")[:2]) >= (4, 2)


def everywhere(cluster: Cluster, call: Callable[[NsqdHTTP], object]) -> None:
    """Ask every nsqd of the cluster for something."""
    for address in cluster.http_addresses:
        with NsqdHTTP(address) as http:
            call(http)


def sizes(numbers: Numbers) -> list[int]:
    return [len(batch) for _, batch in sorted(numbers.by_batch.items()) if batch]


def progress(query: StreamingQuery) -> dict[str, Any]:
    last: Any = query.lastProgress
    return last or {}


def sentence_of(error: BaseException, kind: str) -> str:
    """The text of our error inside Spark's traceback."""
    found = re.search(rf"errors\.{kind}: (.*)|wal\.{kind}: (.*)", str(error))
    assert found, str(error)
    return found[1] or found[2]


# -- rows ----------------------------------------------------------------------------------------


def test_the_columns(reading: Reading, cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    before = time.time()
    cluster.publish(topic, [b"\x00\xff"], nsqd=1)
    frame = reading.frame()
    assert frame.schema.simpleString() == (
        "struct<value:binary,topic:string,channel:string,id:string,timestamp:timestamp,"
        "attempts:int,nsqd:string>"
    )
    rows: list[Any] = []
    reading.run(lambda batch, _: rows.extend(batch.collect()), frame)
    (row,) = rows
    assert (row.value, row.topic, row.channel) == (b"\x00\xff", topic, "ch")
    assert re.fullmatch("[0-9a-f]{16}", row.id)
    assert row.attempts == 1
    assert row.nsqd == cluster.tcp_addresses[1]
    assert abs(row.timestamp.timestamp() - before) < 60


def test_a_schema_of_ones_own_is_the_projection(
    spark: SparkSession, reading: Reading, cluster: Cluster, topic: str, wal: str
) -> None:
    cluster.create(topic)
    cluster.publish(topic, numbered(range(3)), nsqd=0)
    frame = (
        spark.readStream.format("nsq")
        .schema("timestamp_ns BIGINT, value BINARY, received_at TIMESTAMP")
        .options(lookupdHttpAddresses=cluster.lookupd, subscribe=topic, channel="ch", walPath=wal)
        .load()
    )
    rows: list[Any] = []
    reading.run(lambda batch, _: rows.extend(batch.collect()), frame)
    assert rows[0].__fields__ == ["timestamp_ns", "value", "received_at"]
    assert sorted(number_of(row.value) for row in rows) == [0, 1, 2]
    assert all(row.timestamp_ns / 1e9 <= row.received_at.timestamp() + 1e-6 for row in rows)


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("value BINARY, key STRING", "no column 'key'"),
        ("value STRING", "'value' is BINARY and not STRING; cast it after load()"),
    ],
)
def test_a_schema_that_cannot_be(
    reading: Reading, spark: SparkSession, cluster: Cluster, wal: str, schema: str, sentence: str
) -> None:
    frame = (
        spark.readStream.format("nsq")
        .schema(schema)
        .options(lookupdHttpAddresses=cluster.lookupd, subscribe="t", channel="ch", walPath=wal)
        .load()
    )
    with pytest.raises(Exception) as caught:
        reading.run(Numbers(), frame)
    assert sentence in sentence_of(caught.value, "ConfigError")


def test_several_topics(
    reading: Reading, cluster: Cluster, topic: str, fresh: Callable[[], str]
) -> None:
    other = fresh()
    for name, first in ((topic, 0), (other, 100)):
        cluster.create(name)
        cluster.publish(name, numbered(range(first, first + 50)))
    seen: list[Any] = []
    frame = reading.frame(subscribe=f"{topic},{other}")
    reading.run(lambda batch, _: seen.extend(batch.select("topic", "value").collect()), frame)
    assert len(seen) == 100
    assert all(row.topic == (topic if number_of(row.value) < 100 else other) for row in seen)


# -- when there is a batch, and of which size ----------------------------------------------------


def test_the_channel_is_there_before_the_first_message(
    reading: Reading, cluster: Cluster, topic: str
) -> None:
    """Nobody has created anything, and two nsqds get the topic while the query runs."""
    numbers = Numbers()
    query = reading.start(numbers)
    eventually(lambda: progress(query) or query.status["message"].startswith("Waiting"))
    for nsqd in (0, 2):
        cluster.publish(topic, numbered(range(nsqd * 100, nsqd * 100 + 100)), nsqd=nsqd)
        eventually(lambda nsqd=nsqd: numbers.counts[nsqd * 100 + 99])
    query.stop()
    assert numbers.counts == Counter([*range(100), *range(200, 300)])


def test_an_idle_query_makes_no_batch(reading: Reading, cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    numbers = Numbers()
    query = reading.start(numbers)
    cluster.publish(topic, numbered(range(30)))
    eventually(lambda: sum(numbers.counts.values()) == 30)
    query.processAllAvailable()
    batches = len(numbers.by_batch)
    files = sorted(reading.checkpoint.rglob("*"))
    time.sleep(3)
    assert len(numbers.by_batch) == batches
    assert sorted(reading.checkpoint.rglob("*")) == files
    started = time.monotonic()
    query.stop()
    assert time.monotonic() - started < 5
    assert cluster.clients() == 0


def test_available_now_in_batches_of_a_given_size(
    reading: Reading, cluster: Cluster, topic: str, admits: bool
) -> None:
    cluster.create(topic)
    cluster.publish(topic, numbered(range(1000)))
    numbers = Numbers()
    reading.run(numbers, reading.frame(maxMessagesPerTrigger=300))
    # Before 4.2 Spark wraps such a source so that it is asked once.
    assert sizes(numbers) == ([300, 300, 300, 100] if admits else [300])
    for _ in range(4):
        reading.run(numbers, reading.frame(maxMessagesPerTrigger=300))
    assert numbers.counts == once(1000)
    before = len(numbers.by_batch)
    reading.run(numbers)
    assert len(numbers.by_batch) == before


def test_available_now_ends_while_messages_come(
    reading: Reading, cluster: Cluster, topic: str
) -> None:
    cluster.create(topic)
    cluster.publish(topic, numbered(range(100)))
    numbers = Numbers()

    def write(batch: DataFrame, number: int) -> None:
        numbers(batch, number)
        cluster.publish(topic, numbered(range(1000 + 50 * number, 1050 + 50 * number)))

    reading.run(write, reading.frame(maxMessagesPerTrigger=50))
    assert sum(sizes(numbers)) <= 100
    assert cluster.left(topic) > 0


def test_a_trickle_is_collected(reading: Reading, cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    numbers = Numbers()
    query = reading.start(numbers, reading.frame(minMessagesPerTrigger=100, maxTriggerDelay="4s"))
    cluster.publish(topic, numbered(range(60)))
    cluster.publish(topic, numbered(range(60, 120)))
    eventually(lambda: sum(sizes(numbers)) == 120)
    first = len(sizes(numbers))
    cluster.publish(topic, numbered(range(120, 130)))
    began = time.monotonic()
    eventually(lambda: sum(sizes(numbers)) == 130)
    assert time.monotonic() - began > 1
    query.stop()
    assert sizes(numbers)[first:] == [10]
    assert numbers.counts == once(130)


def test_partitions(reading: Reading, cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    cluster.publish(topic, numbered(range(90)), nsqd=0)
    cluster.publish(topic, numbered(range(90, 100)), nsqd=1)
    seen: list[int] = []

    def write(batch: DataFrame, number: int) -> None:
        seen.append(batch.rdd.getNumPartitions())
        assert numbers_in(batch) == list(range(100))

    reading.run(write, reading.frame(minPartitions=5))
    assert seen == [5]


def test_a_paused_channel_makes_no_batches(reading: Reading, cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    everywhere(cluster, lambda http: http.pause_channel(topic, "ch"))
    cluster.publish(topic, numbered(range(30)))
    numbers = Numbers()
    query = reading.start(numbers)
    # Spark begins every query with a batch, of nothing if need be.
    eventually(lambda: numbers.by_batch)
    time.sleep(1)
    assert numbers.by_batch == {0: []}
    everywhere(cluster, lambda http: http.pause_topic(topic))
    everywhere(cluster, lambda http: http.unpause_channel(topic, "ch"))
    # A paused topic gives the channel nothing new, and the channel delivers what it has.
    eventually(lambda: numbers.counts == once(30))
    query.stop()
    assert len(numbers.by_batch) <= 4


def test_the_backlog_is_in_the_progress(
    reading: Reading, cluster: Cluster, topic: str, admits: bool
) -> None:
    if not admits:
        pytest.skip("Spark asks for it since 4.2")
    cluster.create(topic)
    cluster.publish(topic, numbered(range(40)), nsqd=2)
    query = reading.run(Numbers(), reading.frame(maxMessagesPerTrigger=30))
    shown = [p["sources"][0]["latestOffset"] for p in query.recentProgress if p.numInputRows]
    told = [json.loads(text) for text in shown]
    backlogs = [one["topics"][topic][cluster.tcp_addresses[2]] for one in told]
    assert [backlog["depth"] for backlog in backlogs] == [40, 10]
    assert backlogs[0].keys() == {"depth", "in_flight", "deferred"}
    assert [one["backlog"] for one in told] == [40, 10]
    # Of the batches before.
    assert [one["received"] for one in told] == [0, 30]


# -- servers that need something, or go away -----------------------------------------------------


@pytest.mark.parametrize("compression", ["deflate", "snappy"])
def test_tls_compression_and_auth(
    spark: SparkSession, certificates: Certificates, tmp_path: Path, topic: str, compression: str
) -> None:
    with AuthServer() as auth:
        auth.replies["s3cret"] = (200, grant(rule(".*", [".*"], "subscribe", "publish")))
        flags = (
            *certificates.flags,
            "-tls-required=tcp-https",
            f"-auth-http-address={auth.address}",
        )
        with OwnCluster("real", 1, flags) as own:
            own.create(topic)
            everywhere(own, lambda http: http.mpub(topic, numbered(range(20))))
            options = {
                "nsq.tls_ca_file": certificates.ca_file,
                "nsq.auth_secret": "s3cret",
                f"nsq.{compression}": "true",
            }
            numbers = Numbers()
            Reading(spark, own, topic, tmp_path, **options).run(numbers)
            assert numbers.counts == once(20)


def test_an_nsqd_that_is_away_for_a_while(spark: SparkSession, tmp_path: Path, topic: str) -> None:
    with OwnCluster("real", 2) as own:
        own.create(topic)
        addresses = {
            "lookupdHttpAddresses": "",
            "nsqdTcpAddresses": ",".join(own.tcp_addresses),
            "nsqdHttpAddresses": ",".join(own.http_addresses),
        }
        numbers = Numbers()
        reading = Reading(spark, own, topic, tmp_path, **OFTEN, **addresses)
        query = reading.start(numbers)
        own.publish(topic, numbered(range(20)))
        eventually(lambda: numbers.counts == once(20))
        own.nsqds[1].stop()
        own.publish(topic, numbered(range(20, 40)), nsqd=0)
        eventually(lambda: numbers.counts == once(40))
        own.nsqds[1].start()
        own.publish(topic, numbered(range(40, 60)), nsqd=1)
        eventually(lambda: numbers.counts == once(60))
        query.stop()


def test_an_nsqd_that_only_the_driver_reaches(
    reading: Reading, cluster: Cluster, topic: str
) -> None:
    """Its messages stay where they are, and empty batches become rare."""
    cluster.create(topic)
    cluster.publish(topic, numbered(range(20)))
    tcp = [*cluster.tcp_addresses[:2], "127.0.0.1:1"]
    numbers = Numbers()
    frame = reading.frame(
        lookupdHttpAddresses="",
        nsqdTcpAddresses=",".join(tcp),
        nsqdHttpAddresses=",".join(cluster.http_addresses),
        pollTimeoutMs=50,
    )
    query = reading.start(numbers, frame)
    eventually(lambda: len(numbers.by_batch) > 2)
    time.sleep(6)
    query.stop()
    # Tries after 1, 2, 4, 8 ... seconds; one batch after another would be some 20.
    assert len(numbers.by_batch) <= 7
    assert sum(numbers.counts.values()) + cluster.left(topic) == 20
    assert cluster.left(topic) > 0


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"walPath": ""}, "option 'walPath' is missing: set it to a folder that the driver"),
        ({"startingOffsets": "earliest"}, "NSQ has no offsets"),
        ({"channel": "c#ephemeral"}, "set a name without #ephemeral"),
        ({"walPath": "hdfs://somewhere/x"}, "has no exclusive create"),
        ({"nsq.tls_ca_file": "/no/such/file"}, "'/no/such/file' is not a file"),
    ],
)
def test_a_mistake_is_told_when_the_query_is_made(
    reading: Reading, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(Exception) as caught:
        reading.run(Numbers(), reading.frame(**options))
    assert sentence in sentence_of(caught.value, "ConfigError")


def test_an_unreachable_nsqlookupd(reading: Reading) -> None:
    frame = reading.frame(lookupdHttpAddresses="127.0.0.1:1")
    with pytest.raises(Exception) as caught:
        reading.run(Numbers(), frame)
    assert "no nsqlookupd answers" in sentence_of(caught.value, "ConnectionLost")


def test_an_unreachable_nsqd(reading: Reading) -> None:
    frame = reading.frame(lookupdHttpAddresses="", nsqdTcpAddresses="127.0.0.1:1")
    with pytest.raises(Exception) as caught:
        reading.run(Numbers(), frame)
    assert "set option 'nsqdHttpAddresses'" in sentence_of(caught.value, "ConnectionLost")


def test_a_log_that_cannot_be_written(reading: Reading, cluster: Cluster, topic: str) -> None:
    cluster.create(topic)
    cluster.publish(topic, numbered(range(3)))
    frame = reading.frame(walPath="/proc/nsq-wal")
    with pytest.raises(Exception) as caught:
        reading.run(Numbers(), frame)
    assert "cannot be written and read" in sentence_of(caught.value, "ConfigError")


def test_a_log_that_executors_do_not_see(
    reading: Reading, cluster: Cluster, topic: str, wal: str
) -> None:
    """As on a cluster where walPath is a folder of the driver's disk."""
    cluster.create(topic)
    query = reading.start(Numbers(), reading.frame(walPath=wal, minMessagesPerTrigger=1))
    cluster.publish(topic, numbered(range(3)))
    query.processAllAvailable()
    Path(wal).rename(f"{wal}-elsewhere")
    cluster.publish(topic, numbered(range(3)))
    with pytest.raises(Exception) as caught:
        query.processAllAvailable()
    assert "set walPath to storage that all of them share" in sentence_of(
        caught.value, "LogDamaged"
    )
    assert cluster.left(topic) == 3


def test_a_log_that_was_lost_between_two_runs(
    reading: Reading, cluster: Cluster, topic: str, wal: str
) -> None:
    cluster.create(topic)
    cluster.publish(topic, numbered(range(3)))
    reading.run(Numbers(), reading.frame(walPath=wal))
    cluster.publish(topic, numbered(range(3, 6)))
    with pytest.raises(Exception) as caught:
        reading.run(Numbers(), reading.frame(walPath=f"{wal}-other"))
    assert "'failOnDataLoss' to false" in sentence_of(caught.value, "LogDamaged")
    numbers = Numbers()
    reading.run(numbers, reading.frame(walPath=f"{wal}-other", failOnDataLoss="false"))
    assert numbers.counts.keys() == {3, 4, 5}


def test_the_python_of_a_streaming_source_is_the_one_that_connects_first(
    spark: SparkSession,
) -> None:
    package: Any = spark._jvm.org.apache.spark.api.python
    scala = getattr(getattr(package, "PythonUtils$"), "MODULE$")
    assert scala.defaultPythonExec() == str(WORKER_PYTHON)
