"""A PostgreSQL of a test session, in a folder of its own, where one is installed.

Knows the programs of PostgreSQL; knows nothing of Django.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path


class Unavailable(Exception):
    """There is no PostgreSQL on this machine, or no driver for it."""


def find() -> Path:
    """The folder of its programs."""
    places = [Path(path).parent for path in [shutil.which("initdb")] if path]
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if (place / "initdb").exists() and (place / "pg_ctl").exists():
            return place.resolve()
    raise Unavailable("PostgreSQL is not installed")


class Postgres:
    """One server; it listens on a unix socket in its folder, ``host``, only."""

    def __init__(self) -> None:
        self._programs = find()
        self._user: str | None = None
        if os.getuid() == 0:
            # It refuses to run as root.
            try:
                self._user = pwd.getpwnam("postgres").pw_name
            except KeyError:
                raise Unavailable("we are root, and there is no user postgres") from None
        self._folder = Path(tempfile.mkdtemp(prefix="postgres-", dir="/tmp"))
        self.host = str(self._folder)
        if self._user:
            shutil.chown(self._folder, self._user)
        self._data = self._folder / "data"
        self._run("initdb", "-D", str(self._data), "-U", "postgres", "-A", "trust", "--no-sync")

    def start(self) -> None:
        # Nothing of it has to survive a crash of the machine.
        flags = f"-k {self._folder} -c listen_addresses= -c fsync=off"
        log = str(self._folder / "log")
        self._run("pg_ctl", "-D", str(self._data), "-l", log, "-o", flags, "-w", "start")

    def stop(self, mode: str = "fast") -> None:
        """As an administrator does: sessions are ended."""
        self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            user=self._user,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            # A pipe would stay open in the server, and be waited for.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
        )
        assert done.returncode == 0, f"{program} {arguments}: {done.returncode}"

    def close(self) -> None:
        pid_file = self._data / "postmaster.pid"
        if pid_file.exists():
            try:
                self.stop("immediate")
            except AssertionError:
                os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
        shutil.rmtree(self._folder, ignore_errors=True)
