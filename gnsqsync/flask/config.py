"""The ``NSQ_`` keys of an application's config, and the options that a Reader or Writer gets.

Knows no connection and no handler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from flask import Flask

from gnsqsync import Observer, Reader, Writer
from gnsqsync.errors import ConfigError
from gnsqsync.flask.relay import check_outbox
from gnsqsync.hints import did_you_mean, meant, right_name
from gnsqsync.process.settings import (
    ClientSettings,
    as_if_complete,
    known_options,
    load_middleware,
    make_observer,
)

__all__ = ["KEYS", "Settings", "backend_of", "read_settings"]

# Begin of the name of each key.
PREFIX = "NSQ_"
# The default of each key.
KEYS: dict[str, Any] = {
    "NSQ_NSQD_ADDRESSES": None,
    "NSQ_LOOKUPD_ADDRESSES": None,
    "NSQ_NSQD_HTTP_ADDRESSES": None,
    "NSQ_PUBLISH_TIMEOUT": None,
    "NSQ_OPTIONS": None,
    "NSQ_OBSERVER": None,
    "NSQ_MIDDLEWARE": None,
    "NSQ_OUTBOX": None,
    "NSQ_BACKEND": None,
}
# Values of NSQ_BACKEND. With "memory" and "eager" no message leaves the process.
BACKENDS = ("nsq", "memory", "eager")

# Options of a Reader or Writer that are not set in NSQ_OPTIONS, and the right place of each.
_ELSEWHERE = {
    "nsqd_tcp_addresses": "NSQ_NSQD_ADDRESSES",
    "lookupd_http_addresses": "NSQ_LOOKUPD_ADDRESSES",
    "topic": "@nsq.handler",
    "channel": "@nsq.handler",
    "handler": "@nsq.handler",
    "options": "NSQ_OPTIONS itself",
    "middleware": "NSQ_MIDDLEWARE",
    "shared": "@nsq.handler",
    "body": "@nsq.handler",
}


@dataclass(frozen=True)
class Settings(ClientSettings):
    """The config of one application, checked."""

    NSQD_BY_DEFAULT: ClassVar[str | tuple[str, ...]] = "127.0.0.1:4150"

    def make_observer(self, topic: str, channel: str) -> Observer | None:
        """Return the Observer that NSQ_OBSERVER makes for a Reader of the channel, or None.

        Raises ConfigError if NSQ_OBSERVER is wrong.
        """
        return make_observer(self.observer, "NSQ_OBSERVER", topic, channel)


def backend_of(app: Flask) -> str:
    """Return the backend of this moment, one of BACKENDS: TESTING may be set at any time."""
    backend: str | None = app.config.get("NSQ_BACKEND")
    return backend or ("memory" if app.testing else "nsq")


def read_settings(app: Flask) -> Settings:
    """Return the checked config of this moment. Connects to nothing.

    Raises ConfigError, which names the wrong key.
    """
    config = app.config
    for key in config:
        if key.startswith(PREFIX) and key not in KEYS:
            raise ConfigError(f"the config has the unknown key {key!r}; {_what_key(key)}")
    backend = config.get("NSQ_BACKEND")
    if backend is not None and backend not in BACKENDS:
        raise ConfigError(
            f"NSQ_BACKEND is {backend!r}; it must be 'nsq', 'memory', 'eager', or None for"
            " 'memory' in tests only"
        )
    options = config.get("NSQ_OPTIONS")
    if options is None:
        options = {}
    if not isinstance(options, Mapping):
        raise ConfigError(
            f"NSQ_OPTIONS is a {type(options).__name__}; it must be a dict, such as"
            " {'max_attempts': 10}"
        )
    known = known_options()
    for option in options:
        if option not in known:
            raise ConfigError(
                f"NSQ_OPTIONS has the unknown option {option!r}; {_what_option(str(option), known)}"
            )
    observer = config.get("NSQ_OBSERVER")
    if observer is not None and not isinstance(observer, str) and not callable(observer):
        raise ConfigError(
            f"NSQ_OBSERVER is {observer!r}; it must be a function of a topic and a channel, or the"
            " path of one, such as 'shop.metrics.observer'"
        )
    check_outbox(config.get("NSQ_OUTBOX"))
    timeout = config.get("NSQ_PUBLISH_TIMEOUT")
    settings = Settings(
        nsqd=_addresses(config, "NSQ_NSQD_ADDRESSES"),
        lookupd=_addresses(config, "NSQ_LOOKUPD_ADDRESSES"),
        nsqd_http=_addresses(config, "NSQ_NSQD_HTTP_ADDRESSES"),
        options={**options, **({} if timeout is None else {"publish_timeout": timeout})},
        observer=config.get("NSQ_OBSERVER"),
        middleware=load_middleware(config.get("NSQ_MIDDLEWARE"), "NSQ_MIDDLEWARE"),
    )
    # The constructors check the values. They start nothing.
    Writer(**settings.writer_keywords())
    Reader("topic", "channel", print, **as_if_complete(settings.reader_keywords()))
    return settings


def _addresses(config: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = config.get(key)
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    if value is None:
        return ()
    if isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise ConfigError(
        f"{key} is of type {type(value).__name__}; give a list of addresses, such as"
        " ['127.0.0.1:4150']"
    )


def _what_key(key: str) -> str:
    option = right_name(key.removeprefix(PREFIX))
    if option in known_options():
        return f"put it into NSQ_OPTIONS = {{{option!r}: ...}}"
    if option in _ELSEWHERE:
        return f"its place is {_ELSEWHERE[option]}"
    close = did_you_mean(key, KEYS)
    if close is not None:
        return f"did you mean {close!r}?"
    return meant(option, known_options()) or f"known are {', '.join(KEYS)}"


def _what_option(option: str, known: set[str]) -> str:
    place = _ELSEWHERE.get(right_name(option))
    if place is not None:
        return f"its place is {place}"
    return meant(option, known) or "known are the options of Reader, Writer and ConnectionOptions"
