"""A PostgreSQL of a test session, in a folder of its own; one has to be installed, in CI by force.

Knows the programs of PostgreSQL; knows nothing of Django.
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

# Debian has them outside of the PATH, a folder for each version.
DEBIAN = Path("/usr/lib/postgresql")
PROGRAMS = ("initdb", "pg_ctl", "postgres")
# Few, so that a program that opens too many is noticed.
MAX_CONNECTIONS = 20
# Whom to be when we are root, which PostgreSQL refuses: any user that owns nothing does.
USERS = ("postgres", "nobody")


def find(path: str | None = None, debian: Path = DEBIAN) -> Path:
    """The folder of its programs, found by the PATH or else the newest of Debian's."""
    places = []
    for program in PROGRAMS:
        if found := shutil.which(program, path=path):
            # It may be a link that stands alone.
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
    """The name of a user to run as, None where we are none that PostgreSQL refuses."""
    if os.getuid() != 0:
        return None
    for name in USERS:
        try:
            return pwd.getpwnam(name).pw_name
        except KeyError:
            continue
    raise Unavailable(f"we are root, and there is no user {' or '.join(USERS)}")


class Postgres:
    """One server; it listens on a unix socket in its folder, ``host``, only."""

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
        """``fsync``: as in production; no test has to survive a crash of the machine."""
        flags = f"-k {self._folder} -c listen_addresses= -c fsync={'on' if fsync else 'off'}"
        flags += f" -c max_connections={MAX_CONNECTIONS}"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-l", log, "-o", flags, "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        """As an administrator does: sessions are ended."""
        self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        # Not a pipe, which would stay open in the server, and be waited for.
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
    """Start a server for all tests that ask. Without PostgreSQL skip at a desk, fail in CI."""
    server = installed("psycopg", Postgres)
    try:
        server.start()
        yield server
    finally:
        server.close()
