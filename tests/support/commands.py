"""``gnsqsync`` as a user calls it, as a fork of one process that has imported its modules.

Its arguments, streams, signals and exit codes are those of a program. A test of what a process does
before its first import starts one (tests/integration/test_cli.py).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.forks import Fork, Forks
from tests.support.texts import ROOT
from tests.support.waiting import LIMIT

__all__ = ["Commands", "commands", "forks"]

IMPORTED = (
    "gnsqsync.cli.app",
    "gnsqsync.cli.dead_letters",
    "gnsqsync.cli.manage",
    "gnsqsync.cli.pub",
    "gnsqsync.cli.stat",
    "rich.live",
    "rich.prompt",
)
# Modules of commands that run handlers, beside those above. Each needs neither settings nor an
# application.
FRAMEWORKS = (
    "django.core.management.commands.check",
    "django.core.management.commands.migrate",
    "django.core.management.commands.shell",
    "django.db.backends.sqlite3.base",
    "django.test.client",
    "flask.cli",
    "gnsqsync.contrib.sqlalchemy",
    "gnsqsync.cli.consume",
    "gnsqsync.cli.exporter",
    "gnsqsync.cli.to_file",
    "gnsqsync.django.consume_command",
    "gnsqsync.django.management.commands.nsq_consume",
    "gnsqsync.flask",
    "gnsqsync.flask.relay",
    "gnsqsync.outbox.relay_command",
    "gnsqsync.process.web_page",
    "sqlalchemy.dialects.sqlite",
)


class Running:
    """A command that runs, and the files of its streams."""

    def __init__(self, process: Fork, folder: Path) -> None:
        self.process = process
        self._folder = folder

    def end(self) -> subprocess.CompletedProcess[bytes]:
        """Wait for its end; return its exit status and what it has written."""
        status = self.process.wait(LIMIT)
        out, err = ((self._folder / name).read_bytes() for name in ("out", "err"))
        return subprocess.CompletedProcess(self.process.args, status, out, err)


class Commands:
    """Starts commands."""

    def __init__(self) -> None:
        self.forks = Forks(IMPORTED)

    @contextlib.contextmanager
    def started(self, *arguments: str, stdin: bytes = b"") -> Iterator[Running]:
        """Run a command, which is killed at the end of the block."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            files = [folder / name for name in ("in", "out", "err")]
            for path in files:
                path.write_bytes(stdin if path.name == "in" else b"")
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
            words = ["-m", "gnsqsync.cli", *arguments]
            process = self.forks.start(words, ROOT, environment, files)
            try:
                yield Running(process, folder)
            finally:
                process.kill()
                process.wait()

    def __call__(self, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run a command to its end."""
        with self.started(*arguments, stdin=stdin) as running:
            return running.end()


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    """Start commands of ``gnsqsync``."""
    commands = Commands()
    yield commands
    commands.forks.close()


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """The process that forks for programs with handlers: ``Program(..., forks=forks)``."""
    forks = Forks((*IMPORTED, *FRAMEWORKS))
    yield forks
    forks.close()
