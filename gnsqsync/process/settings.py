"""Options in the settings of an application, and their distribution to Readers and Writers.

Knows the signatures of Reader, Writer and ConnectionOptions. Knows no framework.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from gnsqsync.errors import ConfigError
from gnsqsync.middleware import Middleware, check_middleware
from gnsqsync.observer import Observer
from gnsqsync.options import ConnectionOptions
from gnsqsync.reader import Reader
from gnsqsync.reader.death import death_headers
from gnsqsync.reader.verdicts import Verdicts
from gnsqsync.writer import Writer

if TYPE_CHECKING:
    from gnsqsync.cluster.looking import Question

__all__ = [
    "ClientSettings",
    "as_if_complete",
    "death_headers",
    "default_of",
    "known_options",
    "load_middleware",
    "load_observer",
    "make_observer",
    "max_attempts_of",
    "meaning_of",
    "options_for",
]

# Keywords of a handler that has none.
_NOTHING: Mapping[str, Any] = MappingProxyType({})

# Arguments that have another name in settings, or that a handler gives.
_NO_OPTIONS = {
    "nsqd_tcp_addresses",
    "lookupd_http_addresses",
    "topic",
    "channel",
    "handler",
    "options",
    "connection_options",
    "body",
    "middleware",
    "shared",
}


def _keywords(*owners: type[Any]) -> set[str]:
    names = {name for owner in owners for name in inspect.signature(owner).parameters}
    return names - _NO_OPTIONS


def known_options() -> set[str]:
    """Return the names of all options of Reader, Writer and their connections."""
    return _keywords(Reader, Writer, ConnectionOptions)


def options_for(owner: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a Reader, a Writer or another owner of connections takes."""
    names = _keywords(owner, ConnectionOptions)
    return {name: value for name, value in options.items() if name in names}


def default_of(option: str) -> Any:
    """Return the default of an option of Reader."""
    return inspect.signature(Reader).parameters[option].default


def max_attempts_of(options: Mapping[str, Any]) -> int:
    """Return the ``max_attempts`` of a Reader with these options."""
    found: int = options.get("max_attempts", default_of("max_attempts"))
    return found


def meaning_of(options: Mapping[str, Any]) -> Callable[[BaseException], str]:
    """Return a function that classifies the exceptions of a handler with these options.

    It returns the name of the option that decides: ``retry_on``, ``reject_on`` or ``discard_on``.
    """
    verdicts = Verdicts(
        options.get("retry_on"), options.get("reject_on", ()), options.get("discard_on", ()), True
    )
    return lambda error: verdicts.of(error).value


