"""Rows that a former version left in the database are finished by this one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, MetaData, create_engine
from sqlalchemy.orm import Session

from gnsqsync.contrib.sqlalchemy import Inbox, Outbox
from gnsqsync.testing.memory import MemoryWriter
from tests.support.left_behind import DATA


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    """The database of the former version, whose tables this version does not change."""
    path = tmp_path / "left.sqlite3"
    with closing(sqlite3.connect(path)) as database:
        database.executescript((DATA / "sqlalchemy.sql").read_text(encoding="utf-8"))
    made = create_engine(f"sqlite:///{path}")
    yield made
    made.dispose()


def test_outbox_and_inbox(engine: Engine) -> None:
    metadata = MetaData()
    writer = MemoryWriter(headers=True)
    outbox = Outbox(metadata, lambda: writer, engine=engine)
    inbox = Inbox(metadata)
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        outbox.publish(session, "orders", "new")
    outbox.relay().run(until_empty=True)
    published = {one.body: one.headers for one in writer.messages}
    assert set(published) == {b"plain", b"traced", b"later", b"new"}
    assert published[b"traced"]["trace"] == "Grüße"
    assert published[b"plain"]["key"] == "a096ea6d480c74bd93f1fe5e4c2e31ef"
    assert outbox.lag(engine).waiting == 0
    with Session(engine) as session, session.begin():
        marked = {
            key: inbox.mark(session, "orders/shop", key)
            for key in ("order-1", "Order-1", "naïve ", "naive ", "order-2")
        }
    assert [key for key, is_new in marked.items() if is_new] == ["naive ", "order-2"]
