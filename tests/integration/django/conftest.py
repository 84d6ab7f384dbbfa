"""A Django project in the folder of a test, and its commands as processes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gnsqsync import NsqdHTTP, Writer
from tests.integration.conftest import address, url
from tests.support.postgres import postgres
from tests.support.programs import Program
from tests.support.servers import Pool, Server, unique

__all__ = ["Command", "Project", "postgres"]

PROJECT = Path(__file__).parent / "project"


class Command(Program):
    """A running ``manage.py``."""

    def __init__(self, words: list[str], folder: Path, environment: dict[str, str]) -> None:
        super().__init__(["python", "-W", "error", "manage.py", *words], folder, environment)


class Project:
    """A copy of the project, with a topic of its own."""

    def __init__(self, folder: Path, nsqd: Server) -> None:
        self.folder = folder
        self.nsqd = nsqd
        self.topic = unique("django")
        self._commands: list[Command] = []

    def manage(self, *words: str, **environment: str) -> Command:
        """Start ``manage.py words``; the environment is what the settings and handlers read."""
        command = Command(
            list(words),
            self.folder,
            {
                "SHOP_NSQD": address(self.nsqd),
                "SHOP_NSQD_HTTP": url(self.nsqd),
                "SHOP_TOPIC": self.topic,
                **environment,
            },
        )
        self._commands.append(command)
        return command

    def migrate(self) -> None:
        self.manage("migrate", "--run-syncdb", "-v0").end()

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
        import sqlite3
        from contextlib import closing

        with closing(sqlite3.connect(self.folder / "shop.sqlite3", timeout=30)) as database:
            return database.execute("SELECT number, worker FROM shop_order").fetchall()

    def close(self) -> None:
        for command in self._commands:
            command.kill()


@pytest.fixture
def nsqd(server_pool: Pool) -> Server:
    """The embedded one, where a test does not say otherwise."""
    return server_pool.get("embedded", "nsqd", (), "")


@pytest.fixture
def project(tmp_path: Path, nsqd: Server) -> Iterator[Project]:
    folder = tmp_path / "project"
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__", "*.sqlite3"))
    project = Project(folder, nsqd)
    yield project
    project.close()
