"""The database of a row, and a field whose values are compared by bytes on each database.

Knows Django's connections and its router; knows no table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import connections, models, router

from gnsqsync.errors import ConfigError
from gnsqsync.service.collations import FIND, check_exact, exact_collation

__all__ = ["KeyField", "require_bytes", "written"]

# Alias and table whose collations were looked at.
_looked_at: set[tuple[str, str]] = set()


if TYPE_CHECKING:
    _CharField = models.CharField[Any, Any]
else:
    # At run time Django's has no type arguments.
    _CharField = models.CharField


class KeyField(_CharField):
    """A CharField under whose collation values are equal only if their bytes are."""

    def db_parameters(self, connection: Any) -> Any:
        found: Any = super().db_parameters(connection)
        if connection.vendor == "mysql":
            with connection.cursor() as cursor:
                cursor.execute(FIND)
                found["collation"] = exact_collation(cursor.fetchall())
        return found


def require_bytes(database: str, model: type[models.Model]) -> None:
    """Raise ConfigError if the table was not migrated to the collation of its KeyFields.

    Only MariaDB and MySQL have a collation to look at, once in a process.
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


def written(model: type[models.Model], using: str | None, *, joins: bool = False) -> str:
    """Return the alias of the database in which rows of the model are written, and so read.

    Args:
        model: The model.
        using: The alias that the caller has named; None: the router chooses.
        joins: True for a write that belongs to the caller's transaction.

    Raises:
        ConfigError: With ``joins``: a transaction is open, but on other databases than the one that
            the router chooses, so the row would be kept whatever becomes of that transaction.
    """
    if using is not None:
        return using
    chosen: str = router.db_for_write(model)
    if joins and not connections[chosen].in_atomic_block:
        others = [
            connection.alias
            for connection in connections.all(initialized_only=True)
            if connection.in_atomic_block
        ]
        if others:
            open_ones = " and ".join(repr(alias) for alias in sorted(others))
            raise ConfigError(
                f"a transaction is open on {open_ones}, and the row would go to {chosen!r}, outside"
                f" of it; give using={sorted(others)[0]!r}, or using={chosen!r} if that is meant"
            )
    return chosen
