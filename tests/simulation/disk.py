"""A disk that outlives its nsqd: full, failing, and without what was not synced."""

from __future__ import annotations

import errno
import os
import random

from tests.support.memoryfiles import MemoryFiles

__all__ = ["Disk"]


class Disk(MemoryFiles):
    """``fails``: the share of writes that fail. ``room`` as of MemoryFiles."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._synced: dict[str, bytes] = {}
        self.fails = 0.0
        self.before = self._look

    def do(self, operation: str, name: str) -> None:
        # Without the list of all operations, which is for tests of single ones.
        self.before(operation, name)

    def _look(self, operation: str, name: str) -> None:
        if operation == "write" and self.fails and self._rng.random() < self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        if operation == "sync":
            self._synced[name] = bytes(self.contents[name])

    def remove(self, name: str) -> None:
        super().remove(name)
        self._synced.pop(name, None)

    def rename(self, old: str, new: str) -> None:
        super().rename(old, new)
        if old in self._synced:
            self._synced[new] = self._synced.pop(old)

    def lose_unsynced(self) -> None:
        self.contents = {name: bytearray(data) for name, data in self._synced.items()}
