"""Families of processes: a program with everything it starts, found, measured and killed.

Spark's workers leave the process group and outlive their parents, so a family is found by a word
in the environment, which every descendant inherits. Knows nothing of Spark. Linux only.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.servers import ROOT

_WORD = "GNSQSYNC_TEST_FAMILY"
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """What some processes have used until now, and hold now."""

    cpu: float  # seconds, user and system, with children that have ended
    memory: int  # resident bytes
    files: int  # open descriptors
    threads: int

    def __sub__(self, other: object) -> Usage:
        assert isinstance(other, Usage)
        return Usage(
            self.cpu - other.cpu,
            self.memory - other.memory,
            self.files - other.files,
            self.threads - other.threads,
        )


class Family:
    """A child process and all that descends from it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._entry = f"{_WORD}={uuid.uuid4().hex}".encode()
        name, _, value = self._entry.decode().partition("=")
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **environment, name: value},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def pids(self) -> list[int]:
        """The living members, in no order."""
        return [pid for pid in _all_pids() if self._entry in _environment(pid)]

    def kill(self, chance: random.Random) -> int:
        """SIGKILL everybody, in a random order; how many there were. Returns when all are gone."""
        killed: set[int] = set()
        while pids := self.pids():
            chance.shuffle(pids)
            for pid in pids:
                _kill(pid)
            killed.update(pids)
        self.process.wait()
        return len(killed)

    def kill_group(self) -> int:
        """SIGKILL the program and its own children only: workers live on as orphans."""
        pids = [self.process.pid, *children(self.process.pid)]
        for pid in pids:
            _kill(pid)
        self.process.wait()
        return len(pids)

    def end(self, timeout: float) -> int:
        """SIGTERM to the program, as a service manager stops it; its exit status."""
        self.process.terminate()
        return self.process.wait(timeout)


def children(pid: int) -> list[int]:
    """The direct children of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found.extend(map(int, task.read_text().split()))
        except OSError:
            continue  # the thread has ended
    return found


def descendants(pid: int) -> list[int]:
    """Children, their children and so on, as far as none has lost its parent."""
    found = children(pid)
    for child in found:
        found.extend(children(child))
    return found


def usage(pids: Sequence[int]) -> Usage:
    """The sum over these processes; who has ended counts nothing."""
    cpu, memory, files, threads = 0.0, 0, 0, 0
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            files += len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            continue
        if words[0] == "Z":
            continue
        # Fields 14 to 17 of proc(5), 20 and 24; the rest begins with field 3.
        cpu += sum(map(int, words[11:15])) / _TICKS
        threads += int(words[17])
        memory += int(words[21]) * _PAGE
    return Usage(cpu, memory, files, threads)


def _all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or is another user's


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it went with its parent
