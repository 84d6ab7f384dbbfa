"""The relay from an outbox to nsqd: batches of rows are published and then deleted.

Knows Writers and the meaning of their errors. A Store knows the table. If a relay ends between
nsqd's OK and the deletion, the rows stay and are published again, with the same keys.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from gnsqsync.errors import ConfigError, NSQError, OutcomeUnknown, Refused
from gnsqsync.keywords import checks_names
from gnsqsync.options import check_int, check_topic
from gnsqsync.outbox.in_doubt import error_text
from gnsqsync.outbox.outbox_rows import Row, Store, encoded
from gnsqsync.policy.backoff import ReconnectDelays
from gnsqsync.process.supervisor import StopFlag
from gnsqsync.runtime.troubles import AWAY, duration, more, troubles
from gnsqsync.writer.writer import Writer

__all__ = ["Relay"]

log: logging.Logger = logging.getLogger("gnsqsync.outbox")

# Seconds after which a failed Writer or database is tried again. Failures in a row double them.
_FIRST_PAUSE = 0.5
# Upper bound of those seconds.
_LONGEST_PAUSE = 30.0
# Seconds between two searches for times that a wrong clock has written.
_HEAL_SECONDS = 60.0
# Upper bound of seconds after which a message is tried again whose publish got no answer.
_LONGEST_DOUBT = 60.0
# Seconds between two log lines with the number of waiting messages.
_LOG_SECONDS = 60.0


class Pauses:
    """Names that failed and must not be tried again yet."""

    def __init__(self) -> None:
        self._delays: dict[str, ReconnectDelays] = {}
        self._until: dict[str, float] = {}

    def failed(self, name: str) -> float:
        """Note a failure of the name. Return the seconds until it is tried again."""
        delays = self._delays.setdefault(name, ReconnectDelays(_FIRST_PAUSE, _LONGEST_PAUSE))
        seconds = delays.next()
        self._until[name] = time.monotonic() + seconds
        return seconds

    def worked(self, name: str) -> None:
        self._delays.pop(name, None)
        self._until.pop(name, None)

    def current(self) -> list[str]:
        now = time.monotonic()
        return [name for name, until in self._until.items() if until > now]


class Relay:
    """A relay of an outbox to nsqd. Several may run side by side if rows can be locked.

    The database needs SELECT ... FOR UPDATE SKIP LOCKED for that. Without it, as on SQLite, two
    relays publish the same rows.

    Args:
        store: The outbox whose rows are published.
        batch: Rows of a transaction, 1 or more.
        max_attempts: Number of refusals by nsqd after which a message has failed for good, 1 or
            more. An nsqd that cannot be reached does not count.
        rate: Upper bound of messages a second; None: no bound. It limits the rush after a relay was
            down.

    Raises:
        ConfigError: A value is not allowed.

    Threads:
        One thread runs it. Any thread and any signal handler may call ``stop()``.
    """

    def __init__(
        self,
        store: Store,
        *,
        batch: int = 100,
        max_attempts: int = 10,
        rate: float | None = None,
    ) -> None:
        if rate is not None and not rate > 0:  # This refuses nan, too.
            raise ConfigError(f"rate is {rate!r}; it must be None or messages a second, above 0")
        self._store = store
        self._name = store.name
        self._rate = rate
        self._batch = check_int("batch", batch, 1)
        if rate is not None:
            # A batch has at most the messages of one second.
            self._batch = min(self._batch, max(1, int(rate)))
        self._max_attempts = check_int("max_attempts", max_attempts, 1)
        # Pauses of Writers by alias, and of the database.
        self._pauses = Pauses()
        self._database_pauses = Pauses()
        self._stop = StopFlag()
        # Aliases whose nsqd gave no answer to a batch. One message may be the reason, so messages
        # are published one by one until nsqd answers.
        self._alone: set[str] = set()
        # The last wall-clock time, and the monotonic time of the next ``heal``.
        self._seen: datetime | None = None
        self._heal_at = 0.0
        self.published: int = 0

    def stop(self) -> None:
        """End ``run()`` after the current batch, even if ``run()`` begins later. Does not wait.

        Threads:
            Any thread and any signal handler may call it.
        """
        self._stop.set()

    @property
    def is_stopped(self) -> bool:
        """True after ``stop()``."""
        return self._stop.is_set

    @checks_names
    def run(self, *, interval: float = 1.0, until_empty: bool = False) -> None:
        """Move batches until ``stop()``, or with ``until_empty`` until no row is due.

        After an error of the database it logs the error and tries again later on a new connection.
        With ``until_empty`` it raises the error.

        Args:
            interval: Seconds between two looks if no row is due, above 0.
            until_empty: End when no row is due.

        Raises:
            ConfigError: ``interval`` is not allowed.

        Threads:
            It runs on the calling thread.
        """
        if not interval > 0:  # This refuses nan, too.
            raise ConfigError(f"interval is {interval!r}; it must be seconds, above 0")
        store, stop = self._store, self._stop
        log_at = time.monotonic() + _LOG_SECONDS
        while not stop.is_set:
            began = time.monotonic()
            try:
                moved = self.move_batch()
                if time.monotonic() >= log_at:
                    log_at = time.monotonic() + _LOG_SECONDS
                    log.info("outbox of %s: %s", self._name, store.lag())
            except store.errors:
                if until_empty:
                    raise
                self._database_failed()
                continue
            self._database_works()
            if not moved:
                if until_empty:
                    return
                store.rest()
                stop.wait(interval)
            elif self._rate is not None:
                stop.wait(max(0.0, began + moved / self._rate - time.monotonic()))

    def _broken(self) -> list[str]:
        """Return a sentence for each periodic message whose times cannot be computed."""
        return [*self._store.broken()]

    def _database_failed(self) -> None:
        pause = self._database_pauses.failed(self._name)
        tell = troubles().began(("outbox", self._name), AWAY)
        if tell is not None:
            log.exception(
                "outbox of %s: the database fails, trying again in %.1f s%s",
                self._name,
                pause,
                more(tell),
            )
        self._store.rest()
        self._stop.wait(pause)

    def _database_works(self) -> None:
        self._database_pauses.worked(self._name)
        over = troubles().ended(("outbox", self._name))
        if over is not None:
            log.warning(
                "outbox of %s: the database works again after %s",
                self._name,
                duration(over.seconds),
            )

    def move_batch(self) -> int:
        """Publish one batch of due rows and delete them. Return the number of rows done or added.

        The due rows of periodic messages are written first.
        """
        store = self._store
        now = datetime.now(UTC)
        has_jumped = self._seen is not None and now < self._seen
        if has_jumped or time.monotonic() >= self._heal_at:
            store.heal(now)
            self._heal_at = time.monotonic() + _HEAL_SECONDS
        self._seen = now
        added = store.add_due(now)
        with store.batch(self._batch, now, self._pauses.current()) as rows:
            together: dict[tuple[str, str], list[Row]] = {}
            for row in rows:
                together.setdefault((row.alias, row.topic), []).append(row)
            done: list[Row] = []
            for (alias, topic), group in together.items():
                done += self._publish_group(alias, topic, group)
            if done:
                store.delete(done)
                self.published += len(done)
        return len(done) or added

    def _publish_group(self, alias: str, topic: str, rows: list[Row]) -> list[Row]:
        """Publish rows of one topic. Return the rows that nsqd has."""
        writer = self._writer(alias, rows)
        if writer is None:
            return []
        try:
            check_topic(topic)
        except ConfigError as error:
            for row in rows:
                self._refused(row, error)
            return []
        good: list[tuple[Row, bytes]] = []
        for row in rows:
            try:
                good.append((row, encoded(row, writer)))
            except Exception as error:  # noqa: BLE001 - whatever is in the row, the others go on
                self._refused(row, error)
        if alias in self._alone:
            return [done for one in good for done in self._publish(writer, alias, topic, [one])]
        return self._publish(writer, alias, topic, good)

    def _publish(
        self, writer: Writer, alias: str, topic: str, good: list[tuple[Row, bytes]]
    ) -> list[Row]:
        """Publish with few MPUBs. Return the rows that nsqd has."""
        rows = [row for row, _ in good]
        bodies = [body for _, body in good]
        if not rows or alias in self._pauses.current():
            return []  # The alias failed earlier in this batch.
        try:
            # The middlewares ran when the rows were written, so they must not run again.
            writer.encoder.publish(topic, bodies)
        except (Refused, ConfigError) as error:
            confirmed = getattr(error, "acknowledged", 0)
            if len(rows) - confirmed == 1:
                self._refused(rows[confirmed], error)
                return rows[:confirmed]
            # A single row is the reason, so the rows are published one by one.
            return rows[:confirmed] + [
                done
                for one in good[confirmed:]
                for done in self._publish(writer, alias, topic, [one])
            ]
        except NSQError as error:
            confirmed = getattr(error, "acknowledged", 0)
            self._failed(alias, rows[confirmed:], error)
            return rows[:confirmed]
        self._alone.discard(alias)
        self._works(alias)
        return rows

    def _writer(self, alias: str, rows: Sequence[Row]) -> Writer | None:
        """Return the Writer of the alias, or None while it pauses or if it cannot be made."""
        if alias in self._pauses.current():
            return None
        try:
            return self._store.writer(alias)
        except Exception as error:  # noqa: BLE001 - of settings, or of a function of the user
            self._failed(alias, rows, error)
            return None

    def _failed(self, alias: str, rows: Sequence[Row], error: Exception) -> None:
        """Pause the alias and keep the rows, because the failure may have another reason."""
        self._tell_stuck(alias, error, self._pauses.failed(alias))
        self._store.note(rows, error_text(error))
        if not isinstance(error, OutcomeUnknown):
            return
        if alias in self._alone and len(rows) == 1:
            # This message may be the reason why no answer comes, so other messages go first.
            (row,) = rows
            pause = min(2.0 ** (row.attempts + 1), _LONGEST_DOUBT)
            self._store.refused(
                row, error_text(error), datetime.now(UTC) + timedelta(seconds=pause)
            )
        self._alone.add(alias)

    def _works(self, alias: str) -> None:
        self._pauses.worked(alias)
        over = troubles().ended(("outbox", self._name, alias))
        if over is not None:
            log.warning(
                "outbox of %s: publishing over %r works again after %s; %s",
                self._name,
                alias,
                duration(over.seconds),
                self._store.lag(),
            )

    def _tell_stuck(self, alias: str, error: Exception, pause: float) -> None:
        """Log the failure as a WARNING, and later as an ERROR at growing intervals."""
        tell = troubles().began(("outbox", self._name, alias), AWAY)
        if tell is not None:
            log.log(
                logging.ERROR if tell.seconds else logging.WARNING,
                "outbox of %s: publishing over %r fails: %s; trying again in %.1f s; %s%s",
                self._name,
                alias,
                error,
                pause,
                self._store.lag(),
                more(tell),
            )

    def _refused(self, row: Row, error: Exception) -> None:
        """Note a row that nsqd or the Writer refuses, or that cannot be encoded."""
        attempts = row.attempts + 1
        # A refusal by nsqd may pass, for example when its disk was full. Other reasons stay.
        if not isinstance(error, Refused) or attempts >= self._max_attempts:
            log.error(
                "outbox of %s: %s has failed for good: %s; it stays there, and is not tried again",
                self._name,
                row,
                error,
            )
            self._store.refused(row, str(error), None)
            return
        pause = min(2.0**attempts, 600.0)
        tell = troubles().happened(("outbox", self._name, row.alias), type(error).__name__)
        if tell is not None:
            log.warning(
                "outbox of %s: %s was refused: %s; trying again in %g s (attempt %d of %d)%s",
                self._name,
                row,
                error,
                pause,
                attempts,
                self._max_attempts,
                more(tell),
            )
        self._store.refused(row, str(error), datetime.now(UTC) + timedelta(seconds=pause))
