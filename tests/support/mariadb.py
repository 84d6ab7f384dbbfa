"""A MariaDB of a test session, in a folder of its own; one has to be installed, in CI by force.

Knows the programs of MariaDB; knows nothing of Django.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.databases import Unavailable, installed
from tests.support.leftovers import Alive, keepers
from tests.support.servers import unique
from tests.support.waiting import eventually

# Debian keeps the server outside of the PATH of a user.
PLACES = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))
PROGRAMS = ("mariadb-install-db", "mariadbd")


def find(path: str = PLACES) -> list[str]:
    """Return the paths of MariaDB's programs. Raise Unavailable if one is missing."""
    found = [shutil.which(program, path=path) for program in PROGRAMS]
    if None in found:
        raise Unavailable(f"MariaDB ({' and '.join(PROGRAMS)}) is not installed: mariadb-server")
    return [program for program in found if program]


class MariaDB:
    """A server that listens only on ``socket``, a unix socket in its folder."""

    def __init__(self) -> None:
        self._install, self._server = find()
        self._folder = Path(tempfile.mkdtemp(prefix="mariadb-", dir="/tmp"))
        self.socket = str(self._folder / "sock")
        self._common = ["--no-defaults", f"--datadir={self._folder / 'data'}"]
        if os.getuid() == 0:
            # The server refuses to run as root unless somebody says so.
            self._common.append(f"--user={pwd.getpwuid(0).pw_name}")
        self._log = (self._folder / "log").open("wb")
        self._process: subprocess.Popen[bytes] | None = None
        # A server that starts deletes the temporary tables of each other server in its folder for
        # them, also those which the other one needs just now.
        temporary = self._folder / "tmp"
        temporary.mkdir()
        self._environment = {**os.environ, "TMPDIR": str(temporary)}
        how = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        done = subprocess.run(
            [self._install, *self._common, *how],
            stdout=self._log,
            stderr=self._log,
            env=self._environment,
            timeout=100,
        )
        assert done.returncode == 0, self._said()

    def start(self) -> None:
        """Start the server with the character set of Debian's configuration."""
        options = [f"--socket={self.socket}", "--skip-networking", "--character-set-server=utf8mb4"]
        # No test has to survive a crash of the machine.
        options += ["--innodb-flush-log-at-trx-commit=0", "--innodb-flush-method=nosync"]
        options += ["--innodb-doublewrite=OFF", "--debug-no-sync", "--innodb-buffer-pool-size=32M"]
        self._process = subprocess.Popen(
            [self._server, *self._common, *options],
            stdout=self._log,
            stderr=self._log,
            env=self._environment,
        )
        eventually(self._answers, 60)

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self._said()
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.socket) == 0

    def connect(self, database: str | None = None) -> Any:
        """Open a connection of PyMySQL, in autocommit."""
        import pymysql

        return pymysql.connect(
            unix_socket=self.socket, user="root", database=database, autocommit=True
        )

    def make_database(self, options: str = "") -> str:
        """Create a database with a name of its own. ``options``: its character set."""
        name = unique("maria")
        self.run(f"CREATE DATABASE `{name}` {options}")
        return name

    def run(self, command: str, database: str | None = None) -> None:
        connection = self.connect(database)
        try:
            connection.cursor().execute(command)
        finally:
            connection.close()

    def _said(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    def keeps(self, left: Alive) -> Alive:
        """Tell the server's process from what a test has left behind."""
        mine = set() if self._process is None else {self._process.pid}
        return Alive(set(), set(), set(), left.children & mine)

    def close(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._log.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDB]:
    """Start a server for all tests that ask. Without MariaDB skip at a desk, fail in CI."""
    server = installed("pymysql", MariaDB)
    keepers.append(server.keeps)
    try:
        server.start()
        yield server
    finally:
        keepers.remove(server.keeps)
        server.close()
