"""Into the outbox, and how much is in it. Knows the table, no nsqd."""

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
from gnsqsync.service.due import AT_ONCE, later
from gnsqsync.service.outbox_rows import Lag, age, ahead

__all__ = ["Lag", "insert", "lag", "publish", "publish_many"]


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

    Writes a row and talks to no nsqd; ``manage.py nsq_relay`` does. A rollback takes the row away.
    The message may be published twice, when a relay dies at the wrong moment, with the same key. A
    message that nsqd refuses for good stays in the table as failed. Middlewares run here.

    Args:
        topic: The topic; nsqd creates it.
        body: bytes, or a str, which is sent as UTF-8; not empty.
        alias: The entry of ``GNSQSYNC`` whose nsqds get it.
        defer: Seconds from now until it is published; None: at once.
        headers: For ``message.headers``; needs ``"headers": True`` in ``OPTIONS``.
        using: The alias of a database; None: as the router says.

    Raises:
        ConfigError: Topic, body, time or a header is not allowed, or ``using`` is missing: a
            transaction is open, but on another database than the row would be written to.
    """
    due = None if defer is None else later(defer, "defer")
    if defer == 0:
        due = None
    insert(topic, [body], alias=alias, due=due, headers=headers, using=using)


def publish_many(
    topic: str,
    bodies: Iterable[bytes | str],
    *,
    alias: str = DEFAULT,
    headers: Mapping[str, str] | None = None,
    using: str | None = None,
) -> None:
    """As ``publish()``, for several messages with few statements.

    Args:
        topic: The topic; nsqd creates it.
        bodies: The messages, as of ``publish()``.
        alias: The entry of ``GNSQSYNC`` whose nsqds get them.
        headers: As of ``publish()``, for each of them; without a ``key``.
        using: The alias of a database; None: as the router says.

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
    """Write the rows, within the middlewares of the Writer; the key of the last one.

    ``due``: with a zone. ``key``: of a single message, where the Writer may have no headers.
    """
    # Models can be imported when all apps are loaded, so not above.
    from gnsqsync.django.outbox.models import OutboxMessage

    if not bodies:
        return None
    database = written(OutboxMessage, using, joins=True)
    encoder = get_writer(alias).encoder
    moment = now()
    rows = [
        OutboxMessage(
            alias=alias,
            topic=message.topic,
            body=message.body,
            headers=message.headers,
            key=message.key,
            deliver_at=due,
            created_at=moment,
            retry_at=due or AT_ONCE,
        )
        for message in encoder.prepare(topic, bodies, headers=headers, key=key)
    ]
    OutboxMessage.objects.using(database).bulk_create(rows, batch_size=500)
    return rows[-1].key


def lag(using: str | None = None) -> Lag:
    """How much waits in the outbox of a database at this moment.

    Args:
        using: The alias of a database; None: as the router says.
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
