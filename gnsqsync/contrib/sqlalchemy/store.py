"""The outbox in a database of SQLAlchemy, as the relay uses it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import Connection, Engine, Table, delete, func, select, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from gnsqsync import Writer
from gnsqsync.contrib.sqlalchemy.columns import now
from gnsqsync.outbox.due import AT_ONCE
from gnsqsync.outbox.in_doubt import IN_DOUBT, texts
from gnsqsync.outbox.outbox_rows import Lag, Row, age, ahead, readable

__all__ = ["OutboxStore"]

log: logging.Logger = logging.getLogger("gnsqsync.outbox")

# Dialects that can lock rows, and skip rows that another relay has locked.
_LOCKING = ("postgresql", "mysql", "mariadb", "oracle")


class OutboxStore:
    """A Store (gnsqsync.outbox.outbox_rows) in a database of SQLAlchemy."""

    errors: ClassVar[tuple[type[Exception], ...]] = (DBAPIError, PoolTimeout)

    def __init__(self, engine: Engine, table: Table, writer: Callable[[], Writer]) -> None:
        self.name: str = table.name
        self._engine = engine
        self._table = table
        self._writer = writer
        # True if rows are locked while they are published.
        self._locks = engine.dialect.name in _LOCKING
        # True if rows are changed one by one. MariaDB may read the whole table to find several ids,
        # and so wait for rows of another relay that waits for rows of this one. That deadlock would
        # come after both have published.
        self._one_by_one = engine.dialect.name in ("mysql", "mariadb")
        # The engine for batches. MariaDB's default, REPEATABLE READ, also locks the gaps between
        # rows, and writers would wait.
        self._batches: Engine = (
            engine.execution_options(isolation_level="READ COMMITTED")
            if self._one_by_one
            else engine
        )
        # The connection of the current batch, if the batch has locked its rows.
        self._connection: Connection | None = None
        # ``_backlog``: the last batch was full. ``_timed``: it had only messages with a time.
        self._backlog = self._timed = False

    def add_due(self, now: datetime) -> int:
        return 0

    def heal(self, now: datetime) -> None:
        columns = self._table.c
        # Earlier versions wrote the web server's time into ``retry_at`` of messages without a time.
        wrong = (
            columns.scheduled.is_(None),
            columns.failed_at.is_(None),
            columns.attempts == 0,
            columns.retry_at > now,
        )
        # SQLite locks the database even for an UPDATE of no row, so look first.
        with self._engine.connect() as connection:
            is_wrong = connection.execute(select(columns.id).where(*wrong).limit(1)).first()
        if is_wrong is not None:
            self._execute(update(self._table).where(*wrong).values(retry_at=AT_ONCE))

    @contextmanager
    def batch(self, limit: int, now: datetime, without: Collection[str]) -> Iterator[Sequence[Row]]:
        if without:
            # The only Writer has failed, so no row can be published.
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
            # Without row locks the rows are read outside of a transaction: otherwise the whole
            # table would be locked while the relay waits for nsqd.
            with self._engine.connect() as connection:
                rows = self._take(connection, due, limit)
            yield rows
            return
        with self._batches.begin() as connection:
            self._connection = connection
            try:
                yield self._take(connection, due.with_for_update(skip_locked=True), limit)
            finally:
                self._connection = None

    def _take(self, connection: Connection, due: Any, limit: int) -> Sequence[Row]:
        """Return the first due rows.

        Messages without a time sort first. In a backlog every second batch therefore has only
        messages with a time.
        """
        self._timed = self._backlog and not self._timed
        with_time = due.where(self._table.c.retry_at > AT_ONCE)
        rows = self._read(connection, with_time) if self._timed else []
        rows = rows or self._read(connection, due)
        self._backlog = len(rows) >= limit
        return rows

    def _read(self, connection: Connection, due: Any) -> Sequence[Row]:
        columns = self._table.c
        return readable(
            lambda: [_row(found) for found in connection.execute(due)],
            lambda: connection.scalars(due.with_only_columns(columns.id)).all(),
            lambda id: _row(connection.execute(select(self._table).where(columns.id == id)).one()),
            self._unreadable,
        )

    def _unreadable(self, id: int, error: Exception) -> None:
        log.error(
            "outbox of %s: #%d cannot be read: %s; it stays there as failed", self.name, id, error
        )
        self._change([id], last_error=f"cannot be read: {error}", failed_at=now())

    def delete(self, rows: Sequence[Row]) -> None:
        self._on([row.id for row in rows], delete(self._table))

    def note(self, rows: Sequence[Row], error: str) -> None:
        for text, some in texts(rows, error):
            self._change([row.id for row in some], last_error=text)

    def refused(self, row: Row, error: str, retry_at: datetime | None) -> None:
        when: dict[str, Any] = {"failed_at": now()} if retry_at is None else {"retry_at": retry_at}
        ((text, _),) = texts([row], error)
        self._change([row.id], last_error=text, attempts=row.attempts + 1, **when)

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

    def broken(self) -> Sequence[str]:
        """Return no sentence, because there are no periodic messages here."""
        return ()

    def lag(self) -> Lag:
        columns, moment = self._table.c, now()
        since = func.coalesce(columns.scheduled, columns.created_at)
        is_waiting = columns.failed_at.is_(None)
        is_due = columns.scheduled.is_(None) | (columns.scheduled <= moment)
        with self._engine.connect() as connection:

            def count(*wanted: Any) -> int:
                rows = select(func.count()).select_from(self._table).where(*wanted)
                return int(connection.scalar(rows) or 0)

            kind = columns.created_at.type
            oldest, written = connection.execute(
                select(func.min(since, type_=kind), func.max(columns.created_at, type_=kind)).where(
                    is_waiting, is_due
                )
            ).one()
            return Lag(
                waiting=count(is_waiting, is_due),
                failed=count(~is_waiting),
                oldest_seconds=age(oldest, moment),
                scheduled=count(is_waiting, columns.scheduled > moment),
                problems=(*ahead(written, moment),),
            )

    def writer(self, alias: str) -> Writer:
        return self._writer()

    def rest(self) -> None:
        """Do nothing: connections go back to the engine's pool after each use."""


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
        in_doubt=found.last_error.startswith(IN_DOUBT),
    )
