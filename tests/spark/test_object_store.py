"""All jobs on S3, as moto's server has it, without any jar of Hadoop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("s3fs")
pytest.importorskip("moto.server", reason="could not import 'moto.server'")

from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs import archive, compact, replay, report, rollup
from gnsqsync.spark.jobs.layout import HIDDEN, Place, is_data
from tests.component.spark.test_s3 import kept_by_fsspec
from tests.spark.kills import numbers
from tests.spark.nsqds import Cluster, numbered
from tests.support import leftovers, s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT = 240.0


# Not for one test: what fsspec keeps must be known until the test's leftovers are looked for.
@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[s3.S3]:
    leftovers.keepers.append(kept_by_fsspec)
    try:
        with s3.running(tmp_path_factory.mktemp("moto")) as server:
            yield server
    finally:
        leftovers.keepers.remove(kept_by_fsspec)


def test_archive_compact_rollup_report_replay(
    spark: SparkSession,
    embedded_cluster: Cluster,
    fresh: Callable[[], str],
    server: s3.S3,
    tmp_path: Path,
) -> None:
    cluster, topic, again = embedded_cluster, fresh(), fresh()
    options = server.options
    path, counted = f"s3://{s3.BUCKET}/nsq", f"s3://{s3.BUCKET}/nsq-rollup"
    cluster.create(topic, "archive")
    for number in range(3):
        cluster.publish(topic, numbered(range(number * 1000, number * 1000 + 1000)))
        query = archive(
            spark,
            topic,
            path,
            channel="archive",
            options={"lookupdHttpAddresses": cluster.lookupd, "lookupdPollIntervalMs": "200"},
            checkpoint=str(tmp_path / "checkpoint"),
            available_now=True,
            storage_options=options,
        )
        assert query.awaitTermination(TIMEOUT)
    place = Place(path, options)
    assert Counter(numbers(place)) == Counter(range(3000))
    assert compact(path, storage_options=options).merged >= 3
    assert Counter(numbers(place)) == Counter(range(3000))
    hours = len([name for name in place.open().list() if is_data(name)])
    assert hours <= 2
    assert rollup(spark, path, counted, storage_options=options).messages == 3000
    picture = str(tmp_path / "picture.html")
    assert report(counted, picture, storage_options=options) == picture
    assert "3,000" in Path(picture).read_text()
    cluster.create(again, "all")
    done = replay(
        spark,
        path,
        again,
        state=f"s3://{s3.BUCKET}/replay",
        options={"nsqdTcpAddresses": ",".join(cluster.tcp_addresses)},
        part_messages=500,
        storage_options=options,
    )
    assert (done.messages, done.published) == (3000, 3000)
    assert cluster.left(again, "all") == 3000


def test_a_checkpoint_there_needs_a_package(spark: SparkSession, server: s3.S3) -> None:
    with pytest.raises(ConfigError) as raised:
        archive(
            spark,
            "t",
            f"s3://{s3.BUCKET}/nsq",
            channel="c",
            options={"nsqdTcpAddresses": "127.0.0.1:1"},
            storage_options=server.options,
        )
    told = str(raised.value)
    assert f"'s3a://{s3.BUCKET}/nsq/{HIDDEN}/checkpoint' needs Spark's own file system" in told
    assert "add --packages org.apache.hadoop:hadoop-aws:3." in told
