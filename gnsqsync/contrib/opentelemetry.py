"""Spans and durations for OpenTelemetry. Needs the extra ``opentelemetry``.

Knows OpenTelemetry's API, not its SDK. Nothing is recorded until an SDK is set up.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from opentelemetry import context, metrics, propagate, trace
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from gnsqsync import Discard, Message, Middleware, Publication, Requeue, __version__
from gnsqsync.contrib import conventions as names
from gnsqsync.contrib.guard import Guard
from gnsqsync.foreign import text_of
from gnsqsync.middleware import Handler, Publish

__all__ = ["OpenTelemetry"]

_SCOPE = "gnsqsync"


class OpenTelemetry(Middleware):
    """A middleware that makes a span around each publish and each handler.

    The spans follow the conventions for messaging. With headers on both sides
    (``Writer(headers=True)``, ``Reader(headers=True)``) the handler's span is a child of the
    publish's span, even in another process. An exception of the SDK is logged once and changes
    nothing.

    Args:
        linked: True if the span of a handler begins a trace of its own, with a link to the publish.
            The conventions advise this if one request makes many messages. Default: False.
        tracer_provider: Default: the global one.
        meter_provider: Default: the global one.
    """

    fails_after_handler = False

    def __init__(
        self,
        *,
        linked: bool = False,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._linked = linked
        self._tracer = trace.get_tracer(_SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(_SCOPE, __version__, meter_provider)
        self._operation_seconds = meter.create_histogram(
            names.OPERATION_SECONDS, "s", "Time of a publish until nsqd's answer or the error."
        )
        self._process_seconds = meter.create_histogram(
            names.PROCESS_SECONDS, "s", "Time in the handler per message."
        )
        self._guard = Guard("OpenTelemetry")

    # -- publish -----------------------------------------------------------------------------------

    def publish(self, publication: Publication, proceed: Publish) -> Future[None] | None:
        started = time.monotonic()
        span = self._guard(self._begin_publish, publication)
        if span is None:
            return proceed(publication)

        def ended(error: BaseException | None) -> None:
            seconds = time.monotonic() - started
            self._guard(self._end, span, error, _labels(span), seconds, self._operation_seconds)

        try:
            future = proceed(publication)
        except BaseException as error:  # any exception, because a span must end
            ended(error)
            raise
        if future is None:
            ended(None)
        else:
            future.add_done_callback(lambda future: ended(_error_of(future)))
        return future

    def _begin_publish(self, publication: Publication) -> Span:
        attributes: dict[str, Any] = {
            names.SYSTEM: names.NSQ,
            names.OPERATION: "publish",
            names.OPERATION_TYPE: "send",
            names.DESTINATION: publication.topic,
        }
        if len(publication.bodies) == 1:
            attributes[names.BODY_SIZE] = len(publication.bodies[0])
        else:
            attributes[names.BATCH_COUNT] = len(publication.bodies)
        span = self._tracer.start_span(
            f"publish {publication.topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        if publication.headers is not None:
            propagate.inject(publication.headers, trace.set_span_in_context(span))
        return span

    # -- handle ------------------------------------------------------------------------------------

    def handle(
        self, message: Message, handler: Handler, proceed: Callable[[Message], object]
    ) -> object:
        started = time.monotonic()
        span = self._guard(self._begin_process, message)
        if span is None:
            return proceed(message)
        # Each message has a context of its own, so nothing is detached afterwards.
        self._guard(context.attach, trace.set_span_in_context(span, self._baggage_of(message)))
        error: BaseException | None = None
        try:
            return proceed(message)
        except BaseException as raised:  # any exception, because a span must end
            error = raised
            raise
        finally:
            seconds = time.monotonic() - started
            self._guard(self._end, span, error, _labels(span), seconds, self._process_seconds)

    def _baggage_of(self, message: Message) -> context.Context:
        return self._guard(propagate.extract, message.headers) or context.get_current()

    def _begin_process(self, message: Message) -> Span:
        host, _, port = message.nsqd_address.rpartition(":")
        attributes: dict[str, Any] = {
            names.SYSTEM: names.NSQ,
            names.OPERATION: "process",
            names.OPERATION_TYPE: "process",
            names.DESTINATION: message.topic,
            names.GROUP: message.channel,
            names.MESSAGE_ID: message.id,
            names.BODY_SIZE: len(message.body),
            names.NSQ_ATTEMPTS: message.attempts,
            names.SERVER_ADDRESS: host,
        }
        if port.isdecimal():
            attributes[names.SERVER_PORT] = int(port)
        parent = propagate.extract(message.headers)
        links = []
        if self._linked:
            origin = trace.get_current_span(parent).get_span_context()
            links = [Link(origin)] if origin.is_valid else []
            parent = context.Context()
        return self._tracer.start_span(
            f"process {message.topic}",
            context=parent,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=links,
        )

    # -- ends --------------------------------------------------------------------------------------

    def _end(
        self,
        span: Span,
        error: BaseException | None,
        labels: Mapping[str, Any],
        seconds: float,
        histogram: metrics.Histogram,
    ) -> None:
        labels = dict(labels)
        try:
            if error is not None and not _is_no_error(error):
                labels[names.ERROR_TYPE] = type(error).__qualname__
                span.set_attribute(names.ERROR_TYPE, type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR, text_of(error)))
                # record_exception() calls str() of the user's exception, which may fail.
                span.record_exception(error)
        finally:
            span.end()
            histogram.record(seconds, labels)


def _is_no_error(error: BaseException) -> bool:
    """Return True if a handler raised the exception for a message that is in order."""
    return isinstance(error, Discard) or (isinstance(error, Requeue) and not error.backoff)


def _error_of(future: Future[None]) -> BaseException | None:
    return None if future.cancelled() else future.exception()


def _labels(span: Span) -> dict[str, Any]:
    """Return the attributes of a span that label the histograms."""
    attributes: Mapping[str, Any] = getattr(span, "attributes", None) or {}
    wanted = (names.SYSTEM, names.OPERATION, names.DESTINATION, names.GROUP)
    return {name: attributes[name] for name in wanted if name in attributes}
