"""A Django project in the folder of a test, and its commands as processes."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gnsqsync import NsqdHTTP, Writer
from tests.integration.conftest import address, url
from tests.support.forks import Forks
from tests.support.mariadb import MariaDB
from tests.support.postgres import Postgres
from tests.support.programs import Program
from tests.support.servers import Pool, Server, unique
from tests.support.waiting import eventually

__all__ = [
    "ON_BOTH",
    "ON_EACH",
    "ON_POSTGRES",
    "Command",
    "Database",
    "MariaDatabase",
    "PostgresDatabase",
    "Project",
    "SqliteDatabase",
]

PROJECT = Path(__file__).parent / "project"
# For a test with a project whose database counts. The others have SQLite.
ON_BOTH = pytest.mark.parametrize("database", ["sqlite", "postgres"], indirect=True)
ON_EACH = pytest.mark.parametrize("database", ["sqlite", "postgres", "mariadb"], indirect=True)
ON_POSTGRES = pytest.mark.parametrize("database", ["postgres"], indirect=True)

# Modules that commands import and that need no settings; drivers only where they are installed.
IMPORTED = (
    "django.contrib.admin",
    "django.contrib.auth.hashers",
    "django.contrib.auth.management",
    "django.contrib.auth.password_validation",
    "django.contrib.contenttypes.management",
    "django.contrib.messages.context_processors",
    "django.contrib.messages.storage.fallback",
    "django.contrib.sessions.backends.db",
    "django.contrib.sessions.middleware",
    "django.core.handlers.wsgi",
    "django.core.management.commands.migrate",
    "django.core.management.commands.shell",
    "django.core.management.commands.test",
    "django.db.backends.sqlite3.base",
    "django.forms.models",
    "django.test.client",
    "django.test.runner",
    "django.urls",
    "django.views.generic",
    "gnsqsync.django.consume_command",
    "gnsqsync.django.inbox",
    "gnsqsync.django.management.commands.nsq_consume",
    "gnsqsync.django.management.commands.nsq_dead_letters",
    "gnsqsync.django.outbox",
    "gnsqsync.django.schedule",
    "gnsqsync.outbox.relay_command",
)
DRIVERS = ("psycopg", "pymysql")

# Each database on threads and greenlets. On SQLite a greenlet that waits for the lock stops its
# thread, and so the one that has it.
IN_BOTH_WORLDS = pytest.mark.parametrize(
    ("database", "gevent"),
    [
        ("sqlite", False),
        ("postgres", False),
        ("postgres", True),
        ("mariadb", False),
        ("mariadb", True),
    ],
    ids=[
        "sqlite-threads",
        "postgres-threads",
        "postgres-gevent",
        "mariadb-threads",
        "mariadb-gevent",
    ],
    indirect=["database"],
)


class Command(Program):
    """A running ``manage.py``, or another program of the project."""

    def __init__(
        self, words: list[str], folder: Path, environment: dict[str, str], forks: Forks | None
    ) -> None:
        # What PostgreSQL calls its sessions.
        self.name = unique(words[0])
        super().__init__(words, folder, {"PGAPPNAME": self.name, **environment}, forks=forks)


class SqliteDatabase:
    """A file in the project's folder."""

    environment: dict[str, str] = {}

    def __init__(self, folder: Path) -> None:
        self._path = folder / "shop.sqlite3"

    def ask(self, query: str) -> list[Any]:
        """The rows."""
        with closing(sqlite3.connect(self._path, timeout=30)) as database:
            return database.execute(query).fetchall()

    def connections(self, command: Command) -> int:
        """How many the command has at this moment. On Linux."""
        found = 0
        for entry in Path(f"/proc/{command.process.pid}/fd").iterdir():
            try:
                found += os.readlink(entry) == str(self._path)
            except OSError:
                continue
        return found

    def keep(self) -> bytes:
        """Return what makes other databases as this one is now."""
        return self._path.read_bytes()

    def become(self, kept: bytes) -> None:
        """Have the tables and rows that ``keep`` has returned."""
        self._path.write_bytes(kept)

    def close(self) -> None:
        """It goes with the folder."""


