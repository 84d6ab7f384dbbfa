"""A batch read that took nothing: its last task asks nsqd whether messages wait, and fails then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from gnsqsync import NsqdHTTP
from gnsqsync.spark.options import SourceOptions
from gnsqsync.spark.plan import Part
from gnsqsync.spark.reach import NothingRead
from gnsqsync.spark.read_task import read_partitions
from gnsqsync.spark.verdict import DrainTask, judged
from tests.component.spark.test_read_task import Source, values
from tests.support.servers import Site

Read = Callable[..., list[bytes]]


@pytest.fixture
def source(site: Site, tmp_path: Path) -> Iterator[Source]:
    source = Source(site.nsqd(), tmp_path)
    yield source
    source.close()


@pytest.fixture
def http(source: Source) -> Iterator[NsqdHTTP]:
    with NsqdHTTP("http://{}:{}".format(*source.server.http_address)) as http:
        yield http


@pytest.fixture
def read(source: Source) -> Read:
    """Return a task of a drain with two partitions, planned for 4 messages each."""
    given = {
        "nsqdTcpAddresses": source.nsqd,
        "subscribe": source.topic,
        "channel": "ch",
        "walPath": source.settings.wal_path,
    }
    here = "{}:{}".format(*source.server.http_address)
    parts = [Part(source.nsqd, source.topic, 4)] * 2

    def read(partition: int, http: str = here, *, silence: float = 0.2) -> list[bytes]:
        settings = replace(source.settings, poll_timeout=silence)
        options = SourceOptions.parse({**given, "nsqdHttpAddresses": http}, streaming=False)
        task = DrainTask([source.plan(4, partition=partition)], parts)
        return values(list(judged(read_partitions(task.plans, settings, ["value"]), task, options)))

    return read


def test_the_last_task_fails_if_none_took_anything(
    source: Source, http: NsqdHTTP, read: Read
) -> None:
    source.publish(8)
    http.pause_channel(source.topic, "ch")
    # The other task may still read something.
    assert read(0) == []
    with pytest.raises(NothingRead, match=r"8 of .* \(paused\).*unpause it.*drainId"):
        read(1)
    # The next attempt finds the same.
    with pytest.raises(NothingRead):
        read(1)


def test_messages_that_another_task_took_are_enough(
    source: Source, http: NsqdHTTP, read: Read
) -> None:
    source.publish(8)
    assert len(read(0, silence=30.0)) == 4
    http.pause_channel(source.topic, "ch")
    assert read(1) == []


def test_an_empty_channel_is_a_success(read: Read) -> None:
    """Another consumer was faster."""
    assert read(0) == read(1) == []


def test_an_executor_that_does_not_reach_the_http_api(
    source: Source, http: NsqdHTTP, read: Read, caplog: pytest.LogCaptureFixture
) -> None:
    source.publish(8)
    http.pause_channel(source.topic, "ch")
    assert read(0) == []
    assert read(1, http="127.0.0.1:1") == []
    assert "nobody knows whether messages still wait" in caplog.text
