"""Writer that keeps published messages instead of sending them, for the tests of applications.

Knows what a Writer checks. Must not know an nsqd. The Django and Flask integrations hand it out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from gnsqsync import envelope
from gnsqsync.addresses import AddressLike
from gnsqsync.errors import ConfigError
from gnsqsync.stats import WriterStats
from gnsqsync.writer.writer import Writer

__all__ = ["CapturedMessage", "MemoryWriter"]


@dataclass(frozen=True, slots=True)
class CapturedMessage:
    """A published message. A test may pass it to a handler in place of a delivered one.

    Attributes:
        topic: Name of the topic.
        body: bytes, without an envelope.
        defer: Seconds until nsqd would deliver it; None: at once.
        attempts: Number of the delivery, for handlers that read it.
        headers: Names and values; empty if the Writer has no headers.
    """

    topic: str
    body: bytes
    defer: float | None = None
    attempts: int = 1
    headers: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        """Return the body parsed as JSON. Raises ValueError if it is not JSON."""
        return json.loads(self.body)


class MemoryWriter(Writer):
    """A Writer that takes the same options and makes the same checks, but connects to nothing.

    Args:
        nsqd_tcp_addresses: As in Writer; checked, and never dialled.
        messages: Returns the list that receives published messages. None means a list of its own.
        deliver: Called with the messages of one call, once they are in the list. None means no
            call.
        **options: The options of a Writer. ``copies`` and ``copies_min`` do not count.

    Raises:
        ConfigError: A value is not allowed.

    Threads:
        Any thread may publish.
    """

    def __init__(
        self,
        nsqd_tcp_addresses: AddressLike | None = None,
        *,
        messages: Callable[[], list[CapturedMessage]] | None = None,
        deliver: Callable[[list[CapturedMessage]], None] | None = None,
        **options: Any,
    ) -> None:
        # The list is the only place for a message, so copies would never be reached.
        super().__init__(nsqd_tcp_addresses, **{**options, "copies": 1, "copies_min": None})
        own: list[CapturedMessage] = []
        self._list = messages or (lambda: own)
        self._deliver = deliver

    @property
    def messages(self) -> list[CapturedMessage]:
        """The published messages, oldest first."""
        return self._list()

    def _publish(
        self, topic: str, body: bytes | str, defer: float | None, timeout: float | None
    ) -> None:
        self._timeout(timeout)
        self._keep(topic, [body], defer)

    def _publish_many(
        self, topic: str, bodies: Sequence[bytes | str], timeout: float | None
    ) -> None:
        self._timeout(timeout)
        if not bodies:
            raise ConfigError("bodies is empty; nsqd accepts an MPUB of one message or more")
        self._keep(topic, bodies, None)

    def _publish_async(self, topic: str, body: bytes | str, defer: float | None) -> Future[None]:
        self._keep(topic, [body], defer)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _keep(self, topic: str, bodies: Sequence[bytes | str], defer: float | None) -> None:
        began = time.monotonic()
        for body in bodies:
            # ``_encode`` checks names, sizes and times.
            self._encode(topic, body, defer)
        self._check_open()
        messages = [self._captured(topic, body, defer) for body in bodies]
        self._list().extend(messages)
        self._events.published(topic, len(bodies), began)
        if self._deliver is not None:
            self._deliver(messages)

    def _captured(self, topic: str, body: bytes | str, defer: float | None) -> CapturedMessage:
        data = body.encode() if isinstance(body, str) else bytes(body)
        opened = envelope.decode(data) if self._has_headers else None
        headers, data = opened or ({}, data)
        return CapturedMessage(topic, data, defer, headers=headers)

    def connect(self, timeout: float | None = None) -> None:
        self._check_open()

    def ping(self, timeout: float | None = None) -> None:
        self._check_open()

    @property
    def is_connected(self) -> bool:
        return not self._closed

    def stats(self) -> WriterStats:
        self._check_open()
        return WriterStats(
            connections=(),
            published=len(self._list()),
            refused=0,
            not_sent=0,
            outcome_unknown=0,
        )

    def __repr__(self) -> str:
        return f"<MemoryWriter with {len(self._list())} messages>"
