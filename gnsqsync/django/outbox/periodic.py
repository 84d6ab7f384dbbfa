"""Messages by a cron text: their due times, and their rows in the outbox."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from django.db import DataError, IntegrityError, connections, transaction

from gnsqsync.django.outbox.models import OutboxMessage, PeriodicMessage
from gnsqsync.errors import ConfigError
from gnsqsync.outbox.cron import Cron, check_zone
from gnsqsync.outbox.due import AT_ONCE
from gnsqsync.outbox.outbox_rows import BadRows

__all__ = ["MISSED", "PeriodicMessages", "cron_of"]

log: logging.Logger = logging.getLogger("gnsqsync.outbox")

# Values of ``missed``: after a time without a relay, the last due time is published, or all are.
MISSED: Final = ("once", "all")
# Largest number of due times of one message that are written in one transaction.
_MOST_AT_ONCE: Final = 1000
# Errors of a single row, after which other rows go on. Other errors of the database are an outage.
_ROW_ERRORS: Final = (ConfigError, ValueError, TypeError, OverflowError, DataError, IntegrityError)

# Questions for the seconds since 1970 by the clock of the database. For other databases only the
# clock of this machine counts.
_CLOCKS: Final = {
    "postgresql": "SELECT EXTRACT(EPOCH FROM clock_timestamp())",
    "mysql": "SELECT UNIX_TIMESTAMP(NOW(6))",
}


def cron_of(row: Any) -> Cron:
    """Check a row, and return its cron text. Raises ConfigError if a value is wrong."""
    if row.missed not in MISSED:
        raise ConfigError(f"missed is {row.missed!r}; it must be 'once' or 'all'")
    return Cron(row.cron, check_zone(row.timezone), lenient=True)


class PeriodicMessages:
    """The periodic messages of one database, for a relay. Used by one thread.

    If a due time cannot be computed, an ERROR is logged at growing intervals. Other messages go on.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._rows: Any = PeriodicMessage.objects.using(database)
        self._bad = BadRows(database, _ROW_ERRORS)

    def add_due(self, now: datetime) -> int:
        """Write a row into the outbox for each due time. Return the number of rows.

        A relay moves ``next_at`` on and writes the rows in one transaction. Several relays, on any
        database, therefore write each due time once.
        """
        added = 0
        for pk, name in self._rows.filter(next_at__lte=now).values_list("pk", "name"):
            with self._bad.guard(f"periodic message {name!r}"):
                row = self._rows.filter(pk=pk).first()
                if row is not None:
                    added += self._add(row, now)
        return added

    def _add(self, row: Any, now: datetime) -> int:
        cron = cron_of(row)
        times = [*islice(_due(row, cron, now), _MOST_AT_ONCE)]
        following = cron.next(times[-1])
        with transaction.atomic(using=self._database):
            if not self._moved(row, next_at=following, last_at=times[-1]):
                return 0
            rows = [_message(row, due, now) for due in times]
            OutboxMessage.objects.using(self._database).bulk_create(rows, batch_size=500)
        return len(rows)

    def _moved(self, row: Any, **times: datetime) -> bool:
        """Change the times, unless another relay or a person has changed the row."""
        same = self._rows.filter(pk=row.pk, next_at=row.next_at, cron=row.cron)
        return bool(same.update(**times))

    def move_back(self, now: datetime) -> None:
        """Move back each ``next_at`` that is later than the next time of its cron text.

        A clock that was ahead, or a person, has set such a time. The later of two clocks counts, of
        this machine and of the database, because a relay whose clock is behind must not undo the
        work of other relays.
        """
        now = max(now, self._database_now() or now)
        for pk, name in self._rows.filter(next_at__gt=now).values_list("pk", "name"):
            with self._bad.guard(f"periodic message {name!r}"):
                row = self._rows.filter(pk=pk).first()
                due = None if row is None else _right_time(row, now)
                if row is not None and due is not None and row.next_at > due:
                    self._moved(row, next_at=due)
                    log.warning(
                        "outbox of %s: periodic message %r was to come at %s, later than %s, the"
                        " next time of its cron text %r; it is set to that time",
                        self._database,
                        name,
                        _text(row.next_at),
                        _text(due),
                        row.cron,
                    )

    def broken(self) -> list[str]:
        """Return a sentence for each message whose due time could not be computed."""
        return self._bad.sentences()

    def problems(self, now: datetime) -> list[str]:
        """Return a sentence for each message whose next time does not follow its cron text."""
        found = []
        for pk, name in self._rows.values_list("pk", "name"):
            try:
                row = self._rows.filter(pk=pk).first()
                due = None if row is None else _right_time(row, now)
            except _ROW_ERRORS as error:
                found.append(f"periodic message {name!r} cannot be worked out: {error}")
                continue
            if row is not None and due is not None and row.next_at > due:
                found.append(
                    f"periodic message {name!r} comes at {_text(row.next_at)}, later than"
                    f" {_text(due)}, the next time of its cron text; a relay sets it to that time"
                )
        return found

    def _database_now(self) -> datetime | None:
        connection = connections[self._database]
        question = _CLOCKS.get(connection.vendor)
        if question is None:
            return None
        with connection.cursor() as cursor:
            cursor.execute(question)
            return datetime.fromtimestamp(float(cursor.fetchone()[0]), UTC)


def _right_time(row: Any, now: datetime) -> datetime:
    """The time at which a message comes next, by its cron text."""
    cron = cron_of(row)
    due = cron.next(now)
    # The message of that time has come already, by a clock that was a little ahead.
    return cron.next(due) if row.last_at == due else due


def _due(row: Any, cron: Cron, now: datetime) -> Iterator[datetime]:
    """The times of a row that have come, of which the first is ``next_at``."""
    due = row.next_at.astimezone(UTC)
    if row.missed == "once":
        yield cron.last(due, now)
        return
    if due < AT_ONCE:
        raise ConfigError(
            f"next_at is {_text(due)}, and each time since then would be published; set it to the"
            " time of the first message"
        )
    while due <= now:
        yield due
        due = cron.next(due)


def _text(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(sep=" ", timespec="seconds")


def _message(periodic: Any, due: datetime, now: datetime) -> OutboxMessage:
    return OutboxMessage(
        alias=periodic.alias,
        topic=periodic.topic,
        body=periodic.body,
        headers=periodic.headers,
        key=f"{periodic.name}@{due:%Y-%m-%dT%H:%M}Z",
        deliver_at=due,
        created_at=now,
        retry_at=due,
    )
