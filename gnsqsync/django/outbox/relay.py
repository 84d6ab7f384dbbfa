"""From the outbox to nsqd: batches of rows that are published and then deleted.

Knows the table and the Writers; knows no command and no signal. Whatever ends a relay between
nsqd's OK and the commit of the deletion leaves the rows, which are published again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections, transaction
from django.utils import timezone

from gnsqsync.django.handlers import close_old_connections
from gnsqsync.django.outbox.models import OutboxMessage
from gnsqsync.django.outbox.writing import lag
from gnsqsync.django.writers import relay_writer
from gnsqsync.errors import ConfigError, NotSent, OutcomeUnknown, Refused
from gnsqsync.runtime.troubles import AWAY, duration, more, troubles
from gnsqsync.service.supervisor import StopFlag

__all__ = ["Relay"]

log: logging.Logger = logging.getLogger("gnsqsync.outbox")

# Pauses after which something is tried again, doubled by each failure in a row, in seconds.
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
# How often the number of waiting messages is logged, in seconds.
_LOG_SECONDS = 60.0

Rows = list[OutboxMessage]


class Pauses:
    """Names that failed and must not be tried yet."""

    def __init__(self) -> None:
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}

    def failed(self, name: str) -> float:
        """It failed once more; the seconds until it is tried again."""
        count = self._failures.get(name, 0)
        seconds = min(_FIRST_PAUSE * 2.0 ** min(count, 16), _LONGEST_PAUSE)
        # Several relays that lost the same nsqd do not try again at the same moment.
        seconds *= random.uniform(0.5, 1.0)
        self._failures[name] = count + 1
        self._until[name] = time.monotonic() + seconds
        return seconds

    def worked(self, name: str) -> None:
        self._failures.pop(name, None)
        self._until.pop(name, None)

    def current(self) -> list[str]:
        now = time.monotonic()
        return [name for name, until in self._until.items() if until > now]


class Relay:
    """Moves the outbox of one database. Several may run side by side where rows can be locked.

    That is where the database has SELECT ... FOR UPDATE SKIP LOCKED; elsewhere, as on SQLite, two
    of them publish the same rows. ``batch``: rows a transaction. ``max_attempts``: refusals by
    nsqd until a message has failed for good; an nsqd that cannot be reached does not count.
    """

    def __init__(self, database: str, *, batch: int = 100, max_attempts: int = 10) -> None:
        self._database = database
        self._batch = batch
        self._max_attempts = max_attempts
        # By alias; and of the database itself.
        self._pauses = Pauses()
        self._database_pauses = Pauses()
        self._locks = bool(connections[database].features.has_select_for_update_skip_locked)
        self.published: int = 0

    def run(
        self,
        stop: StopFlag,
        *,
        interval: float = 1.0,
        until_empty: bool = False,
    ) -> None:
        """Move batches until ``stop`` is set; with ``until_empty`` until nothing moves any more.

        ``interval``: seconds between two looks at an empty outbox. The batch at hand is finished
        first. Errors of the database are logged and the batch tried again later, on a new
        connection; with ``until_empty`` they are raised.
        """
        log_at = time.monotonic() + _LOG_SECONDS
        while not stop.is_set:
            try:
                moved = self.move_batch()
                if time.monotonic() >= log_at:
                    log_at = time.monotonic() + _LOG_SECONDS
                    log.info("outbox of %s: %s", self._database, lag(self._database))
            except Error:
                if until_empty:
                    raise
                pause = self._database_pauses.failed(self._database)
                tell = troubles().began(("outbox", self._database), AWAY)
                if tell is not None:
                    log.exception(
                        "outbox of %s: the database fails, trying again in %.1f s%s",
                        self._database,
                        pause,
                        more(tell),
                    )
                close_old_connections()
                stop.wait(pause)
                continue
            self._database_pauses.worked(self._database)
            over = troubles().ended(("outbox", self._database))
            if over is not None:
                log.warning(
                    "outbox of %s: the database works again after %s",
                    self._database,
                    duration(over.seconds),
                )
            if not moved:
                if until_empty:
                    return
                close_old_connections()
                stop.wait(interval)

    def move_batch(self) -> int:
        """Publish one batch of due rows and delete them; returns how many."""
        rows = (
            OutboxMessage.objects.using(self._database)
            .filter(failed_at=None, retry_at__lte=timezone.now())
            .exclude(alias__in=self._pauses.current())
            .order_by("pk")
        )
        if not self._locks:
            # The table is not locked while the relay waits for nsqd.
            return self._move(list(rows[: self._batch]))
        with transaction.atomic(using=self._database):
            return self._move(list(rows.select_for_update(skip_locked=True)[: self._batch]))

    def _move(self, rows: Rows) -> int:
        now = timezone.now()
        together: dict[tuple[str, str], Rows] = {}
        done: Rows = []
        for row in rows:
            if row.deliver_at is None or row.deliver_at <= now:
                together.setdefault((row.alias, row.topic), []).append(row)
            else:
                done += self._publish_one(row)
        for (alias, topic), group in together.items():
            done += self._publish_group(alias, topic, group)
        if done:
            keys = [row.pk for row in done]
            OutboxMessage.objects.using(self._database).filter(pk__in=keys).delete()
            self.published += len(done)
        return len(done)

    def _publish_group(self, alias: str, topic: str, rows: Rows) -> Rows:
        """With few MPUBs; those that nsqd has."""
        bodies = [bytes(row.body) for row in rows]
        try:
            confirmed = self._try(
                alias, rows, lambda: relay_writer(alias).publish_many(topic, bodies)
            )
        except (Refused, ConfigError) as error:
            confirmed = getattr(error, "acknowledged", 0)
            rest = rows[confirmed:]
            if len(rest) == 1:
                self._refused(rest[0], error)
                return rows[:confirmed]
            # One of them is to blame.
            return rows[:confirmed] + [done for row in rest for done in self._publish_one(row)]
        return rows[:confirmed]

    def _publish_one(self, row: OutboxMessage) -> Rows:
        body = bytes(row.body)
        defer = None
        if row.deliver_at is not None:
            defer = max(0.0, (row.deliver_at - timezone.now()).total_seconds()) or None

        def publish() -> None:
            relay_writer(row.alias).publish(row.topic, body, defer=defer)

        try:
            return [row][: self._try(row.alias, [row], publish)]
        except (Refused, ConfigError) as error:
            self._refused(row, error)
            return []

    def _try(self, alias: str, rows: Rows, publish: Callable[[], object]) -> int:
        """How many of the rows nsqd has confirmed, from the first on."""
        if alias in self._pauses.current():
            return 0  # it failed earlier in this batch
        try:
            publish()
        except (NotSent, OutcomeUnknown, ImproperlyConfigured) as error:
            self._tell_stuck(alias, error, self._pauses.failed(alias))
            confirmed: int = getattr(error, "acknowledged", 0)
            self._note(rows[confirmed:], error)
            return confirmed
        self._pauses.worked(alias)
        over = troubles().ended(("outbox", self._database, alias))
        if over is not None:
            log.warning(
                "outbox of %s: publishing over %r works again after %s; %s",
                self._database,
                alias,
                duration(over.seconds),
                lag(self._database),
            )
        return len(rows)

    def _tell_stuck(self, alias: str, error: Exception, pause: float) -> None:
        """At the beginning, and then at growing intervals as an error."""
        tell = troubles().began(("outbox", self._database, alias), AWAY)
        if tell is not None:
            log.log(
                logging.ERROR if tell.seconds else logging.WARNING,
                "outbox of %s: publishing over %r fails: %s; trying again in %.1f s; %s%s",
                self._database,
                alias,
                error,
                pause,
                lag(self._database),
                more(tell),
            )

    def _note(self, rows: Iterable[OutboxMessage], error: Exception, **changes: Any) -> None:
        keys = [row.pk for row in rows]
        OutboxMessage.objects.using(self._database).filter(pk__in=keys).update(
            last_error=str(error), **changes
        )

    def _refused(self, row: OutboxMessage, error: Exception) -> None:
        """nsqd, or a limit of the Writer, refuses this one message."""
        attempts = row.attempts + 1
        now = timezone.now()
        # The Writer's limit does not change; nsqd may only have a full disk.
        if isinstance(error, ConfigError) or attempts >= self._max_attempts:
            log.error(
                "outbox of %s: %s has failed for good: %s; it stays there, and is not tried again",
                self._database,
                row,
                error,
            )
            self._note([row], error, attempts=attempts, failed_at=now)
            return
        pause = min(2.0**attempts, 600.0)
        tell = troubles().happened(("outbox", self._database, row.alias), type(error).__name__)
        if tell is not None:
            log.warning(
                "outbox of %s: %s was refused: %s; trying again in %g s (attempt %d of %d)%s",
                self._database,
                row,
                error,
                pause,
                attempts,
                self._max_attempts,
                more(tell),
            )
        self._note([row], error, attempts=attempts, retry_at=now + timedelta(seconds=pause))
