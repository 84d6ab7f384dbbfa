"""flask nsq relay as a process, and the migration of the page on SQLAlchemy."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from flask import Flask
from sqlalchemy import Engine, MetaData, create_engine, inspect

from gnsqsync import Writer
from gnsqsync.contrib.sqlalchemy import Inbox, Outbox
from gnsqsync.errors import ConfigError
from gnsqsync.flask import NSQ
from tests.integration.conftest import address
from tests.support.forks import Forks
from tests.support.programs import Program
from tests.support.servers import Server, unique
from tests.support.texts import ROOT

SHOP = """
from flask import Flask
from sqlalchemy import MetaData, create_engine

from gnsqsync.contrib.sqlalchemy import Outbox
from gnsqsync.flask import NSQ

nsq = NSQ()
metadata = MetaData()
engine = create_engine("sqlite:///shop.sqlite3", connect_args={"timeout": 30})
outbox = Outbox(metadata, lambda: nsq.writer, engine=lambda: engine)

def create_app():
    app = Flask("shop")
    app.config.from_prefixed_env()
    app.config["NSQ_OUTBOX"] = "shop.outbox"
    app.config["NSQ_OPTIONS"] = {"headers": True}
    nsq.init_app(app)
    metadata.create_all(engine)
    return app
"""


class Shop:
    """A Flask application with an outbox, as processes; and its table as seen from here."""

    def __init__(self, folder: Path, nsqd: Server, forks: Forks) -> None:
        self._forks = forks
        (folder / "shop.py").write_text(SHOP)
        self._folder = folder
        self._environment = {"FLASK_APP": "shop", "FLASK_NSQ_NSQD_ADDRESSES": address(nsqd)}
        self.topic = unique("relay")
        self._running: list[Program] = []
        self._metadata = MetaData()
        self._engine = create_engine(f"sqlite:///{folder / 'shop.sqlite3'}")
        self.outbox = Outbox(self._metadata, Writer(address(nsqd), headers=True))
        self._metadata.create_all(self._engine)

    def relay(self, *words: str, **environment: str) -> Program:
        words = ("flask", "nsq", "relay", *words)
        given = {**self._environment, **environment}
        self._running.append(Program(words, self._folder, given, forks=self._forks))
        return self._running[-1]

    def publish(self, *bodies: str, topic: str = "") -> list[str]:
        with self._engine.begin() as connection:
            return self.outbox.publish_many(connection, topic or self.topic, bodies)

    @property
    def waiting(self) -> int:
        return self.outbox.lag(self._engine).waiting

    def close(self) -> None:
        for program in self._running:
            program.kill()
        self._engine.dispose()


@pytest.fixture
def shop(tmp_path: Path, nsqd: Server, forks: Forks) -> Iterator[Shop]:
    shop = Shop(tmp_path, nsqd, forks)
    yield shop
    shop.close()


@pytest.mark.pairs
def test_relay_publishes_due_rows_and_ends(shop: Shop, client: Any, nsqd: Server) -> None:
    keys = shop.publish("a", "b")
    relay = shop.relay("--lag", "--json")
    assert relay.process.wait(60) == 0
    found = json.loads(relay.output)
    assert (found["waiting"], found["failed"], found["scheduled"]) == (2, 0, 0)
    relay = shop.relay("--once")
    assert relay.process.wait(60) == 0
    assert "publishing NSQ_OUTBOX\n2 published\n" in relay.output
    got: list[tuple[bytes, str]] = []
    client.consume(shop.topic, lambda m: got.append((m.body, m.headers["key"])), nsqd, headers=True)
    client.world.eventually(lambda: len(got) == 2)
    assert sorted(got) == [(b"a", keys[0]), (b"b", keys[1])]


def test_a_signal_ends_it_and_a_kill_loses_nothing(shop: Shop) -> None:
    first = shop.relay("--interval", "0.05")
    first.wait_for("publishing")
    for _ in range(3):
        shop.publish(*map(str, range(50)))
        first.eventually(lambda: shop.waiting == 0)
    first.process.send_signal(signal.SIGKILL)
    first.process.wait(60)
    shop.publish("while it is away")
    second = shop.relay()
    second.eventually(lambda: shop.waiting == 0)
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(60) == 0
    assert "1 published" in second.output and "Traceback" not in second.output


def test_rows_that_are_left_are_an_exit_code(shop: Shop) -> None:
    # More than nsqd takes.
    shop.outbox.writer._max_msg_size = 2**21
    shop.publish("x" * (2**20 + 1))
    relay = shop.relay("--once", "--max-attempts", "1")
    assert relay.process.wait(60) == 1
    assert "0 published\nError: 0 still wait, 1 have failed\n" in relay.output
    for words, says in (
        (("--interval", "0"), "interval is 0.0; it must be seconds, above 0"),
        (("--rate", "nan"), "rate is nan"),
    ):
        wrong = shop.relay(*words)
        assert wrong.process.wait(60) == 1
        assert says in wrong.output and "Traceback" not in wrong.output


def test_object_that_is_no_outbox_is_refused() -> None:
    app = Flask("shop")
    app.config["NSQ_OUTBOX"] = 5
    with pytest.raises(ConfigError, match="NSQ_OUTBOX is 5; it must be a gnsqsync"):
        NSQ(app)
    app.config["NSQ_OUTBOX"] = None
    NSQ(app)
    for value, says in ((None, "no outbox: set NSQ_OUTBOX"), ("json.dumps", "NSQ_OUTBOX is <func")):
        app.config["NSQ_OUTBOX"] = value
        result = app.test_cli_runner().invoke(args=["nsq", "relay"])
        assert result.exit_code == 1 and says in result.output


# -- the migration -------------------------------------------------------------------------------


def test_the_migration_makes_the_tables_of_the_metadata(engine: Engine) -> None:
    metadata = MetaData()
    Outbox(metadata, Writer("127.0.0.1:4150"))
    Inbox(metadata)
    made: dict[str, Any] = {}
    source = (ROOT / "docs" / "examples" / "sqlalchemy_migration.py").read_text()
    exec(compile(source, "migration", "exec"), made)
    with engine.begin() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        with Operations.context(context):
            made["upgrade"]()
            assert compare_metadata(context, metadata) == []
            made["downgrade"]()
    assert inspect(engine).get_table_names() == []
