"""A database of its own for each test: SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from tests.support.mariadb import MariaDB
from tests.support.postgres import Postgres
from tests.support.servers import unique


def postgres_engine(server: Postgres) -> Engine:
    """With a new database."""
    name = unique("sqla")
    admin = create_engine(
        f"postgresql+psycopg://postgres@/postgres?host={server.host}",
        isolation_level="AUTOCOMMIT",
    )
    with admin.connect() as connection:
        connection.execute(text(f'CREATE DATABASE "{name}"'))
    admin.dispose()
    return create_engine(f"postgresql+psycopg://postgres@/{name}?host={server.host}")


def mariadb_engine(server: MariaDB, dialect: str = "mysql", options: str = "") -> Engine:
    """With a new database. ``options``: its character set, Debian's unless it says another."""
    name = server.make_database(options)
    return create_engine(f"{dialect}+pymysql://root@/{name}?unix_socket={server.socket}")


@pytest.fixture(params=["sqlite", "postgres", "mariadb"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        made = create_engine(f"sqlite:///{tmp_path / 'test.sqlite3'}", connect_args={"timeout": 30})
    elif request.param == "mariadb":
        made = mariadb_engine(request.getfixturevalue("mariadb"))
    else:
        made = postgres_engine(request.getfixturevalue("postgres"))
    yield made
    made.dispose()
