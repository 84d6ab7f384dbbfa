"""A folder in memory for disk queues, which may be full, fail, write short, or end at any call."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable


class Killed(BaseException):
    """The process ended here, as by kill -9: earlier operations last, and this one does not."""


class MemoryFiles:
    """The files of one folder, an implementation of gnsqsync.embedded.disk.files.Files.

    ``before(operation, name)`` is called first and may raise. ``room``: upper bound of all bytes. A
    write beyond it is short, as on a disk, and the next one fails.
    """

    def __init__(self, contents: dict[str, bytes] | None = None) -> None:
        self.contents: dict[str, bytearray] = {
            name: bytearray(data) for name, data in (contents or {}).items()
        }
        self.before: Callable[[str, str], object] = lambda operation, name: None
        self.room: int | None = None
        self.open_files = 0
        self.operations: list[tuple[str, str]] = []

    def do(self, operation: str, name: str) -> None:
        self.operations.append((operation, name))
        self.before(operation, name)

    def copy(self) -> MemoryFiles:
        return MemoryFiles({name: bytes(data) for name, data in self.contents.items()})

    def free(self) -> int:
        if self.room is None:
            return 1 << 40
        return max(0, self.room - sum(map(len, self.contents.values())))

    # -- Files -----------------------------------------------------------------------------------

    def names(self, beginning: str) -> list[str]:
        self.do("list", beginning)
        return [name for name in self.contents if name.startswith(beginning)]

    def open(self, name: str, *, create: bool = False) -> MemoryFile:
        self.do("create" if create else "open", name)
        if name not in self.contents:
            if not create:
                raise failure(errno.ENOENT, name)
            self.contents[name] = bytearray()
        self.open_files += 1
        return MemoryFile(self, name, self.contents[name])

    def remove(self, name: str) -> None:
        self.do("remove", name)
        if name not in self.contents:
            raise failure(errno.ENOENT, name)
        del self.contents[name]

    def rename(self, old: str, new: str) -> None:
        if old in self.contents:
            self.do("sync", old)
        self.do("rename", old)
        if old not in self.contents:
            raise failure(errno.ENOENT, old)
        self.contents[new] = self.contents.pop(old)

    def path(self, name: str) -> str:
        return f"/Data/{name}"


class MemoryFile:
    def __init__(self, folder: MemoryFiles, name: str, data: bytearray) -> None:
        self._folder = folder
        self._name = name
        self._data = data
        self._is_open = True

    def _do(self, operation: str) -> None:
        assert self._is_open
        self._folder.do(operation, self._name)

    def read(self, size: int, position: int) -> bytes:
        self._do("read")
        return bytes(self._data[position : position + size])

    def write(self, data: bytes, position: int) -> int:
        self._do("write")
        growth = max(0, position + len(data) - len(self._data))
        fits = len(data) - max(0, growth - self._folder.free())
        if data and fits <= 0:
            raise failure(errno.ENOSPC, self._name)
        if position > len(self._data):
            self._data += bytes(position - len(self._data))
        self._data[position : position + fits] = data[:fits]
        return fits

    def truncate(self, size: int) -> None:
        self._do("truncate")
        del self._data[size:]

    def sync(self) -> None:
        self._do("sync")

    def size(self) -> int:
        self._do("size")
        return len(self._data)

    def close(self) -> None:
        assert self._is_open
        self._is_open = False
        self._folder.open_files -= 1


def failure(number: int, name: str) -> OSError:
    """Return the kernel's error for an errno."""
    return OSError(number, os.strerror(number), name)
