"""The counts of every topic and channel of a cluster, as metrics for Prometheus.

Each scrape asks all servers side by side. Knows their HTTP APIs and prometheus_client.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, TypeVar, Unpack

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gnsqsync.daemon.secrets import shown
from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.http.clients import LookupdHTTP, NsqdHTTP
from gnsqsync.http.nsqd_types import Stats
from gnsqsync.http.transport import HTTPKeywords
from gnsqsync.runtime.troubles import AWAY, more, troubles

__all__ = ["ClusterMetrics"]

log: logging.Logger = logging.getLogger("gnsqsync.exporter")

T = TypeVar("T")

_SIDE_BY_SIDE = 32
# Seconds for which the answers serve further scrapes.
_KEPT = 1.0

_TOPIC = ("topic", "nsqd")
_CHANNEL = ("topic", "channel", "nsqd")
# Each metric: its name after nsq_topic_ or nsq_channel_, True for a counter, its attribute in
# nsqd's answer, and its help text.
_TOPICS = (
    ("depth", False, "depth", "Messages that wait in the topic and that no channel has yet."),
    ("backend_depth", False, "backend_depth", "Messages of the topic that wait on disk."),
    ("messages", True, "message_count", "Messages published."),
    ("message_bytes", True, "message_bytes", "Bytes of the published bodies."),
    ("paused", False, "paused", "1: the topic gives its channels no messages."),
)
_CHANNELS = (
    ("depth", False, "depth", "Messages that wait, without those in flight or deferred."),
    ("backend_depth", False, "backend_depth", "Messages of the channel that wait on disk."),
    ("in_flight", False, "in_flight_count", "Messages that consumers have and have not answered."),
    ("deferred", False, "deferred_count", "Messages that wait until their delay ends."),
    ("messages", True, "message_count", "Messages that the channel received."),
    ("requeues", True, "requeue_count", "Requeues (REQ)."),
    ("timeouts", True, "timeout_count", "Messages that no consumer answered in time."),
    ("clients", False, "client_count", "Connections of consumers."),
    ("paused", False, "paused", "1: the channel gives its consumers no messages."),
)


class ClusterMetrics:
    """A collector: ``registry.register(ClusterMetrics(...))``. The first scrape starts threads.

    If a server does not answer within ``timeout`` seconds, its ``nsq_up`` is 0, and the log has the
    reason, at growing intervals. The other servers are shown. An entry that cannot be read is left
    out. ``options``: further arguments of NsqdHTTP.

    Threads:
        Any thread may ask. Threads that ask at the same time share the answers.
    """

    def __init__(
        self,
        nsqds: Sequence[str],
        lookupds: Sequence[str],
        *,
        timeout: float = 8.0,
        **options: Unpack[HTTPKeywords],
    ) -> None:
        self._timeout = timeout
        self._fixed = tuple(nsqds)
        self._new_nsqd = partial(NsqdHTTP, timeout=timeout, **options)
        self._lookupds = {url: LookupdHTTP(url, timeout=timeout, **options) for url in lookupds}
        self._nsqds = {address: self._new_nsqd(address) for address in nsqds}
        # Held while servers are asked. Guards the clients and the three fields below.
        self._turn = threading.Lock()
        # The threads that ask, from the first scrape on.
        self._pool: ThreadPoolExecutor | None = None
        # The metrics of the last scrape, and the monotonic time until which they are served.
        self._shown: list[Metric] = []
        self._shown_until = 0.0

    def describe(self) -> Iterable[Metric]:
        """Return nothing. Otherwise prometheus_client would ask the cluster at the registration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Return the metrics. Called by the registry."""
        with self._turn:
            if time.monotonic() >= self._shown_until:
                self._shown = list(self._look())
                self._shown_until = time.monotonic() + _KEPT
            kept = self._shown
        yield from kept

    def close(self) -> None:
        """End the threads, and close the connections."""
        with self._turn:
            if self._pool is not None:
                self._pool.shutdown(cancel_futures=True)
            for client in (*self._lookupds.values(), *self._nsqds.values()):
                client.close()

    def _look(self) -> Iterator[Metric]:
        began = time.monotonic()
        deadline = began + self._timeout
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_SIDE_BY_SIDE, "nsq-exporter")
        lookups = self._ask({url: one.nodes for url, one in self._lookupds.items()}, deadline)
        addresses = dict.fromkeys(self._fixed)
        for nodes in lookups.values():
            addresses.update((node.http_address, None) for node in nodes or ())
        for address in addresses:
            if address not in self._nsqds:
                try:
                    self._nsqds[address] = self._new_nsqd(address)
                except ConfigError:
                    continue  # An nsqd registered a bad address. It is shown as down.
        for address in self._nsqds.keys() - addresses.keys():
            self._nsqds.pop(address).close()
        asked = {address: _stats_of(one) for address, one in self._nsqds.items()}
        answers: dict[str, Stats | None] = dict.fromkeys(addresses)
        answers.update(self._ask(asked, deadline))
        yield _up("nsq_up", "1: the nsqd answered.", "nsqd", answers)
        yield _up("nsq_lookupd_up", "1: the nsqlookupd answered.", "lookupd", lookups)
        yield from _families({shown(a): one for a, one in answers.items() if one is not None})
        yield GaugeMetricFamily(
            "nsq_scrape_seconds",
            "Seconds to ask all servers.",
            time.monotonic() - began,
        )

    def _ask(self, calls: Mapping[str, Callable[[], T]], deadline: float) -> dict[str, T | None]:
        """Return the result of each call, or None if it failed or missed the deadline."""
        assert self._pool is not None
        futures: dict[str, Future[T]] = {
            name: self._pool.submit(call) for name, call in calls.items()
        }
        wait(futures.values(), max(0.0, deadline - time.monotonic()))
        return {name: _result(name, future) for name, future in futures.items()}


def _stats_of(client: NsqdHTTP) -> Callable[[], Stats]:
    return lambda: client.stats(include_clients=False, include_mem=False)


def _result(name: str, future: Future[T]) -> T | None:
    place = ("exporter", name)
    reason = "no answer in time"
    if future.done():
        try:
            found = future.result()
        except NSQError as error:
            reason = str(error)
        else:
            over = troubles().ended(place)
            if over is not None:
                log.warning("%s answers again", shown(name))
            return found
    future.cancel()
    tell = troubles().began(place, AWAY)
    if tell is not None:
        log.error("%s is shown as down: %s%s", shown(name), reason, more(tell))
    return None


def _up(name: str, text: str, label: str, answers: dict[str, Any]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for address, answer in answers.items():
        family.add_metric([shown(address)], float(answer is not None))
    return family


def _families(answers: dict[str, Stats]) -> Iterator[Metric]:
    topics = [_family("nsq_topic_", _TOPIC, *row) for row in _TOPICS]
    channels = [_family("nsq_channel_", _CHANNEL, *row) for row in _CHANNELS]
    latency = GaugeMetricFamily(
        "nsq_channel_e2e_latency_seconds",
        "Seconds from publish to FIN, by nsqd's --e2e-processing-latency-percentile.",
        labels=[*_CHANNEL, "quantile"],
    )
    healthy = GaugeMetricFamily(
        "nsq_healthy", "1: the nsqd has no disk error. Absent if it is down.", labels=["nsqd"]
    )
    for nsqd, stats in answers.items():
        healthy.add_metric([nsqd], float(stats.health == "OK"))
        for topic in stats.topics:
            for family, attribute in topics:
                family.add_metric([topic.topic_name, nsqd], float(getattr(topic, attribute)))
            for channel in topic.channels:
                labels = [topic.topic_name, channel.channel_name, nsqd]
                for family, attribute in channels:
                    family.add_metric(labels, float(getattr(channel, attribute)))
                for quantile, seconds in channel.e2e_processing_latency.percentiles:
                    latency.add_metric([*labels, f"{quantile:g}"], seconds)
    yield healthy
    yield from (family for family, _ in (*topics, *channels))
    yield latency


def _family(
    prefix: str, labels: Sequence[str], name: str, grows: bool, attribute: str, text: str
) -> tuple[Any, str]:
    kind = CounterMetricFamily if grows else GaugeMetricFamily
    return kind(prefix + name, text, labels=labels), attribute
