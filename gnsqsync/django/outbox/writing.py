"""Functions that write messages into the outbox and count them. Knows the table, no nsqd."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from django.db.models import Max, Min, Q
from django.db.models.functions import Coalesce

from gnsqsync.django.config import DEFAULT
from gnsqsync.django.databases import written
from gnsqsync.django.moments import now
from gnsqsync.django.writers import get_writer
from gnsqsync.errors import ConfigError
from gnsqsync.keywords import checks_names
from gnsqsync.outbox.due import deferred
from gnsqsync.outbox.outbox_rows import Lag, age, ahead
from gnsqsync.outbox.table_store import new_row

__all__ = ["Lag", "insert", "lag", "publish", "publish_many"]


@checks_names
def publish(
    topic: str,
    body: bytes | str,
    *,
    alias: str = DEFAULT,
    defer: float | None = None,
    headers: Mapping[str, str] | None = None,
    using: str | None = None,
) -> None:
    """Have the message published once the transaction around this call has committed.

    The call writes a row, and ``manage.py nsq_relay`` publishes it. A rollback takes the row away.
    If a relay dies between nsqd's answer and its own commit, the message is published twice, with
    the same key. A message that nsqd refuses for good stays in the table as failed. Middlewares run
    in this call.

    Args:
        topic: The topic; nsqd creates it.
        body: bytes, or a str, which is sent as UTF-8; not empty.
        alias: The entry of ``GNSQSYNC`` whose nsqds get it. Default: "default".
        defer: Seconds from now until the message is published. Default: at once.
        headers: For ``message.headers``; needs ``"headers": True`` in ``OPTIONS``. Default: none.
        using: The alias of a database. Default: as the router says.

    Raises:
        ConfigError: Topic, body, time or a header is not allowed. Or ``using`` is missing although
            a transaction is open on another database than that of the row.
    """
    insert(topic, [body], alias=alias, due=deferred(defer), headers=headers, using=using)


@checks_names
def publish_many(
    topic: str,
    bodies: Iterable[bytes | str],
    *,
    alias: str = DEFAULT,
    headers: Mapping[str, str] | None = None,
    using: str | None = None,
) -> None:
    """Write several messages with few statements, each as ``publish()`` does.

    Args:
        topic: The topic; nsqd creates it.
        bodies: The messages, as for ``publish()``.
        alias: The entry of ``GNSQSYNC`` whose nsqds get them. Default: "default".
        headers: Headers of each message, as for ``publish()``, without a ``key``. Default: none.
        using: The alias of a database. Default: as the router says.

    Raises:
        ConfigError: Topic, a body or a header is not allowed, or ``using`` is missing.
    """
    if isinstance(bodies, (bytes, str)):
        raise ConfigError("bodies is one bytes or str; give a list of them, or use publish()")
    insert(topic, list(bodies), alias=alias, headers=headers, using=using)


def insert(
    topic: str,
    bodies: Sequence[bytes | str],
    *,
    alias: str,
    due: datetime | None = None,
    headers: Mapping[str, str] | None = None,
    key: str | None = None,
    using: str | None = None,
) -> str | None:
    """Write the rows, within the middlewares of the Writer. Return the key of the last one.

    ``due``: a time with a zone. ``key``: the key of a single message, with or without headers.
    """
    # Models can be imported only after all apps are loaded, so not at the top.
    from gnsqsync.django.outbox.models import OutboxMessage

    if not bodies:
        return None
    database = written(OutboxMessage, using, joins=True)
    encoder = get_writer(alias).encoder
    moment = now()
    rows = [
        OutboxMessage(alias=alias, deliver_at=due, **new_row(message, due, moment))
        for message in encoder.prepare(topic, bodies, headers=headers, key=key)
    ]
    OutboxMessage.objects.using(database).bulk_create(rows, batch_size=500)
    return rows[-1].key


def lag(using: str | None = None) -> Lag:
    """Return counts of the messages in the outbox of a database.

    Args:
        using: The alias of a database. Default: as the router says.
    """
    from gnsqsync.django.outbox.models import OutboxMessage
    from gnsqsync.django.outbox.periodic import PeriodicMessages

    moment = now()
    database = written(OutboxMessage, using)
    rows = OutboxMessage.objects.using(database)
    is_due = Q(deliver_at=None) | Q(deliver_at__lte=moment)
    waiting = rows.filter(is_due, failed_at=None)
    found = waiting.aggregate(
        since=Min(Coalesce("deliver_at", "created_at")), written=Max("created_at")
    )
    periodic = PeriodicMessages(database)
    return Lag(
        waiting=waiting.count(),
        failed=rows.exclude(failed_at=None).count(),
        oldest_seconds=age(found["since"], moment),
        scheduled=rows.filter(failed_at=None, deliver_at__gt=moment).count(),
        problems=(*ahead(found["written"], moment), *periodic.problems(moment)),
    )
