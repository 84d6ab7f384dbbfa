"""A registered handler: its Reader, and the application context around each call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flask import Flask

from gnsqsync import Message, Reader
from gnsqsync.errors import ConfigError
from gnsqsync.flask.config import Settings, backend_of, read_settings
from gnsqsync.process.handler_claims import Claim, claim_of
from gnsqsync.process.handler_functions import check_successor
from gnsqsync.process.metrics_page import Exposed
from gnsqsync.process.settings import as_if_complete

__all__ = ["Handler", "InContext", "name_of"]


@dataclass(frozen=True)
class Handler:
    """A registered function, for every application of its extension object."""

    name: str
    topic: str
    channel: str
    function: Callable[[Message], object]
    options: Mapping[str, Any] = field(repr=False)

    @property
    def where(self) -> str:
        """Module and name of the function."""
        return f"{self.function.__module__}.{name_of(self.function, '__qualname__')}"

    def check(self, app: Flask) -> None:
        """Raise ConfigError if every message would be rejected with the application's config.

        A missing place for given up messages is no error here, because the application may only
        publish.
        """
        keywords = read_settings(app).reader_keywords(self.options)
        keywords = {**as_if_complete(keywords), "headers": keywords.get("headers", False)}
        Reader(self.topic, self.channel, InContext(app, self.function), **keywords)

    def check_successor_of(self, before: Handler) -> None:
        """Raise ConfigError unless this is the handler ``before``, imported again."""
        check_successor(self, before)

    def claim(self, settings: Settings | None = None) -> Claim:
        """Return the claim on the channel, to compare with those of the other handlers.

        ``settings``: None before they are known; the handlers of one extension object share a
        cluster anyway.
        """
        return claim_of(
            settings, self.topic, self.channel, self.function, self.options, where=self.where
        )

    def reader(self, app: Flask, *, exposed: Exposed | None = None, **overrides: Any) -> Reader:
        """Return a Reader for the handler, not started.

        ``overrides``: options that replace the handler's, unless they are None. ``exposed``: given
        by a command; the Reader then gets the Observer that NSQ_OBSERVER makes. Raises ConfigError,
        for example with a backend that reaches no nsqd, as in tests.
        """
        backend = backend_of(app)
        if backend != "nsq":
            raise ConfigError(
                f"{self.name} cannot consume: the backend is {backend!r}, which reaches no nsqd;"
                " NSQ_BACKEND = 'nsq' does"
            )
        given = {name: value for name, value in overrides.items() if value is not None}
        settings = read_settings(app)
        keywords = {**settings.reader_keywords(self.options), **given}
        if exposed is not None:
            of_config = settings.make_observer(self.topic, self.channel)
            keywords["observer"] = exposed.observers(
                self.topic, self.channel, keywords.get("observer"), of_config
            )
        return Reader(self.topic, self.channel, InContext(app, self.function), **keywords)


class InContext:
    """A handler as a function of a message, with an application context for each call."""

    def __init__(self, app: Flask, function: Callable[[Message], object]) -> None:
        self._app = app
        self._function = function
        # Log lines find the function's name here, as with any decorator.
        self.__wrapped__ = function

    def __call__(self, message: Message) -> object:
        with self._app.app_context():
            return self._function(message)

    def _limited(self, wrap: Callable[[Callable[[Message], object]], Any]) -> InContext:
        """Return a copy for ``time_limit``, which interrupts only the function, not the context."""
        return InContext(self._app, wrap(self._function))

    def worker_ended(self) -> None:
        ended = getattr(self._function, "worker_ended", None)
        if ended is not None:
            with self._app.app_context():
                ended()


def name_of(function: Callable[..., object], attribute: str) -> str:
    """Return the attribute of the function, or of the class of a callable object."""
    name: str = getattr(function, attribute, None) or getattr(type(function), attribute)
    return name
