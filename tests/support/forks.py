"""Python programs of a test as forks of one process, which has imported what they all need.

Most of the time of a short program goes into its imports. A fork has them; the rest is as in a new
process: its environment, folder, arguments, files and signals are its own, and it is the leader of
a session. Only a program that patches Python before the first import needs a process of its own.
Knows processes; knows no framework.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support import forked
from tests.support.forked import LONGEST_REQUEST, NUMBER
from tests.support.leftovers import Alive, keepers
from tests.support.texts import ROOT

__all__ = ["Fork", "Forks"]


class Fork:
    """A running fork, with the methods of subprocess.Popen that tests call."""

    def __init__(self, words: list[str], ends: int) -> None:
        self.args = words
        self.returncode: int | None = None
        self._ends: int | None = ends
        self.pid = self._read()

    def _read(self) -> int:
        assert self._ends is not None
        data = os.read(self._ends, NUMBER.size)
        assert data, "the process that forks has ended"
        number: int = NUMBER.unpack(data)[0]
        return number

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while the fork runs."""
        self._wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status. Raise subprocess.TimeoutExpired after ``timeout`` seconds."""
        self._wait(timeout)
        if self.returncode is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return self.returncode

    def _wait(self, timeout: float | None) -> None:
        if self._ends is None:
            return
        with selectors.DefaultSelector() as selector:
            selector.register(self._ends, selectors.EVENT_READ)
            if not selector.select(timeout):
                return
        self.returncode = self._read()
        os.close(self._ends)
        self._ends = None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the fork has ended."""
        if self.poll() is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forks:
    """The process that forks. ``modules``: what it imports first."""

    def __init__(self, modules: Iterable[str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        words = [sys.executable, "-W", "error", "-m"]
        with theirs:
            self._process = subprocess.Popen(
                # Warnings are errors, as in each program that tests start.
                [*words, forked.__name__, str(theirs.fileno()), *modules],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        keepers.append(self._keeps)

    def start(
        self, words: list[str], folder: Path, environment: dict[str, str], files: list[Path]
    ) -> Fork:
        """Run a script of the folder, or a module after "-m".

        ``files``: what it reads, its output, and where its errors go; all of them exist.
        """
        request = {
            "words": words,
            "folder": str(folder),
            "environment": environment,
            "files": [str(path) for path in files],
        }
        data = json.dumps(request).encode()
        assert len(data) <= LONGEST_REQUEST
        ends, theirs = os.pipe()
        try:
            socket.send_fds(self._control, [data], [theirs])
        finally:
            os.close(theirs)
        return Fork(words, ends)

    def _keeps(self, left: Alive) -> Alive:
        mine = f"{self._control.fileno()} "
        sockets = {name for name in left.sockets if name.startswith(mine)}
        return Alive(set(), set(), sockets, left.children & {self._process.pid})

    def close(self) -> None:
        keepers.remove(self._keeps)
        self._control.close()
        assert self._process.wait(60) == 0
