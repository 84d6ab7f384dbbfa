"""Into the outbox, and how much is in it. Knows the table, no nsqd."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from django.utils import timezone

from gnsqsync.django.config import DEFAULT
from gnsqsync.django.writers import get_writer
from gnsqsync.errors import ConfigError

__all__ = ["Lag", "lag", "publish", "publish_many"]


@dataclass(frozen=True)
class Lag:
    """What is in the outbox: rows that wait, those that failed for good, and the oldest's age.

    ``oldest_seconds``: of those that wait, 0.0 when there are none.
    """

    waiting: int
    failed: int
    oldest_seconds: float

    def __str__(self) -> str:
        """For a person."""
        return (
            f"{self.waiting} waiting, the oldest for {self.oldest_seconds:.1f} s;"
            f" {self.failed} failed"
        )


def publish(
    topic: str,
    body: bytes | str,
    *,
    alias: str = DEFAULT,
    defer: float | None = None,
    using: str | None = None,
) -> None:
    """Have the message published once the transaction around this call has committed.

    Writes a row and talks to no nsqd; ``manage.py nsq_relay`` does. A rollback takes the row away.
    The message may be published twice, when a relay dies at the wrong moment. A message that nsqd
    refuses for good stays in the table as failed.

    Args:
        topic: The topic; nsqd creates it.
        body: bytes, or a str, which is sent as UTF-8; not empty.
        alias: The entry of ``GNSQSYNC`` whose nsqds get it.
        defer: Seconds from now until nsqd delivers it; None: at once.
        using: The alias of a database; None: as the router says.

    Raises:
        ConfigError: Topic, body or time is not allowed.
    """
    _insert(topic, [body], alias, defer, using)


def publish_many(
    topic: str, bodies: Iterable[bytes | str], *, alias: str = DEFAULT, using: str | None = None
) -> None:
    """As ``publish()``, for several messages with few statements.

    Args:
        topic: The topic; nsqd creates it.
        bodies: The messages, as of ``publish()``.
        alias: The entry of ``GNSQSYNC`` whose nsqds get them.
        using: The alias of a database; None: as the router says.

    Raises:
        ConfigError: Topic or a body is not allowed.
    """
    if isinstance(bodies, (bytes, str)):
        raise ConfigError("bodies is one bytes or str; give a list of them, or use publish()")
    _insert(topic, list(bodies), alias, None, using)


def _insert(
    topic: str, bodies: list[bytes | str], alias: str, defer: float | None, using: str | None
) -> None:
    # Models can be imported when all apps are loaded, so not above.
    from gnsqsync.django.outbox.models import OutboxMessage

    writer = get_writer(alias)
    for body in bodies:
        writer._encode(topic, body, defer)
    now = timezone.now()
    rows = [
        OutboxMessage(
            alias=alias,
            topic=topic,
            body=body.encode() if isinstance(body, str) else bytes(body),
            deliver_at=None if defer is None else now + timedelta(seconds=defer),
            created_at=now,
            retry_at=now,
        )
        for body in bodies
    ]
    manager: Any = OutboxMessage.objects
    (manager.using(using) if using else manager).bulk_create(rows, batch_size=500)


def lag(using: str | None = None) -> Lag:
    """How much waits in the outbox of a database at this moment.

    Args:
        using: The alias of a database; None: as the router says.
    """
    from gnsqsync.django.outbox.models import OutboxMessage

    manager: Any = OutboxMessage.objects
    rows = manager.using(using) if using else manager
    waiting = rows.filter(failed_at=None)
    oldest = waiting.order_by("created_at").values_list("created_at", flat=True).first()
    seconds = 0.0 if oldest is None else (timezone.now() - oldest).total_seconds()
    return Lag(waiting.count(), rows.exclude(failed_at=None).count(), max(0.0, seconds))
