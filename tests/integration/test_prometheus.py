"""gnsqsync.prometheus against an nsqd; the guide and the dashboard have its names and no others."""

from __future__ import annotations

import gc
import inspect
import json
import pickle
import re
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from gnsqsync import Message, Reader, Writer
from gnsqsync.errors import ConfigError, NotSent
from gnsqsync.process.metrics_page import Exposed
from gnsqsync.prometheus import Metrics
from tests.integration.conftest import address
from tests.support.interpreter import run_script
from tests.support.servers import Pool, Server, unique
from tests.support.texts import DOCS


@pytest.fixture
def nsqd(server_pool: Pool) -> Server:
    return server_pool.get("embedded", "nsqd", (), "")


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)


class Consumer:
    """A Reader of a topic of its own, with the metrics; a body "bad" fails."""

    def __init__(self, metrics: Metrics, nsqd: Server) -> None:
        self.topic = unique("prometheus")
        self.go = threading.Event()
        self.gave_up = threading.Event()
        self.at_work = threading.Event()
        self.reader = Reader(
            self.topic,
            "c",
            self._handle,
            nsqd_tcp_addresses=address(nsqd),
            max_attempts=1,
            requeue_delay=0,
            max_backoff_duration=0.01,
            backoff_multiplier=0.001,
            backoff="every_failure",
            on_giving_up=lambda message, error: self.gave_up.set(),
            observer=metrics.observer(self.topic, "c"),
        )

    def _handle(self, message: Message) -> None:
        if message.body == b"bad":
            raise ValueError
        if message.body == b"slow":
            self.at_work.set()
            assert self.go.wait(30)


@pytest.fixture
def consumer(metrics: Metrics, nsqd: Server) -> Iterator[Consumer]:
    consumer = Consumer(metrics, nsqd)
    yield consumer
    consumer.go.set()
    consumer.reader.stop()


def value(registry: CollectorRegistry, name: str, **labels: str) -> Any:
    return registry.get_sample_value(name, labels)


def test_a_reader(
    metrics: Metrics, registry: CollectorRegistry, nsqd: Server, consumer: Consumer
) -> None:
    topic, reader = consumer.topic, consumer.reader
    metrics.watch(reader)
    its = {"topic": topic, "channel": "c"}
    # Not started: nothing to show, and no error.
    assert value(registry, "gnsqsync_connections", **its) is None
    with Writer(address(nsqd)) as writer:
        writer.publish_many(topic, [b"good", b"good", b"bad"])
        reader.start(block=False)
        assert consumer.gave_up.wait(30)
        writer.publish(topic, b"slow")
        assert consumer.at_work.wait(30)
    here = {**its, "nsqd": address(nsqd)}
    assert value(registry, "gnsqsync_connections", **its) == 1
    assert value(registry, "gnsqsync_in_flight", **here) == 1
    assert value(registry, "gnsqsync_max_in_flight", **its) == 1
    stats = reader.stats()
    assert value(registry, "gnsqsync_rdy", **here) == stats.connections[0].rdy
    assert value(registry, "gnsqsync_backoff_level", **its) == stats.backoff_level
    consumer.go.set()
    reader.stop()
    reader.join()
    outcomes = {
        outcome: value(registry, "gnsqsync_messages_total", outcome=outcome, **its)
        for outcome in ("finished", "failed", "gave_up")
    }
    assert outcomes == {"finished": 3, "failed": 1, "gave_up": 1}
    assert value(registry, "gnsqsync_handler_seconds_count", **its) == 4
    assert value(registry, "gnsqsync_received_messages_total", **its) == 4
    assert value(registry, "gnsqsync_backoffs_total", **its) >= 1
    assert value(registry, "gnsqsync_connections", **its) == 0


