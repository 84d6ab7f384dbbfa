"""``flask nsq relay``: publishes the outbox of NSQ_OUTBOX. Knows the methods of an outbox."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Protocol, cast

import click
from flask import current_app

from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.outbox.outbox_rows import Lag
from gnsqsync.outbox.relay import Relay
from gnsqsync.outbox.relay_command import lag_text, run_relay
from gnsqsync.process.output import mention, say
from gnsqsync.process.settings import imported

__all__ = ["check_outbox", "relay"]

KEY = "NSQ_OUTBOX"


class Outbox(Protocol):
    """The part of gnsqsync.contrib.sqlalchemy.Outbox that the command needs."""

    def relay(self, *, batch: int, max_attempts: int, rate: float | None) -> Relay: ...
    def lag(self) -> Lag: ...


def check_outbox(value: object) -> None:
    """Raise ConfigError if the value cannot be an outbox. Imports nothing."""
    if value is not None and not isinstance(value, str):
        _checked(value)


def _checked(value: object) -> Outbox:
    if not callable(getattr(value, "relay", None)) or not callable(getattr(value, "lag", None)):
        raise ConfigError(
            f"{KEY} is {value!r}; it must be a gnsqsync.contrib.sqlalchemy.Outbox, or the path of"
            " one, such as 'shop.db.outbox'"
        )
    return cast("Outbox", value)


def _outbox() -> Outbox:
    value = current_app.config.get(KEY)
    if value is None:
        raise ConfigError(f"no outbox: set {KEY}, as to 'shop.db.outbox'")
    return _checked(imported(value, KEY) if isinstance(value, str) else value)


def relay(
    *,
    batch: int,
    interval: float,
    rate: float | None,
    max_attempts: int,
    once: bool,
    show_lag: bool,
    as_json: bool,
) -> None:
    """Publish the messages of the outbox that are due and delete them, until a signal ends it.

    The batch at hand is finished. Several may run side by side on databases that have SKIP LOCKED.
    Exit code 0 after a signal; with --once when nothing is left, else 1.
    """
    tell: Any = partial(mention, sys.stdout)
    try:
        outbox = _outbox()
        if show_lag:
            say(sys.stdout, lag_text(outbox.lag(), as_json=as_json))
            return
        moves = outbox.relay(batch=batch, max_attempts=max_attempts, rate=rate)
        tell(f"publishing {KEY}")
        left = run_relay(moves, outbox.lag, interval=interval, once=once, say=tell)
    except NSQError as error:
        raise click.ClickException(str(error)) from error
    if left is not None:
        raise click.ClickException(left)
