"""Publishes of a Writer that has headers or middleware: what happens before they are sent.

Knows bodies and envelopes; knows no connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import TypeAlias

from gnsqsync import envelope
from gnsqsync.errors import ConfigError
from gnsqsync.middleware import Middleware, Publication, around_publish, overriding
from gnsqsync.options import check_body

__all__ = ["Around", "Send"]

# Gets the publication as the last middleware left it, and its bodies as they are sent.
Send: TypeAlias = Callable[[Publication, "list[bytes]"], "Future[None] | None"]


class Around:
    """Checks, runs the middlewares, and puts the bodies into envelopes. On the caller's thread."""

    def __init__(self, middlewares: Sequence[Middleware], headers: bool) -> None:
        self._middlewares = overriding(middlewares, "publish")
        # True if bodies go into envelopes.
        self.has_headers: bool = headers

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing around."""
        return not self._middlewares and not self.has_headers

    def check(self, headers: Mapping[str, str] | None) -> None:
        """ConfigError for headers that the Writer has not, or that the envelope refuses."""
        if headers is None:
            return
        if not self.has_headers:
            raise ConfigError(
                "headers are given, and the Writer has none: Writer(headers=True) puts each body"
                " into an envelope, which Readers with headers=True open"
            )
        if not isinstance(headers, Mapping):
            raise ConfigError(f"headers is {headers!r}; it must be a dict from name to value")
        if envelope.KEY in headers:
            envelope.check_key(headers[envelope.KEY])
        envelope.encode_head({envelope.KEY: envelope.new_key(), **headers})

    def run(
        self,
        topic: str,
        bodies: Sequence[bytes | str],
        headers: Mapping[str, str] | None,
        defer: float | None,
        max_size: int,
        send: Send,
    ) -> Future[None] | None:
        """Publish through ``send``; returns what it returned. ``max_size``: bytes of a body.

        Raises ConfigError as ``check``.
        """
        self.check(headers)
        publication = Publication(
            topic,
            [check_body(body, max_size) for body in bodies],
            dict(headers or {}) if self.has_headers else None,
            defer,
        )

        def send_encoded(publication: Publication) -> Future[None] | None:
            encoded = [*publication.bodies]
            if self.has_headers:
                encoded = _in_envelopes(encoded, publication.headers or {})
            return send(publication, encoded)

        return around_publish(self._middlewares, send_encoded)(publication)


def _in_envelopes(bodies: list[bytes], headers: dict[str, str]) -> list[bytes]:
    """Each with a key of its own, unless one is given."""
    if envelope.KEY not in headers:
        return [
            envelope.encode({**headers, envelope.KEY: envelope.new_key()}, body) for body in bodies
        ]
    if len(bodies) > 1:
        raise ConfigError(
            "the headers of publish_many() have a 'key', which would make one message of all;"
            " leave it out, and each message gets a key of its own"
        )
    envelope.check_key(headers[envelope.KEY])
    return [envelope.encode(headers, body) for body in bodies]
