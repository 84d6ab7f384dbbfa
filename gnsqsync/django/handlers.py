"""``@nsq_handler``: the functions that consume channels, and the database around each message.

Knows Django's connections and transactions; knows no command and no signal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, Unpack, overload

from django.core.cache import caches
from django.db import Error, connections, reset_queries, transaction
from django.utils.module_loading import autodiscover_modules

from gnsqsync import Message, Reader, ReaderOptionKeywords, Reject
from gnsqsync.django.config import DEFAULT, get_alias
from gnsqsync.django.kept import make_kept
from gnsqsync.django.once import Once
from gnsqsync.errors import ConfigError, TimeLimitExceeded
from gnsqsync.options import check_ran
from gnsqsync.outbox.once import KeyOf
from gnsqsync.outbox.uncalled import unless_called
from gnsqsync.process.handler_claims import Claim, claim_of
from gnsqsync.process.handler_functions import called_function, check_successor
from gnsqsync.process.metrics_page import Exposed

__all__ = ["Handler", "all_handlers", "autodiscover", "nsq_handler", "select"]

# Name of the module of an app in which handlers are found.
MODULE = "nsq_handlers"

log: logging.Logger = logging.getLogger("gnsqsync.django")

Function = TypeVar("Function", bound=Callable[[Message], object])
Body = TypeVar("Body")
Result = TypeVar("Result")

# Registered handlers, by name.
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

    Use it in a module ``nsq_handlers`` of an app; such modules are found automatically. Like the
    handler of a Reader, the function returns, raises ``Requeue`` or another exception, or detaches
    the message. Old database connections are closed before and after each message.

    Args:
        topic: The topic, as for the Reader.
        channel: The channel, as for the Reader.
        name: Name of the handler for ``manage.py nsq_consume``. Default: ``<app>.<function>``.
        alias: The entry of ``GNSQSYNC``. Default: "default".
        per_message_transaction: True or the alias of a database: each message has one
            ``transaction.atomic()``, and FIN follows its commit. An exception rolls it back.
            Default: False.
        once: True to handle each message once: a message whose key this topic and channel has
            handled before is finished without a call. Its marker is written in the transaction, in
            the table of ``gnsqsync.django.inbox``. The key is a header, so OPTIONS needs
            ``"headers": True``; say ``headers=True`` here if only other programs publish. Without
            headers give a function that returns a message's key. No key: rejected. Default: False.
        body: The type of the bodies, as for the Reader; the function is then called with the
            message and its body. Default: none.
        **options: Options of Reader but the addresses, such as ``concurrency``, ``max_attempts``,
            ``dead_letter_topic``; ``shared=True`` for handlers of one topic and channel.

    Returns:
        A decorator, which returns the function.

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
    # True if the author says that messages have headers, whatever the Writers of the entry do.
    says_headers = "headers" in options
    if once is True and not options.setdefault("headers", True):
        raise ConfigError(
            "once=True goes by the header 'key', and headers is False; give once= a function that"
            " returns the key of a message"
        )

    def register(function: Callable[..., object]) -> Callable[..., object]:
        called = called_function(function, topic, channel, body, options)
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
    """A registered function. Each worker of a Reader calls it on its own thread."""

    name: str
    topic: str
    channel: str
    function: Callable[[Message], object]
    alias: str
    # Alias of the database of the message's transaction; None for no transaction.
    database: str | None
    options: Mapping[str, Any] = field(repr=False)
    once: Once | None = field(default=None, repr=False)
    # True if ``time_limit`` may interrupt the function.
    is_limited: bool = field(default=False, repr=False)
    # True if the handler's own options name ``headers``.
    says_headers: bool = field(default=False, repr=False)

    def __call__(self, message: Message) -> None:
        """Handle one message; close broken and old database connections before and after it."""
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
        """Handle one message, on the thread's database connections as they are."""
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
        """Return a copy for ``time_limit``, which interrupts the function but not the commit."""
        return replace(self, function=wrap(self.function), is_limited=True)

    def _worker_began(self) -> None:
        """Make caches and task backends. Called on a worker's thread before its first message."""
        make_kept()

    def worker_ended(self) -> None:
        """Call the function's ``worker_ended()``, then close the thread's connections.

        Called on the thread of a worker that ends.
        """
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
        """The function that log lines name, as with any decorator."""
        return self.function

    @property
    def gives_up_eagerly(self) -> Callable[[Message, Reject], None] | None:
        """Function for rejected messages in eager mode; None: the publish raises the Reject."""
        return None

    @property
    def _gnsqsync_once_by_header(self) -> bool | None:
        """Mark by which a Reader knows that the work is committed within the call, or None."""
        return None if self.once is None else self.once.by_header

    def check_successor_of(self, before: Handler) -> None:
        """Raise ConfigError unless this is the handler ``before``, imported again."""
        check_successor(self, before, has_other_settings=before.alias != self.alias)

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
        """First part of the name."""
        return self.name.partition(".")[0]

    @property
    def where(self) -> str:
        """Module and name of the function."""
        return ".".join(_place_of(self.function))

    def reader(self, *, exposed: Exposed | None = None, **overrides: Any) -> Reader:
        """Return a Reader for the handler, not started.

        ``overrides``: options that replace the handler's, unless they are None. ``exposed``: given
        by a command; the Reader then gets the Observer that OBSERVER in the settings makes. Raises
        ConfigError.
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
        """Raise ConfigError if transactions, markers or keys of messages are impossible."""
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
        """True if ``once`` needs headers and the Writers of the entry make none."""
        by_header = self.once is not None and self.once.by_header
        return by_header and not get_alias(self.alias).options.get("headers")


def close_old_connections() -> None:
    """Close this thread's connections that are broken or older than CONN_MAX_AGE.

    Django does the same around a request. A connection in a transaction stays: a TestCase may have
    opened the transaction around a handler. Errors are only logged, because a handled message must
    not come again.
    """
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            continue
        try:
            connection.close_if_unusable_or_obsolete()
        except Error:
            log.warning("closing a connection to %s failed", connection.alias, exc_info=True)


def forget_connections() -> None:
    """Close this thread's connections, so that the next use opens new ones.

    Called after a function was interrupted. The interruption may have hit the begin or the end of a
    transaction, and the connection may then take later transactions for parts of that one.
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
    """Return every handler of the installed apps, sorted by name."""
    autodiscover()
    return [_handlers[name] for name in sorted(_handlers)]


def select(words: list[str], topics: list[str], channels: list[str]) -> list[Handler]:
    """Return the handlers that the command line names, all of them without a word.

    A word is a whole name, an app, or the end of a name that only one handler has. If ``topics`` or
    ``channels`` are given, handlers of others are left out. Raises ConfigError with the known names
    if nothing is left.
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
