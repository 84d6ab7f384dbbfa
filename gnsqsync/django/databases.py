"""The database of a row, and a field whose values are compared by bytes on each database.

Knows Django's connections and its router; knows no table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, connections, models, router, transaction

from gnsqsync.errors import ConfigError
from gnsqsync.outbox.collations import FIND, check_exact, exact_collation

__all__ = ["KeyField", "check_joins", "insert_unless_there", "require_bytes", "written"]

# Pairs of alias and table whose collations this process has checked.
_looked_at: set[tuple[str, str]] = set()


if TYPE_CHECKING:
    _CharField = models.CharField[Any, Any]
else:
    # At run time Django's class has no type arguments.
    _CharField = models.CharField


class KeyField(_CharField):
    """A CharField whose collation compares values by their bytes."""

    def db_parameters(self, connection: Any) -> Any:
        found: Any = super().db_parameters(connection)
        if connection.vendor == "mysql":
            with connection.cursor() as cursor:
                cursor.execute(FIND)
                found["collation"] = exact_collation(cursor.fetchall())
        return found


def require_bytes(database: str, model: type[models.Model]) -> None:
    """Raise ConfigError if the table was not migrated to the collation of its KeyFields.

    The check asks MariaDB and MySQL only, once for each table in a process.
    """
    connection: Any = connections[database]
    options = model._meta
    if connection.vendor != "mysql" or (database, options.db_table) in _looked_at:
        return
    compared = {field.column for field in options.local_fields if isinstance(field, KeyField)}
    with connection.cursor() as cursor:
        cursor.execute(f"SHOW FULL COLUMNS FROM {connection.ops.quote_name(options.db_table)}")
        columns = cursor.fetchall()
    cure = f"run manage.py migrate {options.app_label} --database {database}"
    check_exact(columns, compared, options.db_table, cure)
    _looked_at.add((database, options.db_table))


def insert_unless_there(row: models.Model, using: str) -> None:
    """Insert the row, unless a row with its primary key exists.

    If another transaction has inserted the same key, this waits for the end of that transaction.

    Raises:
        DataError or IntegrityError: The database refuses a value of the row.
    """
    rows = type(row)._base_manager.using(using)
    if connections[using].vendor == "postgresql":
        rows.bulk_create([row], ignore_conflicts=True)
        return
    # INSERT IGNORE would hide errors: MariaDB would cut values that do not fit, and SQLite would
    # drop rows that a check refuses.
    try:
        with transaction.atomic(using=using):
            rows.bulk_create([row])
    except IntegrityError:
        if not rows.filter(pk=row.pk).exists():
            raise


def written(model: type[models.Model], using: str | None, *, joins: bool = False) -> str:
    """Return the alias of the database in which rows of the model are written, and so read.

    Args:
        model: The model.
        using: The alias that the caller has named; None: the router chooses.
        joins: True for a write that belongs to the caller's transaction. Default: False.

    Raises:
        ConfigError: With ``joins``: transactions are open, but none on the database that the router
            chooses. A rollback would not take the row away.
    """
    if using is not None:
        return using
    chosen: str = router.db_for_write(model)
    if joins:
        check_joins(chosen)
    return chosen


def check_joins(chosen: str) -> None:
    """Raise ConfigError if transactions are open, but none on the database ``chosen``."""
    if connections[chosen].in_atomic_block:
        return
    others = sorted(
        connection.alias
        for connection in connections.all(initialized_only=True)
        if connection.in_atomic_block
    )
    if others:
        raise ConfigError(
            f"a transaction is open on {' and '.join(map(repr, others))}, and this would go to"
            f" {chosen!r}, whatever becomes of that transaction; give using={others[0]!r}, or"
            f" using={chosen!r} if that is meant"
        )
