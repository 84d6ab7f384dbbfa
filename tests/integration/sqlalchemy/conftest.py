"""A database of its own for each test: SQLite, and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from tests.support.postgres import Postgres, postgres
from tests.support.servers import unique

__all__ = ["postgres"]


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


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        made = create_engine(f"sqlite:///{tmp_path / 'test.sqlite3'}", connect_args={"timeout": 30})
    else:
        made = postgres_engine(request.getfixturevalue("postgres"))
    yield made
    made.dispose()
