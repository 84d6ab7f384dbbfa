"""Work of a Writer with headers or middleware on a publish, before it is sent.

Knows bodies and envelopes. Must not know a connection.

``run`` calls the middlewares, the first one outermost, and puts bodies into envelopes at the
innermost point.

Surprise: a middleware therefore sees bodies and headers apart, and never an envelope.
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

# Function that sends: its arguments are the publication as the last middleware left it, and the
# encoded bodies.
Send: TypeAlias = Callable[[Publication, "list[bytes]"], "Future[None] | None"]


class Around:
    """Checks, middlewares and envelopes around a publish. Runs on the caller's thread."""

    def __init__(self, middlewares: Sequence[Middleware], headers: bool) -> None:
        self._middlewares = overriding(middlewares, "publish")
        # True if bodies go into envelopes.
        self.has_headers: bool = headers

    @property
    def is_plain(self) -> bool:
        """True if the Writer has neither middleware nor headers."""
        return not self._middlewares and not self.has_headers

    def check(self, headers: Mapping[str, str] | None) -> None:
        """Raise ConfigError if the Writer has no headers, or the envelope refuses these."""
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
        """Publish through ``send`` and return its result. ``max_size``: bytes of a body.

        Raises ConfigError as ``check`` does.
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
    """Put each body into an envelope, with a key of its own unless ``headers`` has one."""
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