def test_metrics_that_only_the_observer_sees(registry: CollectorRegistry, metrics: Metrics) -> None:
    observer = metrics.observer("t", "c")
    observer.batch("a:1", 3, 1, 2.0)
    observer.batch("a:1", 0, 0, 1.0)  # all of it was detached
    observer.lost("a:1", OSError())
    observer.lookup_failed("http://b:2", OSError())
    observer.answer_failed("a:1", "id", "E_FIN_FAILED")
    observer.backoff(1, 2.0)
    observer.backoff(0, 0.0)
    its = {"topic": "t", "channel": "c"}
    assert value(registry, "gnsqsync_handler_seconds_sum", **its) == 2.0
    assert value(registry, "gnsqsync_handler_seconds_bucket", le="0.3", **its) == 0
    assert value(registry, "gnsqsync_handler_seconds_bucket", le="1.0", **its) == 4
    assert value(registry, "gnsqsync_connections_lost_total", nsqd="a:1", **its) == 1
    assert value(registry, "gnsqsync_lookup_failures_total", url="http://b:2", **its) == 1
    assert value(registry, "gnsqsync_answers_failed_total", code="E_FIN_FAILED", **its) == 1
    assert value(registry, "gnsqsync_backoffs_total", **its) == 1


def test_writers_are_timed_and_forgotten(
    metrics: Metrics, registry: CollectorRegistry, nsqd: Server
) -> None:
    topic = unique("prometheus")
    writer, dead = Writer(address(nsqd)), Writer("127.0.0.1:1", publish_timeout=0.05)
    metrics.watch(writer)
    metrics.watch(dead, "dead")
    writer.publish(topic, b"x")
    writer.publish_many(topic, [b"x", b"y"])
    writer.publish_async(topic, b"x").result(30)
    with pytest.raises(NotSent):
        dead.publish(topic, b"x")
    assert value(registry, "gnsqsync_published_messages_total", writer="default") == 4
    assert value(registry, "gnsqsync_publish_seconds_count", writer="default") == 3
    assert value(registry, "gnsqsync_writer_connections", writer="default") == 1
    assert value(registry, "gnsqsync_publish_seconds_count", writer="dead") == 1
    failures = {"writer": "dead", "outcome": "not_sent"}
    assert value(registry, "gnsqsync_publish_failures_total", **failures) == 1
    writer.close()
    assert value(registry, "gnsqsync_writer_connections", writer="default") is None
    dead.close()
    del writer, dead
    gc.collect()
    generate_latest(registry)
    # The error of the dead one may hold it.
    assert "default" not in [name for name, _ in metrics._watched]


class Named(Writer):
    """As an application may have it."""

    __slots__ = ("name",)

    def __init__(self, nsqd_tcp_address: str, name: str) -> None:
        super().__init__(nsqd_tcp_address)
        self.name = name

    def __reduce__(self) -> Any:
        return type(self), (str(self._addresses[0]), self.name)


def test_a_watched_writer_is_pickled_as_any_other(
    metrics: Metrics, registry: CollectorRegistry, nsqd: Server
) -> None:
    topic = unique("prometheus")
    with Writer(address(nsqd), publish_timeout=30.0) as writer:
        metrics.watch(writer)
        # A second one counts as well.
        others = CollectorRegistry()
        Metrics(others).watch(writer)
        writer.publish(topic, b"x")
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            copy = pickle.loads(pickle.dumps(writer, protocol))
            assert type(copy) is Writer
            assert copy._publish_timeout == 30.0
        with copy:
            copy.publish(topic, b"y")
    for each in (registry, others):
        assert value(each, "gnsqsync_publish_seconds_count", writer="default") == 1


def test_a_watched_writer_of_a_class_of_the_applications(metrics: Metrics, nsqd: Server) -> None:
    with Named(address(nsqd), "orders") as writer:
        metrics.watch(writer)
        assert isinstance(writer, Named)
        assert inspect.signature(writer.publish) == inspect.signature(Writer("a").publish)
        with pickle.loads(pickle.dumps(writer)) as copy:
            assert (type(copy), copy.name) == (Named, "orders")


def test_a_method_of_a_watched_writer_holds_it_and_no_longer(
    metrics: Metrics, registry: CollectorRegistry, nsqd: Server
) -> None:
    topic = unique("prometheus")
    writer = Writer(address(nsqd))
    metrics.watch(writer)
    forgotten = threading.Event()
    weakref.finalize(writer, forgotten.set)
    publish = writer.publish
    del writer
    publish(topic, b"x")
    assert value(registry, "gnsqsync_publish_seconds_count", writer="default") == 1
    gc.disable()
    try:
        del publish
        # The thread of a connection may look at it at this moment.
        assert forgotten.wait(30)
    finally:
        gc.enable()


def test_a_process_that_has_no_port_left() -> None:
    exposed = Exposed("65535")
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:65536: the highest port is 65535"):
        with exposed.serve([], 1, print):
            pass


