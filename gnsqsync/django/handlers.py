"""``@nsq_handler``: which functions consume what, and the database around each message.

Knows Django's connections and transactions; knows no command and no signal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, Unpack, cast, overload

from django.core.cache import caches
from django.db import Error, connections, reset_queries, transaction
from django.utils.module_loading import autodiscover_modules

from gnsqsync import Message, Reader, ReaderOptionKeywords, Reject, typed
from gnsqsync.django.config import DEFAULT, get_alias
from gnsqsync.django.kept import make_kept
from gnsqsync.django.once import Once
from gnsqsync.errors import ConfigError, TimeLimitExceeded
from gnsqsync.options import check_handler, check_ran
from gnsqsync.service.handler_claims import Claim, claim_of
from gnsqsync.service.metrics_page import Exposed
from gnsqsync.service.once import KeyOf
from gnsqsync.service.settings import as_if_complete
from gnsqsync.service.uncalled import unless_called

__all__ = ["Handler", "all_handlers", "autodiscover", "nsq_handler", "select"]

MODULE = "nsq_handlers"

log: logging.Logger = logging.getLogger("gnsqsync.django")

Function = TypeVar("Function", bound=Callable[[Message], object])
Body = TypeVar("Body")
Result = TypeVar("Result")

_handlers: dict[str, Handler] = {}


@overload
def nsq_handler(
    topic: str,
    channel: str,
    *,
    name: str | None = None,
    alias: str = DEFAULT,
    per_message_transaction: bool | str = False,
    once: bool | KeyOf = False,
    body: None = None,
    **options: Unpack[ReaderOptionKeywords],
) -> Callable[[Function], Function]: ...


@overload
def nsq_handler(
    topic: str,
    channel: str,
    *,
    name: str | None = None,
    alias: str = DEFAULT,
    per_message_transaction: bool | str = False,
    once: bool | KeyOf = False,
    body: type[Body],
    **options: Unpack[ReaderOptionKeywords],
) -> Callable[[Callable[[Message, Body], Result]], Callable[[Message, Body], Result]]: ...


def nsq_handler(
    topic: str,
    channel: str,
    *,
    name: str | None = None,
    alias: str = DEFAULT,
    per_message_transaction: bool | str = False,
    once: bool | KeyOf = False,
    body: Any = None,
    **options: Unpack[ReaderOptionKeywords],
) -> Callable[[Any], Any]:
    """Have ``manage.py nsq_consume`` call the function with each message of a channel.

    In a module ``nsq_handlers`` of an app, which is found by itself. The function stays as it is;
    it returns, raises ``Requeue`` or another exception, or detaches the message, as the handler of
    a Reader does. Django's old database connections are closed before and after each message.

    Args:
        topic: As of the Reader.
        channel: As of the Reader.
        name: For ``manage.py nsq_consume``; None: ``<app>.<function>``.
        alias: The entry of ``GNSQSYNC``.
        per_message_transaction: True or the alias of a database: one ``transaction.atomic()`` for
            each message, FIN after its commit; an exception rolls it back.
        once: True: a message whose key was handled by this topic and channel before is finished
            without a call. A marker of it is written in the message's transaction, in the table of
            ``gnsqsync.django.inbox``. The key is a header, so the entry needs ``"headers": True``
            in its OPTIONS; ``headers=True`` here says that only other programs publish, with
            headers. Or a function that returns the key of a message, for bodies without headers. A
            message without a key is rejected.
        body: As of the Reader: the type of the bodies; the function is called with the message and
            its body.
        **options: Those of Reader but the addresses, such as ``concurrency``, ``max_attempts``,
            ``dead_letter_topic``; ``shared=True`` for handlers of one topic and channel.

    Returns:
        A decorator.

    Raises:
        ConfigError: A value is not allowed, or the name is taken.
    """
    wrong = options.keys() & {"nsqd_tcp_addresses", "lookupd_http_addresses"}
    if wrong:
        raise ConfigError(f"{min(wrong)} is given in the settings: GNSQSYNC[{alias!r}]")
    if not isinstance(per_message_transaction, (bool, str)):
        raise ConfigError(
            f"per_message_transaction is {per_message_transaction!r}; it must be True, False or"
            " the alias of a database"
        )
    if not isinstance(once, bool) and not callable(once):
        raise ConfigError(
            f"once is {once!r}; it must be True, False or a function that returns a message's key"
        )
    # The author knows of messages with headers that the Writers of the entry do not make.
    says_headers = "headers" in options
    if once is True and not options.setdefault("headers", True):
        raise ConfigError(
            "once=True goes by the header 'key', and headers is False; give once= a function that"
            " returns the key of a message"
        )

    def register(function: Callable[..., object]) -> Callable[..., object]:
        its_name = getattr(function, "__qualname__", f"the handler of {topic}/{channel}")
        if body is None:
            check_handler(its_name, function)
            called = cast("Callable[[Message], object]", function)
        else:
            called = typed(body, name=its_name)(function)
        # Checks names and options where the author sees it; it starts nothing.
        checked = as_if_complete(options)
        Reader(topic, channel, called, nsqd_tcp_addresses="127.0.0.1:4150", **checked)
        asked = per_message_transaction or bool(once)
        database = ("default" if asked is True else asked) or None
        handler = Handler(
            name=name or _name_of(function),
            topic=topic,
            channel=channel,
            function=called,
            alias=alias,
            database=database,
            once=Once(database, once if callable(once) else None) if database and once else None,
            options=options,
            says_headers=says_headers,
        )
        before = _handlers.get(handler.name)
        if before is not None:
            handler.check_successor_of(before)
        _handlers[handler.name] = handler
        return function

    return register


def _name_of(function: Callable[..., object]) -> str:
    module, name = _place_of(function)
    app = module.removesuffix(f".{MODULE}").split(".")[-1]
    return f"{app}.{name}"


def _place_of(function: Callable[..., object]) -> tuple[str, str]:
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return getattr(function, "__module__", None) or "", name


@dataclass(frozen=True)
class Handler:
    """A registered function; called by the workers of a Reader, each on a thread of its own."""

    name: str
    topic: str
    channel: str
    function: Callable[[Message], object]
    alias: str
    database: str | None
    options: Mapping[str, Any] = field(repr=False)
    once: Once | None = field(default=None, repr=False)
    # Whether the function may be interrupted.
    is_limited: bool = field(default=False, repr=False)
    # True if the handler's own options name ``headers``.
    says_headers: bool = field(default=False, repr=False)

    def __call__(self, message: Message) -> None:
        """Handle one message, with usable database connections and none kept for too long."""
        reset_queries()
        close_old_connections()
        try:
            self.handle(message)
        except TimeLimitExceeded:
            if self.is_limited:
                forget_connections()
            raise
        finally:
            close_old_connections()

    def handle(self, message: Message) -> None:
        """Handle one message, on the database connections that the thread has."""
        if self.database is None:
            check_ran(self.function(message), message)
            return
        with unless_called(self.function) as function:
            if self.once is None:
                with transaction.atomic(using=self.database):
                    check_ran(function(message), message)
            else:
                key = self.once.key(message)
                with transaction.atomic(using=self.database):
                    self.once.run(key, message, function)

    def _limited(self, wrap: Callable[[Callable[[Message], object]], Any]) -> Handler:
        """For ``time_limit``: neither the transaction's end nor what follows is interrupted."""
        return replace(self, function=wrap(self.function), is_limited=True)

    def _worker_began(self) -> None:
        """On the thread of a worker, before its first message."""
        make_kept()

    def worker_ended(self) -> None:
        """On the thread of a worker that ends: first ``worker_ended()`` of the function, then close
        its connections."""
        ended = getattr(self.function, "worker_ended", None)
        try:
            if ended is not None:
                ended()
        finally:
            self._close_connections()

    @staticmethod
    def _close_connections() -> None:
        for connection in connections.all(initialized_only=True):
            if not connection.in_atomic_block:
                connection.close()
        caches.close_all()

    @property
    def __wrapped__(self) -> Callable[[Message], object]:
        """As of any decorator: what log lines name."""
        return self.function

    @property
    def gives_up_eagerly(self) -> Callable[[Message, Reject], None] | None:
        """The end of a rejected message in eager mode; None: who publishes gets the Reject."""
        return None

    @property
    def _gnsqsync_once_by_header(self) -> bool | None:
        """The mark by which a Reader knows that the work is committed within the call."""
        return None if self.once is None else self.once.by_header

    def check_successor_of(self, before: Handler) -> None:
        """Raise ConfigError unless this is the handler ``before``, imported again."""
        if before.where != self.where:
            raise ConfigError(
                f"{self.where} and {before.where} are both called {self.name!r}; give one of them"
                " another name="
            )
        if (before.alias, before.topic, before.channel) != (self.alias, self.topic, self.channel):
            raise ConfigError(
                f"{self.where} is registered for {before.topic}/{before.channel} and for"
                f" {self.topic}/{self.channel} under one name, {self.name!r}, so only one of them"
                " would be consumed; give one of them another name="
            )

    def claim(self, where: str, owner: object = None) -> Claim:
        """Return the claim on the channel, to compare with those of the other handlers."""
        return claim_of(
            get_alias(self.alias),
            self.topic,
            self.channel,
            self.function,
            self.options,
            where=where,
            settings_name=self.alias,
            owner=owner,
        )

    @property
    def app(self) -> str:
        """The first part of its name."""
        return self.name.partition(".")[0]

    @property
    def where(self) -> str:
        """The module and the name of the function."""
        return ".".join(_place_of(self.function))

    def reader(self, *, exposed: Exposed | None = None, **overrides: Any) -> Reader:
        """A Reader for it, not started; ``overrides``: options that are not None win.

        With ``exposed``, as of a command, it gets the Observer that OBSERVER in the settings makes.
        """
        alias = get_alias(self.alias)
        if alias.is_memory:
            raise ConfigError(
                f"{self.name} cannot consume: GNSQSYNC[{self.alias!r}] has the {alias.backend}"
                " backend"
            )
        if exposed is not None and alias.is_captured:
            raise ConfigError(
                f"{self.name} cannot consume in a test, where GNSQSYNC[{self.alias!r}] reaches no"
                " nsqd; 'BACKEND': 'nsq' in it allows a real one"
            )
        self.check()
        given = {name: value for name, value in overrides.items() if value is not None}
        keywords = {**alias.reader_keywords(self.options), **given}
        if exposed is not None:
            of_settings = alias.make_observer(self.topic, self.channel)
            keywords["observer"] = exposed.observers(
                self.topic, self.channel, keywords.get("observer"), of_settings
            )
        return Reader(self.topic, self.channel, self, **keywords)

    def check(self) -> None:
        """Raise ConfigError if no transaction could begin, no marker be written, or no key come."""
        if self.database is None:
            return
        if self.database not in connections.settings:
            known = ", ".join(map(repr, connections.settings))
            raise ConfigError(
                f"there is no database {self.database!r} for the transactions; DATABASES has"
                f" {known}"
            )
        if connections.settings[self.database]["ENGINE"] == "django.db.backends.dummy":
            raise ConfigError(
                f"DATABASES[{self.database!r}] has no ENGINE, and the handler needs transactions"
            )
        if self.once is not None:
            self.once.check()
        if not self.says_headers and self.misses_keys:
            raise ConfigError(
                f"once=True goes by the header 'key', and GNSQSYNC[{self.alias!r}]['OPTIONS'] has"
                " no 'headers': True, so every message that this project publishes would be"
                " rejected; set it, or give once= a function that returns the key of a message, or"
                " give the handler headers=True if only other programs publish here, with headers"
            )

    @property
    def misses_keys(self) -> bool:
        """True if keys are headers, and the Writers of the entry make none."""
        by_header = self.once is not None and self.once.by_header
        return by_header and not get_alias(self.alias).options.get("headers")


