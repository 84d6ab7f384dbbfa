"""What both tables are made of."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, Integer
from sqlalchemy.types import TypeDecorator, TypeEngine

__all__ = ["AT_ONCE", "Moment", "id_column", "now"]

# The time of a message without one: long past, whatever the clock of the machine says on which the
# message is written.
AT_ONCE = datetime(2000, 1, 1, tzinfo=UTC)


class Moment(TypeDecorator[datetime]):
    """A time with its zone, in UTC, also where the database keeps none."""

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = DateTime(timezone=True)
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
    # SQLite counts by itself only what is an INTEGER.
    return Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)


def now() -> datetime:
    return datetime.now(UTC)
