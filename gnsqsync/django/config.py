"""The setting GNSQSYNC: its keys, and the options that a Reader or a Writer gets.

Knows no connection and no handler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core import mail
from django.core.exceptions import ImproperlyConfigured

from gnsqsync import Observer, Reader, Writer
from gnsqsync.commands.options import Option
from gnsqsync.errors import ConfigError
from gnsqsync.hints import did_you_mean, meant, right_name, sentence
from gnsqsync.process.settings import (
    ClientSettings,
    as_if_complete,
    known_options,
    load_middleware,
    load_observer,
    make_observer,
)

__all__ = ["ALIAS", "DEFAULT", "Alias", "Problem", "aliases", "get_alias", "in_tests", "problems"]

# Name of the entry that is used if none is named.
DEFAULT = "default"
# The option that names an entry.
ALIAS = Option("alias", "The entry of GNSQSYNC to use.", default=DEFAULT)
# Keys that an entry may have.
KEYS = (
    *("NSQD", "LOOKUPD", "NSQD_HTTP", "OPTIONS", "MIDDLEWARE", "OBSERVER", "BACKEND"),
    "ADMIN_PERMISSION",
)
# Backends with which no message leaves the process.
OF_THE_PROCESS = ("memory", "eager")
BACKENDS = ("nsq", *OF_THE_PROCESS)
EXAMPLE = 'GNSQSYNC = {"default": {"NSQD": ["127.0.0.1:4150"]}}'

# Options of a Reader or Writer that are not set in OPTIONS, and the right place of each.
_ELSEWHERE = {
    "nsqd_tcp_addresses": "NSQD",
    "lookupd_http_addresses": "LOOKUPD",
    "topic": "@nsq_handler",
    "channel": "@nsq_handler",
    "handler": "@nsq_handler",
    "options": "OPTIONS itself",
    "middleware": "MIDDLEWARE",
    "shared": "@nsq_handler",
    "body": "@nsq_handler",
}


@dataclass(frozen=True)
class Problem:
    """An error in the settings, for a system check or as the text of an exception."""

    id: str
    text: str
    hint: str

    def __str__(self) -> str:
        return f"{self.text} {self.hint}"


@dataclass(frozen=True)
class Alias(ClientSettings):
    """An entry of GNSQSYNC without a problem in its keys."""

    name: str
    # Name of a backend (BACKENDS). None if the settings name none: "memory" in tests, else "nsq".
    backend: str | None
    # Permission that staff need to act on the pages of nsqadmin; None: only superusers may act.
    admin_permission: str | None = None

    @property
    def is_memory(self) -> bool:
        """True if messages stay in the process, in tests and elsewhere."""
        return self.backend in OF_THE_PROCESS

    @property
    def is_captured(self) -> bool:
        """True if messages stay in the process at this moment."""
        return self.is_memory or (self.backend is None and in_tests())

    def make_observer(self, topic: str, channel: str) -> Observer | None:
        """Return the Observer that OBSERVER makes for a Reader of the channel, or None.

        Raises ConfigError if OBSERVER is wrong.
        """
        return make_observer(self.observer, f"GNSQSYNC[{self.name!r}]['OBSERVER']", topic, channel)


def in_tests() -> bool:
    """Return True if Django's test runner or pytest-django has set up this process."""
    return hasattr(mail, "outbox")


def aliases() -> list[str]:
    """Return the names of all entries."""
    return list(getattr(settings, "GNSQSYNC", {}))


def get_alias(name: str) -> Alias:
    """Return the entry of that name. Raises ImproperlyConfigured if it is missing or wrong."""
    whole: Any = getattr(settings, "GNSQSYNC", None)
    found = [*_problems_of_whole(whole)]
    if not found and name not in whole:
        known = ", ".join(map(repr, whole))
        raise ImproperlyConfigured(f"GNSQSYNC has no entry {name!r}; it has {known}")
    found = found or [*_problems_of_keys(name, whole[name])]
    if found:
        raise ImproperlyConfigured(str(found[0]))
    entry = whole[name]
    return Alias(
        name=name,
        nsqd=_addresses(entry.get("NSQD")),
        lookupd=_addresses(entry.get("LOOKUPD")),
        nsqd_http=_addresses(entry.get("NSQD_HTTP")),
        options=dict(entry.get("OPTIONS") or {}),
        observer=entry.get("OBSERVER"),
        middleware=load_middleware(entry.get("MIDDLEWARE"), f"GNSQSYNC[{name!r}]['MIDDLEWARE']"),
        backend=entry.get("BACKEND"),
        admin_permission=entry.get("ADMIN_PERMISSION"),
    )


