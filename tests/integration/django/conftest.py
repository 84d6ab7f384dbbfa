"""A Django project in the folder of a test, and its commands as processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from gnsqsync import NsqdHTTP, Writer
from tests.integration.conftest import address, url
from tests.support.servers import ROOT, Pool, Server, unique

T = TypeVar("T")
PROJECT = Path(__file__).parent / "project"


class Command:
    """A running ``manage.py`` and what it has written so far."""

    def __init__(self, words: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.words = words
        self._path = folder / f"output {len(list(folder.glob('output *')))}"
        with open(self._path, "wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "manage.py", *words],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                # As a terminal's job: os.killpg() is Ctrl-C there.
                start_new_session=True,
            )

    @property
    def output(self) -> str:
        return self._path.read_text(errors="replace")

    def wait_for(self, pattern: str, timeout: float = 30.0) -> re.Match[str]:
        """Until its output has a match."""
        return self.eventually(lambda: re.search(pattern, self.output), timeout)

    def eventually(self, look: Callable[[], T], timeout: float = 30.0) -> Any:
        """The first true result of ``look``, while the command runs."""
        deadline = time.monotonic() + timeout
        while not (result := look()):
            assert self.process.poll() is None, f"{self.words} ended:\n{self.output}"
            assert time.monotonic() < deadline, f"{self.words} goes on:\n{self.output}"
            time.sleep(0.02)
        return result

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, code: int = 0, timeout: float = 30.0) -> str:
        """Wait for its end with this exit code; its output."""
        assert self.process.wait(timeout) == code, self.output
        return self.output

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


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
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PYTHONDONTWRITEBYTECODE": "1",
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
