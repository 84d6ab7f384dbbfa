"""The outbox: a message is a row of the caller's transaction until nsqd has it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    insert,
    update,
)
from sqlalchemy.orm import Session

from gnsqsync import Writer, envelope
from gnsqsync.contrib.sqlalchemy.columns import (
    TABLE,
    Blob,
    Key,
    Moment,
    id_column,
    now,
    require_bytes,
)
from gnsqsync.contrib.sqlalchemy.store import OutboxStore
from gnsqsync.errors import ConfigError
from gnsqsync.keywords import checks_names
from gnsqsync.outbox.due import deferred, future
from gnsqsync.outbox.in_doubt import IN_DOUBT, tell_canceled, tell_moved
from gnsqsync.outbox.outbox_rows import Lag
from gnsqsync.outbox.relay import Relay
from gnsqsync.outbox.table_store import due_again, new_row
from gnsqsync.process.forked_engines import not_shared

__all__ = ["Outbox"]


class Outbox:
    """A table of messages that are published if, and only if, a transaction commits.

    A relay publishes the rows when they are due: ``outbox.relay().run()``, or ``flask nsq relay``.
    A message may be published twice, with the same key.

    Args:
        metadata: The MetaData of the application, which gets the table.
        writer: A Writer, or a function that returns one. Its limits, headers and middlewares count
            when a row is written, and the relay publishes with it. With ``outage="wait"`` a relay
            waits for an nsqd that restarts.
        engine: The database for ``relay()`` and ``lag()``, or a function that returns it. A child
            process begins with connections of its own. Default: none; ``relay()`` and ``lag()``
            then need one.
        name: The name of the table. Default: "nsq_outbox".

    Attributes:
        table: The table, for migrations.

    Raises:
        ConfigError: ``writer`` is neither a Writer nor a function.

    Threads:
        Any thread may use it, each with a session of its own.
    """

    @checks_names
    def __init__(
        self,
        metadata: MetaData,
        writer: Writer | Callable[[], Writer],
        *,
        engine: Engine | Callable[[], Engine] | None = None,
        name: str = "nsq_outbox",
    ) -> None:
        if not isinstance(writer, Writer) and not callable(writer):
            raise ConfigError(f"writer is {writer!r}; it must be a Writer or return one")
        self._writer = writer
        self._engine = engine
        if isinstance(engine, Engine):
            not_shared([engine])
        self.table: Table = Table(
            name,
            metadata,
            id_column(),
            Column("topic", String(64), nullable=False),
            Column("body", Blob, nullable=False),
            Column("headers", JSON(none_as_null=True)),
            Column("key", Key(envelope.MAX_KEY), nullable=False, index=True),
            Column("scheduled", Moment),
            Column("created_at", Moment, nullable=False),
            Column("attempts", Integer, nullable=False, default=0),
            Column("retry_at", Moment, nullable=False),
            Column("failed_at", Moment),
            Column("last_error", Text, nullable=False, default=""),
            Index(f"{name}_due", "failed_at", "retry_at", "id"),
            **TABLE,
        )

    # -- writing ---------------------------------------------------------------------------------

    @checks_names
    def publish(
        self,
        session: Session | Connection,
        topic: str,
        body: bytes | str,
        *,
        at: datetime | None = None,
        defer: float | None = None,
        key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> str:
        """Write the message into the session's transaction.

        Args:
            session: A Session or Connection.
            topic: The topic; nsqd creates it.
            body: bytes, or a str, which is sent as UTF-8; not empty.
            at: A future time, with a time zone, at which the message is published. Default: at
                once.
            defer: Seconds from now until the publish, instead of ``at``. Default: none.
            key: The key for ``cancel()`` and ``reschedule()``, and the message's key header.
                Default: a new key.
            headers: For ``message.headers``; needs a Writer with ``headers=True``. Default: none.

        Returns:
            The key.

        Raises:
            ConfigError: A value is not allowed.
        """
        if at is not None and defer is not None:
            raise ConfigError("at and defer are given; give one of them")
        due = deferred(defer) if at is None else _future(at)
        (made,) = self._insert(session, topic, [body], due, headers, key)
        return made

    @checks_names
    def publish_many(
        self,
        session: Session | Connection,
        topic: str,
        bodies: Iterable[bytes | str],
        *,
        headers: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Write several messages with one statement, each as ``publish()`` does.

        Args:
            session: A Session or Connection.
            topic: The topic; nsqd creates it.
            bodies: The messages, as for ``publish()``.
            headers: Headers of each message, as for ``publish()``, without a ``key``. Default:
                none.

        Returns:
            The keys of the messages.

        Raises:
            ConfigError: A value is not allowed.
        """
        if isinstance(bodies, (bytes, str)):
            raise ConfigError("bodies is one bytes or str; give a list of them, or use publish()")
        several = list(bodies)
        return self._insert(session, topic, several, None, headers, None) if several else []

    def _insert(
        self,
        session: Session | Connection,
        topic: str,
        bodies: Sequence[bytes | str],
        due: datetime | None,
        headers: Mapping[str, str] | None,
        key: str | None,
    ) -> list[str]:
        moment = now()
        prepared = self.writer.encoder.prepare(topic, bodies, headers=headers, key=key)
        rows = [{**new_row(message, due, moment), "scheduled": due} for message in prepared]
        session.execute(insert(self.table), rows)
        return [message.key for message in prepared]

    # -- scheduled messages ----------------------------------------------------------------------

    @checks_names
    def cancel(self, session: Session | Connection, key: str) -> int:
        """Take back the scheduled messages with that key that are not published.

        If a relay publishes a row at this moment, the call waits for the relay, and the row does
        not count. On a database that cannot lock rows, such as SQLite, the row may count although
        it is published. A row whose publish nsqd did not confirm is taken back with a WARNING and
        does not count, because its message may come. If a relay was killed between nsqd's answer
        and its own commit, the row counts and its message comes.

        Args:
            session: A Session or Connection.
            key: The key of the messages.

        Returns:
            The number of messages that were taken back.
        """
        wanted = self._with(session, key)
        is_sure = ~self.table.c.last_error.startswith(IN_DOUBT, autoescape=True)
        found: Any = session.execute(delete(self.table).where(*wanted, is_sure))
        doubtful: Any = session.execute(delete(self.table).where(*wanted))
        tell_canceled(key, doubtful.rowcount)
        return int(found.rowcount)

    @checks_names
    def reschedule(self, session: Session | Connection, key: str, at: datetime) -> int:
        """Move the scheduled messages with that key, also failed ones, to another time.

        A row whose publish nsqd did not confirm is moved and counted, with a WARNING: its message
        may have come already, and comes at the new time.

        Args:
            session: A Session or Connection.
            key: The key of the messages.
            at: The new time, as for ``publish()``.

        Returns:
            The number of moved messages.

        Raises:
            ConfigError: The time is not allowed.
        """
        wanted = self._with(session, key)
        due = _future(at)
        is_doubtful = self.table.c.last_error.startswith(IN_DOUBT, autoescape=True)
        move = update(self.table).where(*wanted).values(scheduled=due, **due_again(due))
        found: Any = session.execute(move.where(~is_doubtful))
        # Rows in doubt come second: a row that a relay held during the first update may be one now.
        doubtful: Any = session.execute(move.where(is_doubtful))
        tell_moved(key, doubtful.rowcount)
        return int(found.rowcount + doubtful.rowcount)

    def _with(self, session: Session | Connection, key: str) -> Sequence[Any]:
        envelope.check_key(key, "key")
        require_bytes(session, self.table)
        columns = self.table.c
        return columns.key == key, columns.scheduled.is_not(None)

    # -- the relay -------------------------------------------------------------------------------

    @property
    def writer(self) -> Writer:
        """The Writer of this moment."""
        return self._writer if isinstance(self._writer, Writer) else self._writer()

    def engine(self, given: Engine | None = None) -> Engine:
        """Return the engine to use.

        Args:
            given: The database. None: that of the constructor.

        Raises:
            ConfigError: No engine was given, neither here nor to the constructor.
        """
        if given is not None:
            return given
        if self._engine is None:
            raise ConfigError("no engine: give it to relay() and lag(), or to Outbox(engine=)")
        engine = self._engine if isinstance(self._engine, Engine) else self._engine()
        not_shared([engine])
        return engine

    @checks_names
    def relay(
        self,
        engine: Engine | None = None,
        *,
        batch: int = 100,
        max_attempts: int = 10,
        rate: float | None = None,
    ) -> Relay:
        """Return a Relay that publishes the rows. Its ``run()`` starts it.

        Args:
            engine: The database. Default: that of the constructor.
            batch: Messages of a transaction, 1 or more. Default: 100.
            max_attempts: Number of refusals by nsqd after which a message has failed for good.
                Default: 10.
            rate: Upper bound of messages a second. Default: no limit.

        Returns:
            The Relay, not started.

        Raises:
            ConfigError: A value is not allowed, or there is no engine.
        """
        store = OutboxStore(self.engine(engine), self.table, lambda: self.writer)
        return Relay(store, batch=batch, max_attempts=max_attempts, rate=rate)

    def lag(self, engine: Engine | None = None) -> Lag:
        """Return counts of the messages in the outbox.

        Args:
            engine: The database. Default: that of the constructor.
        """
        return OutboxStore(self.engine(engine), self.table, lambda: self.writer).lag()


def _future(when: object) -> datetime:
    return future(
        when,
        "at",
        with_zone="datetime.now(UTC) + timedelta(days=1)",
        at_once="leave it out for what is due now",
    )
