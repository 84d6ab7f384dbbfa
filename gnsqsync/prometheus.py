"""Metrics for Prometheus about Readers and Writers.

Knows ``stats()`` and the hooks of an Observer, and nothing below them. Locks are those of
prometheus_client; a list.append is atomic.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from gnsqsync import Message, Observer, Reader, Writer
from gnsqsync.errors import ClosedError, PublishError
from gnsqsync.keywords import checks_names
from gnsqsync.stats import Histogram as Times
from gnsqsync.stats import ReaderStats, WriterStats

__all__ = ["Metrics"]

# Upper bounds in seconds of the buckets of histograms.
BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
_READER = ("topic", "channel")
# Metrics by the id of their registry, which holds them.
_made: weakref.WeakValueDictionary[int, Metrics] = weakref.WeakValueDictionary()


class Metrics:
    """The metrics of gnsqsync in one registry. Make one object for each process.

    ``observer()`` counts events; ``watch()`` shows the state of an object when Prometheus asks. It
    starts nothing.

    Args:
        registry: None means prometheus_client's own.
        buckets: Upper bounds of the two histograms, in seconds.

    Raises:
        ValueError: The registry has such metrics already. prometheus_client raises it.

    Threads:
        Any thread or greenlet may call each method.
    """

    @checks_names
    def __init__(
        self, registry: CollectorRegistry | None = None, *, buckets: Sequence[float] = BUCKETS
    ) -> None:
        registry = REGISTRY if registry is None else registry
        self.registry: CollectorRegistry = registry
        # Watched objects with their names. A name counts for a Writer only.
        self._watched: list[tuple[str, weakref.ref[Reader | Writer]]] = []
        counter = partial(Counter, registry=registry)
        histogram = partial(Histogram, buckets=buckets, registry=registry)
        self.messages: Counter = counter(
            "gnsqsync_messages",
            "Messages handled, by outcome: finished or failed; of the finished ones gave_up and"
            " discarded.",
            (*_READER, "outcome"),
        )
        self.handler_seconds: Histogram = histogram(
            "gnsqsync_handler_seconds",
            "Time in the handler per message; below a millisecond the mean of a few messages.",
            _READER,
        )
        self.answers_failed: Counter = counter(
            "gnsqsync_answers_failed",
            "FIN, REQ and TOUCH that nsqd refused: the message had timed out.",
            (*_READER, "code"),
        )
        self.backoffs: Counter = counter(
            "gnsqsync_backoffs",
            "Times that backoff began or changed its level.",
            _READER,
        )
        self.lost: Counter = counter(
            "gnsqsync_connections_lost",
            "Connections of Readers that ended, or could not be made.",
            (*_READER, "nsqd"),
        )
        self.lookup_failures: Counter = counter(
            "gnsqsync_lookup_failures",
            "Times that an nsqlookupd began to give no usable answer.",
            (*_READER, "url"),
        )
        self.publish_seconds: Histogram = histogram(
            "gnsqsync_publish_seconds",
            "Time of a publish until nsqd's answer or the error.",
            ("writer",),
        )
        registry.register(self)
        _made[id(registry)] = self

    @classmethod
    def of(cls, registry: CollectorRegistry | None = None) -> Metrics:
        """Return the Metrics of a registry. Make it if the registry has none.

        Args:
            registry: The registry. None means prometheus_client's own.
        """
        return _made.get(id(REGISTRY if registry is None else registry)) or cls(registry)

    def counts(self, observers: Iterable[Observer]) -> bool:
        """Return True if one of ``observers`` is from ``observer()``: a second one counts twice."""
        return any(isinstance(one, _Counting) and one.metrics is self for one in observers)

    def observer(self, topic: str, channel: str) -> Observer:
        """Return an observer for ``Reader(..., observer=)``, or for a handler of Django or Flask.

        It also serves as ``OBSERVER`` of Django's settings or ``NSQ_OBSERVER`` of Flask's, which is
        called for each Reader. Make one for each Reader. Handler times come from
        ``Observer.batch``, so a Reader in the pull form has none.

        Args:
            topic: Label of all its counts.
            channel: Label of all its counts.
        """
        return _Counting(self, topic, channel)

    def watch(self, watched: Reader | Writer, name: str = "default") -> None:
        """Show the ``stats()`` of an object from now on, as long as it lives. It is held weakly.

        Publishes of a Writer are timed. A watched object keeps its name.

        Args:
            watched: The Reader or Writer.
            name: Label of the counts of a Writer. A Reader has its topic and channel.
        """
        if any(reference() is watched for _, reference in self._watched):
            return
        self._watched.append((name, weakref.ref(watched)))
        if not isinstance(watched, Reader):
            watched.add_observer(_Timing(self.publish_seconds.labels(name)))

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of watched objects, as they are now. For the registry."""
        found = list(self._stats())
        yield from _of_readers([one for _, one in found if isinstance(one, ReaderStats)])
        yield from _of_writers([(name, one) for name, one in found if isinstance(one, WriterStats)])

    def _stats(self) -> Iterator[tuple[str, ReaderStats | WriterStats]]:
        for entry in list(self._watched):
            name, reference = entry
            watched = reference()
            if watched is None:
                self._watched.remove(entry)
                continue
            try:
                stats = watched.stats()
            except ClosedError:
                continue  # not started yet, or closed
            yield name, stats


