"""Batch reads: a drain that every action replays, under a name of its own or the load's; peeks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from gnsqsync import NsqdHTTP, Writer
from gnsqsync.embedded import Nsqd
from tests.spark.nsqds import Cluster, numbered
from tests.spark.queries import format_of, numbers_in, once
from tests.spark.test_source import sentence_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Load = Callable[..., "DataFrame"]


@pytest.fixture
def load(spark: SparkSession, cluster: Cluster, topic: str) -> Load:
    """A new load() of the topic, with 300 messages on three nsqds."""
    cluster.create(topic)
    cluster.publish(topic, numbered(range(300)))

    def load(**options: object) -> DataFrame:
        given = {
            "lookupdHttpAddresses": cluster.lookupd,
            "subscribe": topic,
            "channel": "ch",
            **options,
        }
        return spark.read.format(format_of(given)).options(**given).load()

    return load


def test_every_action_on_a_drain_sees_the_same_rows(
    load: Load, cluster: Cluster, topic: str, wal: str
) -> None:
    frame = load(walPath=wal)
    assert numbers_in(frame) == list(range(300))
    assert cluster.left(topic) == 0
    cluster.publish(topic, numbered(range(300, 310)))
    assert frame.count() == 300
    assert frame.filter("attempts = 1").count() == 300
    assert numbers_in(frame.union(frame)) == sorted([*range(300)] * 2)
    # Another load is another drain.
    assert numbers_in(load(walPath=wal)) == list(range(300, 310))


def test_a_drain_with_a_name_is_the_same_for_every_load(
    load: Load, cluster: Cluster, topic: str, wal: str
) -> None:
    frame = load(walPath=wal, drainId="2026-11-21")
    assert len(frame.limit(5).collect()) == 5
    cluster.publish(topic, numbered(range(300, 310)))
    assert numbers_in(load(walPath=wal, drainId="2026-11-21")) == list(range(300))
    assert numbers_in(load(walPath=wal, drainId="2026-11-22")) == list(range(300, 310))


def test_a_drain_after_a_crash_of_its_tasks(
    load: Load, cluster: Cluster, topic: str, wal: str, tmp_path: Path
) -> None:
    frame = load(walPath=wal, drainId="x", fault=f"after_create:kill_once={tmp_path}/killed")
    assert numbers_in(frame) == list(range(300))


def test_a_drain_takes_no_more_than_it_is_told(load: Load, wal: str) -> None:
    frame = load(walPath=wal, maxMessagesPerTrigger=100, minPartitions=4)
    assert frame.rdd.getNumPartitions() == 4
    assert frame.count() == 100


def test_a_drain_of_nothing(
    load: Load, cluster: Cluster, wal: str, fresh: Callable[[], str]
) -> None:
    topic = fresh()
    cluster.create(topic)
    frame = load(subscribe=topic, walPath=wal)
    assert frame.count() == 0
    cluster.publish(topic, numbered(range(10)))
    # It has happened, and found nothing.
    assert frame.collect() == []
    assert numbers_in(load(subscribe=topic, walPath=wal)) == list(range(10))


def test_peek_leaves_everything_where_it_is(load: Load, cluster: Cluster, topic: str) -> None:
    frame = load(peek="true")
    assert numbers_in(frame) == list(range(300))
    counts = Counter(row.attempts for row in frame.select("attempts").collect())
    assert counts == {2: 300}
    assert cluster.left(topic) == 300
    assert cluster.finished(topic) == 0


def test_peek_at_a_part(load: Load, cluster: Cluster, topic: str) -> None:
    assert len(load(peek="true", maxMessagesPerTrigger=20).collect()) == 20
    assert cluster.left(topic) == 300


def test_peek_says_what_it_does_not_show(
    pyspark: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    from pyspark.sql.types import BinaryType, StructType

    from gnsqsync.spark import NsqDataSource

    with Nsqd() as nsqd:
        with Writer(nsqd.tcp_address) as writer, NsqdHTTP(nsqd.http_address) as http:
            http.create_topic("orders")
            http.create_channel("orders", "look")
            writer.publish_many("orders", [b"%d" % number for number in range(30)])
        options = {
            "subscribe": "orders",
            "channel": "look",
            "nsqdTcpAddresses": nsqd.tcp_address,
            "nsqdHttpAddresses": nsqd.http_address,
            "peek": "true",
        }
        for most, shown in (("20", 20), ("30", 30)):
            source = NsqDataSource({**options, "maxInFlight": most})
            reader = source.reader(StructType().add("value", BinaryType()))
            with caplog.at_level("WARNING", "gnsqsync.spark"):
                (partition,) = reader.partitions()
            assert sum(batch.num_rows for batch in reader.read(partition)) == shown
    (record,) = caplog.records
    assert record.getMessage() == (
        f"peek shows at most 20 of the 30 messages of orders on nsqd {nsqd.tcp_address}, as it"
        " holds all of them at a time: 'maxInFlight' is 20, and nsqd's --max-rdy-count is the limit"
    )


def test_pending_lists_what_a_lost_checkpoint_leaves(
    load: Load, cluster: Cluster, topic: str, wal: str
) -> None:
    from gnsqsync.spark import pending

    load(walPath=wal, drainId="lost").count()
    (epoch,) = pending(wal)
    assert (epoch.stream, epoch.rows) == ("drain-lost", 300)
    numbers = [body for batch in epoch.batches(["value"]) for body in batch.column(0).to_pylist()]
    assert Counter(int.from_bytes(body, "big") for body in numbers) == once(300)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "or 'peek' to true to look without consuming"),
        ({"peek": "true", "walPath": "/tmp/x"}, "takes nothing from the channel"),
        ({"walPath": "relative"}, "not absolute"),
        ({"walPath": "/proc/x"}, "cannot be written and read"),
    ],
)
def test_mistakes(load: Load, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(Exception) as caught:
        load(**options).collect()
    assert sentence in sentence_of(caught.value, "ConfigError")
