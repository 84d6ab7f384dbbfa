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
from gnsqsync.service.due import AT_ONCE, future, later
from gnsqsync.service.forked_engines import not_shared
from gnsqsync.service.in_doubt import IN_DOUBT, tell_canceled, tell_moved
from gnsqsync.service.outbox_rows import Lag
from gnsqsync.service.relay import Relay

__all__ = ["Outbox"]


class Outbox:
    """Messages that are published if, and only if, a transaction commits.

    A relay publishes the rows when they are due: ``outbox.relay().run()``, or ``flask nsq relay``.
    A message may be published twice, with the same key.

    Args:
        metadata: The MetaData of the application, which gets the table.
        writer: A Writer, or a function that returns one: its limits, headers and middlewares count
            where a row is written, and the relay publishes with it. For a relay, one with
            ``outage="wait"`` waits for an nsqd that restarts.
        engine: The database for ``relay()`` and ``lag()``, or a function that returns it. A child
            process begins with connections of its own.
        name: The name of the table.

    Attributes:
        table: The table, for migrations.

    Raises:
        ConfigError: ``writer`` is none.
    """

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
            at: A time to come, with a time zone, at which it is published; None: at once.
            defer: Seconds from now, instead of ``at``.
            key: For ``cancel()`` and ``reschedule()``, and its key header; None: one is made.
            headers: For ``message.headers``; of a Writer with ``headers=True``.

        Returns:
            The key.

        Raises:
            ConfigError: A value is not allowed.
        """
        if at is not None and defer is not None:
            raise ConfigError("at and defer are given; give one of them")
        due = None if at is None else _future(at)
        if defer is not None:
            due = later(defer, "defer")
        if defer == 0:
            due = None
        (made,) = self._insert(session, topic, [body], due, headers, key)
        return made

    def publish_many(
        self,
        session: Session | Connection,
        topic: str,
        bodies: Iterable[bytes | str],
        *,
        headers: Mapping[str, str] | None = None,
    ) -> list[str]:
        """As ``publish()``, for several messages with one statement; their keys.

        Args:
            session: A Session or Connection.
            topic: The topic; nsqd creates it.
            bodies: The messages, as of ``publish()``.
            headers: As of ``publish()``, for each of them; without a ``key``.

        Returns:
            Their keys.

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
        rows = [
            {
                "topic": message.topic,
                "body": message.body,
                "headers": message.headers,
                "key": message.key,
                "scheduled": due,
                "created_at": moment,
                "retry_at": due or AT_ONCE,
            }
            for message in prepared
        ]
        session.execute(insert(self.table), rows)
        return [message.key for message in prepared]

    # -- what is scheduled -----------------------------------------------------------------------

    def cancel(self, session: Session | Connection, key: str) -> int:
        """Take back what has a time and that key, and is not published. Return the number.

        A row that a relay publishes at this moment is waited for, and then not counted. On a
        database that cannot lock rows, as SQLite, it may be counted and published. A row whose
        publish nsqd did not confirm is taken back and not counted, with a WARNING: its message may
        come. A relay that was killed between nsqd's answer and its own commit leaves no sign; such
        a row is counted, and its message comes.

        Args:
            session: A Session or Connection.
            key: Their key.
        """
        wanted = self._with(session, key)
        is_sure = ~self.table.c.last_error.startswith(IN_DOUBT, autoescape=True)
        found: Any = session.execute(delete(self.table).where(*wanted, is_sure))
        doubtful: Any = session.execute(delete(self.table).where(*wanted))
        tell_canceled(key, doubtful.rowcount)
        return int(found.rowcount)

    def reschedule(self, session: Session | Connection, key: str, at: datetime) -> int:
        """Move what has a time and that key to another time, also what has failed.

        Return the number. A row whose publish nsqd did not confirm is moved and counted, with a
        WARNING: its message may have come, and comes at that time.

        Args:
            session: A Session or Connection.
            key: Their key.
            at: As of ``publish()``.

        Raises:
            ConfigError: The time is not allowed.
        """
        wanted = self._with(session, key)
        due = _future(at)
        changes = {"scheduled": due, "retry_at": due, "failed_at": None, "attempts": 0}
        is_doubtful = self.table.c.last_error.startswith(IN_DOUBT, autoescape=True)
        move = update(self.table).where(*wanted).values(**changes)
        found: Any = session.execute(move.where(~is_doubtful))
        # After the others: a row that a relay had may be in doubt by now.
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
        """The Writer that counts at this moment."""
        return self._writer if isinstance(self._writer, Writer) else self._writer()

    def engine(self, given: Engine | None = None) -> Engine:
        """The given one, or that of the constructor; ConfigError without one."""
        if given is not None:
            return given
        if self._engine is None:
            raise ConfigError("no engine: give it to relay() and lag(), or to Outbox(engine=)")
        engine = self._engine if isinstance(self._engine, Engine) else self._engine()
        not_shared([engine])
        return engine

    def relay(
        self,
        engine: Engine | None = None,
        *,
        batch: int = 100,
        max_attempts: int = 10,
        rate: float | None = None,
    ) -> Relay:
        """What publishes the rows; not started: ``run()`` does.

        Args:
            engine: The database; None: that of the constructor.
            batch: As of Relay, like the others.
            max_attempts: Refusals by nsqd until a message has failed for good.
            rate: Messages a second, at most.

        Raises:
            ConfigError: A value is not allowed, or there is no engine.
        """
        store = OutboxStore(self.engine(engine), self.table, lambda: self.writer)
        return Relay(store, batch=batch, max_attempts=max_attempts, rate=rate)

    def lag(self, engine: Engine | None = None) -> Lag:
        """How much waits at this moment.

        Args:
            engine: The database; None: that of the constructor.
        """
        return OutboxStore(self.engine(engine), self.table, lambda: self.writer).lag()


def _future(when: object) -> datetime:
    return future(
        when,
        "at",
        with_zone="datetime.now(UTC) + timedelta(days=1)",
        at_once="leave it out for what is due now",
    )
