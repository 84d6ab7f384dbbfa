"""Messages for later: at a time, after a delay, or again and again. On the table of the outbox.

Needs ``"gnsqsync.django.outbox"`` in INSTALLED_APPS and a running ``manage.py nsq_relay``. The
relay publishes each message when it is due, so nsqd never has a message that is not due.
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
from gnsqsync.keywords import checks_names
from gnsqsync.outbox.cron import Cron, check_zone
from gnsqsync.outbox.due import future, later
from gnsqsync.outbox.in_doubt import IN_DOUBT, tell_canceled, tell_moved
from gnsqsync.outbox.table_store import due_again
from gnsqsync.stats import counted

__all__ = ["cancel", "periodic", "publish_after", "publish_at", "reschedule", "stop_periodic"]

log: logging.Logger = logging.getLogger("gnsqsync.django")

# The newest migration that changes the columns of the table. A migration that calls ``periodic()``
# must depend on it.
NEEDED = ("gnsqsync_outbox", "0004_keys_by_bytes")

# Functions called with a key and its new time when messages were moved, or with None when they were
# cancelled. An app that keeps data about such messages adds a function.
on_change: list[Callable[[str, datetime | None], object]] = []


@checks_names
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

    A relay publishes the message when it is due, within the relay's ``--interval``. If no relay
    runs then, the next one publishes it at once.

    Args:
        topic: The topic; nsqd creates it.
        body: bytes, or a str, which is sent as UTF-8; not empty.
        when: A future time, with a time zone.
        key: The key for ``cancel()`` and ``reschedule()``, and the message's key header. Several
            messages may have one key; a WARNING tells if one waits already. Default: a new key.
        alias: The entry of ``GNSQSYNC`` whose nsqds get it. Default: "default".
        headers: For ``message.headers``; needs ``"headers": True`` in ``OPTIONS``. Default: none.
        using: The alias of a database. Default: as the router says.

    Returns:
        The key.

    Raises:
        ConfigError: A value is not allowed.
    """
    return _insert(topic, body, _future(when), key, alias, headers, using)


@checks_names
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
    """Have the message published after a delay, as ``publish_at()`` does at a time.

    Args:
        topic: As for ``publish_at()``.
        body: As for ``publish_at()``.
        delay: A timedelta, or seconds, 0 or more; months are allowed.
        key: As for ``publish_at()``.
        alias: As for ``publish_at()``.
        headers: As for ``publish_at()``.
        using: As for ``publish_at()``.

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


@checks_names
def cancel(key: str, *, using: str | None = None) -> int:
    """Take back the scheduled messages with that key that are not published.

    If a relay publishes a row at this moment, the call waits for the relay, and the row does not
    count. On a database that cannot lock rows, such as SQLite, the row may count although it is
    published. A row whose publish nsqd did not confirm is taken back with a WARNING and does not
    count, because its message may come. If a relay was killed between nsqd's answer and its own
    commit, the row counts and its message comes.

    Args:
        key: The key of the messages.
        using: The alias of a database. Default: as the router says.

    Returns:
        The number of messages that were taken back. Apart from the cases above, they do not come.

    Raises:
        ConfigError: The key is not allowed, or a transaction is open on another database only.
    """
    rows = _scheduled(key, using)
    count: int = rows.exclude(last_error__startswith=IN_DOUBT).delete()[0]
    doubtful: int = rows.delete()[0]
    tell_canceled(key, doubtful)
    _tell(key, None, count + doubtful)
    return count


@checks_names
def reschedule(key: str, when: datetime, *, using: str | None = None) -> int:
    """Move the scheduled messages with that key, also failed ones, to another time.

    A row whose publish nsqd did not confirm is moved and counted, with a WARNING: its message may
    have come already, and comes at the new time.

    Args:
        key: The key of the messages.
        when: The new time, as for ``publish_at()``.
        using: The alias of a database. Default: as the router says.

    Returns:
        The number of moved messages; published messages do not count.

    Raises:
        ConfigError: The key or the time is not allowed, or a transaction is open on another
            database only.
    """
    due = _future(when)
    changes = {"deliver_at": due, **due_again(due)}
    rows = _scheduled(key, using)
    count: int = rows.exclude(last_error__startswith=IN_DOUBT).update(**changes)
    # Rows in doubt come second: a row that a relay held during the first update may be one now.
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


@checks_names
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

    A second call with the same name changes the message, for example at each deployment. The
    message keeps its next time, unless the cron text or the zone changes. A migration that calls
    this needs ``("gnsqsync_outbox", "0004_keys_by_bytes")`` among its ``dependencies``. Only one
    relay publishes each due time. The key of its message is ``<name>@<time in UTC>``.

    Args:
        name: The name of the message, unique, 1 to 100 characters.
        cron: Minute, hour, day of the month, month, day of the week, in the form of Debian's cron,
            or a nickname: ``@hourly``, ``@daily``, ``@midnight``, ``@weekly``, ``@monthly``,
            ``@yearly``, ``@annually``.
        topic: The topic; nsqd creates it.
        body: bytes, or a str, which is sent as UTF-8; not empty.
        timezone: The zone of the cron text. Clock changes count as in Debian's cron. Default:
            ``TIME_ZONE`` of the settings.
        missed: The due times that are published after a time without a relay: ``'once'`` (the last
            one) or ``'all'``. Default: ``'once'``.
        alias: The entry of ``GNSQSYNC`` whose nsqds get it. Default: "default".
        headers: For ``message.headers``; needs ``"headers": True`` in ``OPTIONS``; without a
            ``key``. No middleware runs. Default: none.
        using: The alias of a database. Default: as the router says.

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
    """Raise ConfigError if the table does not exist yet, for example in another app's migration."""
    from gnsqsync.django.outbox.models import PeriodicMessage

    database = written(PeriodicMessage, using, joins=True)
    table = PeriodicMessage._meta.db_table
    if table not in connections[database].introspection.table_names():
        raise ConfigError(
            f"the database {database!r} has no table {table}: run manage.py migrate; a migration"
            f" that calls periodic() needs {NEEDED!r} among its dependencies"
        )


def stop_periodic(name: str, *, using: str | None = None) -> bool:
    """End a periodic message. Due times until now are still published.

    Args:
        name: The name given to ``periodic()``.
        using: The alias of a database. Default: as the router says.

    Returns:
        True if there was a message of that name.
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
