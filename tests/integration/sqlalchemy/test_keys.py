"""Keys of outbox and inbox are equal when their bytes are, on each database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import (
    Engine,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    create_engine,
    insert,
    select,
    text,
)
from sqlalchemy.orm import Session

from gnsqsync import Writer
from gnsqsync.contrib.sqlalchemy import Inbox, Outbox
from gnsqsync.errors import ConfigError
from tests.integration.sqlalchemy.conftest import mariadb_engine
from tests.support.keys import ALIKE
from tests.support.mariadb import MariaDB
from tests.support.texts import DOCS


def tables() -> tuple[MetaData, Outbox, Inbox]:
    metadata = MetaData()
    writer = Writer("127.0.0.1:4150", headers=True)
    return metadata, Outbox(metadata, writer), Inbox(metadata)


def check_keys(engine: Engine, outbox: Outbox, inbox: Inbox) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    with Session(engine) as session, session.begin():
        for key in ALIKE:
            assert inbox.mark(session, "t/c", key)
            assert inbox.mark(session, key[-129:], "k")
            outbox.publish(session, "t", key, at=later, key=key)
    with Session(engine) as session, session.begin():
        for key in ALIKE:
            assert not inbox.mark(session, "t/c", key)
            assert outbox.reschedule(session, key, later) == 1
            assert outbox.cancel(session, key) == 1
        assert sorted(session.scalars(select(inbox.table.c.key))) == sorted(
            [*ALIKE, *["k"] * len(ALIKE)]
        )


def test_keys_that_look_alike_are_different(engine: Engine) -> None:
    metadata, outbox, inbox = tables()
    metadata.create_all(engine)
    check_keys(engine, outbox, inbox)


def test_keys_that_do_not_fit_are_refused_before_the_database_sees_them(engine: Engine) -> None:
    metadata, _, inbox = tables()
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        for consumer, key, says in (
            ("t/c", "k" * 201, "key is"),
            ("t/c", "a\0b", "key is"),
            ("t/c", "", "key is"),
            ("c" * 130, "k", "consumer is"),
            ("t\0/c", "k", "consumer is"),
        ):
            with pytest.raises(ConfigError, match=says):
                inbox.mark(session, consumer, key)
        assert session.scalars(select(inbox.table.c.key)).all() == []


@pytest.mark.parametrize("dialect", ["mysql", "mariadb"])
@pytest.mark.parametrize("options", ["", "CHARACTER SET latin1"], ids=["usual", "latin1"])
def test_tables_of_the_version_before(mariadb: MariaDB, dialect: str, options: str) -> None:
    """A table that compares by a collation is refused; the documented migration mends it."""
    engine = mariadb_engine(mariadb, dialect, options)
    _, outbox, inbox = tables()
    before = MetaData()
    for table in (outbox.table, inbox.table):
        old = table.to_metadata(before)
        old.dialect_options.clear()
        old.kwargs.clear()
        for name in {"key", "consumer"} & set(old.c.keys()):
            old.c[name].type = String(old.c[name].type.length)
    before.create_all(engine)
    old_inbox: Table = before.tables["nsq_inbox"]
    assert {type(one) for one in old_inbox.constraints} >= {UniqueConstraint}
    moment = datetime.now(UTC)
    with engine.begin() as connection:
        row = {"consumer": "t/c", "key": "Order-A", "handled_at": moment}
        connection.execute(insert(old_inbox).values(row))
    with Session(engine) as session:
        says = "key of nsq_.* has the collation .*_ci.*; run: ALTER TABLE .*nopad_bin"
        with pytest.raises(ConfigError, match=says.replace("key", "(consumer|key)")):
            inbox.mark(session, "t/c", "order-a")
        with pytest.raises(ConfigError, match=says):
            outbox.cancel(session, "order-a")
    made: dict[str, object] = {}
    source = (DOCS / "examples" / "sqlalchemy_migration_keys.py").read_text()
    exec(compile(source, "migration", "exec"), made)
    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        made["upgrade"]()  # type: ignore[operator]
    with Session(engine) as session, session.begin():
        assert not inbox.mark(session, "t/c", "Order-A")
        # The version before writes so, on the new table, before or after this one.
        ignore = text(
            "INSERT IGNORE INTO nsq_inbox (consumer, `key`, handled_at) VALUES ('t/c', :key, now())"
        )
        assert session.execute(ignore, {"key": "order-a"}).rowcount == 1  # type: ignore[attr-defined]
        assert not inbox.mark(session, "t/c", "order-a")
        assert inbox.mark(session, "t/c", "ORDER-A")
        assert session.execute(ignore, {"key": "ORDER-A"}).rowcount == 0  # type: ignore[attr-defined]
        session.rollback()
    with engine.begin() as connection:
        connection.execute(inbox.table.delete())
    check_keys(engine, outbox, inbox)
    engine.dispose()


def test_a_session_with_a_database_of_its_own_for_the_tables(mariadb: MariaDB) -> None:
    engine = mariadb_engine(mariadb)
    metadata, outbox, inbox = tables()
    metadata.create_all(engine)
    elsewhere = create_engine("sqlite://")
    binds = {outbox.table: engine, inbox.table: engine}
    with Session(elsewhere, binds=binds) as session, session.begin():
        assert inbox.mark(session, "t/c", "a") and not inbox.mark(session, "t/c", "a")
        outbox.publish(session, "t", "x", defer=60, key="a")
        assert outbox.cancel(session, "A") == 0 and outbox.cancel(session, "a") == 1
    engine.dispose()
    elsewhere.dispose()


def test_a_body_beyond_64_kib_and_its_time_are_kept(engine: Engine) -> None:
    metadata, outbox, _ = tables()
    metadata.create_all(engine)
    later = datetime.now(UTC) + timedelta(days=1)
    with Session(engine) as session, session.begin():
        outbox.publish(session, "t", b"x" * 1_000_000, at=later)
    with engine.connect() as connection:
        (row,) = connection.execute(select(outbox.table.c.body, outbox.table.c.retry_at))
    assert (len(row.body), row.retry_at) == (1_000_000, later)
