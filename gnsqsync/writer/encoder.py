"""Checks, middlewares, keys and envelopes of a Writer, apart from the moment of the publish.

Knows the rules of a Writer for a message. Knows no connection: a publish is handed to the Writer.

An outbox calls ``prepare`` where a message is written, and ``seal`` and ``publish`` where the
message leaves.

Surprise: middlewares run in ``prepare`` only. Nothing that they would do runs a second time when
the message leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gnsqsync import envelope
from gnsqsync.errors import ConfigError
from gnsqsync.middleware import Publication
from gnsqsync.writer.around import Around

__all__ = ["Encoder", "Prepared"]


# Checks a message: topic, body, seconds until its delivery. Returns the command.
_Encode: TypeAlias = Callable[[str, "bytes | str", "float | None"], bytes]
# Publish without middlewares: one message (topic, message, seconds until its delivery, seconds),
# and several (topic, messages, seconds).
_PublishOne: TypeAlias = Callable[[str, bytes, "float | None", "float | None"], None]
_PublishMany: TypeAlias = Callable[[str, Sequence[bytes], "float | None"], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A message that a Writer has checked, ready to be stored.

    Attributes:
        topic: Name of the topic.
        body: bytes, without an envelope.
        headers: Names and values without the key; None if the Writer has no headers.
        key: Stays the same through retries. A Writer without headers does not send it.
    """

    topic: str
    body: bytes
    headers: dict[str, str] | None
    key: str


class Encoder:
    """The rules of a Writer for code that stores messages and publishes them later.

    An outbox calls ``prepare`` where a message is written, and ``seal`` and ``publish`` where the
    message leaves, perhaps in another process with an equal Writer. ``Writer.encoder`` makes it.

    Args:
        around: The middlewares and headers of the Writer.
        max_size: Bytes of a body, before its envelope.
        encode: Checks a message (topic, body, seconds until its delivery), and returns the command.
        publish_one: Publishes one message without middlewares.
        publish_many: Publishes several messages without middlewares.

    Threads:
        Any thread may use it, as the Writer. Only ``publish`` talks to an nsqd.
    """

    __slots__ = ("_around", "_encode", "_max_size", "_publish_many", "_publish_one")

    def __init__(
        self,
        around: Around,
        max_size: int,
        encode: _Encode,
        publish_one: _PublishOne,
        publish_many: _PublishMany,
    ) -> None:
        self._around = around
        self._max_size = max_size
        self._encode = encode
        self._publish_one = publish_one
        self._publish_many = publish_many

    @property
    def has_headers(self) -> bool:
        """True if the Writer puts bodies into envelopes (``headers=True``)."""
        return self._around.has_headers

    def check(
        self,
        topic: str,
        body: bytes | str,
        *,
        defer: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Raise ConfigError if ``Writer.publish`` would refuse these values. Run no middleware.

        Args:
            topic: Name of the topic.
            body: bytes, or a str, which is sent as UTF-8; not empty.
            defer: Seconds, 0 to ``max_defer``; None: at once.
            headers: Names and values, of a Writer with ``headers=True``. None means no names.

        Raises:
            ConfigError: ``Writer.publish`` would refuse a value.
        """
        self._encode(topic, body, defer)
        self._around.check(headers)

    def prepare(
        self,
        topic: str,
        bodies: Iterable[bytes | str],
        *,
        headers: Mapping[str, str] | None = None,
        key: str | None = None,
    ) -> list[Prepared]:
        """Run the middlewares, check each message, and give each a key.

        Args:
            topic: The topic; a middleware may change it.
            bodies: The messages; bytes, or str, which are sent as UTF-8; not empty.
            headers: Names and values for each message, of a Writer with ``headers=True``; None:
                none but the key.
            key: The key of a single message, also if the Writer has no headers; None: a new one.

        Returns:
            The messages in their order. A middleware may drop or add some.

        Raises:
            ConfigError: A value is not allowed.
        """
        if key is not None:
            envelope.check_key(key, "key")
            if self.has_headers:
                headers = {**(headers or {}), envelope.KEY: key}
        prepared: list[Prepared] = []

        def keep(publication: Publication, encoded: list[bytes]) -> None:
            for data in encoded:
                self._encode(publication.topic, data, None)
                # With the key that the message was given just now.
                its_headers, body = (self.has_headers and envelope.decode(data)) or (None, data)
                its_key = its_headers.pop(envelope.KEY) if its_headers else key
                prepared.append(
                    Prepared(publication.topic, body, its_headers, its_key or envelope.new_key())
                )

        self._around.run(topic, list(bodies), headers, None, self._max_size, keep)
        return prepared

    def seal(self, body: bytes, *, headers: Mapping[str, str] | None, key: str) -> bytes:
        """Return the bytes of a prepared message as nsqd gets them.

        Args:
            body: As ``prepare`` returned it.
            headers: As ``prepare`` returned them. None leaves the body alone if the Writer has no
                headers.
            key: As ``prepare`` returned it.

        Raises:
            ConfigError: The body is empty, or a header is not allowed.
        """
        if not body:
            raise ConfigError("the body is empty; nsqd takes no empty message")
        if headers is None and not self.has_headers:
            return body
        return envelope.encode({**(headers or {}), envelope.KEY: key}, body)

    def publish(self, topic: str, sealed: Sequence[bytes], *, timeout: float | None = None) -> None:
        """Publish sealed messages; return when nsqd has said OK. Run no middleware again.

        Args:
            topic: Name of the topic.
            sealed: The messages, as ``seal`` returned them. One is a PUB, several are few MPUBs.
            timeout: Seconds; None: the Writer's ``publish_timeout``.

        Raises:
            PublishError: As ``Writer.publish_many``; its ``acknowledged`` counts from the first.
            ConfigError: A value is not allowed; nothing was sent.
            ClosedError: After ``close()``.
        """
        if len(sealed) == 1:
            self._publish_one(topic, sealed[0], None, timeout)
        else:
            self._publish_many(topic, sealed, timeout)
