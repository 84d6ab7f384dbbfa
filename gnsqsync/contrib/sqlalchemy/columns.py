"""Types and arguments of the tables of outbox and inbox."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    LargeBinary,
    String,
    Table,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeDecorator, TypeEngine

from gnsqsync.outbox.collations import EXACT, check_exact

__all__ = ["TABLE", "Blob", "Key", "Moment", "id_column", "now", "require_bytes"]

# The dialects for MariaDB and MySQL. The URL chooses the name, not the server.
_MYSQL = ("mysql", "mariadb")
# Arguments of each Table. With autoincrement SQLite does not reuse the id of a deleted row.
TABLE: dict[str, Any] = {
    "sqlite_autoincrement": True,
    "mysql_charset": "utf8mb4",
    "mariadb_charset": "utf8mb4",
}
# The type of a body of any size. A plain BLOB of MariaDB ends at 64 KiB.
Blob: TypeEngine[Any] = LargeBinary().with_variant(mysql.LONGBLOB(), *_MYSQL)
# Names of tables whose collations were checked, by engine.
_looked_at: WeakKeyDictionary[Engine, set[str]] = WeakKeyDictionary()


class Key(String):
    """A text whose collation compares values by their bytes."""


@compiles(Key, *_MYSQL)
def _by_bytes(key: Key, compiler: Any, **options: Any) -> str:
    return f"VARCHAR({key.length}) CHARACTER SET utf8mb4 COLLATE {_collation(compiler.dialect)}"


def _collation(dialect: Any) -> str:
    return EXACT[0] if dialect.is_mariadb else EXACT[1]


def require_bytes(session: Session | Connection, table: Table) -> None:
    """Raise ConfigError if keys of the table are not compared by their bytes.

    The check asks MariaDB and MySQL only, once for each engine and table.
    """
    # A session may have another database for this table. A scoped_session is no Session, so the
    # test is for a Connection.
    connection = (
        session
        if isinstance(session, Connection)
        else session.connection(bind_arguments={"clause": table})
    )
    if connection.dialect.name not in _MYSQL:
        return
    seen = _looked_at.setdefault(connection.engine, set())
    if table.fullname in seen:
        return
    name = connection.dialect.identifier_preparer.format_table(table)
    columns = connection.exec_driver_sql(f"SHOW FULL COLUMNS FROM {name}").all()
    compared = {column.name for column in table.columns if isinstance(column.type, Key)}
    collation = _collation(connection.dialect)
    alter = f"ALTER TABLE {name} CONVERT TO CHARACTER SET utf8mb4 COLLATE {collation}"
    check_exact(columns, compared, table.fullname, f"run: {alter}")
    seen.add(table.fullname)


class Moment(TypeDecorator[datetime]):
    """A time in UTC with its zone, even if the database stores no zone."""

    # MariaDB and MySQL keep no fraction of a second unless the type says so.
    impl: TypeEngine[Any] | type[TypeEngine[Any]] = DateTime(timezone=True).with_variant(
        mysql.DATETIME(fsp=6), *_MYSQL
    )
    cache_ok: bool | None = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        if value is None:
            return None
        value = value.astimezone(UTC)
        return value if dialect.name == "postgresql" else value.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def id_column() -> Column[int]:
    # SQLite generates ids only for a column of type INTEGER.
    return Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)


def now() -> datetime:
    return datetime.now(UTC)
