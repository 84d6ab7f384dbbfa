"""Engines in the child of a fork: it shares no connection with its parent."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine, MetaData, create_engine, text

from gnsqsync import Writer
from gnsqsync.contrib.sqlalchemy import Outbox
from gnsqsync.flask import commands


def in_child(do: Callable[[], object]) -> str:
    """Return the text of what the function returns in the child of a fork, or of what it raises."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(write, str(do()).encode())
        except Exception as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        answer = file.read()
    os.waitpid(pid, 0)
    return answer.decode()


def server_side(engine: Engine) -> str:
    """Return what a server knows a connection by, or how many connections the pool has made."""
    by = {"postgresql": "pg_backend_pid()", "mysql": "connection_id()"}.get(engine.dialect.name)
    with engine.connect() as connection:
        return str(connection.scalar(text(f"SELECT {by}")) if by else id(connection.connection))


def make(engine: Engine | Callable[[], Engine]) -> Outbox:
    return Outbox(MetaData(), Writer("127.0.0.1:4150"), engine=engine)


def test_a_child_opens_a_connection_of_its_own(engine: Engine) -> None:
    """And its end leaves the parent's connection alone."""
    make(engine)
    before, pool = server_side(engine), engine.pool
    assert engine.pool.checkedin() == 1  # type: ignore[attr-defined]

    def child() -> tuple[bool, int]:
        is_new = engine.pool is not pool
        waiting = engine.pool.checkedin()  # type: ignore[attr-defined]
        server_side(engine)
        return is_new, waiting

    assert in_child(child) == "(True, 0)"
    assert engine.pool is pool
    assert server_side(engine) == before or engine.dialect.name == "sqlite"


def test_an_engine_that_a_function_returns(engine: Engine) -> None:
    make(lambda: engine).engine()
    pool = engine.pool
    assert in_child(lambda: engine.pool is pool) == "False"


def test_engines_of_flask_sqlalchemy(tmp_path: Path) -> None:
    from flask import Flask

    class Database:
        """The part of Flask-SQLAlchemy's object that counts."""

        def __init__(self) -> None:
            urls = {None: f"sqlite:///{tmp_path / 'one'}", "other": f"sqlite:///{tmp_path / 'two'}"}
            self.engines = {key: create_engine(url) for key, url in urls.items()}

    app = Flask(__name__)
    with app.app_context():
        commands._before_fork()
        app.extensions["sqlalchemy"] = database = Database()
        commands._before_fork()
    pools = [engine.pool for engine in database.engines.values()]
    now = in_child(lambda: [engine.pool in pools for engine in database.engines.values()])
    assert now == "[False, False]"


def test_a_database_in_memory_is_copied() -> None:
    engine = create_engine("sqlite://")
    make(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE kept (id int)"))

    def child() -> object:
        with engine.connect() as connection:
            return connection.scalar(text("SELECT count(*) FROM kept"))

    assert in_child(child) == "0"
    engine.dispose()
