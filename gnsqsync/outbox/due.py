"""Times of messages: checks of callers' times and ages, and the stored times of an outbox.

Knows the calendar. Knows no database.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gnsqsync.errors import ConfigError

__all__ = ["AT_ONCE", "check_age", "deferred", "future", "later"]


# Stored time of a message without one, for a relay that reads this column only. It is long past
# even by a wrong clock.
AT_ONCE = datetime(2000, 1, 1, tzinfo=UTC)
# Latest time that has a local time in every zone. The calendar ends a day later.
_LATEST = datetime(9999, 12, 30, tzinfo=UTC)
# Due time of an interval that leads beyond the calendar. It is refused.
_NEVER = datetime.max.replace(tzinfo=UTC)


def future(when: object, name: str, *, with_zone: str, at_once: str) -> datetime:
    """Return ``when``, a future time with a zone. Raise ConfigError if it is none.

    Args:
        when: The time that the caller gave.
        name: The name of the parameter, for errors.
        with_zone: An example of a time with a zone, for the error.
        at_once: The end of the error's sentence about messages that are due now.
    """
    if not isinstance(when, datetime):
        raise ConfigError(f"{name} is {when!r}; it must be a datetime")
    if when.utcoffset() is None:
        raise ConfigError(f"{name} is {when} without a time zone; give one, such as {with_zone}")
    ago = (datetime.now(UTC) - when).total_seconds()
    if ago > 0:
        raise ConfigError(f"{name} is {when}, which is {ago:.1f} s ago; {at_once}")
    if when > _LATEST:
        raise ConfigError(
            f"{name} is {when}, which is after the last day that is kept: {_LATEST:%Y-%m-%d}"
        )
    return when


def deferred(defer: object) -> datetime | None:
    """Return the time after ``defer``, or None for a message that is due at once."""
    due = None if defer is None else later(defer, "defer")
    return None if defer == 0 else due


def later(delay: object, name: str) -> datetime:
    """Return the time after ``delay``, with its zone.

    Raises:
        ConfigError: The delay is no time, or too long.
    """
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


def check_age(name: str, age: object) -> timedelta:
    """Return the age unchanged. ConfigError unless it is a timedelta above 0."""
    if not isinstance(age, timedelta) or not age > timedelta(0):
        raise ConfigError(f"{name} is {age!r}; it must be a timedelta above 0")
    return age
