"""The file operations of a backup, as a protocol and for a real disk. Tests have their own."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from typing import Protocol

from gnsqsync import durable

__all__ = ["Disk", "LocalDisk"]

# Bytes of one read of a copy.
_COPY_BYTES = 1 << 20
# Errors that mean that another process has the lock.
_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class Disk(Protocol):
    """File operations by path and descriptor. Each raises OSError.

    After a power failure, data is kept if ``sync`` was called before, and a name if ``sync_folder``
    was called.
    """

    def make_folders(self, path: str) -> None:
        """Make the folder and its parents, and sync their names. Do nothing if it exists."""

    def check_folder(self, path: str) -> None:
        """Raise OSError if no file can be made in the folder."""

    def files(self, path: str, deep: bool) -> Iterator[str]:
        """Yield the files of a folder, relative to it; with ``deep`` those of subfolders, too."""

    def open(self, path: str, *, new: bool) -> int:
        """Open to read and append; make it if missing. ``new``: FileExistsError if it exists."""

    def open_existing(self, path: str) -> int:
        """Open to read and append. FileNotFoundError if the file is missing."""

    def lock(self, file: int) -> bool:
        """Lock the file until it is closed. Return False if another process has the lock."""

    def is_at(self, file: int, path: str) -> bool:
        """Return True if the path is a name of this file."""

    def exists(self, path: str) -> bool: ...
    def size(self, file: int) -> int: ...
    def changed_at(self, path: str) -> float: ...

    def read(self, file: int, size: int, offset: int) -> bytes:
        """Return up to ``size`` bytes, or b"" at the end."""

    def write(self, file: int, data: bytes) -> int:
        """Append ``data``. Return the number of bytes that were written."""

    def truncate(self, file: int, size: int) -> None: ...
    def sync(self, file: int) -> None: ...
    def sync_folder(self, path: str) -> None: ...
    def close(self, file: int) -> None: ...
    def remove(self, path: str) -> None: ...

    def link(self, source: str, target: str) -> None:
        """Add a second name. FileExistsError if it is taken, EXDEV on another file system."""

    def copy(self, source: str, target: str) -> None:
        """Write a synced copy, and replace ``target`` if it exists."""


class LocalDisk:
    """The file operations on a real disk."""

    def make_folders(self, path: str) -> None:
        durable.make_folder(path, 0o770)

    def check_folder(self, path: str) -> None:
        # Some file systems lack O_TMPFILE, so the probe has a name, one that no format makes.
        probe = os.path.join(path, f".to-file.{os.getpid()}.probe")
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        os.unlink(probe)

    def files(self, path: str, deep: bool) -> Iterator[str]:
        for folder, folders, names in os.walk(path):
            for name in names:
                yield os.path.relpath(os.path.join(folder, name), path)
            if not deep:
                folders.clear()

    def open(self, path: str, *, new: bool) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(path, flags | os.O_EXCL if new else flags, 0o666)

    def open_existing(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW)

    def lock(self, file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # Some network file systems have no locks.
            return error.errno not in _BUSY
        return True

    def is_at(self, file: int, path: str) -> bool:
        try:
            return os.path.samestat(os.fstat(file), os.stat(path))
        except FileNotFoundError:
            return False

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def size(self, file: int) -> int:
        return os.fstat(file).st_size

    def changed_at(self, path: str) -> float:
        return os.stat(path).st_mtime

    def read(self, file: int, size: int, offset: int) -> bytes:
        return os.pread(file, size, offset)

    def write(self, file: int, data: bytes) -> int:
        return os.write(file, data)

    def truncate(self, file: int, size: int) -> None:
        os.ftruncate(file, size)

    def sync(self, file: int) -> None:
        os.fsync(file)

    def sync_folder(self, path: str) -> None:
        durable.sync_folder(path)

    def close(self, file: int) -> None:
        os.close(file)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def link(self, source: str, target: str) -> None:
        durable.link(source, target)

    def copy(self, source: str, target: str) -> None:
        with open(source, "rb") as old, open(target, "wb") as new:
            while data := old.read(_COPY_BYTES):
                new.write(data)
            new.flush()
            os.fsync(new.fileno())
