"""Families of processes: a program with everything it starts, found, measured and killed.

Spark's workers leave the process group and outlive their parents, so a family is found by a word
in the environment, which every descendant inherits. Knows nothing of Spark. Linux only.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.support.servers import ROOT

_WORD = "GNSQSYNC_TEST_FAMILY"
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """What a process has used until now, and holds now."""

    cpu: float  # seconds, user and system
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
        # One that is about to end has no environment any more.
        for pid in killed:
            _wait_for_end(pid)
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


def usage(pids: Iterable[int]) -> dict[int, Usage]:
    """Of each of these processes that lives."""
    found = {}
    for pid in pids:
        try:
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            files = len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            continue
        if words[0] == "Z":
            continue
        # Fields 14, 15, 20 and 24 of proc(5); the rest begins with field 3.
        cpu = (int(words[11]) + int(words[12])) / _TICKS
        found[pid] = Usage(cpu, int(words[21]) * _PAGE, files, int(words[17]))
    return found


def _sum(usages: Sequence[Usage]) -> Usage:
    return Usage(
        sum(use.cpu for use in usages),
        sum(use.memory for use in usages),
        sum(use.files for use in usages),
        sum(use.threads for use in usages),
    )


class Meter:
    """What a process and its descendants use over a while, of which some may end or be new."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._first = self._last = self._look()

    def watch(self, seconds: float) -> None:
        """Look every half second, since what has ended cannot be asked any more."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(0.5, left))
            now = self._look()
            for pid in now.keys() - self._first.keys():
                # It has used nothing before; what it holds from now on is its own.
                self._first[pid] = now[pid]._replace(cpu=0.0)
            self._last = {**self._last, **now}

    def used(self) -> tuple[Usage, Usage]:
        """Of the process itself, and of its descendants: CPU of all, growth of who lives on."""
        now = self._look()
        own, others = Usage(0.0, 0, 0, 0), []
        for pid, last in self._last.items():
            change = last - self._first[pid]
            if pid not in now:
                change = Usage(change.cpu, 0, 0, 0)
            if pid == self._pid:
                own = change
            else:
                others.append(change)
        return own, _sum(others)

    def _look(self) -> dict[int, Usage]:
        return usage([self._pid, *descendants(self._pid)])


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


def _wait_for_end(pid: int) -> None:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([process], [], [])
    finally:
        os.close(process)
