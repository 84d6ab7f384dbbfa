"""Spans of publishes and handlers, recorded by the real SDK in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from gnsqsync import Discard, Message, Reject, Requeue, Writer
from gnsqsync.contrib.opentelemetry import OpenTelemetry
from gnsqsync.errors import NotSent
from tests.integration.conftest import Client, address
from tests.support.servers import ROOT, Server
from tests.support.worlds import World


class Recorded:
    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        meters = MeterProvider([self.reader])
        self.middleware = OpenTelemetry(
            tracer_provider=self.provider, meter_provider=meters, **options
        )

    def spans(self) -> Sequence[ReadableSpan]:
        return self.exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans() if span.name == name]

    def durations(self) -> dict[str, int]:
        """Histogram -> how many were recorded."""
        data: Any = json.loads(self.reader.get_metrics_data().to_json())  # type: ignore[union-attr]
        (scope,) = data["resource_metrics"][0]["scope_metrics"]
        return {
            metric["name"]: sum(point["count"] for point in metric["data"]["data_points"])
            for metric in scope["metrics"]
        }


def test_from_a_publish_through_handlers_to_the_next_is_one_trace(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    recorded = Recorded()
    around: dict[str, Any] = {"headers": True, "middleware": [recorded.middleware]}
    writer = client.writer(nsqd, **around)
    tracer = recorded.provider.get_tracer("test")

    def first(message: Message) -> None:
        trace.get_current_span().set_attribute("mine", 1)
        writer.publish(f"{topic}-2", message.body)

    with tracer.start_as_current_span("request"):
        writer.publish(topic, b"12345")
    client.consume(topic, first, nsqd, **around)
    client.consume(f"{topic}-2", lambda message: None, nsqd, **around)
    world.eventually(lambda: len(recorded.spans()) == 5)
    spans = {span.name: span for span in recorded.spans()}
    chain = [
        spans[name]
        for name in (
            "request",
            f"publish {topic}",
            f"process {topic}",
            f"publish {topic}-2",
            f"process {topic}-2",
        )
    ]
    assert len({span.context.trace_id for span in chain}) == 1  # type: ignore[union-attr]
    for parent, child in pairwise(chain):
        assert child.parent is not None and parent.context is not None
        assert child.parent.span_id == parent.context.span_id
    publish, process = chain[1], chain[2]
    assert (publish.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(publish.attributes or {}) == {
        "messaging.system": "nsq",
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
        "messaging.destination.name": topic,
        "messaging.message.body.size": 5,
    }
    host, port = nsqd.tcp_address
    found = dict(process.attributes or {})
    assert len(str(found.pop("messaging.message.id"))) == 16
    assert found == {
        "messaging.system": "nsq",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "messaging.consumer.group.name": "ch",
        "messaging.message.body.size": 5,
        "messaging.nsq.message.attempts": 1,
        "server.address": host,
        "server.port": port,
        "mine": 1,
    }
    assert recorded.durations() == {
        "messaging.client.operation.duration": 2,
        "messaging.process.duration": 2,
    }


@pytest.mark.parametrize(
    ("raised", "status"),
    [
        (ValueError("a bug"), StatusCode.ERROR),
        (Reject("bad"), StatusCode.ERROR),
        (Requeue(delay=60), StatusCode.ERROR),
        (Requeue(delay=60, backoff=False), StatusCode.UNSET),
        (Discard(), StatusCode.UNSET),
    ],
)
def test_status_of_a_span_is_an_error_when_the_handler_fails(
    client: Client,
    nsqd: Server,
    world: World,
    topic: str,
    raised: Exception,
    status: StatusCode,
) -> None:
    recorded = Recorded()

    def handler(message: Message) -> None:
        raise raised

    client.writer(nsqd).publish(topic, b"x")
    client.consume(topic, handler, nsqd, middleware=[recorded.middleware])
    world.eventually(lambda: recorded.spans())
    (span,) = recorded.spans()
    assert span.status.status_code is status
    assert len(span.events) == (status is StatusCode.ERROR)


class Mute(BaseException):
    """An exception whose text fails."""

    def __str__(self) -> str:
        raise ValueError


def test_a_span_ends_whatever_the_exception_is(topic: str) -> None:
    recorded = Recorded()
    message: Any = Message(b"0" * 16, b"x", 1, 0, Nsqd(topic))  # type: ignore[arg-type]

    def fail(message: Message) -> None:
        raise Mute

    with pytest.raises(Mute):
        recorded.middleware.handle(message, fail, fail)
    (span,) = recorded.spans()
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description == "<Mute; its __str__ raised ValueError>"


class Nsqd:
    """The parts of a message's connection that a span tells of."""

    nsqd_address = "127.0.0.1:4150"
    channel = "ch"

    def __init__(self, topic: str) -> None:
        self.topic = topic


