"""The counts of every topic and channel of a cluster, as metrics for Prometheus.

Each scrape asks all servers side by side. Knows their HTTP APIs and prometheus_client.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gnsqsync.cluster.asking import Outcomes
from gnsqsync.cluster.servers import Servers
from gnsqsync.daemon.secrets import shown
from gnsqsync.http.clients import NsqdHTTP
from gnsqsync.http.nsqd_types import Stats
from gnsqsync.http.transport import HTTPKeywords
from gnsqsync.runtime.troubles import AWAY, more, troubles

__all__ = ["ClusterMetrics"]

log: logging.Logger = logging.getLogger("gnsqsync.exporter")

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
    """A collector: ``registry.register(ClusterMetrics(...))``. A scrape starts threads.

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
        self._servers = Servers(
            nsqds, lookupds, at_a_time=_SIDE_BY_SIDE, timeout=timeout, **options
        )
        # Held while servers are asked. Guards ``_servers`` and the two fields below.
        self._turn = threading.Lock()
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
        """Close the connections."""
        with self._turn:
            self._servers.close()

    def _look(self) -> Iterator[Metric]:
        began = time.monotonic()
        found = self._servers.find(self._timeout)
        left = max(0.0, began + self._timeout - time.monotonic())
        asked = self._servers.ask(found.nsqds, _stats_of, left)
        # An nsqd that registered a bad address is shown as down.
        nsqds = [*found.nsqds, *found.bad]
        _note(found.lookups, self._servers.lookupds)
        _note(asked, found.nsqds)
        yield _up("nsq_up", "1: the nsqd answered.", "nsqd", nsqds, asked)
        yield _up(
            "nsq_lookupd_up",
            "1: the nsqlookupd answered.",
            "lookupd",
            self._servers.lookupds,
            found.lookups,
        )
        yield from _families({shown(a): one for a, one in asked.answers.items()})
        yield GaugeMetricFamily(
            "nsq_scrape_seconds",
            "Seconds to ask all servers.",
            time.monotonic() - began,
        )


def _stats_of(client: NsqdHTTP) -> Stats:
    return client.stats(include_clients=False, include_mem=False)


def _note(asked: Outcomes[str, Any], addresses: Iterable[str]) -> None:
    """Log which servers went and which came back, at growing intervals."""
    for address in addresses:
        place = ("exporter", address)
        error = asked.failures.get(address)
        if error is None:
            if troubles().ended(place) is not None:
                log.warning("%s answers again", shown(address))
            continue
        reason = "no answer in time" if address in asked.late else error
        tell = troubles().began(place, AWAY)
        if tell is not None:
            log.error("%s is shown as down: %s%s", shown(address), reason, more(tell))


def _up(
    name: str, text: str, label: str, addresses: Iterable[str], asked: Outcomes[str, Any]
) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for address in addresses:
        family.add_metric([shown(address)], float(address in asked.answers))
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
