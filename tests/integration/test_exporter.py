"""``gnsqsync exporter``: the counts of a cluster as Prometheus sees them."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from gnsqsync import NsqdHTTP, Reader, Writer
from gnsqsync.admin.cluster_metrics import ClusterMetrics
from tests.integration.conftest import address, url
from tests.support.programs import Program
from tests.support.servers import Site, unique
from tests.support.texts import DOCS


def host_of(server: Any) -> str:
    return "{}:{}".format(*server.http_address)


@contextmanager
def exporting(tmp_path: Path, *arguments: str) -> Iterator[str]:
    command = (sys.executable, "-m", "gnsqsync.cli", "exporter", "--listen", "127.0.0.1:0")
    program = Program((*command, *arguments), tmp_path)
    try:
        program.wait_for(r"metrics at (http://\S+)")
        found = re.search(r"metrics at (http://\S+)", program.output)
        assert found is not None
        yield found[1]
        program.signal(signal.SIGTERM)
        assert "Traceback" not in program.end()
    finally:
        program.kill()


def scraped(page: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    answer = requests.get(page, timeout=60)
    assert answer.status_code == 200
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_every_count_of_a_cluster(site: Site, tmp_path: Path) -> None:
    lookupd = site.own_nsqlookupd()
    tcp = "{}:{}".format(*lookupd.tcp_address)
    nsqd = site.own_nsqd(f"-lookupd-tcp-address={tcp}", "-mem-queue-size=2")
    topic = unique("topic")
    http = NsqdHTTP(url(nsqd))
    http.create_topic(topic)
    http.create_channel(topic, "ch")
    http.create_channel(topic, "paused")
    http.pause_channel(topic, "paused")
    with Writer(address(nsqd)) as writer:
        writer.publish_many(topic, [b"12345"] * 5)
        writer.publish(topic, b"x", defer=60)
    reader = Reader(topic, "ch", nsqd_tcp_addresses=address(nsqd), max_in_flight=2)
    with reader:
        taken: list[Any] = []
        for batch in reader.batches(max_messages=1, max_wait=1.0):
            taken += batch
            if len(taken) == 2:
                break
        taken[0].requeue(delay=0, backoff=False)
        with exporting(tmp_path, "--lookupd-http-address", host_of(lookupd)) as page:
            deadline = time.monotonic() + 60
            while True:
                found = scraped(page)
                where = host_of(nsqd)
                labels = frozenset({"topic": topic, "channel": "ch", "nsqd": where}.items())
                if found.get(("nsq_channel_requeues_total", labels)) == 1:
                    break
                assert time.monotonic() < deadline, found
            of_topic = frozenset({"topic": topic, "nsqd": where}.items())
            assert found["nsq_up", frozenset({("nsqd", where)})] == 1
            assert found["nsq_healthy", frozenset({("nsqd", where)})] == 1
            assert found["nsq_lookupd_up", frozenset({("lookupd", host_of(lookupd))})] == 1
            assert found["nsq_topic_messages_total", of_topic] == 6
            assert found["nsq_topic_message_bytes_total", of_topic] == 26
            assert found["nsq_channel_messages_total", labels] == 6
            assert found["nsq_channel_clients", labels] == 1
            assert found["nsq_channel_deferred", labels] == 1
            assert found["nsq_channel_in_flight", labels] >= 1
            assert found["nsq_channel_timeouts_total", labels] == 0
            assert found["nsq_channel_paused", labels] == 0
            other = frozenset({"topic": topic, "channel": "paused", "nsqd": where}.items())
            assert found["nsq_channel_paused", other] == 1
            assert found["nsq_channel_depth", other] == 5
            assert found["nsq_channel_backend_depth", other] >= 1
            livez = requests.get(page.replace("/metrics", "/livez"), timeout=60)
            assert livez.text == "alive\n"


def test_one_server_that_is_down_hides_no_other(site: Site) -> None:
    nsqd = site.nsqd()
    silent = socket.create_server(("127.0.0.1", 0))
    hanging = f"127.0.0.1:{silent.getsockname()[1]}"
    metrics = ClusterMetrics([host_of(nsqd), "127.0.0.1:1", hanging], ["127.0.0.1:1"], timeout=1.0)
    try:
        started = time.monotonic()
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for family in metrics.collect()
            for sample in family.samples
        }
        assert time.monotonic() - started < 30
        assert found["nsq_up", host_of(nsqd)] == 1
        assert found["nsq_up", "127.0.0.1:1"] == found["nsq_up", hanging] == 0
        assert found["nsq_lookupd_up", "127.0.0.1:1"] == 0
        # Two that ask at the same time share a look.
        assert list(metrics.collect()) == list(metrics.collect())
    finally:
        metrics.close()
        silent.close()


def test_a_busy_address_and_a_bad_one(site: Site, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        for listen, says in ((where, "Address already in use"), ("nowhere", "it must be PORT")):
            command = (sys.executable, "-m", "gnsqsync.cli", "exporter", "--listen", listen)
            program = Program(command, tmp_path)
            assert says in program.end(code=2)


def test_the_guide_tells_every_metric(site: Site) -> None:
    metrics = ClusterMetrics([host_of(site.nsqd())], [])
    registry = CollectorRegistry()
    registry.register(metrics)
    names = {family.name for family in metrics.collect()}
    metrics.close()
    text = (DOCS / "guides" / "prometheus.rst").read_text(encoding="utf-8")
    told = set(re.findall(r"^``(nsq_\w+)``", text, re.M))
    assert told == names


def test_the_dashboard_draws_every_metric_and_no_other(site: Site) -> None:
    dashboard = json.loads((DOCS / "grafana" / "nsq-cluster.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [v["definition"] for v in dashboard["templating"]["list"] if "definition" in v]
    drawn = {name for query in queries for name in re.findall(r"\bnsq_\w+", query)}
    metrics = ClusterMetrics([host_of(site.nsqd())], [])
    families = list(metrics.collect())
    metrics.close()
    assert drawn == {
        f"{family.name}_total" if family.type == "counter" else family.name for family in families
    }
    labels = {"topic", "channel", "nsqd", "lookupd", "quantile"}
    assert set(re.findall(r"[{(, ](\w+)=~", " ".join(queries))) <= labels


@pytest.mark.parametrize("rule", ["nsq_channel_depth", "nsq_channel_timeouts_total", "nsq_up"])
def test_the_alerts_of_the_guide_use_metrics_that_exist(rule: str) -> None:
    text = (DOCS / "guides" / "prometheus.rst").read_text(encoding="utf-8")
    assert re.search(rf"expr: .*{rule}", text)
