"""The file operations of a disk queue, as a protocol and for a real folder. Tests have their own.

Each operation raises OSError with ``filename``. ``reason`` gives the error in Go's words.
"""

from __future__ import annotations

import os
from typing import Protocol

from gnsqsync import durable

__all__ = ["DataFile", "Files", "FolderFiles", "reason"]


class DataFile(Protocol):
    """An open file. Positions and sizes are in bytes."""

    def read(self, size: int, position: int) -> bytes:
        """Return ``size`` bytes, or fewer at the end of the file."""
        ...

    def write(self, data: bytes, position: int) -> int:
        """Write ``data``. Return the number of bytes written, which may be lower than the size."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return when all written bytes are on the disk."""
        ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Files(Protocol):
    """The files of one folder."""

    def names(self, beginning: str) -> list[str]:
        """Return the names that start with ``beginning``, in any order."""
        ...

    def open(self, name: str, *, create: bool = False) -> DataFile:
        """Open for reading, or with ``create`` for writing, too: made, if missing, as 0600."""
        ...

    def remove(self, name: str) -> None: ...

    def rename(self, old: str, new: str) -> None:
        """Sync ``old``, then rename it to ``new`` in one step, durably."""
        ...

    def path(self, name: str) -> str:
        """Return the path for log lines."""
        ...


class FolderFiles:
    """The files of a real folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def names(self, beginning: str) -> list[str]:
        return [name for name in os.listdir(self._folder) if name.startswith(beginning)]

    def open(self, name: str, *, create: bool = False) -> DataFile:
        path = self.path(name)
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        return _OpenFile(os.open(path, flags | os.O_CLOEXEC, 0o600), path)

    def remove(self, name: str) -> None:
        os.remove(self.path(name))

    def rename(self, old: str, new: str) -> None:
        durable.replace(self.path(old), self.path(new))

    def path(self, name: str) -> str:
        return os.path.join(self._folder, name)


class _OpenFile:
    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path

    def read(self, size: int, position: int) -> bytes:
        try:
            return os.pread(self._descriptor, size, position)
        except OSError as error:
            raise self._named(error) from None

    def write(self, data: bytes, position: int) -> int:
        try:
            return os.pwrite(self._descriptor, data, position)
        except OSError as error:
            raise self._named(error) from None

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._descriptor, size)
        except OSError as error:
            raise self._named(error) from None

    def sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise self._named(error) from None

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)

    def _named(self, error: OSError) -> OSError:
        return OSError(error.errno, error.strerror, self._path)


def reason(error: OSError) -> str:
    """Return the error in Go's words, which begin with a small letter."""
    return (error.strerror or str(error)).lower()
