"""Checks of a handler that a framework registers, made where the author sees their errors.

Knows the Reader's rules for handlers. Knows no framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, cast

from gnsqsync.bodies import typed
from gnsqsync.errors import ConfigError
from gnsqsync.message import Message
from gnsqsync.options import check_handler
from gnsqsync.process.settings import as_if_complete
from gnsqsync.reader import Reader

__all__ = ["called_function", "check_successor"]


class _Registered(Protocol):
    """A handler under its name, with the module and name of its function."""

    @property
    def name(self) -> str: ...

    @property
    def topic(self) -> str: ...

    @property
    def channel(self) -> str: ...

    @property
    def where(self) -> str: ...


def called_function(
    function: Callable[..., object],
    topic: str,
    channel: str,
    body: Any,
    options: Mapping[str, Any],
) -> Callable[[Message], object]:
    """Return the function that a Reader calls with each message.

    ``body``: the type of the bodies, or None for a function of the message alone. Raises
    ConfigError for a topic, channel, function or option that no Reader would take.
    """
    name = getattr(function, "__qualname__", f"the handler of {topic}/{channel}")
    if body is None:
        check_handler(name, function)
        called = cast("Callable[[Message], object]", function)
    else:
        called = typed(body, name=name)(function)
    # The Reader is not started: it checks names and options.
    checked = as_if_complete(options)
    Reader(topic, channel, called, nsqd_tcp_addresses="127.0.0.1:4150", **checked)
    return called


def check_successor(
    handler: _Registered, before: _Registered, *, has_other_settings: bool = False
) -> None:
    """Raise ConfigError unless ``handler`` is ``before``, imported again.

    ``has_other_settings``: True if the two get their servers from different settings.
    """
    if before.where != handler.where:
        raise ConfigError(
            f"{handler.where} and {before.where} are both called {handler.name!r}; give one of them"
            " another name="
        )
    if has_other_settings or (before.topic, before.channel) != (handler.topic, handler.channel):
        raise ConfigError(
            f"{handler.where} is registered for {before.topic}/{before.channel} and for"
            f" {handler.topic}/{handler.channel} under one name, {handler.name!r}, so only one of"
            " them would be consumed; give one of them another name="
        )