class PostgresDatabase:
    """One of its own on the server of the test session."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._name = unique("shop")
        # Stays open, so that asking often costs little.
        self._connection: Any = None
        self.environment = {"SHOP_POSTGRES": server.host, "SHOP_DATABASE": self._name}
        self._manage(f'CREATE DATABASE "{self._name}"')

    def ask(self, query: str, *values: str) -> list[Any]:
        """The rows."""
        if self._connection is None:
            self._connection = self._connect(self._name)
        found: list[Any] = self._connection.execute(query, values).fetchall()
        return found

    def connections(self, command: Command) -> int:
        """How many the command and its children have at this moment."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        ((found,),) = self.ask(query, command.name)
        return int(found)

    def keep(self) -> str:
        """Return the name of a copy, from which others can be made."""
        self._forget()
        kept = unique("template")
        self._manage(f'CREATE DATABASE "{kept}" TEMPLATE "{self._name}"')
        return kept

    def become(self, kept: str) -> None:
        """Have the tables and rows of a copy."""
        self._forget()
        self._manage(f'DROP DATABASE "{self._name}"')
        self._manage(f'CREATE DATABASE "{self._name}" TEMPLATE "{kept}"')

    def stop(self) -> None:
        self._forget()
        self._server.stop()

    def start(self) -> None:
        self._server.start()

    def close(self) -> None:
        self._forget()
        eventually(self._is_dropped)

    def _is_dropped(self) -> bool:
        import psycopg

        try:
            self._manage(f'DROP DATABASE "{self._name}" WITH (FORCE)')
        except psycopg.OperationalError:
            return False  # sessions of killed programs still end, and there is no room for one more
        return True

    def _forget(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _manage(self, command: str) -> None:
        with self._connect("postgres") as connection:
            connection.execute(command)

    def _connect(self, name: str) -> Any:
        import psycopg

        return psycopg.connect(
            host=self._server.host, user="postgres", dbname=name, autocommit=True
        )


class MariaDatabase:
    """A database of its own on the MariaDB of the test session."""

    def __init__(self, server: MariaDB) -> None:
        self._server = server
        self._name = server.make_database()
        self.environment = {"SHOP_MARIADB": server.socket, "SHOP_DATABASE": self._name}

    def ask(self, query: str) -> list[Any]:
        """Return the rows."""
        with closing(self._server.connect(self._name)) as connection:
            cursor = connection.cursor()
            cursor.execute(query)
            return list(cursor.fetchall())

    def keep(self) -> list[tuple[str, list[Any]]]:
        """Return statements that make tables and rows as they are now, with their parameters."""
        made: list[tuple[str, list[Any]]] = [("SET FOREIGN_KEY_CHECKS = 0", [])]
        for (table,) in self.ask("SHOW TABLES"):
            ((_, statement),) = self.ask(f"SHOW CREATE TABLE `{table}`")
            made.append((statement, []))
            if rows := self.ask(f"SELECT * FROM `{table}`"):
                places = ", ".join(["%s"] * len(rows[0]))
                made.append((f"INSERT INTO `{table}` VALUES ({places})", rows))
        return made

    def become(self, kept: list[tuple[str, list[Any]]]) -> None:
        """Run the statements that ``keep`` has returned."""
        with closing(self._server.connect(self._name)) as connection:
            cursor = connection.cursor()
            for statement, rows in kept:
                if rows:
                    cursor.executemany(statement, rows)
                else:
                    cursor.execute(statement)

    def close(self) -> None:
        """Do nothing: the database goes with the server."""


Database = SqliteDatabase | PostgresDatabase | MariaDatabase


class Shared:
    """A process that forks, and databases to copy: the projects of all tests share them."""

    def __init__(self) -> None:
        self.forks = Forks([*IMPORTED, *filter(find_spec, DRIVERS)])
        # Databases after all migrations, by their class.
        self.migrated: dict[type, Any] = {}


class Project:
    """A copy of the project, with a topic of its own."""

    def __init__(self, folder: Path, nsqd: Server, database: Database, shared: Shared) -> None:
        self._shared = shared
        self.folder = folder
        self.nsqd = nsqd
        self.database = database
        self.topic = unique("django")
        self._commands: list[Command] = []

    def manage(self, *words: str, **environment: str) -> Command:
        """Start ``manage.py words``; the environment is what the settings and handlers read."""
        if environment.get("SHOP_GEVENT") or "--parallel" in words:
            # gevent patches before anything is imported, which a fork is too late for. From Python
            # 3.14 on multiprocessing begins its processes in a new interpreter, which needs a
            # program of its own.
            return self.run("python", "-W", "error", "manage.py", *words, **environment)
        return self._run(["manage.py", *words], environment, self._shared.forks)

    def run(self, *words: str, **environment: str) -> Command:
        """Start another program in its folder, likewise."""
        return self._run(list(words), environment, None)

    def _run(self, words: list[str], environment: dict[str, str], forks: Forks | None) -> Command:
        command = Command(
            words,
            self.folder,
            {
                "SHOP_NSQD": address(self.nsqd),
                "SHOP_NSQD_HTTP": url(self.nsqd),
                "SHOP_TOPIC": self.topic,
                **self.database.environment,
                **environment,
            },
            forks,
        )
        self._commands.append(command)
        return command

    def shell(self, code: str, **environment: str) -> str:
        """Run code in the project; return what it prints."""
        (self.folder / "code_of_the_test.py").write_text(code, encoding="utf-8")
        return self.manage("shell", "-v0", "-c", "import code_of_the_test", **environment).end()

    def migrate(self) -> None:
        """Make the tables of an empty database: by migrations once a session, then as a copy."""
        database: Any = self.database
        migrated = self._shared.migrated
        if type(database) in migrated:
            database.become(migrated[type(database)])
        else:
            self.manage("migrate", "--run-syncdb", "-v0").end()
            migrated[type(database)] = database.keep()

    def publish(self, *bodies: str) -> None:
        with Writer(address(self.nsqd)) as writer:
            writer.publish_many(self.topic, list(bodies))

    def make_channel(self, channel: str) -> None:
        """So that it gets what is published from now on."""
        with NsqdHTTP(url(self.nsqd)) as http:
            http.create_topic(self.topic)
            http.create_channel(self.topic, channel)

    def topic_stats(self) -> Any:
        """What nsqd says of the topic."""
        with NsqdHTTP(url(self.nsqd)) as http:
            (found,) = http.stats(self.topic).topics
        return found

    def channel(self, channel: str) -> Any:
        """What nsqd says of one of its channels."""
        (found,) = (c for c in self.topic_stats().channels if c.channel_name == channel)
        return found

    def notes(self, word: str = "") -> list[str]:
        """What handlers noted, the lines that begin so."""
        path = self.folder / "notes"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line for line in lines if line.startswith(word)]

    def orders(self) -> list[tuple[int, str]]:
        """Number and worker of what was stored."""
        return self.database.ask("SELECT number, worker FROM shop_order")

    def close(self) -> None:
        for command in self._commands:
            command.kill()


@pytest.fixture
def nsqd(server_pool: Pool) -> Server:
    """The embedded one, where a test does not say otherwise."""
    return server_pool.get("embedded", "nsqd", (), "")


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """SQLite, where a test does not say otherwise."""
    found: Database
    kind = getattr(request, "param", "sqlite")
    if kind == "sqlite":
        found = SqliteDatabase(tmp_path / "project")
    elif kind == "mariadb":
        found = MariaDatabase(request.getfixturevalue("mariadb"))
    else:
        found = PostgresDatabase(request.getfixturevalue("postgres"))
    yield found
    found.close()


@pytest.fixture(scope="session")
def shared() -> Iterator[Shared]:
    shared = Shared()
    yield shared
    shared.forks.close()


@pytest.fixture
def project(tmp_path: Path, nsqd: Server, database: Database, shared: Shared) -> Iterator[Project]:
    folder = tmp_path / "project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3"))
    project = Project(folder, nsqd, database, shared)
    yield project
    project.close()
