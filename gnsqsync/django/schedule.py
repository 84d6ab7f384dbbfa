"""Messages for later: at a time, after a while, or again and again. On the table of the outbox.

Needs ``"gnsqsync.django.outbox"`` in INSTALLED_APPS and a running ``manage.py nsq_relay``, which
publishes each message when it is due. nsqd never has one that is not due yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal

from django.conf import settings
from django.db import connections

from gnsqsync import envelope
from gnsqsync.django.config import DEFAULT
from gnsqsync.django.databases import require_bytes, written
from gnsqsync.django.moments import now
from gnsqsync.django.outbox.writing import insert
from gnsqsync.django.writers import get_writer
from gnsqsync.errors import ConfigError
from gnsqsync.service.cron import Cron, check_zone
from gnsqsync.service.due import future, later
from gnsqsync.service.in_doubt import IN_DOUBT, tell_canceled, tell_moved
from gnsqsync.stats import counted

__all__ = ["cancel", "periodic", "publish_after", "publish_at", "reschedule", "stop_periodic"]

log: logging.Logger = logging.getLogger("gnsqsync.django")

# The migration that a migration must depend on that calls ``periodic()``: the newest one that
# changes the columns of the table.
NEEDED = ("gnsqsync_outbox", "0004_keys_by_bytes")

# Called when messages with a key were cancelled, with None, or moved to another time. An app that
# keeps something beside such messages adds a function.
on_change: list[Callable[[str, datetime | None], object]] = []


def publish_at(
    topic: str,
    body: bytes | str,
    when: datetime,
    *,
    key: str | None = None,
    alias: str = DEFAULT,
    headers: Mapping[str, str] | None = None,
    using: str | None = None,
) -> str:
    """Have the message published at that time, if the transaction around this call commits.

    A relay publishes it when it is due, within its ``--interval``, or as soon as one runs.

    Args:
        topic: The topic; nsqd creates it.
        body: bytes, or a str, which is sent as UTF-8; not empty.
        when: A time to come, with a time zone.
        key: For ``cancel()`` and ``reschedule()``, and the message's key header; None: one is made.
            Several messages may have it, with a WARNING if one waits already.
        alias: The entry of ``GNSQSYNC`` whose nsqds get it.
        headers: For ``message.headers``; needs ``"headers": True`` in ``OPTIONS``.
        using: The alias of a database; None: as the router says.

    Returns:
        The key.

    Raises:
        ConfigError: A value is not allowed.
    """
    return _insert(topic, body, _future(when), key, alias, headers, using)


def publish_after(
    topic: str,
    body: bytes | str,
    delay: timedelta | float,
    *,
    key: str | None = None,
    alias: str = DEFAULT,
    headers: Mapping[str, str] | None = None,
    using: str | None = None,
) -> str:
    """As ``publish_at()``, so long from now.

    Args:
        topic: As of ``publish_at()``, like the others.
        body: The message.
        delay: A timedelta, or seconds, 0 or more; months are fine.
        key: For ``cancel()`` and ``reschedule()``.
        alias: The entry of ``GNSQSYNC``.
        headers: For ``message.headers``.
        using: The alias of a database.

    Returns:
        The key.

    Raises:
        ConfigError: A value is not allowed.
    """
    return _insert(topic, body, later(delay, "delay"), key, alias, headers, using)


def _insert(
    topic: str,
    body: bytes | str,
    due: datetime,
    key: str | None,
    alias: str,
    headers: Mapping[str, str] | None,
    using: str | None,
) -> str:
    if key is not None and headers is not None and headers.get(envelope.KEY, key) != key:
        raise ConfigError(f"key is {key!r}, and the header 'key' {headers['key']!r}; give one")
    if key is not None:
        waiting = _scheduled(key, using).filter(failed_at=None).count()
        if waiting:
            log.warning(
                "%s already under the key %r; this one comes, too. reschedule() moves what waits,"
                " cancel() takes it back",
                f"{counted(waiting, 'message')} wait{'s' if waiting == 1 else ''}",
                key,
            )
    made = insert(topic, [body], alias=alias, due=due, headers=headers, key=key, using=using)
    assert made is not None
    return made


def cancel(key: str, *, using: str | None = None) -> int:
    """Take back what was scheduled with that key and is not published.

    A row that a relay publishes at this moment is waited for, and then not counted. On a database
    that cannot lock rows, as SQLite, it may be counted and published. A row whose publish nsqd did
    not confirm is taken back and not counted, with a WARNING: its message may come. A relay that
    was killed between nsqd's answer and its own commit leaves no sign; such a row is counted, and
    its message comes.

    Args:
        key: That of the messages.
        using: The alias of a database; None: as the router says.

    Returns:
        How many messages; 0 where they were published, may have been, or there were none.

    Raises:
        ConfigError: The key is not allowed, or a transaction is open on another database only.
    """
    rows = _scheduled(key, using)
    count: int = rows.exclude(last_error__startswith=IN_DOUBT).delete()[0]
    doubtful: int = rows.delete()[0]
    tell_canceled(key, doubtful)
    _tell(key, None, count + doubtful)
    return count


def reschedule(key: str, when: datetime, *, using: str | None = None) -> int:
    """Move what was scheduled with that key to another time, also what has failed.

    A row whose publish nsqd did not confirm is moved and counted, with a WARNING: its message may
    have come, and comes at that time.

    Args:
        key: That of the messages.
        when: As of ``publish_at()``.
        using: The alias of a database; None: as the router says.

    Returns:
        How many messages; 0 where they were published, or there were none.

    Raises:
        ConfigError: The key or the time is not allowed, or a transaction is open on another
            database only.
    """
    due = _future(when)
    changes = {"deliver_at": due, "retry_at": due, "failed_at": None, "attempts": 0}
    rows = _scheduled(key, using)
    count: int = rows.exclude(last_error__startswith=IN_DOUBT).update(**changes)
    # After the others: a row that a relay had may be in doubt by now.
    doubtful: int = rows.filter(last_error__startswith=IN_DOUBT).update(**changes)
    tell_moved(key, doubtful)
    _tell(key, due, count + doubtful)
    return count + doubtful


def _tell(key: str, due: datetime | None, count: int) -> None:
    if count:
        for tell in on_change:
            tell(key, due)


def _scheduled(key: str, using: str | None) -> Any:
    from gnsqsync.django.outbox.models import OutboxMessage

    envelope.check_key(key, "key")
    database = written(OutboxMessage, using, joins=True)
    require_bytes(database, OutboxMessage)
    return OutboxMessage.objects.using(database).filter(key=key, deliver_at__isnull=False)


def periodic(
    name: str,
    cron: str,
    topic: str,
    body: bytes | str,
    *,
    timezone: str | None = None,
    missed: Literal["once", "all"] = "once",
    alias: str = DEFAULT,
    headers: Mapping[str, str] | None = None,
    using: str | None = None,
) -> None:
    """Have the message published whenever the cron text says so, until ``stop_periodic()``.

    Call it again, as in a migration, whose ``dependencies`` then need
    ``("gnsqsync_outbox", "0004_keys_by_bytes")``, or at each deployment: what is there under
    this name is changed and keeps its next time, unless the cron text or the zone is another one.
    Each due time is published by one relay, however many run; its key is ``<name>@<time in UTC>``.

    Args:
        name: 1 to 100 characters; one message has it.
        cron: Minute, hour, day of the month, month, day of the week, as Debian's cron takes them,
            or a nickname: ``@hourly``, ``@daily``, ``@midnight``, ``@weekly``, ``@monthly``,
            ``@yearly``, ``@annually``.
        topic: The topic; nsqd creates it.
        body: bytes, or a str, which is sent as UTF-8; not empty.
        timezone: The zone of the cron text; None: ``TIME_ZONE`` of the settings. When clocks are
            changed it behaves as Debian's cron.
        missed: Of the times at which no relay ran, ``'once'``: the last one is published;
            ``'all'``: each.
        alias: The entry of ``GNSQSYNC`` whose nsqds get it.
        headers: For ``message.headers``; needs ``"headers": True`` in ``OPTIONS``; without a
            ``key``. No middleware runs.
        using: The alias of a database; None: as the router says.

    Raises:
        ConfigError: A value is not allowed.
    """
    from gnsqsync.django.outbox.periodic import MISSED

    if not isinstance(name, str) or not 0 < len(name) <= 100 or not name.isprintable():
        raise ConfigError(f"name is {name!r}; it must be 1 to 100 printable characters")
    if missed not in MISSED:
        raise ConfigError(f"missed is {missed!r}; it must be 'once' or 'all'")
    if headers is not None and envelope.KEY in headers:
        raise ConfigError("headers must have no 'key': each due time has one of its own")
    zone = check_zone(settings.TIME_ZONE if timezone is None else timezone)
    checked = Cron(cron, zone)
    next_at = checked.next(now())
    encoder = get_writer(alias).encoder
    encoder.check(topic, body, headers=headers)
    row = {
        "cron": checked.text,
        "timezone": zone.key,
        "missed": missed,
        "alias": alias,
        "topic": topic,
        "body": body.encode() if isinstance(body, str) else bytes(body),
        "headers": dict(headers or {}) if encoder.has_headers else None,
    }
    _require_table(using)
    manager = _periodic(using)
    changed = manager.filter(name=name, cron=checked.text, timezone=zone.key).update(**row)
    if not changed:
        manager.update_or_create(name=name, defaults={**row, "next_at": next_at})


def _require_table(using: str | None) -> None:
    """Raise ConfigError if the table has not been migrated yet, as in another app's migration."""
    from gnsqsync.django.outbox.models import PeriodicMessage

    database = written(PeriodicMessage, using, joins=True)
    table = PeriodicMessage._meta.db_table
    if table not in connections[database].introspection.table_names():
        raise ConfigError(
            f"the database {database!r} has no table {table}: run manage.py migrate; a migration"
            f" that calls periodic() needs {NEEDED!r} among its dependencies"
        )


def stop_periodic(name: str, *, using: str | None = None) -> bool:
    """End it. What was due before is published.

    Args:
        name: As given to ``periodic()``.
        using: The alias of a database; None: as the router says.

    Returns:
        Whether there was one of that name.
    """
    return bool(_periodic(using).filter(name=name).delete()[0])


def _periodic(using: str | None) -> Any:
    from gnsqsync.django.outbox.models import PeriodicMessage

    database = written(PeriodicMessage, using, joins=True)
    require_bytes(database, PeriodicMessage)
    return PeriodicMessage.objects.using(database)


def _future(when: object) -> datetime:
    return future(
        when,
        "when",
        with_zone="django.utils.timezone.now() or timezone.make_aware(...)",
        at_once="what is due now is published by outbox.publish()",
    )
