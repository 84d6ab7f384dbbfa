"""Instants in a database, whatever ``USE_TZ`` is: a model field, and the form of its values.

With ``USE_TZ`` the column has UTC, as any of Django's. Without it PostgreSQL has UTC as well. Other
databases have local times then, which earlier versions wrote and read, and beside which these run.
A local time of the hour that comes twice names two instants, so ``local_form`` squeezes the second
pass of that hour into the last second of the first pass: order and instants survive.
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
# A squeezed time is known to this precision.
_PRECISION: Final = timedelta(milliseconds=10)

if TYPE_CHECKING:
    _DateTimeField = models.DateTimeField[Any, Any]
else:
    # At run time Django's has no type arguments.
    _DateTimeField = models.DateTimeField


class MomentField(_DateTimeField):
    """A DateTimeField whose values in Python have a zone, also with ``USE_TZ = False``."""

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
            # Django would give a local time, which does not say which of two it is.
            return f"({sql}) AT TIME ZONE 'UTC'", params
        return sql, params

    def get_db_converters(self, connection: Any) -> list[Any]:
        # No call for each value where Django's own value is right.
        return [] if settings.USE_TZ else [self.from_db_value]

    def from_db_value(self, value: Any, expression: object, connection: Any) -> Any:
        if value is None:
            return value
        zone = timezone.get_default_timezone()
        if _is_local(connection):
            return of_local_form(value, zone)
        return value.replace(tzinfo=UTC).astimezone(zone)


def now() -> datetime:
    """The time with a zone, whatever ``USE_TZ`` is."""
    return datetime.now(UTC)


def _is_local(connection: Any) -> bool:
    return not settings.USE_TZ and connection.vendor != "postgresql"


def _aware(value: datetime) -> datetime:
    if value.utcoffset() is not None:
        return value
    return value.replace(tzinfo=timezone.get_default_timezone())


def local_form(moment: datetime, zone: tzinfo) -> datetime:
    """A moment as a local time without a zone, such that the order of moments stays."""
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
    """The moment that ``local_form`` has kept, or that an earlier version has written."""
    repeated = _repeated(local, zone)
    if repeated is None or local < repeated[1] - _SECOND:
        return local.replace(tzinfo=zone)
    start, end = repeated
    passed = (local - (end - _SECOND)) * ((end - start) / _SECOND)
    passed = round(passed / _PRECISION) * _PRECISION
    return min(start + passed, end - _STEP).replace(tzinfo=zone, fold=1)


def _repeated(local: datetime, zone: tzinfo) -> tuple[datetime, datetime] | None:
    """Begin and end of the local times that come twice, if this is one of them."""

    def length(at: datetime) -> timedelta:
        first, second = at.replace(tzinfo=zone), at.replace(tzinfo=zone, fold=1)
        return (first.utcoffset() or timedelta()) - (second.utcoffset() or timedelta())

    long = length(local)
    if long <= timedelta():
        return None
    # The begin lies within one length before; clocks are set at a whole second.
    low, high = local.replace(microsecond=0) - long, local.replace(microsecond=0)
    while high - low > _SECOND:
        middle = low + timedelta(seconds=(high - low) // _SECOND // 2)
        low, high = (low, middle) if length(middle) > timedelta() else (middle, high)
    return high, high + long
