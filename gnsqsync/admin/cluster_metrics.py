"""The counts of every topic and channel of a cluster, as metrics for Prometheus.

Each scrape asks all servers then, side by side. Knows their HTTP APIs and prometheus_client.
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
# Seconds that a look is shown to others who ask.
_KEPT = 1.0

_TOPIC = ("topic", "nsqd")
_CHANNEL = ("topic", "channel", "nsqd")
# Of each metric: what follows nsq_topic_ or nsq_channel_, whether it only grows, the attribute in
# what nsqd answers, and its meaning.
_TOPICS = (
    ("depth", False, "depth", "Messages that wait in the topic, no channel has them yet."),
    ("backend_depth", False, "backend_depth", "Those of them that wait on disk."),
    ("messages", True, "message_count", "Messages published."),
    ("message_bytes", True, "message_bytes", "Bytes of their bodies."),
    ("paused", False, "paused", "1: nothing goes from the topic to its channels."),
)
_CHANNELS = (
    ("depth", False, "depth", "Messages that wait; those in flight or deferred left out."),
    ("backend_depth", False, "backend_depth", "Those of them that wait on disk."),
    ("in_flight", False, "in_flight_count", "Messages that consumers have, unanswered."),
    ("deferred", False, "deferred_count", "Messages that wait for their time."),
    ("messages", True, "message_count", "Messages that came to the channel."),
    ("requeues", True, "requeue_count", "REQs."),
    ("timeouts", True, "timeout_count", "Messages that no consumer answered in time."),
    ("clients", False, "client_count", "Connections of consumers."),
    ("paused", False, "paused", "1: nothing goes to consumers."),
)


class ClusterMetrics:
    """A collector: ``registry.register(ClusterMetrics(...))``. It starts threads when it is asked.

    A server that does not answer within ``timeout`` seconds is ``nsq_up`` 0, and the log says why,
    at growing intervals; the others are shown. An entry that cannot be read is left out.
    ``options``: as of NsqdHTTP.

    Threads:
        Any thread may ask; those that ask at the same time share one look.
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
        # Held during a look; guards what is below, and the clients.
        self._turn = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._shown: list[Metric] = []
        self._shown_until = 0.0

    def describe(self) -> Iterable[Metric]:
        """Nothing: prometheus_client would otherwise ask the cluster when it is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """For the registry."""
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
                    continue  # as an nsqd may register itself; it is shown as down
        for address in self._nsqds.keys() - addresses.keys():
            self._nsqds.pop(address).close()
        asked = {address: _stats_of(one) for address, one in self._nsqds.items()}
        answers: dict[str, Stats | None] = dict.fromkeys(addresses)
        answers.update(self._ask(asked, deadline))
        yield _up("nsq_up", "1: the nsqd has answered.", "nsqd", answers)
        yield _up("nsq_lookupd_up", "1: the nsqlookupd has answered.", "lookupd", lookups)
        yield from _families({shown(a): one for a, one in answers.items() if one is not None})
        yield GaugeMetricFamily(
            "nsq_scrape_seconds",
            "How long it took to ask all servers.",
            time.monotonic() - began,
        )

    def _ask(self, calls: Mapping[str, Callable[[], T]], deadline: float) -> dict[str, T | None]:
        """What each call returns by the deadline, None where it fails."""
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
        "From the publish to the FIN, by nsqd's --e2e-processing-latency-percentile.",
        labels=[*_CHANNEL, "quantile"],
    )
    healthy = GaugeMetricFamily(
        "nsq_healthy", "1: the nsqd has no disk error; absent where it is down.", labels=["nsqd"]
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
