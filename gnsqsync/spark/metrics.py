"""Metrics for Prometheus about the streaming queries of a session that read NSQ.

Knows the progress that Spark reports of a query, and nothing below it. Spark's thread for listeners
replaces the record of a query as a whole, so a collecting thread reads records without a lock.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
except ImportError as _error:
    raise ImportError(
        'QueryMetrics needs prometheus_client: pip install "gnsqsync[prometheus]"'
    ) from _error

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

__all__ = ["QueryMetrics"]

_QUERY = ("query",)
_PLACE = ("query", "topic", "channel", "nsqd")
# Sums since the start of a query. The keys are the names in a source's progress.
_COUNTERS = {
    "received": ("gnsqsync_spark_received_messages", "Messages in closed batches."),
    "redelivered": (
        "gnsqsync_spark_redelivered_messages",
        "Messages in closed batches that nsqd had delivered before.",
    ),
    "deduplicated": (
        "gnsqsync_spark_deduplicated_messages",
        "Messages that came again and were dropped, because the log has them.",
    ),
    "log_bytes": ("gnsqsync_spark_log_bytes", "Bytes written to the log."),
}
_GAUGES = {
    "depth": ("gnsqsync_spark_depth", "Messages that wait in the channel."),
    "in_flight": ("gnsqsync_spark_in_flight", "Messages that consumers have, unanswered."),
    "deferred": ("gnsqsync_spark_deferred", "Messages that wait for their time."),
}


@dataclass(frozen=True)
class _Query:
    """A query after its last progress. ``sources``: the reports of its sources that read NSQ."""

    name: str
    run: str
    running: bool = True
    batches: int = 0
    rows: int = 0
    seconds: float = 0.0
    sources: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)


class QueryMetrics(StreamingQueryListener):
    """A collector that shows Prometheus the progress of all queries of a session that read NSQ.

    Call ``spark.streams.addListener(QueryMetrics())`` in the process that has the session, and
    ``prometheus_client.start_http_server(9150)`` to serve the page. The label of a query is its
    ``queryName``, or else its id.

    Args:
        registry: The registry to join. Default: prometheus_client's own.

    Raises:
        ValueError: The registry has a QueryMetrics already. prometheus_client raises it.

    Threads:
        Spark calls the methods on a thread of its own. Prometheus may collect on any thread.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._queries: dict[str, _Query] = {}
        (REGISTRY if registry is None else registry).register(self)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.note(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        known = self._queries.get(str(event.id))
        if known is not None:
            self._queries[str(event.id)] = dataclasses.replace(known, running=False)

    def note(self, progress: Mapping[str, Any]) -> None:
        """Take in one progress of a query.

        Args:
            progress: A mapping in the form of ``query.lastProgress``.
        """
        sources = [source for source in progress["sources"] if _reads_nsq(source)]
        latest = [_offset(source, "latestOffset") for source in sources]
        if not sources:
            return
        key, run = str(progress["id"]), str(progress["runId"])
        known = self._queries.get(key)
        if known is None or known.run != run:
            known = _Query(progress.get("name") or key, run)
        rows = sum(source["numInputRows"] for source in sources)
        self._queries[key] = dataclasses.replace(
            known,
            batches=known.batches + bool(rows),
            rows=known.rows + rows,
            seconds=known.seconds + progress["durationMs"].get("triggerExecution", 0) / 1000,
            # Before 4.2 PySpark puts the end of the batch there, which has no counts.
            sources=tuple(one for one in latest if "topics" in one),
        )

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all queries after their last progress. The registry calls this."""
        queries = list(self._queries.values())
        running = GaugeMetricFamily(
            "gnsqsync_spark_running", "1 while the query runs.", labels=_QUERY
        )
        batches = CounterMetricFamily(
            "gnsqsync_spark_batches", "Batches that had rows.", labels=_QUERY
        )
        rows = CounterMetricFamily(
            "gnsqsync_spark_rows", "Rows that Spark took, in each read of a batch.", labels=_QUERY
        )
        seconds = CounterMetricFamily(
            "gnsqsync_spark_seconds",
            "Seconds of batches (batch), of their longest tasks, and of all tasks by step.",
            labels=(*_QUERY, "part"),
        )
        for query in queries:
            running.add_metric((query.name,), query.running)
            batches.add_metric((query.name,), query.batches)
            rows.add_metric((query.name,), query.rows)
            seconds.add_metric((query.name, "batch"), query.seconds)
            parts: dict[str, float] = {}
            for source in query.sources:
                for part, value in source["seconds"].items():
                    parts[part] = parts.get(part, 0.0) + value
            for part, value in parts.items():
                seconds.add_metric((query.name, part), value)
        yield from (running, batches, rows, seconds)
        counted = [query for query in queries if query.sources]
        for name, (metric, text) in _COUNTERS.items():
            counter = CounterMetricFamily(metric, text, labels=_QUERY)
            for query in counted:
                counter.add_metric((query.name,), sum(one[name] for one in query.sources))
            yield counter
        unreachable = GaugeMetricFamily(
            "gnsqsync_spark_unreachable_nsqds",
            "nsqds that the driver or a task did not reach the last time.",
            labels=_QUERY,
        )
        for query in counted:
            names = {nsqd for one in query.sources for nsqd in one["unreachable"]}
            unreachable.add_metric((query.name,), len(names))
        yield unreachable
        for name, (metric, text) in _GAUGES.items():
            gauge = GaugeMetricFamily(metric, text, labels=_PLACE)
            for labels, counts in _places(counted):
                gauge.add_metric(labels, counts[name])
            yield gauge


def _offset(source: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return an offset in a source's progress, which may be JSON text; empty if it is neither."""
    found = source.get(name)
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except ValueError:
            return {}
    return found if isinstance(found, dict) else {}


def _reads_nsq(source: Mapping[str, Any]) -> bool:
    return {"stream", "epoch", "channel", "parts"} <= _offset(source, "endOffset").keys()


def _places(queries: list[_Query]) -> Iterator[tuple[tuple[str, ...], Mapping[str, int]]]:
    for query in queries:
        for source in query.sources:
            for topic, nsqds in source["topics"].items():
                for nsqd, counts in nsqds.items():
                    yield (query.name, topic, source["channel"], nsqd), counts