def _of_readers(found: Iterable[ReaderStats]) -> Iterator[Metric]:
    received = _Sums("gnsqsync_received_messages", "Messages that nsqds have sent.", _READER)
    ages = _Histograms(
        "gnsqsync_message_age_seconds",
        "From the publish of a message until its handler began (begin) or had ended (end).",
        (*_READER, "at"),
    )
    limit = _Sums("gnsqsync_max_in_flight", "Messages that may be unanswered.", _READER)
    level = _Sums("gnsqsync_backoff_level", "Level of the backoff; 0: none.", _READER)
    connections = _Sums("gnsqsync_connections", "Connections of Readers.", _READER)
    at_nsqd = (*_READER, "nsqd")
    in_flight = _Sums("gnsqsync_in_flight", "Messages that are unanswered.", at_nsqd)
    rdy = _Sums(
        "gnsqsync_rdy", "Upper bound of messages that an nsqd may have in flight here.", at_nsqd
    )
    for stats in found:
        key = (stats.topic, stats.channel)
        received.add(key, stats.received)
        limit.add(key, stats.max_in_flight)
        level.add(key, stats.backoff_level)
        connections.add(key, len(stats.connections))
        ages.add((*key, "begin"), stats.age_at_begin)
        ages.add((*key, "end"), stats.age_at_end)
        for connection in stats.connections:
            in_flight.add((*key, connection.address), connection.in_flight)
            rdy.add((*key, connection.address), connection.rdy)
    yield received.family(CounterMetricFamily)
    for sums in (limit, level, connections, in_flight, rdy):
        yield sums.family(GaugeMetricFamily)
    yield ages.family()


def _of_writers(found: Iterable[tuple[str, WriterStats]]) -> Iterator[Metric]:
    published = _Sums(
        "gnsqsync_published_messages", "Messages that nsqds have confirmed.", ("writer",)
    )
    failures = _Sums(
        "gnsqsync_publish_failures",
        "Publishes that ended as refused, not_sent or outcome_unknown.",
        ("writer", "outcome"),
    )
    connections = _Sums("gnsqsync_writer_connections", "Connections of Writers.", ("writer",))
    for name, stats in found:
        published.add((name,), stats.published)
        connections.add((name,), len(stats.connections))
        failures.add((name, "refused"), stats.refused)
        failures.add((name, "not_sent"), stats.not_sent)
        failures.add((name, "outcome_unknown"), stats.outcome_unknown)
    yield published.family(CounterMetricFamily)
    yield failures.family(CounterMetricFamily)
    yield connections.family(GaugeMetricFamily)


class _Sums:
    """A metric that adds up the values of objects with the same labels."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._arguments = (name, text)
        self._labels = labels
        self._values: defaultdict[tuple[str, ...], int] = defaultdict(int)

    def add(self, key: tuple[str, ...], value: int) -> None:
        self._values[key] += value

    def family(self, kind: type[CounterMetricFamily | GaugeMetricFamily]) -> Metric:
        family = kind(*self._arguments, labels=self._labels)
        for key, value in self._values.items():
            family.add_metric(key, value)
        return family


class _Histograms:
    """A metric like ``_Sums``, of histograms that share their bounds."""

    def __init__(self, name: str, text: str, labels: Sequence[str]) -> None:
        self._family = HistogramMetricFamily(name, text, labels=labels)
        self._found: defaultdict[tuple[str, ...], list[Times]] = defaultdict(list)

    def add(self, key: tuple[str, ...], one: Times) -> None:
        self._found[key].append(one)

    def family(self) -> Metric:
        for key, several in self._found.items():
            counts = [sum(column) for column in zip(*(one.counts for one in several), strict=True)]
            bounds = [*map(str, several[0].bounds), "+Inf"]
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            self._family.add_metric(key, buckets, sum(one.total for one in several))
        return self._family


class _Counting(Observer):
    """Observer that counts for one Reader. Its threads call it."""

    def __init__(self, metrics: Metrics, topic: str, channel: str) -> None:
        self.metrics = metrics
        self._labels = (topic, channel)
        self._finished, self._failed, self._gave_up, self._discarded = (
            metrics.messages.labels(topic, channel, outcome)
            for outcome in ("finished", "failed", "gave_up", "discarded")
        )
        self._seconds = metrics.handler_seconds.labels(topic, channel)
        self._backoffs = metrics.backoffs.labels(topic, channel)

    def lost(self, nsqd_address: str, reason: Exception) -> None:
        self.metrics.lost.labels(*self._labels, nsqd_address).inc()

    def lookup_failed(self, url: str, reason: Exception) -> None:
        self.metrics.lookup_failures.labels(*self._labels, url).inc()

    def backoff(self, level: int, seconds: float) -> None:
        if level:
            self._backoffs.inc()

    def gave_up(self, message: Message, error: BaseException | None) -> None:
        self._gave_up.inc()

    def discarded(self, message: Message, error: BaseException) -> None:
        self._discarded.inc()

    def answer_failed(self, nsqd_address: str, message_id: str, code: str) -> None:
        self.metrics.answers_failed.labels(*self._labels, code).inc()

    def batch(self, nsqd_address: str, finished: int, failed: int, seconds: float) -> None:
        self._finished.inc(finished)
        self._failed.inc(failed)
        count = finished + failed
        for _ in range(count):
            self._seconds.observe(seconds / count)


class _Timing(Observer):
    """Observer that times the publishes of one Writer, on the threads that publish."""

    def __init__(self, seconds: Histogram) -> None:
        self._seconds = seconds

    def published(self, topic: str, messages: int, seconds: float) -> None:
        self._seconds.observe(seconds)

    def publish_failed(
        self, topic: str, messages: int, seconds: float, error: PublishError
    ) -> None:
        self._seconds.observe(seconds)
