"""A run with an end that reaches no nsqd with waiting messages fails, and names them all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from tests.spark import session as sessions
from tests.spark.conftest import Ran
from tests.spark.nsqds import Cluster, OwnCluster, numbered
from tests.spark.queries import Numbers, Reading, numbers_in, once
from tests.spark.test_source import everywhere, sentence_of
from tests.support.servers import Certificates
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOWHERE = "127.0.0.1:1"
Read = Callable[..., "DataFrame"]
Archive = Callable[..., Ran]


@pytest.fixture
def admits(spark: SparkSession) -> None:
    """Skips where Spark does not tell a source that the trigger is availableNow."""
    if tuple(int(word) for word in spark.version.split(".")[:2]) < (4, 2):
        pytest.skip("Spark tells it since 4.2")


@pytest.fixture
def reading(
    spark: SparkSession, embedded_cluster: Cluster, topic: str, tmp_path: Path, admits: None
) -> Reading:
    embedded_cluster.create(topic)
    return Reading(spark, embedded_cluster, topic, tmp_path)


def direct(cluster: Cluster, tcp: list[str]) -> dict[str, object]:
    """The first nsqds by HTTP as they are, and at these TCP addresses."""
    return {
        "lookupdHttpAddresses": "",
        "nsqdTcpAddresses": ",".join(tcp),
        "nsqdHttpAddresses": ",".join(cluster.http_addresses[: len(tcp)]),
    }


def failure(reading: Reading, **options: object) -> str:
    """The sentence of a run that fails."""
    with pytest.raises(Exception) as caught:
        reading.run(Numbers(), reading.frame(**options))
    return sentence_of(caught.value, "ConnectionLost")


# -- trigger(availableNow=True) ------------------------------------------------------------------


def test_ports_that_refuse(reading: Reading, embedded_cluster: Cluster, topic: str) -> None:
    for nsqd in range(2):
        embedded_cluster.publish(topic, numbered(range(20 + nsqd)), nsqd=nsqd)
    told = failure(reading, **direct(embedded_cluster, [NOWHERE, "127.0.0.1:2"]))
    assert "nothing was read" in told
    assert "127.0.0.1:1, where 20 messages wait: cannot connect to 127.0.0.1:1" in told
    assert "127.0.0.1:2, where 21 messages wait: cannot connect to 127.0.0.1:2" in told
    assert embedded_cluster.left(topic) == 41
    # The next run reads it all.
    numbers = Numbers()
    reading.run(numbers)
    assert sum(numbers.counts.values()) == 41


def test_an_http_port_in_place_of_the_tcp_port(
    reading: Reading, embedded_cluster: Cluster, topic: str
) -> None:
    embedded_cluster.publish(topic, numbered(range(20)), nsqd=0)
    told = failure(reading, **direct(embedded_cluster, embedded_cluster.http_addresses[:1]))
    assert f"{embedded_cluster.http_addresses[0]}, where 20 messages wait" in told
    assert "this is an HTTP port; use nsqd's TCP port" in told


def test_tls_that_is_required(
    spark: SparkSession, certificates: Certificates, topic: str, tmp_path: Path, admits: None
) -> None:
    flags = (*certificates.flags, "-tls-required=tcp-https")
    with OwnCluster("embedded", 1, flags) as own:
        own.create(topic)
        everywhere(own, lambda http: http.pub(topic, b"x"))
        reading = Reading(spark, own, topic, tmp_path)
        told = failure(reading)
        assert f"{own.tcp_addresses[0]}, where 1 message waits" in told
        assert "TLS" in told
        rows: list[int] = []
        with_tls = reading.frame(**{"nsq.tls_ca_file": certificates.ca_file})
        reading.run(lambda batch, _: rows.append(batch.count()), with_tls)
        assert sum(rows) == 1


def test_a_wrong_port_in_nsqlookupd(
    spark: SparkSession, real_nsqd: None, topic: str, tmp_path: Path, admits: None
) -> None:
    with OwnCluster("real", 1, ("-broadcast-tcp-port=1",)) as own:
        own.create(topic)
        own.publish(topic, numbered(range(20)))
        told = failure(Reading(spark, own, topic, tmp_path))
        assert "127.0.0.1:1, where 20 messages wait" in told
        assert "--broadcast-address" in told


def test_a_wrong_host_in_nsqlookupd(
    spark: SparkSession, real_nsqd: None, topic: str, tmp_path: Path
) -> None:
    """Then the HTTP API cannot be asked either."""
    with OwnCluster("real", 2, ("-broadcast-address=nowhere.invalid",)) as own:
        own.create(topic)
        own.publish(topic, numbered(range(20)))
        told = failure(Reading(spark, own, topic, tmp_path))
        for nsqd in own.nsqds:
            assert f"nowhere.invalid:{nsqd.tcp_address[1]}" in told
        assert "--broadcast-address" in told


def test_an_empty_queue_is_success(
    reading: Reading, embedded_cluster: Cluster, topic: str, fresh: Callable[[], str]
) -> None:
    other = fresh()
    embedded_cluster.create(other)
    for options in ({}, {"subscribe": other}, direct(embedded_cluster, [NOWHERE])):
        numbers = Numbers()
        reading.run(numbers, reading.frame(**options))
        assert not numbers.counts


def test_some_that_are_reached_are_read(
    reading: Reading, embedded_cluster: Cluster, topic: str
) -> None:
    embedded_cluster.publish(topic, numbered(range(20)), nsqd=0)
    embedded_cluster.publish(topic, numbered(range(20, 50)), nsqd=1)
    tcp = [embedded_cluster.tcp_addresses[0], NOWHERE]
    numbers = Numbers()
    # Small batches: those that would be for the one that is away are not made.
    frame = reading.frame(**direct(embedded_cluster, tcp), maxMessagesPerTrigger=10)
    reading.run(numbers, frame)
    assert numbers.counts == once(20)
    assert len(numbers.by_batch) <= 4


def test_any_that_is_not_reached_fails_when_the_others_are_read(
    reading: Reading, embedded_cluster: Cluster, topic: str
) -> None:
    for nsqd in range(2):
        embedded_cluster.publish(topic, numbered(range(20 * nsqd, 20 * nsqd + 20)), nsqd=nsqd)
    numbers = Numbers()
    given = direct(embedded_cluster, [embedded_cluster.tcp_addresses[0], NOWHERE])
    with pytest.raises(Exception) as caught:
        reading.run(numbers, reading.frame(**given, failOnUnreachable="any"))
    told = sentence_of(caught.value, "ConnectionLost")
    assert "part of what waits was not read: nsqd 127.0.0.1:1, where 20 messages wait" in told
    assert "option 'failOnUnreachable' is 'any'" in told
    assert numbers.counts == once(20)


def test_never_is_a_success_that_read_nothing(
    reading: Reading, embedded_cluster: Cluster, topic: str
) -> None:
    embedded_cluster.publish(topic, numbered(range(20)), nsqd=0)
    numbers = Numbers()
    given = direct(embedded_cluster, [NOWHERE])
    reading.run(numbers, reading.frame(**given, failOnUnreachable="Never"))
    assert not numbers.counts
    assert embedded_cluster.left(topic) == 20


@pytest.mark.parametrize("fail_on", ["all", "any"])
def test_a_query_without_an_end_fails_where_that_is_asked_for(
    reading: Reading, embedded_cluster: Cluster, topic: str, fail_on: str
) -> None:
    given = direct(embedded_cluster, [embedded_cluster.tcp_addresses[0], NOWHERE])
    numbers = Numbers()
    query = reading.start(numbers, reading.frame(**given, failOnUnreachable=fail_on))
    embedded_cluster.publish(topic, numbered(range(20)), nsqd=0)
    # One is reached and the other has nothing.
    eventually(lambda: numbers.counts == once(20), 120.0)
    assert not query.awaitTermination(2)
    embedded_cluster.publish(topic, numbered(range(20)), nsqd=1)
    with pytest.raises(Exception) as caught:
        query.awaitTermination(60)
    told = sentence_of(caught.value, "ConnectionLost")
    assert "127.0.0.1:1, where 20 messages wait: cannot connect to 127.0.0.1:1" in told
    assert f"option 'failOnUnreachable' is '{fail_on}'" in told


def test_a_query_without_an_end_fails_when_one_of_two_goes_away(
    spark: SparkSession, topic: str, tmp_path: Path, admits: None
) -> None:
    with OwnCluster("embedded", 2) as own:
        own.create(topic)
        reading = Reading(spark, own, topic, tmp_path)
        given = direct(own, own.tcp_addresses)
        content = reading.start(Numbers(), reading.frame(**given, failOnUnreachable="all"))
        strict = Reading(spark, own, topic, tmp_path / "strict")
        failing = strict.start(Numbers(), strict.frame(**given, failOnUnreachable="any"))
        assert not failing.awaitTermination(3)
        own.nsqds[1].stop()
        with pytest.raises(Exception) as caught:
            failing.awaitTermination(60)
        told = sentence_of(caught.value, "ConnectionLost")
        assert f"nsqd {own.tcp_addresses[1]}, where nobody knows what waits" in told
        assert not content.awaitTermination(2)
        own.nsqds[0].stop()
        with pytest.raises(Exception) as caught:
            content.awaitTermination(60)
        assert own.tcp_addresses[0] in sentence_of(caught.value, "ConnectionLost")


def test_a_query_without_an_end_goes_on(
    reading: Reading, embedded_cluster: Cluster, topic: str
) -> None:
    embedded_cluster.publish(topic, numbered(range(20)), nsqd=0)
    query = reading.start(Numbers(), reading.frame(**direct(embedded_cluster, [NOWHERE])))
    assert not query.awaitTermination(4)
    assert query.exception() is None
    query.stop()


# -- spark.read ----------------------------------------------------------------------------------


@pytest.fixture
def read(spark: SparkSession, embedded_cluster: Cluster, topic: str, wal: str) -> Iterator[Read]:
    embedded_cluster.create(topic)

    def read(**options: object) -> DataFrame:
        given = {"subscribe": topic, "channel": "ch", "walPath": wal, "drainId": "x", **options}
        return spark.read.format("nsq").options(**given).load()

    yield read


@pytest.mark.parametrize("peek", [{}, {"peek": "true", "walPath": "", "drainId": ""}])
def test_a_batch_read_that_reaches_nobody(
    read: Read, embedded_cluster: Cluster, topic: str, peek: dict[str, str]
) -> None:
    embedded_cluster.publish(topic, numbered(range(20)), nsqd=0)
    with pytest.raises(Exception) as caught:
        read(**direct(embedded_cluster, [NOWHERE]), **peek).collect()
    told = sentence_of(caught.value, "ConnectionLost")
    assert "127.0.0.1:1, where 20 messages wait: cannot connect to 127.0.0.1:1" in told
    # Nothing is written under the name yet.
    frame = read(lookupdHttpAddresses=embedded_cluster.lookupd)
    assert numbers_in(frame) == list(range(20))


def test_a_batch_read_that_reaches_some(read: Read, embedded_cluster: Cluster, topic: str) -> None:
    for nsqd in range(2):
        embedded_cluster.publish(topic, numbered(range(20)), nsqd=nsqd)
    tcp = [NOWHERE, embedded_cluster.tcp_addresses[1]]
    assert numbers_in(read(**direct(embedded_cluster, tcp))) == list(range(20))


def test_a_batch_read_that_may_reach_nobody_or_must_reach_all(
    read: Read, embedded_cluster: Cluster, topic: str
) -> None:
    for nsqd in range(2):
        embedded_cluster.publish(topic, numbered(range(20)), nsqd=nsqd)
    tcp = [NOWHERE, embedded_cluster.tcp_addresses[1]]
    with pytest.raises(Exception) as caught:
        read(**direct(embedded_cluster, tcp), failOnUnreachable="any").collect()
    assert "127.0.0.1:1, where 20 messages" in sentence_of(caught.value, "ConnectionLost")
    assert embedded_cluster.left(topic) == 40
    nobody = direct(embedded_cluster, [NOWHERE])
    assert read(**nobody, failOnUnreachable="never").collect() == []


def test_a_batch_read_of_an_empty_queue(read: Read, embedded_cluster: Cluster, topic: str) -> None:
    embedded_cluster.create(topic)
    assert read(**direct(embedded_cluster, [NOWHERE])).collect() == []


# -- gnsqsync spark archive --once ---------------------------------------------------------------


def words_of(topic: str, folder: Path, *more: str) -> list[str]:
    words = ["spark", "archive", topic, "--channel", "ch", "--once"]
    return [*words, "--to", str(folder / "archive"), "--master", sessions.MASTER, *more]


@pytest.fixture
def archive(run_here: Callable[..., Ran], tmp_path: Path) -> Archive:
    """Runs the command in this process."""

    def run(topic: str, *more: str) -> Ran:
        return run_here(*words_of(topic, tmp_path, *more))

    return run


def archive_alone(topic: str, folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a process, whose stderr has the lines of the JVM and of its workers."""
    words = [sys.executable, "-m", "gnsqsync.cli", *words_of(topic, folder, *more)]
    for key, value in sessions.settings(folder).items():
        words += ["--conf", f"{key}={value}"]
    return subprocess.run(
        words, env={**os.environ, **sessions.environment()}, capture_output=True, text=True
    )


