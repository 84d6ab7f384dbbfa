"""Outbox and inbox on SQLAlchemy: SQLite and PostgreSQL."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    event,
    insert,
    select,
    update,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session, sessionmaker

from gnsqsync import Message, Middleware, Reader, Reject, Writer
from gnsqsync.contrib.sqlalchemy import Inbox, Lag, Outbox
from gnsqsync.errors import ConfigError, NotSent, OutcomeUnknown
from gnsqsync.message import Uncalled
from gnsqsync.testing.memory import MemoryWriter
from tests.integration.conftest import address
from tests.integration.sqlalchemy.conftest import postgres_engine
from tests.support.postgres import Postgres
from tests.support.programs import Program
from tests.support.servers import Server, unique
from tests.support.waiting import eventually


class Shop:
    """A database with the tables, and a Writer that keeps what is published."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.metadata = MetaData()
        self.writer = MemoryWriter(headers=True, middleware=[Carry()])
        self.outbox = Outbox(self.metadata, lambda: self.writer, engine=engine)
        self.inbox = Inbox(self.metadata)
        self.effects = Table(
            "effects",
            self.metadata,
            Column("id", Integer, primary_key=True),
            Column("key", String(50), nullable=False),
        )
        self.metadata.create_all(engine)
        self.sessions = sessionmaker(engine)

    def move(self, **options: Any) -> list[tuple[bytes, str]]:
        """Body and key of what a relay publishes now."""
        before = len(self.writer.messages)
        self.outbox.relay(**options).run(until_empty=True)
        return [(one.body, one.headers["key"]) for one in self.writer.messages[before:]]

    def rows(self) -> int:
        with self.engine.connect() as connection:
            return len(connection.execute(select(self.outbox.table)).all())


class Carry(Middleware):
    def publish(self, publication: Any, proceed: Any) -> Any:
        if publication.headers is not None:
            publication.headers["by"] = "carry"
        return proceed(publication)


@pytest.fixture
def shop(engine: Engine) -> Shop:
    return Shop(engine)


def test_a_row_comes_and_goes_with_the_transaction(shop: Shop) -> None:
    with shop.sessions.begin() as session:
        key = shop.outbox.publish(session, "orders", "a", headers={"tenant": "north"})
    with pytest.raises(ValueError), shop.sessions.begin() as session:
        shop.outbox.publish(session, "orders", "never")
        raise ValueError
    with shop.engine.begin() as connection:
        keys = shop.outbox.publish_many(connection, "orders", [b"b", "c"])
    assert shop.outbox.lag().waiting == 3
    assert shop.move() == [(b"a", key), (b"b", keys[0]), (b"c", keys[1])]
    assert shop.writer.messages[0].headers == {"tenant": "north", "by": "carry", "key": key}
    assert shop.outbox.lag() == Lag(0, 0, 0.0)


def test_a_relay_that_dies_after_the_ok_publishes_again_with_the_same_key(shop: Shop) -> None:
    with shop.sessions.begin() as session:
        shop.outbox.publish(session, "orders", "a", key="order-7")

    def dies(*arguments: Any) -> None:
        raise KeyboardInterrupt

    relay = shop.outbox.relay()
    relay._store.delete = dies  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        relay.move_batch()
    assert shop.move() == [(b"a", "order-7")]
    assert [one.headers["key"] for one in shop.writer.messages] == ["order-7"] * 2


