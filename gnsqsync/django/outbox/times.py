"""Times as callers give them, and as the database keeps them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gnsqsync.errors import ConfigError

__all__ = ["AT_ONCE", "future", "later"]


# The time of a message without one, for a relay that reads this column only: long past, whatever
# the clock of the machine says on which the message is written.
AT_ONCE = datetime(2000, 1, 1, tzinfo=UTC)
# Every zone has a local time for this one; the calendar ends a day later.
_LATEST = datetime(9999, 12, 30, tzinfo=UTC)
_NEVER = datetime.max.replace(tzinfo=UTC)


def future(when: object, name: str = "when") -> datetime:
    """A time to come, with its zone. ConfigError says what is wrong with it."""
    if not isinstance(when, datetime):
        raise ConfigError(f"{name} is {when!r}; it must be a datetime")
    if when.utcoffset() is None:
        raise ConfigError(
            f"{name} is {when} without a time zone; give one, as of django.utils.timezone.now() or"
            " timezone.make_aware(...)"
        )
    ago = (datetime.now(UTC) - when).total_seconds()
    if ago > 0:
        raise ConfigError(
            f"{name} is {when}, which is {ago:.1f} s ago; what is due now is published by"
            " outbox.publish()"
        )
    if when > _LATEST:
        raise ConfigError(
            f"{name} is {when}, which is after the last day that is kept: {_LATEST:%Y-%m-%d}"
        )
    return when


def later(delay: object, name: str = "delay") -> datetime:
    """So long from now, with its zone. ConfigError for what is no time, or too long."""
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds >= 0:
        raise ConfigError(f"{name} is {delay!r}; it must be seconds or a timedelta, 0 or more")
    try:
        due = datetime.now(UTC) + timedelta(seconds=seconds)
    except OverflowError:
        due = _NEVER
    if due > _LATEST:
        raise ConfigError(f"{name} is {delay!r}, which is after the year 9999")
    return due
