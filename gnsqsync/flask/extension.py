"""The extension object: publishing, handlers, and the state in ``app.extensions``.

The object itself belongs to no application: it holds the handlers. ``current_app`` gives it the
rest. dict.setdefault is atomic, so there is no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from flask import Flask, current_app

from gnsqsync import Message, ReaderOptionKeywords, Writer
from gnsqsync.errors import ConfigError
from gnsqsync.flask.commands import commands_of
from gnsqsync.flask.config import KEYS, backend_of, read_settings
from gnsqsync.flask.eager import deliver_of
from gnsqsync.flask.handlers import Handler, name_of
from gnsqsync.process.handler_claims import check_claims
from gnsqsync.process.handler_functions import called_function
from gnsqsync.testing.keepable import KeepableMemoryWriter, KeepableWriter
from gnsqsync.testing.memory import CapturedMessage, MemoryWriter

__all__ = ["NSQ", "State"]

NAME = "gnsqsync"

Function = TypeVar("Function", bound=Callable[[Message], object])
Body = TypeVar("Body")
Result = TypeVar("Result")


@dataclass
class State:
    """The state of one application, in ``app.extensions["gnsqsync"]``."""

    nsq: NSQ
    # Writers by backend, because TESTING may change.
    writers: dict[str, Writer] = field(default_factory=dict)
    # Writers of the running ``captured_messages()``, the innermost last.
    captured: list[MemoryWriter] = field(default_factory=list)


class NSQ:
    """The extension by which a Flask application publishes to NSQ and consumes with handlers.

    Use ``NSQ(app)``, or ``NSQ()`` at the top of a module and ``init_app(app)`` in the factory, for
    any number of applications. The state of an application is in ``app.extensions["gnsqsync"]``, so
    publishing needs an application context. Requests and ``flask`` commands have one.

    Args:
        app: The application, for ``init_app()``. None: call that later.

    Raises:
        ConfigError: As in ``init_app()``.
        RuntimeError: As in ``init_app()``.

    Threads:
        Any thread with an application context may publish.
    """

    def __init__(self, app: Flask | None = None) -> None:
        self._handlers: dict[str, Handler] = {}
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Check the config, and add the commands ``flask nsq``. Connects to nothing.

        Args:
            app: The application to which the commands and the state are added.

        Raises:
            ConfigError: A ``NSQ_`` key is wrong, the options of a registered handler do not fit the
                config, or two handlers have one topic and channel.
            RuntimeError: The application has an NSQ already.
        """
        if NAME in app.extensions:
            raise RuntimeError("this application has an NSQ already; init_app() is for once")
        settings = read_settings(app)
        check_claims(handler.claim(settings) for handler in self._handlers.values())
        for handler in self._handlers.values():
            handler.check(app)
        for key, value in KEYS.items():
            app.config.setdefault(key, value)
        app.extensions[NAME] = State(self)
        app.cli.add_command(commands_of(self))
        app.shell_context_processor(lambda: {"nsq": self})

    @property
    def writer(self) -> Writer:
        """The Writer of the current application, the same for all threads. Do not close it.

        The Writer connects at its first publish, and anew in the child of a fork. It is closed at
        the end of the process. In tests it is a memory writer with a list ``messages``. A module
        may store the Writer: each call is forwarded to the Writer that counts at that moment.
        """
        app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]
        return self._writer_of(app)

    def _writer_of(self, app: Flask) -> Writer:
        state = self._state(app)
        if state.captured:
            return state.captured[-1]
        backend = backend_of(app)
        writer = state.writers.get(backend)
        if writer is None:
            made: Writer
            if backend == "nsq":
                keywords = read_settings(app).writer_keywords()
                made = KeepableWriter(**keywords, current=partial(self._writer_of, app))
            else:
                made = self._memory_writer(app, eager=backend == "eager")
            writer = state.writers.setdefault(backend, made)
        return writer

    def _memory_writer(self, app: Flask, *, eager: bool) -> MemoryWriter:
        """Return a new MemoryWriter with the limits of the application's config.

        With ``eager`` each publish calls the handlers.
        """
        keywords = read_settings(app).writer_keywords()
        keywords.pop("lookupd_http_addresses", None)
        return KeepableMemoryWriter(
            **keywords,
            deliver=deliver_of(app, self._handlers) if eager else None,
            current=partial(self._writer_of, app),
        )

    def publish(
        self,
        topic: str,
        body: bytes | str,
        *,
        defer: float | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish with ``writer``. Return when nsqd has the message, or raise PublishError.

        Args:
            topic: The topic; nsqd creates it.
            body: bytes, or a str, which is sent as UTF-8; not empty.
            defer: Seconds until nsqd delivers the message. Default: at once.
            timeout: Seconds until the publish gives up. Default: ``publish_timeout`` of the config.
            headers: For ``message.headers``; needs ``headers=True`` in ``NSQ_OPTIONS``. Default:
                none.
        """
        self.writer.publish(topic, body, defer=defer, timeout=timeout, headers=headers)

    def publish_many(
        self,
        topic: str,
        bodies: Iterable[bytes | str],
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish several messages with ``writer``, with as few MPUB as possible.

        Args:
            topic: The topic; nsqd creates it.
            bodies: The messages, as for ``publish()``; one or more.
            timeout: Seconds for all messages. Default: ``publish_timeout`` of the config.
            headers: As for ``publish()``. Default: none.
        """
        self.writer.publish_many(topic, bodies, timeout=timeout, headers=headers)

    @overload
    def handler(
        self,
        topic: str,
        channel: str,
        *,
        name: str | None = None,
        body: None = None,
        **options: Unpack[ReaderOptionKeywords],
    ) -> Callable[[Function], Function]: ...

    @overload
    def handler(
        self,
        topic: str,
        channel: str,
        *,
        name: str | None = None,
        body: type[Body],
        **options: Unpack[ReaderOptionKeywords],
    ) -> Callable[[Callable[[Message, Body], Result]], Callable[[Message, Body], Result]]: ...

    def handler(
        self,
        topic: str,
        channel: str,
        *,
        name: str | None = None,
        body: Any = None,
        **options: Unpack[ReaderOptionKeywords],
    ) -> Callable[[Any], Any]:
        """Have ``flask nsq consume`` call the function with each message of a channel.

        The function itself is unchanged. Like the handler of a Reader, it returns, raises
        ``Requeue`` or another exception, or detaches the message. Each call has an application
        context of its own.

        Args:
            topic: The topic, as for the Reader.
            channel: The channel, as for the Reader.
            name: Name of the handler for ``flask nsq consume``. Default: the function's name.
            body: The type of the bodies, as for the Reader; the function is then called with the
                message and its body. Default: none.
            **options: Options of Reader but the addresses, such as ``concurrency``,
                ``max_in_flight``, ``max_attempts``, ``dead_letter_topic``; ``shared=True`` for
                handlers of one topic and channel.

        Returns:
            A decorator, which returns the function.

        Raises:
            ConfigError: A value is not allowed, the name is taken, or another handler has the
                topic and channel, and not both have ``shared=True``.
        """
        wrong = options.keys() & {"nsqd_tcp_addresses", "lookupd_http_addresses"}
        if wrong:
            raise ConfigError(f"{min(wrong)} is given in the config of the application")

        def register(function: Callable[..., object]) -> Callable[..., object]:
            called = called_function(function, topic, channel, body, options)
            handler = Handler(
                name=name or name_of(function, "__name__"),
                topic=topic,
                channel=channel,
                function=called,
                options=options,
            )
            before = self._handlers.get(handler.name)
            # A module that is imported again registers the same handler again.
            if before is not None:
                handler.check_successor_of(before)
            others = [one for name, one in self._handlers.items() if name != handler.name]
            check_claims(one.claim() for one in [*others, handler])
            self._handlers[handler.name] = handler
            return function

        return register

    @property
    def handlers(self) -> dict[str, Handler]:
        """Handlers by name, in the order of their registration."""
        return dict(self._handlers)

    @contextmanager
    def captured_messages(
        self, app: Flask | None = None, *, eager: bool = False
    ) -> Iterator[list[CapturedMessage]]:
        """Capture the messages that the application publishes, instead of sending them to nsqd.

        Args:
            app: The application. Default: the current one.
            eager: True if each publish calls the handlers of its topic, as with ``NSQ_BACKEND``
                ``"eager"``. Default: False.

        Yields:
            The list of messages. It grows with each publish. Each message has ``topic``, ``body``,
            ``defer`` and ``json()``.

        Threads:
            Publishes of any thread are captured.
        """
        if app is None:
            app = current_app._get_current_object()  # type: ignore[attr-defined]
        assert app is not None
        state, writer = self._state(app), self._memory_writer(app, eager=eager)
        state.captured.append(writer)
        try:
            yield writer.messages
        finally:
            state.captured.remove(writer)

    def _state(self, app: Flask) -> State:
        state = app.extensions.get(NAME)
        if not isinstance(state, State) or state.nsq is not self:
            raise RuntimeError(f"{app.name!r} is not set up for this NSQ: call nsq.init_app(app)")
        return state
