"""Failures and traces for Sentry. Needs the extra ``sentry``.

Knows sentry_sdk; sets nothing up: your ``sentry_sdk.init()`` says where events go.
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

# How many messages are remembered whose failures were told.
_MOST_TOLD = 10_000


class Sentry(Middleware, Observer):
    """Pass it as ``middleware=[...]`` and as ``observer=``.

    * A handler that fails: one warning for each message and kind of exception, however many
      attempts follow, with topic, channel, nsqd, id, attempts and handler as the context ``nsq``.
    * A message that is given up: an error; this needs the ``observer=``. ``Requeue`` and
      ``Discard`` are no errors. The ``Reject`` of each handler is an issue of its own.
    * A transaction around each handler, and a span around each publish, with what Sentry's page on
      queues shows. With headers on both sides they are one trace.

    What sentry_sdk raises is logged once and changes nothing. ``_told`` is only ever changed by
    single steps of a dict.
    """

    fails_after_handler = False

    def __init__(self) -> None:
        self._guard = Guard("Sentry")
        self._told: dict[tuple[str, str, str, type[BaseException]], None] = {}
        # Handlers by topic and channel: an Observer is not told which handler had a message.
        self._handlers: dict[tuple[str, str], str] = {}

    # -- publish -----------------------------------------------------------------------------------

    def publish(self, publication: Publication, proceed: Publish) -> Future[None] | None:
        span = self._guard(self._begin_publish, publication)
        if span is None:
            return proceed(publication)
        try:
            future = proceed(publication)
        except BaseException:  # also one from outside: a span has an end
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
            except BaseException as error:  # also one from outside: a transaction has an end
                self._guard(self._failed, message, error)
                self._guard(_end_span, transaction, _is_in_order(error))
                raise
            self._guard(_end_span, transaction, True)
            return result

    def _remember(self, message: Message, handler: Handler) -> None:
        self._handlers[message.topic, message.channel] = handler_name(handler)

    def _fingerprint(self, message: Message, error: BaseException) -> list[str] | None:
        """Return what Sentry groups an event by, or None for its own way.

        Rejections are issues of their handler. A Reject may come from one place of this package
        for all handlers, as for a body that cannot be read, and Sentry groups by the place.
        """
        if not isinstance(error, Reject):
            return None
        where = message.topic, message.channel
        return ["{{ default }}", self._handlers.get(where, "/".join(where))]

    def _failed(self, message: Message, error: BaseException) -> None:
        if isinstance(error, (Requeue, Discard)) or ends_worker(error):
            return
        # Each channel of a topic has the message under the same id.
        which = message.nsqd_address, message.channel, message.id, type(error)
        if which in self._told:
            return
        self._told[which] = None
        while len(self._told) > _MOST_TOLD:
            self._told.pop(next(iter(self._told), which), None)
        fingerprint = self._fingerprint(message, error)
        sentry_sdk.capture_exception(error, level="warning", fingerprint=fingerprint)

    def gave_up(self, message: Message, error: BaseException | None) -> None:
        """As of an Observer."""
        self._guard(self._gave_up, message, error)

    def _gave_up(self, message: Message, error: BaseException | None) -> None:
        with sentry_sdk.isolation_scope() as scope:
            _describe(scope, message, None)
            if error is None:
                text = f"gave up on a message of {message.topic}/{message.channel}"
                sentry_sdk.capture_message(text, level="error")
            else:
                # Without a hint: that it was told as a warning a moment ago makes it no double.
                event, _ = event_from_exception(error)
                fingerprint = self._fingerprint(message, error)
                if fingerprint is not None:
                    event["fingerprint"] = fingerprint
                sentry_sdk.capture_event({**event, "level": "error"})


def _trace_of(span: Any) -> dict[str, str]:
    """For the headers of what is published; also where nothing is traced, only told apart."""
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
