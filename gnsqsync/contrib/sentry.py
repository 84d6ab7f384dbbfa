"""Failures and traces for Sentry. Needs the extra ``sentry``.

Knows sentry_sdk. Sets nothing up: your ``sentry_sdk.init()`` says where events go.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import sentry_sdk
from sentry_sdk.utils import event_from_exception

from gnsqsync import Discard, Message, Middleware, Observer, Publication, Reject, Requeue
from gnsqsync.contrib import conventions as names
from gnsqsync.contrib.guard import Guard
from gnsqsync.foreign import ends_worker
from gnsqsync.middleware import Handler, Publish
from gnsqsync.options import handler_name

__all__ = ["Sentry"]

# Largest number of messages whose reported failures are remembered.
_MOST_TOLD = 10_000


class Sentry(Middleware, Observer):
    """A middleware and observer that reports to Sentry.

    Pass the object as ``middleware=[...]`` and as ``observer=``.

    * A handler that fails is a warning, one for each message and type of exception over all
      attempts. The context ``nsq`` has topic, channel, nsqd, id, attempts and handler.
    * A message that is given up is an error; this needs the ``observer=``. ``Requeue`` and
      ``Discard`` are no errors. The ``Reject`` of each handler is an issue of its own.
    * Each handler has a transaction, and each publish a span, with the data of Sentry's page on
      queues. With headers on both sides they are one trace.

    An exception of sentry_sdk is logged once and changes nothing. ``_told`` needs no lock, because
    each change is a single step of a dict.
    """

    fails_after_handler = False

    def __init__(self) -> None:
        self._guard = Guard("Sentry")
        # Reported failures: nsqd, channel, id and type of exception.
        self._told: dict[tuple[str, str, str, type[BaseException]], None] = {}
        # Names of handlers by topic and channel, because an Observer does not get the handler.
        self._handlers: dict[tuple[str, str], str] = {}

    # -- publish -----------------------------------------------------------------------------------

    def publish(self, publication: Publication, proceed: Publish) -> Future[None] | None:
        span = self._guard(self._begin_publish, publication)
        if span is None:
            return proceed(publication)
        try:
            future = proceed(publication)
        except BaseException:  # any exception, because a span must end
            self._guard(_end_span, span, False)
            raise
        if future is None:
            self._guard(_end_span, span, True)
        else:
            future.add_done_callback(
                lambda future: self._guard(
                    _end_span, span, not future.cancelled() and future.exception() is None
                )
            )
        return future

    def _begin_publish(self, publication: Publication) -> Any:
        span = sentry_sdk.start_span(op="queue.publish", name=publication.topic)
        span.set_data(names.SYSTEM, names.NSQ)
        span.set_data(names.DESTINATION, publication.topic)
        span.set_data(names.BODY_SIZE, sum(map(len, publication.bodies)))
        if publication.headers is not None:
            publication.headers.update(_trace_of(span))
        return span

    # -- handle ------------------------------------------------------------------------------------

    def handle(
        self, message: Message, handler: Handler, proceed: Callable[[Message], object]
    ) -> object:
        with sentry_sdk.isolation_scope() as scope:
            self._guard(_describe, scope, message, handler)
            self._guard(self._remember, message, handler)
            transaction = self._guard(_begin_process, message, handler)
            try:
                result = proceed(message)
            except BaseException as error:  # any exception, because a transaction must end
                self._guard(self._failed, message, error)
                self._guard(_end_span, transaction, _is_in_order(error))
                raise
            self._guard(_end_span, transaction, True)
            return result

    def _remember(self, message: Message, handler: Handler) -> None:
        self._handlers[message.topic, message.channel] = handler_name(handler)

    def _fingerprint(self, message: Message, error: BaseException) -> list[str] | None:
        """Return the fingerprint by which Sentry groups an event, or None for Sentry's own.

        Each handler's rejections are an issue of their own. Sentry's own grouping goes by the place
        of the ``raise``, which may be one place in this package for all handlers, for example for a
        body that cannot be decoded.
        """
        if not isinstance(error, Reject):
            return None
        where = message.topic, message.channel
        return ["{{ default }}", self._handlers.get(where, "/".join(where))]

    def _failed(self, message: Message, error: BaseException) -> None:
        if isinstance(error, (Requeue, Discard)) or ends_worker(error):
            return
        # The channel is part of the key: all channels of a topic have the message with one id.
        which = message.nsqd_address, message.channel, message.id, type(error)
        if which in self._told:
            return
        self._told[which] = None
        while len(self._told) > _MOST_TOLD:
            self._told.pop(next(iter(self._told), which), None)
        fingerprint = self._fingerprint(message, error)
        sentry_sdk.capture_exception(error, level="warning", fingerprint=fingerprint)

    def gave_up(self, message: Message, error: BaseException | None) -> None:
        """Report a message that was given up. The Reader calls this."""
        self._guard(self._gave_up, message, error)

    def _gave_up(self, message: Message, error: BaseException | None) -> None:
        with sentry_sdk.isolation_scope() as scope:
            _describe(scope, message, None)
            if error is None:
                text = f"gave up on a message of {message.topic}/{message.channel}"
                sentry_sdk.capture_message(text, level="error")
            else:
                # The event has no hint, because Sentry would drop it as a double of the warning.
                event, _ = event_from_exception(error)
                fingerprint = self._fingerprint(message, error)
                if fingerprint is not None:
                    event["fingerprint"] = fingerprint
                sentry_sdk.capture_event({**event, "level": "error"})


def _trace_of(span: Any) -> dict[str, str]:
    """Return the headers that continue the trace. Without tracing they still link the events."""
    if span.containing_transaction:
        return dict(span.iter_headers())
    found = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
    return {name: value for name, value in found.items() if value}


def _is_in_order(error: BaseException) -> bool:
    return isinstance(error, Discard) or (isinstance(error, Requeue) and not error.backoff)


def _describe(scope: Any, message: Message, handler: Handler | None) -> None:
    scope.set_tag("nsq.topic", message.topic)
    scope.set_tag("nsq.channel", message.channel)
    details = {
        "topic": message.topic,
        "channel": message.channel,
        "nsqd": message.nsqd_address,
        "message_id": message.id,
        "attempts": message.attempts,
    }
    if handler is not None:
        details["handler"] = handler_name(handler)
    scope.set_context("nsq", details)


def _begin_process(message: Message, handler: Handler) -> Any:
    transaction = sentry_sdk.continue_trace(
        dict(message.headers),
        op="queue.process",
        name=handler_name(handler),
        source="task",
    )
    span = sentry_sdk.start_transaction(transaction)
    span.__enter__()
    span.set_data(names.SYSTEM, names.NSQ)
    span.set_data(names.DESTINATION, message.topic)
    span.set_data(names.MESSAGE_ID, message.id)
    span.set_data(names.BODY_SIZE, len(message.body))
    span.set_data("messaging.message.retry.count", message.attempts - 1)
    latency = max(0.0, time.time() * 1000 - message.timestamp / 1e6)
    span.set_data("messaging.message.receive.latency", latency)
    return span


def _end_span(span: Any, is_ok: bool) -> None:
    if span is None:
        return
    span.set_status("ok" if is_ok else "internal_error")
    if span.__class__.__name__ == "Transaction":
        span.__exit__(None, None, None)
    else:
        span.finish()
