"""The outbox in Django's database, as the relay uses it.

Knows the tables and the Writers of the settings; knows no command and no signal.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar

from django.db import Error, connections, transaction
from django.db.models import Q

from gnsqsync import Writer
from gnsqsync.django import moments
from gnsqsync.django.handlers import close_old_connections
from gnsqsync.django.outbox.models import OutboxMessage
from gnsqsync.django.outbox.periodic import PeriodicMessages
from gnsqsync.django.outbox.writing import lag
from gnsqsync.django.writers import relay_writer
from gnsqsync.outbox.due import AT_ONCE
from gnsqsync.outbox.in_doubt import IN_DOUBT, texts
from gnsqsync.outbox.outbox_rows import Lag, Row, readable

__all__ = ["OutboxStore"]

log: logging.Logger = logging.getLogger("gnsqsync.outbox")


class OutboxStore:
    """A Store (gnsqsync.outbox.outbox_rows) in Django's database."""

    errors: ClassVar[tuple[type[Exception], ...]] = (Error,)

    def __init__(self, database: str) -> None:
        self.name = database
        # True if the database can lock rows and skip rows that another relay has locked.
        self._locks = bool(connections[database].features.has_select_for_update_skip_locked)
        # True if rows are changed one by one. MariaDB may read the whole table to find several ids,
        # and so wait for rows of another relay that waits for rows of this one. That deadlock would
        # come after both have published.
        self._one_by_one = connections[database].vendor == "mysql"
        self._periodic = PeriodicMessages(database)
        # ``_backlog``: the last batch was full. ``_timed``: it had only messages with a time.
        self._backlog = self._timed = False

    def add_due(self, now: datetime) -> int:
        return self._periodic.add_due(now)

    def heal(self, now: datetime) -> None:
        self._periodic.move_back(now)
        # Earlier versions wrote the web server's time into ``retry_at`` of messages without a time.
        wrong = OutboxMessage.objects.using(self.name).filter(
            deliver_at=None, failed_at=None, attempts=0, retry_at__gt=now
        )
        # SQLite locks the database even for an UPDATE of no row, so look first.
        if wrong.exists():
            wrong.update(retry_at=AT_ONCE)

    @contextmanager
    def batch(self, limit: int, now: datetime, without: Collection[str]) -> Iterator[Sequence[Row]]:
        rows = (
            OutboxMessage.objects.using(self.name)
            # A ``deliver_at`` after the ``retry_at`` occurs in rows of older versions only.
            .filter(Q(deliver_at=None) | Q(deliver_at__lte=now), failed_at=None, retry_at__lte=now)
            .exclude(alias__in=without)
            .order_by("retry_at", "pk")
        )
        if not self._locks:
            # Without row locks the rows are read outside of a transaction: otherwise the whole
            # table would be locked while the relay waits for nsqd.
            yield self._take(rows, limit)
            return
        with transaction.atomic(using=self.name):
            yield self._take(rows.select_for_update(skip_locked=True), limit)

    def _take(self, due: Any, limit: int) -> Sequence[Row]:
        """Return the first due rows.

        Messages without a time sort first. In a backlog every second batch therefore has only
        messages with a time.
        """
        self._timed = self._backlog and not self._timed
        rows = self._read(due.filter(retry_at__gt=AT_ONCE)[:limit]) if self._timed else []
        rows = rows or self._read(due[:limit])
        self._backlog = len(rows) >= limit
        return rows

    def _read(self, due: Any) -> Sequence[Row]:
        return readable(
            lambda: [_row(row) for row in due],
            lambda: list(due.values_list("pk", flat=True)),
            lambda pk: _row(OutboxMessage.objects.using(self.name).get(pk=pk)),
            self._unreadable,
        )

    def _unreadable(self, pk: int, error: Exception) -> None:
        log.error(
            "outbox of %s: #%d cannot be read: %s; it stays there as failed", self.name, pk, error
        )
        rows = OutboxMessage.objects.using(self.name).filter(pk=pk)
        rows.update(last_error=f"cannot be read: {error}", failed_at=moments.now())

    def delete(self, rows: Sequence[Row]) -> None:
        for these in self._these(rows):
            these.delete()

    def note(self, rows: Sequence[Row], error: str) -> None:
        for text, some in texts(rows, error):
            for these in self._these(some):
                these.update(last_error=text)

    def refused(self, row: Row, error: str, retry_at: datetime | None) -> None:
        ((text, _),) = texts([row], error)
        changes: dict[str, Any] = {"last_error": text, "attempts": row.attempts + 1}
        if retry_at is None:
            changes["failed_at"] = moments.now()
        else:
            changes["retry_at"] = retry_at
        for these in self._these([row]):
            these.update(**changes)

    def _these(self, rows: Sequence[Row]) -> Iterator[Any]:
        """Yield the rows as querysets, as few as the database allows."""
        known = OutboxMessage.objects.using(self.name)
        if self._one_by_one:
            yield from (known.filter(pk=row.id) for row in rows)
        else:
            yield known.filter(pk__in=[row.id for row in rows])

    def lag(self) -> Lag:
        return lag(self.name)

    def broken(self) -> Sequence[str]:
        return self._periodic.broken()

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
        in_doubt=row.last_error.startswith(IN_DOUBT),
    )
