"""Messages by a cron text: when they are due, and their rows in the outbox."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from django.db import transaction

from gnsqsync.django.outbox.models import OutboxMessage, PeriodicMessage
from gnsqsync.django.outbox.times import stored
from gnsqsync.errors import ConfigError

if TYPE_CHECKING:
    from cronsim import CronSim

__all__ = ["MISSED", "add_due", "check_zone", "next_time"]

MISSED = ("once", "all")
# Due times of one message that are written in one transaction.
_MOST_AT_ONCE = 1000


def _cron(text: object, start: datetime, *, reverse: bool = False) -> CronSim:
    try:
        from cronsim import CronSim, CronSimError
    except ImportError as error:
        raise ConfigError(
            "periodic messages need cronsim: pip install 'gnsqsync[schedule]'"
        ) from error
    if not isinstance(text, str):
        raise ConfigError(f"cron is {text!r}; it must be a str such as '0 3 * * *'")
    try:
        return CronSim(text, start, reverse=reverse)
    except CronSimError as error:
        raise ConfigError(
            f"cron is {text!r}: {error}; it has five fields: minute, hour, day of the month, month,"
            " day of the week, such as '0 3 * * mon-fri'"
        ) from error


def check_zone(name: object) -> ZoneInfo:
    """A time zone by its name; ConfigError where there is none."""
    try:
        return ZoneInfo(str(name))
    except (KeyError, ValueError, OSError) as error:  # OSError: the name of a folder
        raise ConfigError(
            f"timezone is {name!r}; it must be a name such as 'Europe/Vienna' or 'UTC'"
        ) from error


def next_time(cron: object, zone: ZoneInfo, after: datetime) -> datetime:
    """The first time after that one. ConfigError where there is none within 50 years."""
    try:
        return next(_cron(cron, after.astimezone(zone))).astimezone(UTC)
    except StopIteration:
        raise ConfigError(f"cron is {cron!r}, which is at no time in 50 years") from None


def _due(periodic: PeriodicMessage, now: datetime) -> Iterator[datetime]:
    """The times of it that have come, the first of which is known."""
    zone = check_zone(periodic.timezone)
    first = periodic.next_at
    first = first.astimezone(UTC) if first.tzinfo else first.astimezone().astimezone(UTC)
    if periodic.missed == "once":
        last = next(_cron(periodic.cron, now.astimezone(zone), reverse=True), first)
        yield max(first, last.astimezone(UTC))
        return
    while first <= now:
        yield first
        first = next_time(periodic.cron, zone, first)


def add_due(database: str, now: datetime) -> int:
    """Write what is due into the outbox; how many rows.

    Whoever moves ``next_at`` on, in the same transaction, writes the rows of that time: several
    relays, on any database, write each due time once.
    """
    messages = PeriodicMessage.objects.using(database)
    added = 0
    for periodic in messages.filter(next_at__lte=stored(now)):
        times = [*islice(_due(periodic, now), _MOST_AT_ONCE)]
        following = next_time(periodic.cron, check_zone(periodic.timezone), times[-1])
        with transaction.atomic(using=database):
            moved = messages.filter(
                pk=periodic.pk, next_at=periodic.next_at, cron=periodic.cron
            ).update(next_at=stored(following))
            if moved:
                rows = [_row(periodic, due, now) for due in times]
                OutboxMessage.objects.using(database).bulk_create(rows, batch_size=500)
                added += len(rows)
    return added


def _row(periodic: PeriodicMessage, due: datetime, now: datetime) -> OutboxMessage:
    return OutboxMessage(
        alias=periodic.alias,
        topic=periodic.topic,
        body=periodic.body,
        headers=periodic.headers,
        key=f"{periodic.name}@{due:%Y-%m-%dT%H:%M}Z",
        deliver_at=stored(due),
        created_at=stored(now),
        retry_at=stored(due),
    )
