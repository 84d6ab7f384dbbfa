"""A PostgreSQL server for a test session, in a folder of its own. PostgreSQL must be installed.

Knows the programs of PostgreSQL. Does not know Django.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.databases import Unavailable, installed

# Debian's folder, outside of the PATH, with a folder for each version.
DEBIAN = Path("/usr/lib/postgresql")
PROGRAMS = ("initdb", "pg_ctl", "postgres")
# Upper bound of connections. It is low, to notice a program that opens too many.
MAX_CONNECTIONS = 20
# Users to run the server as if the tests run as root, which PostgreSQL refuses.
USERS = ("postgres", "nobody")


def find(path: str | None = None, debian: Path = DEBIAN) -> Path:
    """Return the folder of its programs: on the PATH, or else the newest of Debian's."""
    places = []
    for program in PROGRAMS:
        if found := shutil.which(program, path=path):
            # The program may be a link outside of its folder.
            places.append(Path(found).resolve().parent)
    versions = debian.glob("*/bin")
    places += sorted(versions, key=lambda place: _number(place.parent.name), reverse=True)
    for place in places:
        if all((place / program).exists() for program in PROGRAMS):
            return place
    raise Unavailable(f"PostgreSQL is neither on the PATH nor below {debian}: install it")


def _number(version: str) -> float:
    return float(version) if version.replace(".", "", 1).isdigit() else 0.0


def _somebody() -> str | None:
    """Return the user to run the server as, or None if the tests do not run as root."""
    if os.getuid() != 0:
        return None
    for name in USERS:
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise Unavailable(f"we are root, and there is no user {' or '.join(USERS)}")


class Postgres:
    """A server that listens only on a unix socket in its folder, ``host``."""

    def __init__(self) -> None:
        self._programs = find()
        self._user = _somebody()
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))
        self.host = str(self._folder)
        if self._user:
            shutil.chown(self._folder, self._user)
        self._data = self._folder / "data"
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "--no-sync")

    def start(self, *, fsync: bool = False) -> None:
        """Start the server. Without ``fsync`` it would lose data in a crash of the machine."""
        flags = f"-k {self._folder} -c listen_addresses= -c fsync={'on' if fsync else 'off'}"
        flags += f" -c max_connections={MAX_CONNECTIONS}"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-l", log, "-o", flags, "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server as an administrator does, which ends sessions."""
        self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        # A pipe would stay open in the server, and run() would wait for it.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [self._programs / program, *arguments],
                user=self._user,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=100,
            )
            output.seek(0)
            said = output.read().decode(errors="replace")
        assert done.returncode == 0, f"{program} {arguments}: {done.returncode}\n{said}"

    def close(self) -> None:
        pid_file = self._data / "postmaster.pid"
        if pid_file.exists():
            try:
                self.stop("immediate")
            except AssertionError:
                os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Start a server for all tests that ask. Without PostgreSQL skip them, or fail in CI."""
    server = installed("psycopg", Postgres)
    try:
        server.start()
        yield server
    finally:
        server.close()
