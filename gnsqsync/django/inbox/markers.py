"""Markers of handled messages: written once, and deleted when they are old. Knows no Reader."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.apps import apps
from django.db import IntegrityError, connections
from django.db.models.constants import OnConflict
from django.utils import timezone

from gnsqsync.django.databases import require_bytes, written
from gnsqsync.envelope import check_key
from gnsqsync.errors import ConfigError
from gnsqsync.options import check_int
from gnsqsync.service.collations import is_duplicate
from gnsqsync.service.once import check_consumer

__all__ = ["is_installed", "mark", "prune"]


def is_installed() -> bool:
    """Whether the project has the table."""
    return apps.is_installed("gnsqsync.django.inbox")


def mark(database: str, consumer: str, key: str) -> bool:
    """Write the marker in the transaction that is under way. Return False if it was there.

    Waits for the end of another transaction that has written it. On a database that locks as a
    whole, as SQLite, it waits for its turn first.

    Raises:
        ConfigError: The key or the consumer does not fit its column, or the database is not one of
            those that compare keys by their bytes.
    """
    # Models can be imported when all apps are loaded, so not above.
    from gnsqsync.django.inbox.models import InboxMarker

    check_key(key, "the key of the message")
    check_consumer(consumer)
    connection: Any = connections[database]
    if not connection.features.supports_ignore_conflicts:
        raise ConfigError(
            f"the database {database!r} ({connection.vendor}) cannot ignore a row that is there;"
            " once= works on PostgreSQL, SQLite and MariaDB"
        )
    require_bytes(database, InboxMarker)
    ops = connection.ops
    options: Any = InboxMarker._meta
    fields = [options.get_field(name) for name in ("consumer", "key", "handled_at")]
    columns = ", ".join(ops.quote_name(field.column) for field in fields)
    # INSERT IGNORE of MariaDB would also store a text that does not fit, cut or with "?" in it.
    ignore = None if connection.vendor == "mysql" else OnConflict.IGNORE
    sql = " ".join(
        [
            ops.insert_statement(on_conflict=ignore),
            ops.quote_name(options.db_table),
            f"({columns}) VALUES (%s, %s, %s)",
            ops.on_conflict_suffix_sql(fields, ignore, (), ()),
        ]
    )
    now = ops.adapt_datetimefield_value(timezone.now())
    with connection.cursor() as cursor:
        try:
            cursor.execute(sql, [consumer, key, now])
        except IntegrityError as error:
            # The statement alone is undone, not the transaction.
            if ignore is None and is_duplicate(error):
                return False
            raise
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
    # A replica that lags behind would show the deleted ones again.
    markers = InboxMarker.objects.using(written(InboxMarker, using))
    old = markers.filter(handled_at__lt=timezone.now() - older_than).order_by("handled_at")
    deleted = 0
    while keys := list(old.values_list("pk", flat=True)[:batch]):
        deleted += markers.filter(pk__in=keys).delete()[0]
    return deleted
