"""The outbox in a database of SQLAlchemy, as the relay uses it."""

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
from gnsqsync.outbox.due import AT_ONCE
from gnsqsync.outbox.outbox_rows import Lag, Row, age, ahead
from gnsqsync.outbox.table_store import TableStore, row_of

__all__ = ["OutboxStore"]

# Dialects that can lock rows, and skip rows that another relay has locked.
_LOCKING = ("postgresql", "mysql", "mariadb", "oracle")


class OutboxStore(TableStore):
    """A Store (gnsqsync.outbox.outbox_rows) in a database of SQLAlchemy."""

    errors: ClassVar[tuple[type[Exception], ...]] = (DBAPIError, PoolTimeout)

    def __init__(self, engine: Engine, table: Table, writer: Callable[[], Writer]) -> None:
        is_mysql = engine.dialect.name in ("mysql", "mariadb")
        super().__init__(table.name, one_by_one=is_mysql)
        self._engine = engine
        self._table = table
        self._writer = writer
        # True if rows are locked while they are published.
        self._locks = engine.dialect.name in _LOCKING
        # The engine for batches. MariaDB's default, REPEATABLE READ, also locks the gaps between
        # rows, and writers would wait.
        self._batches: Engine = (
            engine.execution_options(isolation_level="READ COMMITTED") if is_mysql else engine
        )
        # The connection of the current batch, if the batch has locked its rows.
        self._connection: Connection | None = None

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
                rows = self._due(connection, due, limit)
            yield rows
            return
        with self._batches.begin() as connection:
            self._connection = connection
            try:
                yield self._due(connection, due.with_for_update(skip_locked=True), limit)
            finally:
                self._connection = None

    def _due(self, connection: Connection, due: Any, limit: int) -> Sequence[Row]:
        with_time = due.where(self._table.c.retry_at > AT_ONCE)
        return self._take((connection, due), (connection, with_time), limit)

    def _rows(self, due: tuple[Connection, Any]) -> Sequence[Row]:
        connection, query = due
        return [row_of(found, "default") for found in connection.execute(query)]

    def _ids(self, due: tuple[Connection, Any]) -> Sequence[int]:
        connection, query = due
        return connection.scalars(query.with_only_columns(self._table.c.id)).all()

    def _one(self, due: tuple[Connection, Any], id: int) -> Row:
        connection, _ = due
        query = select(self._table).where(self._table.c.id == id)
        return row_of(connection.execute(query).one(), "default")

    def _remove(self, ids: Sequence[int]) -> None:
        self._execute(delete(self._table).where(self._with(ids)))

    def _change(self, ids: Sequence[int], **changes: Any) -> None:
        self._execute(update(self._table).where(self._with(ids)).values(**changes))

    def _with(self, ids: Sequence[int]) -> Any:
        column = self._table.c.id
        return column == ids[0] if len(ids) == 1 else column.in_(ids)

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