def test_rows_that_cannot_be_read_or_sent_do_not_stop_the_others(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    columns = {"topic": "orders", "body": b"bad", "key": "k", "created_at": datetime.now(UTC)}
    with shop.engine.begin() as connection:
        shop.outbox.publish(connection, "orders", "first")
        for changes in ({"topic": "no good"}, {"headers": ["a"]}, {"body": b""}):
            values = {**columns, "retry_at": datetime.now(UTC), **changes}
            connection.execute(insert(shop.outbox.table).values(values))
        shop.outbox.publish(connection, "orders", "last")
        if shop.engine.dialect.name == "sqlite":
            shop.outbox.publish(connection, "orders", "broken", key="broken")
            connection.exec_driver_sql("UPDATE nsq_outbox SET headers = '{' WHERE key = 'broken'")
    assert [body for body, _ in shop.move()] == [b"first", b"last"]
    failed = 4 if shop.engine.dialect.name == "sqlite" else 3
    assert shop.outbox.lag() == Lag(0, failed, 0.0)
    assert sum(record.levelname == "ERROR" for record in caplog.records) == failed


def test_a_message_without_a_time_is_due_by_any_clock_of_its_writer(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = datetime.now(UTC) + timedelta(days=9)
    with monkeypatch.context() as patched, shop.engine.begin() as connection:
        patched.setattr("gnsqsync.contrib.sqlalchemy.outbox.now", lambda: ahead)
        shop.outbox.publish(connection, "orders", "a")
        shop.outbox.publish(connection, "orders", "b", defer=0)
        shop.outbox.publish(connection, "orders", "as a former version wrote it", key="old")
        table = shop.outbox.table
        connection.execute(table.update().where(table.c.key == "old").values(retry_at=ahead))
    (problem,) = shop.outbox.lag().problems
    assert "s ahead of the clock of this machine" in problem
    assert len(shop.move()) == 3


def test_times(shop: Shop) -> None:
    later = datetime.now(UTC) + timedelta(days=40)
    with shop.sessions.begin() as session:
        shop.outbox.publish(session, "orders", "month", at=later, key="k")
        shop.outbox.publish(session, "orders", "hour", defer=3600, key="l")
        shop.outbox.publish(session, "orders", "soon", defer=0)
    assert [body for body, _ in shop.move()] == [b"soon"]
    assert shop.outbox.lag().scheduled == 2
    with shop.sessions.begin() as session:
        assert shop.outbox.cancel(session, "k") == 1
        assert shop.outbox.cancel(session, "k") == 0
        assert shop.outbox.reschedule(session, "l", later) == 1
    with shop.engine.connect() as connection:
        (due,) = connection.scalars(select(shop.outbox.table.c.retry_at))
    assert due == later


def test_a_message_that_may_be_in_nsqd_is_not_counted_as_taken_back(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    with shop.sessions.begin() as session:
        for key in ("doubtful", "moved", "away"):
            shop.outbox.publish(session, "orders", key, at=later, key=key)
        session.execute(update(shop.outbox.table).values(retry_at=later - timedelta(days=2)))
    known = shop.writer._publish_many

    def fail(error: Exception) -> None:
        def publish(topic: str, bodies: Any, defer: Any) -> None:
            raise error

        shop.writer._publish_many = publish  # type: ignore[method-assign]
        shop.outbox.relay().move_batch()

    fail(NotSent("no nsqd"))
    with shop.sessions.begin() as session:
        assert shop.outbox.cancel(session, "away") == 1
    fail(OutcomeUnknown("no answer"))
    # A failure afterwards does not end the doubt.
    fail(NotSent("no nsqd"))
    caplog.clear()
    with shop.sessions.begin() as session:
        assert shop.outbox.reschedule(session, "moved", later) == 1
        assert shop.outbox.cancel(session, "doubtful") == 0
        assert shop.outbox.cancel(session, "none") == 0
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "1 message with the key moved may come twice" in told[0]
    assert "1 message with the key doubtful, but nsqd may have it" in told[1]
    assert len(told) == 2
    shop.writer._publish_many = known  # type: ignore[method-assign]
    assert shop.move() == [] and shop.rows() == 1


def test_wrong_arguments_are_refused_at_once(shop: Shop) -> None:
    now = datetime.now(UTC)
    with shop.sessions() as session:
        for says, options in (
            ("at is 'x'; it must be a datetime", {"at": "x"}),
            ("without a time zone", {"at": datetime.now()}),
            ("s ago; leave it out", {"at": now - timedelta(minutes=1)}),
            ("defer is -1", {"defer": -1}),
            ("at and defer are given", {"at": now, "defer": 1}),
            ("key is ''", {"key": ""}),
        ):
            with pytest.raises(ConfigError) as caught:
                shop.outbox.publish(session, "orders", "x", **options)
            assert says in str(caught.value)
        with pytest.raises(ConfigError, match="topic name"):
            shop.outbox.publish(session, "no good", "x")
        with pytest.raises(ConfigError, match="give a list of them"):
            shop.outbox.publish_many(session, "orders", "x")
    with pytest.raises(ConfigError, match="writer is 5"):
        Outbox(MetaData(), 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no engine"):
        Outbox(MetaData(), shop.writer).lag()
    assert shop.rows() == 0


def test_relays_side_by_side_share_the_rows(shop: Shop, nsqd: Server) -> None:
    if shop.engine.dialect.name == "sqlite":
        pytest.skip("two relays publish the same rows there, as the docs say")
    with shop.sessions.begin() as session:
        shop.outbox.publish_many(session, "orders", [str(number) for number in range(500)])
    relays = [shop.outbox.relay(batch=20) for _ in range(3)]
    threads = [threading.Thread(target=relay.run, kwargs={"until_empty": True}) for relay in relays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(one.body for one in shop.writer.messages) == Counter(
        b"%d" % number for number in range(500)
    )
    assert sum(relay.published for relay in relays) == 500


def test_the_database_is_away_for_a_while(shop: Shop) -> None:
    """What it raises meanwhile is logged, and the relay goes on by itself."""
    with shop.sessions.begin() as session:
        shop.outbox.publish(session, "orders", "a")
    failures = 0
    relay = shop.outbox.relay()

    def fail(*arguments: Any) -> None:
        nonlocal failures
        failures += 1
        if failures < 3:
            from sqlalchemy.exc import OperationalError

            raise OperationalError("SELECT", {}, Exception("the server is gone"))

    event.listen(shop.engine, "before_cursor_execute", fail)
    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        eventually(lambda: len(shop.writer.messages) == 1)
    finally:
        relay.stop()
        thread.join()
    assert failures >= 3


# -- the inbox -----------------------------------------------------------------------------------


def test_twins_are_handled_once(shop: Shop, nsqd: Server) -> None:
    topic = unique("once")

    @shop.inbox.once(shop.sessions)
    def handle(message: Message, session: Session) -> None:
        session.execute(insert(shop.effects).values(key=message.body.decode()))
        if message.attempts == 1 and message.body.endswith(b"7"):
            raise ValueError("not yet")

    with Writer(address(nsqd), headers=True) as writer:
        for number in range(60):
            for _ in range(2):
                writer.publish(topic, str(number), headers={"key": f"order-{number}"})
    with Reader(
        topic,
        "books",
        handle,
        nsqd_tcp_addresses=address(nsqd),
        headers=True,
        concurrency=4,
        max_in_flight=50,
        requeue_delay=0,
        backoff=False,
        max_attempts=0,
    ) as reader:
        eventually(lambda: reader.stats().finished == 120)
    with shop.engine.connect() as connection:
        found = Counter(connection.scalars(select(shop.effects.c.key)))
    assert found == Counter(str(number) for number in range(60))
    assert shop.inbox.prune(shop.engine, timedelta(days=1)) == 0
    assert shop.inbox.prune(shop.engine, timedelta(microseconds=1), batch=7) == 60


def test_keys_of_bodies_and_none(shop: Shop) -> None:
    class Answers:
        topic, channel, nsqd_address, is_closed = "t", "c", "127.0.0.1:4150", False

    def message(body: bytes) -> Message:
        return Message(b"0" * 16, body, 1, 0, Answers())  # type: ignore[arg-type]

    called: list[bytes] = []

    @shop.inbox.once(shop.sessions, key=lambda message: message.body.decode())
    def by_body(message: Message, session: Session) -> None:
        called.append(message.body)

    by_body(message(b"a"))
    by_body(message(b"a"))
    assert called == [b"a"]

    @shop.inbox.once(shop.sessions)
    def by_header(message: Message, session: Session) -> None: ...

    with pytest.raises(Reject, match="the message has no key"):
        by_header(message(b"a"))

    @shop.inbox.once(shop.sessions, key=lambda message: "b")
    def answers(message: Message, session: Session) -> None:
        message.finish()

    with pytest.raises(ConfigError, match=r"has called finish\(\)"):
        answers(message(b"b"))

    def away() -> Session:
        raise OSError("the database is away")

    @shop.inbox.once(away, key=lambda message: "d")
    def waits(message: Message, session: Session) -> None: ...

    with pytest.raises(Uncalled):
        waits(message(b"d"))
    with pytest.raises(ConfigError, match="sessions is 5"):
        shop.inbox.once(5)  # type: ignore[arg-type]

    async def work(message: Message, session: Session) -> None:
        raise AssertionError("nobody runs it")

    with pytest.raises(ConfigError, match="is a coroutine function"):
        shop.inbox.once(shop.sessions)(work)
    unrun = shop.inbox.once(shop.sessions, key=lambda message: "c")(lambda *both: work(*both))
    for _ in range(2):  # The marker is rolled back.
        with pytest.raises(ConfigError, match="returned a coroutine, which nobody runs"):
            unrun(message(b"c"))


def test_a_reader_without_headers_refuses_a_handler_that_goes_by_them(shop: Shop) -> None:
    @shop.inbox.once(shop.sessions)
    def by_header(message: Message, session: Session) -> None: ...

    nsqd = {"nsqd_tcp_addresses": "127.0.0.1:4150"}
    text = r"by_header handles a message once by its header 'key', and headers is False"
    for handler in (by_header, partial(by_header)):
        with pytest.raises(ConfigError, match=text):
            Reader("t", "c", handler, **nsqd)  # type: ignore[arg-type]
    Reader("t", "c", by_header, headers=True, **nsqd)  # type: ignore[arg-type]


# -- PostgreSQL that restarts, and gevent --------------------------------------------------------


def test_postgres_is_restarted_under_relay_and_consumer(postgres: Postgres, nsqd: Server) -> None:
    """What was committed is published and handled once; nobody has to be restarted for it."""
    engine = postgres_engine(postgres)
    shop = Shop(engine)
    topic = unique("restart")
    shop.writer = Writer(address(nsqd), headers=True)  # type: ignore[assignment]

    @shop.inbox.once(shop.sessions)
    def handle(message: Message, session: Session) -> None:
        session.execute(insert(shop.effects).values(key=message.body.decode()))

    relay = shop.outbox.relay(batch=10)
    thread = threading.Thread(target=relay.run, kwargs={"interval": 0.05})
    thread.start()
    kept: set[str] = set()
    options: dict[str, Any] = {"max_attempts": 0, "requeue_delay": 0.1, "max_backoff_duration": 1.0}
    try:
        with Reader(
            topic, "books", handle, nsqd_tcp_addresses=address(nsqd), headers=True, **options
        ):
            for number in range(150):
                if number == 50:
                    postgres.stop("immediate")
                    postgres.start()
                try:
                    with shop.sessions.begin() as session:
                        shop.outbox.publish(session, topic, str(number))
                except OperationalError:
                    continue  # that one was not kept
                kept.add(str(number))

            def effects() -> list[str]:
                try:
                    with engine.connect() as connection:
                        return list(connection.scalars(select(shop.effects.c.key)))
                except OperationalError:
                    return []

            assert len(kept) > 100
            eventually(lambda: set(effects()) >= kept)
            assert Counter(effects()) == dict.fromkeys(kept, 1)
            eventually(lambda: shop.outbox.lag().waiting == 0)
    finally:
        relay.stop()
        thread.join()
        shop.writer.close()
        engine.dispose()


GEVENT = """
from gevent import monkey
monkey.patch_all()
import sys
from sqlalchemy import Column, Integer, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.orm import sessionmaker
import gevent
from gnsqsync import Reader, Writer
from gnsqsync.contrib.sqlalchemy import Inbox, Outbox

url, nsqd, topic = sys.argv[1:]
metadata, engine = MetaData(), create_engine(url)
writer = Writer(nsqd, headers=True)
outbox, inbox = Outbox(metadata, writer, engine=engine), Inbox(metadata)
identity = Column("id", Integer, primary_key=True)
effects = Table("effects", metadata, identity, Column("key", String(9)))
metadata.create_all(engine)
sessions = sessionmaker(engine)

@inbox.once(sessions)
def handle(message, session):
    session.execute(insert(effects).values(key=message.body.decode()))

def sell(first):
    for number in range(first, first + 20):
        with sessions.begin() as session:
            # Its twin has the same key.
            for _ in range(2):
                outbox.publish(session, topic, str(number), key=f"order-{number}")

relay = outbox.relay(batch=7)
moving = gevent.spawn(relay.run, interval=0.01)
options = {"headers": True, "concurrency": 8, "max_attempts": 0}
with Reader(topic, "books", handle, nsqd_tcp_addresses=nsqd, **options) as reader:
    gevent.joinall([gevent.spawn(sell, first) for first in range(0, 100, 20)], raise_error=True)
    while reader.stats().finished < 200:
        gevent.sleep(0.01)
relay.stop()
moving.join()
writer.close()
with engine.connect() as connection:
    found = connection.scalars(select(effects.c.key)).all()
print(len(found), len(set(found)), outbox.lag())
engine.dispose()
"""


def test_greenlets(postgres: Postgres, nsqd: Server, tmp_path: Path) -> None:
    engine = postgres_engine(postgres)
    words = [engine.url.render_as_string(hide_password=False), address(nsqd), unique("greenlets")]
    (tmp_path / "program.py").write_text(GEVENT)
    program = Program(["python", "-W", "error", "program.py", *words], tmp_path, {})
    try:
        assert program.end() == "100 100 0 waiting, the oldest for 0.0 s; 0 failed\n"
    finally:
        program.kill()
        engine.dispose()