def test_other_publishes_and_a_link(client: Client, nsqd: Server, world: World, topic: str) -> None:
    recorded = Recorded(linked=True)
    around: dict[str, Any] = {"headers": True, "middleware": [recorded.middleware]}
    writer = client.writer(nsqd, **around)
    writer.publish_many(topic, [b"1", b"2", b"3"])
    future = writer.publish_async(topic, b"4")
    world.eventually(lambda: future.done() and len(recorded.spans()) == 2)
    many, one = recorded.spans()
    assert (many.attributes or {})["messaging.batch.message_count"] == 3
    assert (one.attributes or {})["messaging.message.body.size"] == 1
    client.consume(topic, lambda message: None, nsqd, **around)
    world.eventually(lambda: len(recorded.spans()) == 6)
    for span in recorded.named(f"process {topic}"):
        assert span.parent is None
        (link,) = span.links
        assert many.context is not None and one.context is not None
        assert link.context.span_id in (many.context.span_id, one.context.span_id)


def test_a_publish_that_fails(topic: str) -> None:
    recorded = Recorded()
    with Writer("127.0.0.1:1", middleware=[recorded.middleware]) as writer:
        with pytest.raises(NotSent):
            writer.publish(topic, b"x", timeout=0.1)
    (span,) = recorded.spans()
    assert (span.attributes or {})["error.type"] == "NotSent"


class Broken(SpanProcessor):
    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError("the exporter is broken")

    def on_end(self, span: Any) -> None:
        raise RuntimeError("the exporter is broken")


def test_an_sdk_that_raises_changes_nothing(
    client: Client,
    nsqd: Server,
    world: World,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorded = Recorded()
    recorded.provider.add_span_processor(Broken())
    around: dict[str, Any] = {"headers": True, "middleware": [recorded.middleware]}
    writer = client.writer(nsqd, **around)
    for _ in range(5):
        writer.publish(topic, b"x")
    reader = client.consume(topic, lambda message: None, nsqd, **around)
    world.eventually(lambda: reader.stats().finished == 5)
    assert reader.stats().requeued == 0
    told = [record for record in caplog.records if "OpenTelemetry failed" in record.getMessage()]
    assert len(told) == 1


PROGRAM = """
import sys
from gnsqsync import Writer
from gnsqsync.contrib.opentelemetry import OpenTelemetry
from opentelemetry.sdk.trace import TracerProvider

middleware = OpenTelemetry(tracer_provider=TracerProvider())
with Writer(sys.argv[1], headers=True, middleware=[middleware]) as writer:
    writer.publish(sys.argv[2], b"x")
"""


def test_without_the_sdk_and_from_another_process(
    client: Client, nsqd: Server, world: World, topic: str
) -> None:
    command = [sys.executable, "-c", PROGRAM, address(nsqd), topic]
    subprocess.run(command, check=True, cwd=ROOT, timeout=60)
    recorded = Recorded()
    ids: list[str] = []

    def handler(message: Message) -> None:
        ids.append(message.headers["traceparent"].split("-")[1])

    client.consume(topic, handler, nsqd, headers=True, middleware=[recorded.middleware])
    world.eventually(lambda: recorded.spans())
    (span,) = recorded.spans()
    assert span.context is not None
    assert [format(span.context.trace_id, "032x")] == ids
    # The API alone records nothing, and costs no message.
    bare = OpenTelemetry(tracer_provider=trace.NoOpTracerProvider())
    client.writer(nsqd, middleware=[bare]).publish(topic, b"y")
    world.eventually(lambda: len(recorded.spans()) == 2)
