"""The outbox in Django's database, as the relay uses it.

Knows the tables and the Writers of the settings; knows no command and no signal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar

from django.db import Error, connections, transaction
from django.db.models import Q

from gnsqsync import Writer
from gnsqsync.django.handlers import close_old_connections
from gnsqsync.django.outbox.models import OutboxMessage
from gnsqsync.django.outbox.periodic import PeriodicMessages
from gnsqsync.django.outbox.writing import lag
from gnsqsync.django.writers import relay_writer
from gnsqsync.outbox.due import AT_ONCE
from gnsqsync.outbox.outbox_rows import Lag, Row
from gnsqsync.outbox.table_store import TableStore, row_of

__all__ = ["OutboxStore"]


class OutboxStore(TableStore):
    """A Store (gnsqsync.outbox.outbox_rows) in Django's database."""

    errors: ClassVar[tuple[type[Exception], ...]] = (Error,)

    def __init__(self, database: str) -> None:
        super().__init__(database, one_by_one=connections[database].vendor == "mysql")
        # True if the database can lock rows and skip rows that another relay has locked.
        self._locks = bool(connections[database].features.has_select_for_update_skip_locked)
        self._periodic = PeriodicMessages(database)

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
            yield self._due(rows, limit)
            return
        with transaction.atomic(using=self.name):
            yield self._due(rows.select_for_update(skip_locked=True), limit)

    def _due(self, due: Any, limit: int) -> Sequence[Row]:
        return self._take(due[:limit], due.filter(retry_at__gt=AT_ONCE)[:limit], limit)

    def _rows(self, due: Any) -> Sequence[Row]:
        return [row_of(found, found.alias) for found in due]

    def _ids(self, due: Any) -> Sequence[int]:
        return list(due.values_list("pk", flat=True))

    def _one(self, due: Any, id: int) -> Row:
        found = self._with([id]).get()
        return row_of(found, found.alias)

    def _remove(self, ids: Sequence[int]) -> None:
        self._with(ids).delete()

    def _change(self, ids: Sequence[int], **changes: Any) -> None:
        self._with(ids).update(**changes)

    def _with(self, ids: Sequence[int]) -> Any:
        known = OutboxMessage.objects.using(self.name)
        return known.filter(pk=ids[0]) if len(ids) == 1 else known.filter(pk__in=ids)

    def lag(self) -> Lag:
        return lag(self.name)

    def broken(self) -> Sequence[str]:
        return self._periodic.broken()

    def writer(self, alias: str) -> Writer:
        return relay_writer(alias)

    def rest(self) -> None:
        close_old_connections()