def close_old_connections() -> None:
    """As Django around a request: what is broken or older than CONN_MAX_AGE is closed.

    For this thread only, and not in a transaction, such as that of a TestCase around a handler that
    it calls. Errors are logged: a handled message must not come again because of them.
    """
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            continue
        try:
            connection.close_if_unusable_or_obsolete()
        except Error:
            log.warning("closing a connection to %s failed", connection.alias, exc_info=True)


def forget_connections() -> None:
    """Close this thread's connections and make others when they are used next.

    After a function was interrupted: perhaps in the middle of a transaction's begin or end, after
    which the connection may take the transactions to come for parts of that one.
    """
    for connection in connections.all(initialized_only=True):
        try:
            connection.close()
        except Error:
            log.warning("closing a connection to %s failed", connection.alias, exc_info=True)
        del connections[connection.alias]


def autodiscover() -> None:
    """Import the module ``nsq_handlers`` of each installed app."""
    autodiscover_modules(MODULE)


def all_handlers() -> list[Handler]:
    """Every handler of the installed apps, by name."""
    autodiscover()
    return [_handlers[name] for name in sorted(_handlers)]


def select(words: list[str], topics: list[str], channels: list[str]) -> list[Handler]:
    """Those that the command line names; all of them for no word.

    A word is a whole name, an app, or the end of a name that one handler only has. ``topics``
    and ``channels`` then leave out the others, if any are given. ConfigError says what there is.
    """
    handlers = all_handlers()
    if not handlers:
        raise ConfigError(
            f"no handlers: no installed app has a module {MODULE} with an @nsq_handler in it"
        )
    named = [handler for word in words for handler in _named(word, handlers)] if words else handlers
    chosen = [
        handler
        for handler in {handler.name: handler for handler in named}.values()
        if (not topics or handler.topic in topics) and (not channels or handler.channel in channels)
    ]
    if not chosen:
        wanted = [f"topic {topic}" for topic in topics]
        wanted += [f"channel {channel}" for channel in channels]
        raise ConfigError(f"no handler for {', '.join(wanted)}; --list shows all")
    return chosen


def _named(word: str, handlers: list[Handler]) -> list[Handler]:
    found = [handler for handler in handlers if word in (handler.name, handler.app)]
    if found:
        return found
    found = [handler for handler in handlers if handler.name.rpartition(".")[2] == word]
    if len(found) == 1:
        return found
    names = ", ".join(handler.name for handler in found or handlers)
    raise ConfigError(
        f"{word!r} may be each of {names}"
        if found
        else f"no handler is called {word!r}; there are {names}"
    )
