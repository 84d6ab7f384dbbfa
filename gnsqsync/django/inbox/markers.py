"""Markers of handled messages: written once, and deleted when they are old. Knows no Reader."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.apps import apps
from django.db import connections
from django.db.models.constants import OnConflict

from gnsqsync.django.moments import now
from gnsqsync.errors import ConfigError
from gnsqsync.options import check_int

__all__ = ["is_installed", "mark", "prune"]


def is_installed() -> bool:
    """Whether the project has the table."""
    return apps.is_installed("gnsqsync.django.inbox")


def mark(database: str, consumer: str, key: str) -> bool:
    """Write the marker, in the transaction that is under way; whether there was none.

    Where another transaction has written it and is not over, this waits for that one's end: until
    then nobody knows. On a database that locks as a whole, as SQLite, it waits for its turn first.
    """
    # Models can be imported when all apps are loaded, so not above.
    from gnsqsync.django.inbox.models import InboxMarker

    connection: Any = connections[database]
    if not connection.features.supports_ignore_conflicts:
        raise ConfigError(
            f"the database {database!r} ({connection.vendor}) cannot ignore a row that is there;"
            " once= works on PostgreSQL, SQLite, MySQL and MariaDB"
        )
    ops = connection.ops
    options: Any = InboxMarker._meta
    fields = [options.get_field(name) for name in ("consumer", "key", "handled_at")]
    columns = ", ".join(ops.quote_name(field.column) for field in fields)
    sql = " ".join(
        [
            ops.insert_statement(on_conflict=OnConflict.IGNORE),
            ops.quote_name(options.db_table),
            f"({columns}) VALUES (%s, %s, %s)",
            ops.on_conflict_suffix_sql(fields, OnConflict.IGNORE, (), ()),
        ]
    )
    handled_at = options.get_field("handled_at").get_db_prep_value(now(), connection)
    with connection.cursor() as cursor:
        cursor.execute(sql, [consumer, key, handled_at])
        return bool(cursor.rowcount)


def prune(older_than: timedelta, *, batch: int = 1000, using: str | None = None) -> int:
    """Delete the markers that are older; a message that comes again after that is handled again.

    In transactions of their own, so that no handler waits for long.

    Args:
        older_than: Their age. Longer than any message waits in nsqd, an outbox or among dead
            letters.
        batch: Markers of one transaction, 1 or more.
        using: The alias of a database; None: as the router says.

    Returns:
        How many were deleted.

    Raises:
        ConfigError: A value is not allowed.
    """
    from gnsqsync.django.inbox.models import InboxMarker

    if not isinstance(older_than, timedelta) or not older_than > timedelta(0):
        raise ConfigError(f"older_than is {older_than!r}; it must be a timedelta above 0")
    check_int("batch", batch, 1)
    manager: Any = InboxMarker.objects
    markers = manager.using(using) if using else manager
    old = markers.filter(handled_at__lt=now() - older_than).order_by("handled_at")
    deleted = 0
    while keys := list(old.values_list("pk", flat=True)[:batch]):
        deleted += markers.filter(pk__in=keys).delete()[0]
    return deleted