def test_the_command_says_whom_it_tried(
    pyspark: ModuleType, embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    embedded_cluster.create(topic)
    for nsqd in range(2):
        embedded_cluster.publish(topic, numbered(range(20)), nsqd=nsqd)
    http = embedded_cluster.http_addresses[:2]
    words = ["-t", NOWHERE, "-t", http[1]]
    words += ["--nsqd-http-address", http[0], "--nsqd-http-address", http[1]]
    ran = archive_alone(topic, tmp_path, *words)
    assert ran.returncode == 1, ran.stderr
    last = ran.stderr.splitlines()[-1]
    assert last.startswith("gnsqsync: nothing was read")
    assert "127.0.0.1:1, where 20 messages wait: cannot connect to 127.0.0.1:1" in last
    assert f"{http[1]}, where 20 messages wait: {http[1]}: the answer is HTTP" in last
    assert "Traceback" not in ran.stderr
    assert "\tat " not in ran.stderr
    assert not ran.stdout


def test_the_command_names_those_that_it_did_not_reach(
    pyspark: ModuleType, embedded_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    embedded_cluster.create(topic)
    for nsqd in range(2):
        embedded_cluster.publish(topic, numbered(range(20)), nsqd=nsqd)
    http = embedded_cluster.http_addresses[:2]
    words = ["-t", NOWHERE, "-t", embedded_cluster.tcp_addresses[1]]
    words += ["--nsqd-http-address", http[0], "--nsqd-http-address", http[1]]
    ran = archive_alone(topic, tmp_path, *words)
    assert ran.returncode == 0, ran.stderr
    assert "archived 20 messages" in ran.stdout
    told = (
        "part of what waits was not read: nsqd 127.0.0.1:1, where 20 messages wait: cannot connect"
    )
    assert told in ran.stderr


def test_the_command_is_content_with_an_empty_queue(
    archive: Archive, embedded_cluster: Cluster, topic: str
) -> None:
    embedded_cluster.create(topic)
    ran = archive(topic, "-l", embedded_cluster.lookupd)
    assert ran.returncode == 0, ran.stderr
    assert "archived 0 messages" in ran.stdout


def test_the_command_names_a_topic_that_nobody_has(
    archive: Archive, embedded_cluster: Cluster, topic: str
) -> None:
    embedded_cluster.create(topic)
    # No test has this name: a shorter one may be that of an earlier test.
    mistyped = f"{topic}x"
    ran = archive(mistyped, "-l", embedded_cluster.lookupd)
    assert ran.returncode == 1
    assert f"no nsqd and no nsqlookupd has the topic {mistyped} (near: {topic}" in ran.stderr
    assert "Traceback" not in ran.stderr and not ran.stdout


def test_the_command_fails_when_any_is_missed_where_that_is_asked_for(
    archive: Archive, embedded_cluster: Cluster, topic: str
) -> None:
    embedded_cluster.create(topic)
    for nsqd in range(2):
        embedded_cluster.publish(topic, numbered(range(20)), nsqd=nsqd)
    http = embedded_cluster.http_addresses[:2]
    words = ["-t", NOWHERE, "-t", embedded_cluster.tcp_addresses[1]]
    words += ["--nsqd-http-address", http[0], "--nsqd-http-address", http[1]]
    ran = archive(topic, *words, "--option", "failOnUnreachable=any")
    assert ran.returncode == 1, ran.stderr
    assert "part of what waits was not read: nsqd 127.0.0.1:1" in ran.stderr.splitlines()[-1]
    assert embedded_cluster.left(topic) == 20
