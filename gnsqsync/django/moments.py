"""Instants in a database, with every ``USE_TZ``: a model field, and the form of its values.

With ``USE_TZ`` the column has UTC, as Django's own fields have. Without it PostgreSQL has UTC as
well, and other databases have local times, which programs of earlier versions read and write at
the same time.

When clocks are set back, an hour of local times comes twice. ``local_form`` squeezes the second
pass of that hour into the last second of the first pass, so that order and instants survive.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.db import models
from django.utils import timezone

__all__ = ["MomentField", "local_form", "now", "of_local_form"]

_SECOND: Final = timedelta(seconds=1)
_STEP: Final = timedelta(microseconds=1)
# Precision of a squeezed time.
_PRECISION: Final = timedelta(milliseconds=10)

if TYPE_CHECKING:
    _DateTimeField = models.DateTimeField[Any, Any]
else:
    # At run time Django's class has no type arguments.
    _DateTimeField = models.DateTimeField


class MomentField(_DateTimeField):
    """A DateTimeField whose values in Python have a zone, even with ``USE_TZ = False``."""

    def deconstruct(self) -> Any:
        # The column is the same, so no migration follows.
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.DateTimeField", args, kwargs

    def get_prep_value(self, value: Any) -> Any:
        value = models.Field.get_prep_value(self, value)
        if isinstance(value, datetime):
            return _aware(value)
        return super().get_prep_value(value)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if not prepared:
            value = self.get_prep_value(value)
        if isinstance(value, datetime) and _is_local(connection):
            value = local_form(value, timezone.get_default_timezone())
        return connection.ops.adapt_datetimefield_value(value)

    def select_format(self, compiler: Any, sql: str, params: Any) -> tuple[str, Any]:
        if not settings.USE_TZ and compiler.connection.vendor == "postgresql":
            # Django would return a local time, which may name two instants.
            return f"({sql}) AT TIME ZONE 'UTC'", params
        return sql, params

    def get_db_converters(self, connection: Any) -> list[Any]:
        # With USE_TZ Django's own value is right, and needs no call for each value.
        return [] if settings.USE_TZ else [self.from_db_value]

    def from_db_value(self, value: Any, expression: object, connection: Any) -> Any:
        if value is None:
            return value
        zone = timezone.get_default_timezone()
        if _is_local(connection):
            return of_local_form(value, zone)
        return value.replace(tzinfo=UTC).astimezone(zone)


def now() -> datetime:
    """Return the time with a zone, with every ``USE_TZ``."""
    return datetime.now(UTC)


def _is_local(connection: Any) -> bool:
    return not settings.USE_TZ and connection.vendor != "postgresql"


def _aware(value: datetime) -> datetime:
    if value.utcoffset() is not None:
        return value
    return value.replace(tzinfo=timezone.get_default_timezone())


def local_form(moment: datetime, zone: tzinfo) -> datetime:
    """Return a moment as a local time without a zone. The order of moments stays."""
    moment = moment.astimezone(zone)
    local = moment.replace(tzinfo=None, fold=0)
    repeated = _repeated(local, zone)
    if repeated is None:
        return local
    start, end = repeated
    if moment.fold:
        return end - _SECOND + (local - start) * (_SECOND / (end - start))
    return min(local, end - _SECOND - _STEP)


def of_local_form(local: datetime, zone: tzinfo) -> datetime:
    """Return the moment of a local time that ``local_form`` or an earlier version has made."""
    repeated = _repeated(local, zone)
    if repeated is None or local < repeated[1] - _SECOND:
        return local.replace(tzinfo=zone)
    start, end = repeated
    passed = (local - (end - _SECOND)) * ((end - start) / _SECOND)
    passed = round(passed / _PRECISION) * _PRECISION
    return min(start + passed, end - _STEP).replace(tzinfo=zone, fold=1)


def _repeated(local: datetime, zone: tzinfo) -> tuple[datetime, datetime] | None:
    """Return begin and end of the local times that come twice, or None if this comes once."""

    def length(at: datetime) -> timedelta:
        first, second = at.replace(tzinfo=zone), at.replace(tzinfo=zone, fold=1)
        return (first.utcoffset() or timedelta()) - (second.utcoffset() or timedelta())

    long = length(local)
    if long <= timedelta():
        return None
    # The begin lies at most one length before ``local``, at a whole second: a binary search.
    low, high = local.replace(microsecond=0) - long, local.replace(microsecond=0)
    while high - low > _SECOND:
        middle = low + timedelta(seconds=(high - low) // _SECOND // 2)
        low, high = (low, middle) if length(middle) > timedelta() else (middle, high)
    return high, high + long
