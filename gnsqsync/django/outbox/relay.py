"""Django's side of the relay: the rows of the outbox in one database.

Knows the tables and the Writers of the settings; knows no command and no signal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections, transaction
from django.db.models import Q
from django.utils import timezone

from gnsqsync import Writer
from gnsqsync.django.handlers import close_old_connections
from gnsqsync.django.outbox.models import OutboxMessage
from gnsqsync.django.outbox.periodic import add_due
from gnsqsync.django.outbox.times import stored
from gnsqsync.django.outbox.writing import lag
from gnsqsync.django.writers import relay_writer
from gnsqsync.service.relay import Lag, Row

__all__ = ["OutboxStore"]


class OutboxStore:
    """A Store of gnsqsync.service.relay."""

    errors: ClassVar[tuple[type[Exception], ...]] = (Error,)
    missing: ClassVar[tuple[type[Exception], ...]] = (ImproperlyConfigured,)

    def __init__(self, database: str) -> None:
        self.name = database
        self._locks = bool(connections[database].features.has_select_for_update_skip_locked)
        # For several ids MariaDB may read the whole table, and so wait for rows of another relay
        # that waits for rows of this one: a deadlock, after both have published.
        self._one_by_one = connections[database].vendor == "mysql"

    def add_due(self, now: datetime) -> int:
        return add_due(self.name, now)

    @contextmanager
    def batch(self, limit: int, now: datetime, without: Collection[str]) -> Iterator[Sequence[Row]]:
        due = stored(now)
        rows = (
            OutboxMessage.objects.using(self.name)
            # Only rows of former versions have a deliver_at after their retry_at.
            .filter(Q(deliver_at=None) | Q(deliver_at__lte=due), failed_at=None, retry_at__lte=due)
            .exclude(alias__in=without)
            .order_by("retry_at", "pk")
        )
        if not self._locks:
            # The table is not locked while the relay waits for nsqd.
            yield [_row(row) for row in rows[:limit]]
            return
        with transaction.atomic(using=self.name):
            yield [_row(row) for row in rows.select_for_update(skip_locked=True)[:limit]]

    def delete(self, rows: Sequence[Row]) -> None:
        for these in self._these(rows):
            these.delete()

    def note(self, rows: Sequence[Row], error: str) -> None:
        for these in self._these(rows):
            these.update(last_error=error)

    def refused(self, row: Row, error: str, retry_at: datetime | None) -> None:
        changes: dict[str, Any] = {"last_error": error, "attempts": row.attempts + 1}
        if retry_at is None:
            changes["failed_at"] = timezone.now()
        else:
            changes["retry_at"] = stored(retry_at)
        for these in self._these([row]):
            these.update(**changes)

    def _these(self, rows: Sequence[Row]) -> Iterator[Any]:
        """Yield the rows as few querysets."""
        known = OutboxMessage.objects.using(self.name)
        if self._one_by_one:
            yield from (known.filter(pk=row.id) for row in rows)
        else:
            yield known.filter(pk__in=[row.id for row in rows])

    def lag(self) -> Lag:
        return lag(self.name)

    def writer(self, alias: str) -> Writer:
        return relay_writer(alias)

    def rest(self) -> None:
        close_old_connections()


def _row(row: OutboxMessage) -> Row:
    return Row(
        id=row.pk,
        alias=row.alias,
        topic=row.topic,
        body=bytes(row.body),
        created_at=row.created_at,
        headers=row.headers,
        key=row.key,
        attempts=row.attempts,
    )
