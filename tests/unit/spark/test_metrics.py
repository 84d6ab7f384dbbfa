"""Spark's progress of queries as metrics, without Spark: its page and its dashboard."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

pytest.importorskip("pyspark")
prometheus_client = pytest.importorskip("prometheus_client")

from gnsqsync.spark.metrics import QueryMetrics  # noqa: E402
from gnsqsync.spark.tally import RunCounts  # noqa: E402
from tests.support.texts import DOCS  # noqa: E402

END = {"stream": "s", "epoch": 1, "channel": "ch", "parts": {}}


@pytest.fixture
def metrics() -> QueryMetrics:
    return QueryMetrics(prometheus_client.CollectorRegistry())


def told(**sums: float) -> dict[str, Any]:
    """What a source reports of the batches before."""
    counts = RunCounts()
    counts.add([sums])
    here = {"depth": 7, "in_flight": 2, "deferred": 1}
    return {
        "channel": "ch",
        "backlog": 7,
        "unreachable": ["b:4150"],
        **counts.shown(),
        "topics": {"orders": {"a:4150": here}},
    }


def progress(run: str = "1", rows: int = 10, latest: Any = None) -> dict[str, Any]:
    # Spark shows them as text in one place, and as they are in another.
    source = {"endOffset": json.dumps(END), "latestOffset": latest, "numInputRows": rows}
    return {
        "id": "id",
        "runId": run,
        "name": "orders",
        "durationMs": {"triggerExecution": 1500},
        "sources": [source, {"endOffset": 3, "latestOffset": 3, "numInputRows": 5}],
    }


def value(metrics: QueryMetrics, name: str, **labels: str) -> float | None:
    found = [
        sample.value
        for family in metrics.collect()
        for sample in family.samples
        if sample.name == name and sample.labels == {"query": "orders", **labels}
    ]
    assert len(found) < 2
    return found[0] if found else None


def test_metrics_of_a_source(metrics: QueryMetrics) -> None:
    metrics.note(progress(latest=told()))
    sums = {"received": 10, "redelivered": 3, "deduplicated": 1, "seconds": 0.5}
    sums |= {"receive_seconds": 0.2, "log_seconds": 0.1, "fin_seconds": 0.05, "log_bytes": 900}
    metrics.note(progress(latest=json.dumps(told(**sums))))
    assert value(metrics, "gnsqsync_spark_running") == 1
    assert value(metrics, "gnsqsync_spark_batches_total") == 2
    assert value(metrics, "gnsqsync_spark_rows_total") == 20
    assert value(metrics, "gnsqsync_spark_received_messages_total") == 10
    assert value(metrics, "gnsqsync_spark_redelivered_messages_total") == 3
    assert value(metrics, "gnsqsync_spark_deduplicated_messages_total") == 1
    assert value(metrics, "gnsqsync_spark_log_bytes_total") == 900
    assert value(metrics, "gnsqsync_spark_unreachable_nsqds") == 1
    parts = {"batch": 3.0, "longest_task": 0.5, "receive": 0.2, "log": 0.1, "fin": 0.05}
    for part, seconds in parts.items():
        assert value(metrics, "gnsqsync_spark_seconds_total", part=part) == seconds
    place = {"topic": "orders", "channel": "ch", "nsqd": "a:4150"}
    assert value(metrics, "gnsqsync_spark_depth", **place) == 7
    assert value(metrics, "gnsqsync_spark_in_flight", **place) == 2
    assert value(metrics, "gnsqsync_spark_deferred", **place) == 1


def test_a_new_run_begins_again(metrics: QueryMetrics) -> None:
    metrics.note(progress())
    metrics.note(progress(run="2", rows=3))
    assert value(metrics, "gnsqsync_spark_rows_total") == 3


@pytest.mark.parametrize("latest", [None, END])
def test_metrics_before_pyspark_4_2(metrics: QueryMetrics, latest: Any) -> None:
    metrics.note(progress(latest=latest))
    assert value(metrics, "gnsqsync_spark_rows_total") == 10
    assert value(metrics, "gnsqsync_spark_seconds_total", part="batch") == 1.5
    assert value(metrics, "gnsqsync_spark_received_messages_total") is None


def test_queries_that_read_something_else_are_not_shown(metrics: QueryMetrics) -> None:
    other = progress()
    del other["sources"][0]
    metrics.note(other)
    assert not [sample for family in metrics.collect() for sample in family.samples]


def names(metrics: QueryMetrics) -> dict[str, set[str]]:
    """The labels of each metric, by the name that Prometheus shows."""
    metrics.note(progress(latest=told()))
    return {s.name: set(s.labels) for family in metrics.collect() for s in family.samples}


def test_the_dashboard_draws_every_metric_and_no_other(metrics: QueryMetrics) -> None:
    dashboard = json.loads((DOCS / "grafana" / "gnsqsync-spark.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    known = names(metrics)
    drawn = set()
    for query in queries:
        (name,) = re.findall(r"\bgnsqsync_\w+", query)
        drawn.add(name)
        grouped = re.findall(r"by \((.*?)\)", query)[0].split(", ")
        assert {*grouped, *re.findall(r"(\w+)=~", query)} <= known[name], query
    assert drawn == set(known)
    (asked,) = (v["definition"] for v in dashboard["templating"]["list"] if "definition" in v)
    assert set(re.findall(r"\bgnsqsync_\w+", asked)) <= drawn


def test_the_page_tells_every_metric_with_its_labels(metrics: QueryMetrics) -> None:
    text = (DOCS / "spark" / "watch.rst").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^``(gnsqsync_\w+)`` +([\w, ]+?)   ", text, re.MULTILINE))
    shown = {name.removesuffix("_total"): labels for name, labels in names(metrics).items()}
    assert {name: set(labels.split(", ")) for name, labels in rows.items()} == shown
