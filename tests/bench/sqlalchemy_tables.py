"""Outbox and inbox of gnsqsync.contrib.sqlalchemy on PostgreSQL or SQLite, with their usual safety.

    python -m tests.bench.sqlalchemy_tables [--rows 20000] [--rounds 5] [--database sqlite]

A transaction of one row, with and without a message in the outbox, and with and without a marker of
the inbox: microseconds each, by turns. Then a relay publishes the rows to a real nsqd.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert
from sqlalchemy.orm import Session, sessionmaker

from gnsqsync import Writer, envelope
from gnsqsync.contrib.sqlalchemy import Inbox, Outbox
from tests.support.postgres import Postgres
from tests.support.servers import Server

# Transactions of a kind in a turn.
TURN = 1000


def measure(engine: Engine, writer: Writer, rows: int, rounds: int) -> None:
    metadata = MetaData()
    outbox, inbox = Outbox(metadata, writer, engine=engine), Inbox(metadata)
    identity = Column("id", Integer, primary_key=True)
    effects = Table("effects", metadata, identity, Column("body", String(200), nullable=False))
    metadata.create_all(engine)
    sessions = sessionmaker(engine)
    body = "x" * 200

    def work(session: Session) -> None:
        session.execute(insert(effects).values(body=body))

    def with_message(session: Session) -> None:
        work(session)
        outbox.publish(session, "bench", body)

    def with_marker(session: Session) -> None:
        assert inbox.mark(session, "bench/bench", envelope.new_key())
        work(session)

    ways: dict[str, Callable[[Session], None]] = {
        "one row": work,
        "and a message in the outbox": with_message,
        "and a marker in the inbox": with_marker,
    }
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.monotonic()
            for _ in range(TURN):
                with sessions.begin() as session:
                    way(session)
            costs[name].append((time.monotonic() - began) / TURN * 1e6)
    for name, found in costs.items():
        print(f"  {name:30} {statistics.median(found):6.0f} us a transaction")
    for _ in range(rows // 1000):
        with sessions.begin() as session:
            outbox.publish_many(session, "bench", [body] * 1000)
    relay = outbox.relay()
    began = time.monotonic()
    relay.run(until_empty=True)
    seconds = time.monotonic() - began
    print(f"  relay: {relay.published / seconds:.0f} messages a second")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--database", choices=["postgres", "sqlite"], default="postgres")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    nsqd = Server("real", "nsqd").start()
    server: Any = None
    with tempfile.TemporaryDirectory() as folder:
        if given.database == "postgres":
            server = Postgres()
            server.start(fsync=True)
            url = f"postgresql+psycopg://postgres@/postgres?host={server.host}"
        else:
            url = f"sqlite:///{Path(folder) / 'bench.sqlite3'}"
        engine = create_engine(url)
        try:
            with Writer("{}:{}".format(*nsqd.tcp_address), headers=True) as writer:
                print(f"{given.database}, {given.rounds} turns of {TURN}, medians:")
                measure(engine, writer, given.rows, given.rounds)
        finally:
            engine.dispose()
            if server is not None:
                server.close()
            nsqd.discard()


if __name__ == "__main__":
    main()
