"""Cron texts by the rules of Debian's cron, and their times. Pure: time is an argument.

Knows the five fields, their names and the changes of clocks. Knows no table and no message.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from gnsqsync.errors import ConfigError

__all__ = ["MAX_TEXT", "Cron", "check_zone"]

# Upper bound of a cron text's characters: the size of its column.
MAX_TEXT: Final = 200
# Steps of the search for the next time: ``_MINUTE`` and ``_DAY``.
_MINUTE: Final = timedelta(minutes=1)
_DAY: Final = timedelta(days=1)
# Minutes. Zones change their clocks at multiples of it.
_GRAIN: Final = 15
# Years without a time after which a cron text, such as "0 0 30 2 *", counts as having none.
_MOST_YEARS: Final = 50

# Texts that stand for five fields.
_NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
# Names that a field may have in place of numbers: ``_MONTHS`` from 1 on, ``_DAYS`` from 0 on.
_MONTHS: Final = "jan feb mar apr may jun jul aug sep oct nov dec"
_DAYS: Final = "sun mon tue wed thu fri sat"


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    # Names of three letters. The first one stands for ``low``.
    names: tuple[str, ...] = ()

    def read(self, text: str, *, lenient: bool) -> frozenset[int]:
        """Return the numbers of a comma-separated list. Raises ValueError with the reason."""
        found: set[int] = set()
        for item in text.split(","):
            span, slash, step = item.partition("/")
            first, dash, last = span.partition("-")
            if span == "*":
                low, high = self.low, self.high
            elif dash:
                low, high = self._number(first), self._number(last)
                if low > high:
                    raise ValueError(f"the range {span!r} runs backwards")
            else:
                low = high = self._number(first)
                if slash and not lenient:
                    right = f"{span}-{self.high}/{step}"
                    raise ValueError(f"{item!r} has a step without a range; write {right!r}")
                if slash:
                    high = self.high
            found.update(range(low, high + 1, self._step(step) if slash else 1))
        return frozenset(found)

    def _number(self, text: str) -> int:
        if text.lower() in self.names:
            return self.low + self.names.index(text.lower())
        if not (text.isascii() and text.isdigit()) or not self.low <= int(text) <= self.high:
            names = f", or a name such as {self.names[1]!r}" if self.names else ""
            raise ValueError(f"{text!r} must be a number from {self.low} to {self.high}{names}")
        return int(text)

    def _step(self, text: str) -> int:
        if not (text.isascii() and text.isdigit()) or int(text) == 0:
            raise ValueError(f"the step {text!r} must be a number, 1 or more")
        return int(text)


_FIELDS: Final = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, tuple(_MONTHS.split())),
    # The number 7 is Sunday, too.
    _Field("day of the week", 0, 7, tuple(_DAYS.split())),
)


class Cron:
    """A cron text in a time zone.

    It follows Debian's cron when clocks are changed. A text whose minute or hour begins with a star
    runs whenever the clock on the wall shows a matching time. Any other text has times of a day: a
    time in the skipped hour runs at the end of that hour, and a time in the repeated hour runs
    once, the first time.

    Args:
        text: Five fields, or a nickname such as ``@daily``.
        zone: The zone of the clock on the wall.
        lenient: Accept a step without a range (``5/15``), which rows of former versions have.

    Raises:
        ConfigError: Debian's cron does not accept the text.
    """

    def __init__(self, text: object, zone: ZoneInfo, *, lenient: bool = False) -> None:
        # The text in five fields, which relays of former versions read, too.
        self.text: str = _checked(text)
        self._zone = zone
        parts = self.text.split()
        if len(parts) != len(_FIELDS):
            raise _error(text, _count_text(parts))
        read: list[frozenset[int]] = []
        for field, part in zip(_FIELDS, parts, strict=True):
            try:
                read.append(field.read(part, lenient=lenient))
            except ValueError as error:
                raise _error(text, f"{field.name}: {error}") from None
        self._minutes, self._hours = sorted(read[0]), sorted(read[1])
        self._days, self._months = read[2], read[3]
        self._weekdays = {number % 7 for number in read[4]}
        # True if day and weekday must both match, which a star means. Otherwise either is enough.
        self._both = parts[2].startswith("*") or parts[4].startswith("*")
        self._by_wall = parts[0].startswith("*") or parts[1].startswith("*")

    def times(self, after: datetime) -> Iterator[datetime]:
        """Yield the times after ``after``, in UTC, in order, until 50 years have none."""
        after = after.astimezone(UTC)
        try:
            yield from self._wall_times(after) if self._by_wall else self._day_times(after)
        except OverflowError:
            # The calendar ends with the year 9999.
            return

    def next(self, after: datetime) -> datetime:
        """Return the first time after ``after``. ConfigError if there is none within 50 years."""
        for found in self.times(after):
            return found
        raise ConfigError(
            f"cron is {self.text!r}, which is at no time in {_MOST_YEARS} years; give a day that"
            " the months have"
        )

    def last(self, first: datetime, now: datetime) -> datetime:
        """Return the latest time between ``first``, which is a time of this text, and ``now``."""
        for days in (1, 32, 366, 366 * _MOST_YEARS):
            start = max(first, now - timedelta(days=days))
            found = [*([first] if start == first else []), *self._until(start, now)]
            if found:
                return found[-1]
        return first

    def _until(self, start: datetime, now: datetime) -> Iterator[datetime]:
        for found in self.times(start):
            if found > now:
                return
            yield found

    def _dates(self, start: date) -> Iterator[date]:
        """Yield the days that match, from ``start`` on."""
        end = start.year + _MOST_YEARS
        while start.year <= end:
            if start.month not in self._months:
                start = (start.replace(day=1) + timedelta(days=32)).replace(day=1)
                continue
            in_month = start.day in self._days
            in_week = start.isoweekday() % 7 in self._weekdays
            if (in_month and in_week) if self._both else (in_month or in_week):
                yield start
            start += _DAY

    def _day_times(self, after: datetime) -> Iterator[datetime]:
        """Yield the times of each day. A time in the repeated hour counts once, the first time."""
        latest = after
        for day in self._dates(after.astimezone(self._zone).date() - _DAY):
            for hour in self._hours:
                for minute in self._minutes:
                    found = self._instant(datetime.combine(day, time(hour, minute)))
                    if found > latest:
                        yield found
                        latest = found

    def _instant(self, wall: datetime) -> datetime:
        """Return when the wall first shows that time; for a skipped time, the end of the gap."""
        while True:
            found = wall.replace(tzinfo=self._zone).astimezone(UTC)
            if found.astimezone(self._zone).replace(tzinfo=None) == wall:
                return found
            wall += _MINUTE

    def _wall_times(self, after: datetime) -> Iterator[datetime]:
        """Yield the minutes at which the wall shows a matching time, in the order of UTC."""
        hours, minutes = set(self._hours), set(self._minutes)
        found = after.replace(second=0, microsecond=0) + _MINUTE
        dates = self._dates(found.astimezone(self._zone).date())
        for day in dates:
            # Clocks may be set back across midnight, so a day may begin before its midnight.
            midnight = self._instant(datetime.combine(day, time()))
            found = max(found, midnight)
            while (wall := found.astimezone(self._zone)).date() <= day:
                if wall.date() != day or wall.hour not in hours:
                    found += _MINUTE * (_GRAIN - wall.minute % _GRAIN)
                    continue
                if wall.minute in minutes:
                    yield found
                found += _MINUTE


def _checked(text: object) -> str:
    if not isinstance(text, str):
        raise ConfigError(f"cron is {text!r}; it must be a str such as '0 3 * * *'")
    if len(text) > MAX_TEXT or not text.replace("\t", " ").isprintable():
        shown = repr(text[:80])
        raise ConfigError(f"cron is {shown}; it must be one line of {MAX_TEXT} characters at most")
    text = text.strip()
    if text.startswith("@") and text.lower() not in _NICKNAMES:
        reboot = text.lower() == "@reboot"
        why = "which is no time" if reboot else "which Debian's cron does not know"
        raise ConfigError(f"cron is {text!r}, {why}; there are {', '.join(_NICKNAMES)}")
    return _NICKNAMES.get(text.lower(), text)


def _count_text(parts: list[str]) -> str:
    if len(parts) == 6:
        return "it has six fields; seconds are not possible, so leave one out"
    return f"it has {len(parts)} field{'s' * (len(parts) != 1)}"


def _error(text: object, why: str) -> ConfigError:
    return ConfigError(
        f"cron is {text!r}: {why}. It has five fields: minute, hour, day of the month, month, day"
        " of the week, such as '0 3 * * mon-fri'; or it is a nickname such as '@daily'"
    )


def check_zone(name: object) -> ZoneInfo:
    """A time zone by its name. ConfigError if this machine does not have the zone."""
    try:
        return ZoneInfo(str(name))
    except (KeyError, ValueError, OSError) as error:  # OSError: the name of a folder
        raise ConfigError(
            f"timezone is {name!r}, which this machine does not have; it must be a name such as"
            " 'Europe/Vienna' or 'UTC' (pip install tzdata brings all zones)"
        ) from error
