"""The inbox: markers of handled messages, written in the handlers' transactions."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import Column, Engine, MetaData, Table, UniqueConstraint, delete, insert, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from gnsqsync import Message
from gnsqsync.contrib.sqlalchemy.columns import TABLE, Key, Moment, id_column, now, require_bytes
from gnsqsync.envelope import MAX_KEY, check_key
from gnsqsync.errors import ConfigError
from gnsqsync.keywords import checks_names
from gnsqsync.options import check_handler, check_int
from gnsqsync.outbox.collations import is_duplicate
from gnsqsync.outbox.due import check_age
from gnsqsync.outbox.once import (
    MARK,
    MAX_CONSUMER,
    KeyOf,
    check_consumer,
    key_of,
    run_once,
)
from gnsqsync.outbox.uncalled import unless_called

__all__ = ["Inbox"]

log: logging.Logger = logging.getLogger("gnsqsync.contrib")


class Inbox:
    """A guard by which each message is handled once, even if it comes several times.

    The guard covers only the handler's writes in the session that it gets.

    Args:
        metadata: The MetaData of the application, which gets the table.
        name: The name of the table. Default: "nsq_inbox".

    Attributes:
        table: The table, for migrations.

    Threads:
        Any thread may use it, each with a session of its own.
    """

    def __init__(self, metadata: MetaData, name: str = "nsq_inbox") -> None:
        self.table: Table = Table(
            name,
            metadata,
            id_column(),
            Column("consumer", Key(MAX_CONSUMER), nullable=False),
            Column("key", Key(MAX_KEY), nullable=False),
            Column("handled_at", Moment, nullable=False, index=True),
            UniqueConstraint("consumer", "key", name=f"{name}_once"),
            **TABLE,
        )

    @checks_names
    def once(
        self, sessions: Callable[[], Session], key: KeyOf | None = None
    ) -> Callable[[Callable[[Message, Session], object]], Callable[[Message], None]]:
        """Return a decorator for a handler of a message and a session, with a marker in it.

        Handler and marker share the session's transaction. The transaction is committed when the
        handler returns, and rolled back when it raises. A second delivery is finished without a
        call. If another transaction handles the same message, this one waits for its end. The
        handler must not answer the message.

        Args:
            sessions: Function that makes a session, such as a ``sessionmaker``.
            key: Function that returns the key of a message. Default: the header ``key``, for
                Readers with ``headers=True``. A message without a key is rejected.

        Returns:
            A decorator, which makes the handler of a Reader.

        Raises:
            ConfigError: ``sessions`` or ``key`` is no function. The decorator raises it if the
                handler does not take two arguments, or if its code would never run. A Reader
                without headers raises it for a handler without ``key``.
        """
        for name, function in (("sessions", sessions), ("key", key or key_of)):
            if not callable(function):
                raise ConfigError(
                    f"{name} is {function!r}; it must be a function"
                    + (", such as a sessionmaker" if name == "sessions" else "")
                )

        def decorate(function: Callable[[Message, Session], object]) -> Callable[[Message], None]:
            check_handler("the handler with once", function, "a message", "a session")

            @functools.wraps(function)
            def handle(message: Message) -> None:
                with unless_called(function) as call:
                    its_key = key_of(message, key)
                    with sessions() as session, session.begin():
                        run_once(
                            message,
                            its_key,
                            functools.partial(self.mark, session),
                            lambda message: call(message, session),
                            log,
                        )

            setattr(handle, MARK, key is None)
            return handle

        return decorate

    def mark(self, session: Session, consumer: str, key: str) -> bool:
        """Write the marker in the session's transaction.

        ``once()`` calls this. If another transaction has written the same marker, this waits for
        the end of that transaction.

        Args:
            session: The session of the handler.
            consumer: Name of the consumer, 1 to 129 printable characters; ``once()`` takes
                topic/channel.
            key: The key of the message, 1 to 200 printable characters.

        Returns:
            True if the marker is new, False if it existed.

        Raises:
            ConfigError: A value is not allowed, the database is neither PostgreSQL, SQLite nor
                MariaDB, or the table does not compare keys by their bytes.
        """
        check_key(key, "key")
        check_consumer(consumer)
        row = {"consumer": consumer, "key": key, "handled_at": now()}
        dialect = session.get_bind(clause=self.table).dialect.name
        statement: Any
        if dialect == "postgresql":
            statement = postgresql.insert(self.table).values(row).on_conflict_do_nothing()
            # Some drivers give no rowcount if the new id is returned, so the id is asked for.
            return session.scalar(statement.returning(self.table.c.id)) is not None
        if dialect == "sqlite":
            statement = sqlite.insert(self.table).values(row).on_conflict_do_nothing()
        elif dialect in ("mysql", "mariadb"):
            return self._mark_mysql(session, row)
        else:
            raise ConfigError(
                f"the database is {dialect}; the inbox works on PostgreSQL, SQLite and MariaDB"
            )
        found: Any = session.execute(statement)
        return bool(found.rowcount)

    def _mark_mysql(self, session: Session, row: dict[str, Any]) -> bool:
        require_bytes(session, self.table)
        try:
            # INSERT IGNORE would also store a text that does not fit, cut or with "?" in it.
            session.execute(insert(self.table).values(row))
        except IntegrityError as error:
            # The database undoes only the statement, so the transaction goes on.
            if error.orig is not None and is_duplicate(error.orig):
                return False
            raise
        return True

    @checks_names
    def prune(self, engine: Engine, older_than: timedelta, *, batch: int = 1000) -> int:
        """Delete markers above an age. A message of such a marker is handled again if it comes.

        The markers are deleted in several transactions, so that no handler waits for long.

        Args:
            engine: The database that has the markers.
            older_than: Age of the markers. It must be longer than any message waits in nsqd, in an
                outbox or among dead letters.
            batch: Markers of one transaction, 1 or more. Default: 1000.

        Returns:
            The number of deleted markers.

        Raises:
            ConfigError: A value is not allowed.
        """
        check_age("older_than", older_than)
        check_int("batch", batch, 1)
        columns = self.table.c
        old = select(columns.id).where(columns.handled_at < now() - older_than)
        deleted = 0
        while True:
            with engine.begin() as connection:
                ids = connection.scalars(old.order_by(columns.handled_at).limit(batch)).all()
                if not ids:
                    return deleted
                connection.execute(delete(self.table).where(columns.id.in_(ids)))
                deleted += len(ids)
