"""SQLAlchemy's side of the relay: the rows of one table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Connection, Engine, Table, delete, func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from gnsqsync import Writer
from gnsqsync.contrib.sqlalchemy.columns import now
from gnsqsync.service.relay import Lag, Row

__all__ = ["OutboxStore"]

# These can lock a row, and leave out what another relay has locked.
_LOCKING = ("postgresql", "mysql", "mariadb", "oracle")


class OutboxStore:
    """A Store of gnsqsync.service.relay."""

    errors: ClassVar[tuple[type[Exception], ...]] = (DBAPIError, PoolTimeout)
    missing: ClassVar[tuple[type[Exception], ...]] = ()

    def __init__(self, engine: Engine, table: Table, writer: Callable[[], Writer]) -> None:
        self.name: str = table.name
        self._engine = engine
        self._table = table
        self._writer = writer
        self._locks = engine.dialect.name in _LOCKING
        # For several ids MariaDB may read the whole table, and so wait for rows of another relay
        # that waits for rows of this one: a deadlock, after both have published.
        self._one_by_one = engine.dialect.name in ("mysql", "mariadb")
        # REPEATABLE READ, its default, locks the gaps between rows, too: who writes would wait.
        self._batches: Engine = (
            engine.execution_options(isolation_level="READ COMMITTED")
            if self._one_by_one
            else engine
        )
        # That of the batch under way, where it has locked its rows.
        self._connection: Connection | None = None

    def add_due(self, now: datetime) -> int:
        return 0

    @contextmanager
    def batch(self, limit: int, now: datetime, without: Collection[str]) -> Iterator[Sequence[Row]]:
        if without:
            # There is one Writer, and it failed.
            yield []
            return
        columns = self._table.c
        due = (
            select(self._table)
            .where(columns.failed_at.is_(None), columns.retry_at <= now)
            .order_by(columns.retry_at, columns.id)
            .limit(limit)
        )
        if not self._locks:
            # The table is not locked while the relay waits for nsqd.
            with self._engine.connect() as connection:
                rows = [_row(found) for found in connection.execute(due)]
            yield rows
            return
        with self._batches.begin() as connection:
            self._connection = connection
            try:
                found = connection.execute(due.with_for_update(skip_locked=True))
                yield [_row(row) for row in found]
            finally:
                self._connection = None

    def delete(self, rows: Sequence[Row]) -> None:
        self._on([row.id for row in rows], delete(self._table))

    def note(self, rows: Sequence[Row], error: str) -> None:
        self._change([row.id for row in rows], last_error=error)

    def refused(self, row: Row, error: str, retry_at: datetime | None) -> None:
        when: dict[str, Any] = {"failed_at": now()} if retry_at is None else {"retry_at": retry_at}
        self._change([row.id], last_error=error, attempts=row.attempts + 1, **when)

    def _change(self, ids: Sequence[int], **changes: Any) -> None:
        self._on(ids, update(self._table).values(**changes))

    def _on(self, ids: Sequence[int], statement: Any) -> None:
        column = self._table.c.id
        if self._one_by_one:
            for id in ids:
                self._execute(statement.where(column == id))
        else:
            self._execute(statement.where(column.in_(ids)))

    def _execute(self, statement: Any) -> None:
        if self._connection is not None:
            self._connection.execute(statement)
            return
        with self._engine.begin() as connection:
            connection.execute(statement)

    def lag(self) -> Lag:
        columns, moment = self._table.c, now()
        since = func.coalesce(columns.scheduled, columns.created_at)
        is_waiting = columns.failed_at.is_(None)
        is_due = columns.scheduled.is_(None) | (columns.scheduled <= moment)
        with self._engine.connect() as connection:

            def count(*wanted: Any) -> int:
                rows = select(func.count()).select_from(self._table).where(*wanted)
                return int(connection.scalar(rows) or 0)

            oldest = connection.scalar(
                select(func.min(since, type_=columns.created_at.type)).where(is_waiting, is_due)
            )
            return Lag(
                waiting=count(is_waiting, is_due),
                failed=count(~is_waiting),
                oldest_seconds=max(0.0, (moment - oldest).total_seconds()) if oldest else 0.0,
                scheduled=count(is_waiting, columns.scheduled > moment),
            )

    def writer(self, alias: str) -> Writer:
        return self._writer()

    def rest(self) -> None:
        """Connections go back to the engine's pool after each use."""


def _row(found: Any) -> Row:
    return Row(
        id=found.id,
        alias="default",
        topic=found.topic,
        body=bytes(found.body),
        created_at=found.created_at,
        headers=found.headers,
        key=found.key,
        attempts=found.attempts,
    )