def _addresses(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    return tuple(value or ())


# -- problems ------------------------------------------------------------------------------------


def problems() -> Iterator[Problem]:
    """Yield every problem of the setting. Connects to nothing."""
    whole: Any = getattr(settings, "GNSQSYNC", None)
    wrong = [*_problems_of_whole(whole)]
    yield from wrong
    if wrong:
        return
    for name, entry in whole.items():
        wrong = [*_problems_of_keys(name, entry)]
        yield from wrong
        if not wrong:
            yield from _problems_of_values(get_alias(name))


def _problems_of_whole(whole: Any) -> Iterator[Problem]:
    if whole is None:
        yield Problem("gnsqsync.E001", "The setting GNSQSYNC is missing.", f"Set {EXAMPLE}.")
    elif not isinstance(whole, dict) or not whole:
        kind = "empty" if isinstance(whole, dict) else f"a {type(whole).__name__}"
        text = f"GNSQSYNC is {kind}; it must be a dict of at least one entry."
        yield Problem("gnsqsync.E001", text, f"Set {EXAMPLE}.")
    elif "default" not in whole and not set(whole).isdisjoint(KEYS):
        yield Problem(
            "gnsqsync.E001",
            f"GNSQSYNC has {', '.join(map(repr, whole))} where the names of its entries belong.",
            f"Put them one level deeper: {EXAMPLE}.",
        )


def _problems_of_keys(name: str, entry: Any) -> Iterator[Problem]:
    where = f"GNSQSYNC[{name!r}]"
    if not isinstance(entry, dict):
        yield Problem(
            "gnsqsync.E001",
            f"{where} is a {type(entry).__name__}; it must be a dict.",
            f"Set {EXAMPLE}.",
        )
        return
    for key in entry:
        if key not in KEYS:
            yield Problem("gnsqsync.E002", f"{where} has the unknown key {key!r}.", _what_key(key))
    for key in ("NSQD", "LOOKUPD", "NSQD_HTTP"):
        value = entry.get(key) or ()
        if not isinstance(value, str) and not (
            isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value)
        ):
            yield Problem(
                "gnsqsync.E003",
                f"{where}[{key!r}] is of type {type(value).__name__}.",
                'Give a list of addresses, such as ["127.0.0.1:4150"].',
            )
    backend = entry.get("BACKEND")
    if backend is not None and backend not in BACKENDS:
        yield Problem(
            "gnsqsync.E003",
            f"{where}['BACKEND'] is {backend!r}.",
            "It must be 'nsq', 'memory', 'eager', or None for 'memory' in tests only.",
        )
    elif backend not in OF_THE_PROCESS and not entry.get("NSQD") and not entry.get("LOOKUPD"):
        yield Problem(
            "gnsqsync.E003",
            f"{where} has no address.",
            "Give NSQD, LOOKUPD or both, or 'BACKEND': 'memory' or 'eager' for tests.",
        )
    permission = entry.get("ADMIN_PERMISSION")
    if permission is not None and not (isinstance(permission, str) and "." in permission):
        yield Problem(
            "gnsqsync.E003",
            f"{where}['ADMIN_PERMISSION'] is {permission!r}.",
            "Give the name of a permission, such as 'shop.act_on_nsq'.",
        )
    try:
        load_middleware(entry.get("MIDDLEWARE"), f"{where}['MIDDLEWARE']")
    except ConfigError as error:
        hint = "Give a list of gnsqsync.Middleware objects, their classes, or paths of these."
        yield Problem("gnsqsync.E003", f"{error}.", hint)
    yield from _problems_of_options(where, entry.get("OPTIONS") or {})


def _problems_of_options(where: str, options: Any) -> Iterator[Problem]:
    if not isinstance(options, dict):
        yield Problem(
            "gnsqsync.E003",
            f"{where}['OPTIONS'] is a {type(options).__name__}.",
            "It must be a dict, such as {'publish_timeout': 2.0}.",
        )
        return
    known = known_options()
    for option in options:
        if option not in known:
            yield Problem(
                "gnsqsync.E002",
                f"{where}['OPTIONS'] has the unknown option {option!r}.",
                _what_option(option, known),
            )


def _what_key(key: object) -> str:
    text = str(key)
    option = right_name(text)
    if option in known_options():
        return f"Put it into 'OPTIONS': {{{option!r}: ...}}."
    if option in _ELSEWHERE and text.upper() not in KEYS:
        return f"Its place is {_ELSEWHERE[option]}."
    close = did_you_mean(text.upper(), KEYS)
    if close is not None:
        return f"Did you mean {close!r}?"
    return sentence(meant(text, known_options()) or f"known are {', '.join(KEYS)}")


def _what_option(option: object, known: Iterable[str]) -> str:
    text = str(option)
    place = _ELSEWHERE.get(right_name(text))
    if place is not None:
        return f"Its place is {place}."
    other = "known are the options of Reader, Writer and ConnectionOptions"
    return sentence(meant(text, known) or other)


def _problems_of_values(alias: Alias) -> Iterator[Problem]:
    addressed: list[tuple[type[Any], tuple[Any, ...], dict[str, Any]]] = []
    if not alias.is_memory or alias.nsqd or alias.lookupd:
        addressed.append((Writer, (), alias.writer_keywords()))
        keywords = as_if_complete(alias.reader_keywords())
        addressed.append((Reader, ("topic", "channel", print), keywords))
    texts = set()
    if alias.observer is not None:
        try:
            load_observer(alias.observer, "'OBSERVER'")
        except ConfigError as error:
            texts.add(str(error))
    for owner, names, keywords in addressed:
        try:
            # The constructors check the values. They start nothing.
            owner(*names, **keywords)
        except ConfigError as error:
            texts.add(str(error))
    for text in sorted(texts):
        yield Problem(
            "gnsqsync.E003",
            f"GNSQSYNC[{alias.name!r}]: {text}.",
            "Options and addresses are those of Reader and Writer.",
        )
