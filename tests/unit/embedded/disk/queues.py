"""What the tests of the disk queue share: queues in memory, messages as nsqd makes them."""

from __future__ import annotations

import io
from collections.abc import Iterable

from gnsqsync.daemon.golog import Log
from gnsqsync.embedded.disk.queue import DiskQueue, Limits
from gnsqsync.embedded.disk.records import decode, encode
from gnsqsync.embedded.guid import GuidFactory
from tests.support.memoryfiles import MemoryFiles

LIMITS = Limits(max_bytes_per_file=100_000, sync_every=2500, sync_timeout=2.0, longest=1 << 20)
# 2026, in ns; messages of the tests are a second apart.
BEGAN = 1_795_000_000_000_000_000


class Clock:
    """A clock that the test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def record(number: int, body: bytes | None = None, attempts: int = 0) -> bytes:
    """The record of message ``number``, whose id belongs to its time."""
    timestamp = BEGAN + number * 10**9
    id = GuidFactory(5).new_id(timestamp)
    return encode(timestamp, attempts, id, b"m%d" % number if body is None else body)


def records(count: int, start: int = 0) -> list[bytes]:
    return [record(number) for number in range(start, start + count)]


class Bench:
    """A queue in a folder in memory, with its clock and its log."""

    def __init__(
        self, files: MemoryFiles | None = None, limits: Limits = LIMITS, name: str = "t"
    ) -> None:
        self.files = files or MemoryFiles()
        self.limits = limits
        self.name = name
        self.clock = Clock()
        self._log = io.StringIO()
        self.queue = self._new()

    def _new(self) -> DiskQueue:
        log = Log("", stream=self._log)
        return DiskQueue(self.name, self.files, self.limits, self.clock, log)

    @property
    def log(self) -> str:
        return self._log.getvalue()

    def put(self, *many: bytes) -> None:
        for one in many:
            self.queue.put(one)
        self.queue.sync_if_due()

    def take(self, count: int) -> list[bytes]:
        """The bodies of the next messages."""
        found = []
        for _ in range(count):
            assert self.queue.head() is not None
            found.append(decode(self.queue.take()).body)
        self.queue.sync_if_due()
        return found

    def drain(self) -> list[bytes]:
        """The bodies of all messages that can be read."""
        found = []
        while self.queue.head() is not None:
            found.append(decode(self.queue.take()).body)
        self.queue.sync_if_due()
        return found

    def killed(self, limits: Limits | None = None) -> Bench:
        """A new queue over the files as they are."""
        return Bench(self.files.copy(), limits or self.limits, self.name)

    def stopped(self, limits: Limits | None = None) -> Bench:
        """A new queue after a clean stop."""
        self.queue.close()
        assert self.files.open_files == 0
        return self.killed(limits)

    def meta(self) -> str | None:
        data = self.files.contents.get(f"{self.name}.diskqueue.meta.dat")
        return None if data is None else data.decode()

    def sizes(self) -> dict[int, int]:
        """The sizes of the data files, by number."""
        return {
            int(name.split(".")[-2]): len(data)
            for name, data in sorted(self.files.contents.items())
            if name.endswith(".dat") and not name.endswith("meta.dat")
        }

    def bad(self) -> list[str]:
        return [name for name in self.files.contents if name.endswith(".bad")]


def bodies(numbers: Iterable[int]) -> list[bytes]:
    return [b"m%d" % number for number in numbers]