# -- the names -----------------------------------------------------------------------------------


def exported(metrics: Metrics, registry: CollectorRegistry) -> dict[str, str]:
    """Name -> type, of all metrics."""
    return {metric.name: metric.type for metric in registry.collect()}


def sample_names(name: str, kind: str) -> set[str]:
    """As Prometheus has them."""
    if kind == "histogram":
        return {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return {f"{name}_total"} if kind == "counter" else {name}


def test_the_dashboard_draws_every_metric_and_no_other(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    dashboard = json.loads((DOCS / "grafana" / "gnsqsync.json").read_text(encoding="utf-8"))
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    variables = [v["definition"] for v in dashboard["templating"]["list"] if "definition" in v]
    drawn = {name for query in queries for name in re.findall(r"\bgnsqsync_\w+", query)}
    known = exported(metrics, registry)
    samples = {name: sample_names(name, kind) for name, kind in known.items()}
    assert drawn <= set().union(*samples.values())
    assert [name for name, its in samples.items() if drawn.isdisjoint(its)] == []
    assert {name for v in variables for name in re.findall(r"\bgnsqsync_\w+", v)} <= drawn


def test_the_guide_tells_every_metric_with_its_labels(
    metrics: Metrics, registry: CollectorRegistry
) -> None:
    text = (DOCS / "guides" / "prometheus.rst").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^``(gnsqsync_\w+)`` +([\w, ]+?)   ", text, re.MULTILINE))
    assert set(rows) == set(exported(metrics, registry))
    # What the queries group by and filter is there.
    dashboard = (DOCS / "grafana" / "gnsqsync.json").read_text(encoding="utf-8")
    for expression in re.findall(r'"expr": "(.*)"', dashboard):
        (name,) = re.findall(r"\bgnsqsync_\w+", expression)
        name = next(
            known for known in rows if name.removesuffix("_bucket") in {known, f"{known}_total"}
        )
        grouped = re.findall(r"by \((.*?)\)", expression)[0].split(", ")
        filtered = re.findall(r"(\w+)=~", expression)
        assert {*grouped, *filtered} - {"le"} <= set(rows[name].split(", ")), expression


def test_the_page_tells_what_multiprocess_mode_shows(tmp_path: Path) -> None:
    """In a process of its own: prometheus_client reads the variable when it is imported."""
    page = (DOCS / "guides" / "prometheus.rst").read_text(encoding="utf-8")
    table = page.split("=============", 3)[-1]
    shown, _, rest = table.partition("\nmissing ")
    missing = rest.partition("\n====")[0]
    out = run_script(
        f"""
        import os
        import warnings
        # prometheus_client leaves its files open until the process ends.
        warnings.simplefilter("ignore", ResourceWarning)
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = {str(tmp_path)!r}
        from prometheus_client import CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector
        from gnsqsync import Reader, Writer
        from gnsqsync.errors import NotSent
        from gnsqsync.prometheus import Metrics
        metrics = Metrics()
        observer = metrics.observer("t", "c")
        observer.batch("a:1", 3, 1, 2.0)
        observer.lost("a:1", OSError())
        observer.lookup_failed("http://b:2", OSError())
        observer.answer_failed("a:1", "id", "E_FIN_FAILED")
        observer.backoff(1, 2.0)
        writer = Writer("127.0.0.1:1", publish_timeout=0.05)
        metrics.watch(writer)
        metrics.watch(Reader("t", "c", print, nsqd_tcp_addresses="127.0.0.1:1"))
        try:
            writer.publish("t", b"x")
        except NotSent:
            pass
        writer.close()
        for registry in (CollectorRegistry(), metrics.registry):
            if registry is not metrics.registry:
                MultiProcessCollector(registry)
            text = generate_latest(registry).decode()
            types = [line.split() for line in text.splitlines() if line.startswith("# TYPE")]
            names = {{words[2].removesuffix("_total") for words in types}}
            print(*sorted(name for name in names if name.startswith("gnsqsync_")))
        """
    )
    of_files, of_process = (set(line.split()) for line in out.splitlines())
    in_both = {name.removesuffix("_created") for name in of_process}
    assert set(re.findall(r"``(gnsqsync_\w+)``", shown)) == of_files
    assert set(re.findall(r"``(gnsqsync_\w+)``", missing)) == in_both - of_files