def as_if_complete(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options to check a Reader with, if settings and handler have a part of them each.

    The other part may have the destination of given up messages, and ``headers``. So the check must
    miss neither of them.
    """
    options = {"headers": True, **options}
    said = any(options.get(name) is not None for name in ("dead_letter_topic", "on_giving_up"))
    return options if said else {**options, "on_giving_up": "discard"}


@dataclass(frozen=True)
class ClientSettings:
    """Addresses and options of an application's settings. A framework adds its own."""

    # Addresses in place of ``nsqd`` if the settings have no addresses at all.
    NSQD_BY_DEFAULT: ClassVar[str | tuple[str, ...]] = ()

    nsqd: tuple[str, ...]
    # The next four are not in the repr: they may hold secrets, and a framework prints the variables
    # of a failed frame.
    lookupd: tuple[str, ...] = field(repr=False)
    nsqd_http: tuple[str, ...] = field(repr=False)
    options: Mapping[str, Any] = field(repr=False)
    observer: object
    middleware: tuple[Middleware, ...]

    def writer_keywords(self) -> dict[str, Any]:
        """Return the arguments of a Writer. It publishes to the nsqds, or without any to those
        that the nsqlookupds list."""
        keywords = options_for(Writer, self.options)
        if self.middleware:
            keywords["middleware"] = self.middleware
        if self.nsqd or not self.lookupd:
            return {**keywords, "nsqd_tcp_addresses": self.nsqd or self.NSQD_BY_DEFAULT}
        return {**keywords, "lookupd_http_addresses": self.lookupd}

    def reader_keywords(self, own: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
        """Return the arguments of a Reader, which consumes from the nsqds that nsqlookupds list.

        Without nsqlookupds it consumes from ``nsqd``. ``own``: the options of the handler, which
        win. Its middlewares run inside of the others.
        """
        keywords = {**options_for(Reader, self.options), **own}
        if self.middleware:
            keywords["middleware"] = self.middleware_with(own)
        if self.lookupd:
            return {**keywords, "lookupd_http_addresses": self.lookupd}
        return {**keywords, "nsqd_tcp_addresses": self.nsqd or self.NSQD_BY_DEFAULT}

    def middleware_with(self, own: Mapping[str, Any]) -> tuple[Middleware, ...]:
        """Return the middlewares of the settings, then those of a handler's options."""
        return (*self.middleware, *check_middleware(own.get("middleware", ())))

    def dead_letters_keywords(self) -> dict[str, Any]:
        """Return the arguments of DeadLetters. Only with HTTP addresses it counts what waits."""
        # The import is here, so that consumers and publishers do not load it.
        from gnsqsync.dead_letters import DeadLetters

        keywords = options_for(DeadLetters, self.options)
        if self.lookupd:
            return {**keywords, "lookupd_http_addresses": self.lookupd}
        if self.nsqd_http:
            return {**keywords, "nsqd_http_addresses": self.nsqd_http}
        return {**keywords, "nsqd_tcp_addresses": self.nsqd or self.NSQD_BY_DEFAULT}

    def doctor_question(
        self, topic: str | None, channel: str | None, seconds: float, timeout: float
    ) -> Question:
        """Return what to look at for a diagnosis: all servers of the settings, with the options."""
        # The import is here, so that consumers and publishers do not load requests.
        from gnsqsync.cluster.looking import Question

        is_other_set = self.nsqd_http or self.lookupd
        return Question(
            nsqd_tcp=self.nsqd or (() if is_other_set else self.NSQD_BY_DEFAULT),
            nsqd_http=self.nsqd_http,
            lookupd_http=self.lookupd,
            topic=topic,
            channel=channel,
            seconds=seconds,
            timeout=timeout,
            options=ConnectionOptions(**options_for(ConnectionOptions, self.options)),
        )


def load_middleware(value: object, where: str) -> tuple[Middleware, ...]:
    """Return the middlewares of a setting: a list of objects, classes or paths ("shop.nsq.Carry").

    A class is called without arguments, once in this process. ``where`` names the setting in a
    ConfigError. The modules are imported.
    """
    if value is None:
        return ()
    if not isinstance(value, (list, tuple)):
        raise ConfigError(f"{where} is {value!r}; it must be a list, such as ['shop.nsq.Carry']")
    return check_middleware([_made(member, where) for member in value], where)


def _made(member: object, where: str) -> object:
    if isinstance(member, str):
        return _made(imported(member, where), where)
    return _instance(member) if isinstance(member, type) else member


@cache
def _instance(kind: type[Any]) -> object:
    return kind()


def imported(path: str, where: str) -> object:
    module, _, name = path.replace(":", ".").rpartition(".")
    try:
        return getattr(importlib.import_module(module or name), name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ConfigError(f"{where} is {path!r}: {error}") from error


ObserverFactory = Callable[[str, str], Observer]


def load_observer(value: object, where: str) -> ObserverFactory:
    """Return the function that makes Observers, from itself or its path "package.module.name".

    ``where`` names the setting in the ConfigError for any other value. The module is imported.
    """
    if isinstance(value, str):
        value = imported(value, where)
    if not callable(value):
        raise ConfigError(
            f"{where} is {value!r}; it must be a function, or the path of one, that takes a topic"
            " and a channel and returns an Observer"
        )
    return cast("ObserverFactory", value)


def make_observer(value: object, where: str, topic: str, channel: str) -> Observer | None:
    """Return the Observer of one Reader by the value of a setting, or None for None."""
    if value is None:
        return None
    observer: object = load_observer(value, where)(topic, channel)
    if not isinstance(observer, Observer):
        raise ConfigError(
            f"{where} returned {observer!r} for {topic}/{channel}; it must be a gnsqsync.Observer"
        )
    return observer
