"""The exporter beside servers that lie: what is broken costs itself, and is told."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gnsqsync.admin.cluster_metrics import ClusterMetrics
from tests.support.serving import FakeServer, fake_server

GOOD = {"topic_name": "good", "depth": 7, "channels": [{"channel_name": "c", "depth": 3}]}


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with fake_server() as server:
        yield server


@pytest.fixture
def other() -> Iterator[FakeServer]:
    with fake_server() as server:
        server.answer({"version": "1.3.0", "health": "OK", "topics": [GOOD]})
        yield server


def depths(*servers: FakeServer) -> dict[tuple[str, ...], float]:
    """Return the depths of a scrape, by topic, channel if it is one, and number of server."""
    metrics = ClusterMetrics([server.address for server in servers], [])
    registry = CollectorRegistry()
    registry.register(metrics)
    try:
        page = generate_latest(registry).decode()
    finally:
        metrics.close()
    numbers = {server.address: str(number) for number, server in enumerate(servers)}
    return {
        tuple(numbers.get(value, value) for _, value in sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.name in ("nsq_topic_depth", "nsq_channel_depth", "nsq_up")
    }


@pytest.mark.parametrize(
    "entry",
    [
        {"topic_name": "odd", "depth": "many"},
        {"topic_name": "odd", "depth": 10**400},
        {"topic_name": "odd", "channels": [{"channel_name": "c", "depth": []}]},
        {"topic_name": "odd", "e2e_processing_latency": {"percentiles": [{"value": "x"}]}},
        ["odd"],
        {"topic_name": 5},
        {"topic_name": "\ud800", "depth": 1},
        {"topic_name": "odd", "channels": [{"channel_name": "\udfff"}]},
    ],
    ids=repr,
)
def test_a_broken_entry_hides_no_other(
    server: FakeServer, other: FakeServer, entry: object, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer({"version": "1.3.0", "health": "OK", "topics": [entry, GOOD]})
    for _ in range(2):
        found = depths(server, other)
    assert found == {
        ("0",): 1.0,
        ("1",): 1.0,
        ("0", "good"): 7.0,
        ("1", "good"): 7.0,
        ("c", "0", "good"): 3.0,
        ("c", "1", "good"): 3.0,
    }
    told = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(told) == 1
    assert "of 'topics' is left out: " in told[0].getMessage()
    assert "not repeated within 60 s" in told[0].getMessage()


@pytest.mark.parametrize("answer", [b"{", b"[]", json.dumps({"topics": 5}).encode()])
def test_a_broken_answer_hides_no_other_server(
    server: FakeServer, other: FakeServer, answer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server.answer(answer)
    for _ in range(2):
        found = depths(server, other)
    assert found == {("0",): 0.0, ("1",): 1.0, ("1", "good"): 7.0, ("c", "1", "good"): 3.0}
    (told,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert f"{server.address} is shown as down: " in told.getMessage()


def test_no_label_and_no_line_of_the_log_shows_a_password(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(ClusterMetrics(["http://bob:secret@127.0.0.1:9"], [])) as metrics:
        labels = [sample.labels for family in metrics.collect() for sample in family.samples]
    assert {"nsqd": "http://127.0.0.1:9"} in labels
    assert "secret" not in f"{labels}{caplog.text}"
    assert "127.0.0.1:9 is shown as down" in caplog.text
