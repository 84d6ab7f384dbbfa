"""Markers of handled messages: written once, and deleted when they are old. Knows no Reader."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.apps import apps
from django.db import IntegrityError, connections
from django.db.models.constants import OnConflict

from gnsqsync.django.databases import require_bytes, written
from gnsqsync.django.moments import now
from gnsqsync.envelope import check_key
from gnsqsync.errors import ConfigError
from gnsqsync.keywords import checks_names
from gnsqsync.options import check_int
from gnsqsync.outbox.collations import is_duplicate
from gnsqsync.outbox.due import check_age
from gnsqsync.outbox.once import check_consumer

__all__ = ["is_installed", "mark", "prune", "require_ignoring"]


def is_installed() -> bool:
    """Return True if the app of the inbox is installed."""
    return apps.is_installed("gnsqsync.django.inbox")


def require_ignoring(database: str) -> None:
    """Raise ConfigError if the database cannot ignore the insert of a row that exists."""
    connection: Any = connections[database]
    if not connection.features.supports_ignore_conflicts:
        raise ConfigError(
            f"the database {database!r} ({connection.vendor}) cannot ignore a row that is there;"
            " once= works on PostgreSQL, SQLite and MariaDB"
        )


def mark(database: str, consumer: str, key: str) -> bool:
    """Write the marker in the current transaction. Return False if it existed.

    If another transaction has written the same marker, this waits for the end of that transaction.
    SQLite locks the whole database, so there this waits for any writing transaction.

    Raises:
        ConfigError: The key or the consumer does not fit its column, or the database does not
            compare keys by their bytes.
    """
    # Models can be imported only after all apps are loaded, so not at the top.
    from gnsqsync.django.inbox.models import InboxMarker

    check_key(key, "the key of the message")
    check_consumer(consumer)
    require_ignoring(database)
    connection: Any = connections[database]
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
    handled_at = options.get_field("handled_at").get_db_prep_value(now(), connection)
    with connection.cursor() as cursor:
        try:
            cursor.execute(sql, [consumer, key, handled_at])
        except IntegrityError as error:
            # The database undoes only the statement, so the transaction goes on.
            if ignore is None and is_duplicate(error):
                return False
            raise
        return bool(cursor.rowcount)


@checks_names
def prune(older_than: timedelta, *, batch: int = 1000, using: str | None = None) -> int:
    """Delete markers above an age. A message of such a marker is handled again if it comes again.

    The markers are deleted in several transactions, so that no handler waits for long.

    Args:
        older_than: Age of the markers. It must be longer than any message waits in nsqd, in an
            outbox or among dead letters.
        batch: Markers of one transaction, 1 or more. Default: 1000.
        using: The alias of a database. Default: as the router says.

    Returns:
        The number of deleted markers.

    Raises:
        ConfigError: A value is not allowed.
    """
    from gnsqsync.django.inbox.models import InboxMarker

    check_age("older_than", older_than)
    check_int("batch", batch, 1)
    # The rows are read where they are written: a replica may still show deleted markers.
    markers = InboxMarker.objects.using(written(InboxMarker, using))
    old = markers.filter(handled_at__lt=now() - older_than).order_by("handled_at")
    deleted = 0
    while keys := list(old.values_list("pk", flat=True)[:batch]):
        deleted += markers.filter(pk__in=keys).delete()[0]
    return deleted
