"""What the files of a back-up need of a file system. The one place that touches it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from typing import Protocol

from gnsqsync import durable

__all__ = ["Disk", "LocalDisk"]

_COPY_BYTES = 1 << 20
_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class Disk(Protocol):
    """File operations by path and descriptor; each raises OSError.

    Nothing survives a power failure until ``sync`` of the file and, for its name, ``sync_folder``.
    """

    def make_folders(self, path: str) -> None:
        """The folder and those above it, with their names synced; nothing when it is there."""

    def check_folder(self, path: str) -> None:
        """OSError when no file can be made in it."""

    def files(self, path: str, deep: bool) -> Iterator[str]:
        """The files of a folder, relative to it; with ``deep`` those of its folders, too."""

    def open(self, path: str, *, new: bool) -> int:
        """To read and append. ``new``: FileExistsError when it is there; else made if need be."""

    def open_existing(self, path: str) -> int:
        """As ``open``; FileNotFoundError when it is not there."""

    def lock(self, file: int) -> bool:
        """Whether no other process has the file; it is ours until it is closed."""

    def is_at(self, file: int, path: str) -> bool:
        """Whether the path names this very file."""

    def exists(self, path: str) -> bool: ...
    def size(self, file: int) -> int: ...
    def changed_at(self, path: str) -> float: ...

    def read(self, file: int, size: int, offset: int) -> bytes:
        """Up to ``size`` bytes; empty at the end."""

    def write(self, file: int, data: bytes) -> int:
        """How much of it was appended."""

    def truncate(self, file: int, size: int) -> None: ...
    def sync(self, file: int) -> None: ...
    def sync_folder(self, path: str) -> None: ...
    def close(self, file: int) -> None: ...
    def remove(self, path: str) -> None: ...

    def link(self, source: str, target: str) -> None:
        """A second name. FileExistsError when it is taken, EXDEV on another file system."""

    def copy(self, source: str, target: str) -> None:
        """Write a synced copy, over whatever is there."""


class LocalDisk:
    """The real one."""

    def make_folders(self, path: str) -> None:
        durable.make_folder(path, 0o770)

    def check_folder(self, path: str) -> None:
        # Without O_TMPFILE, which some file systems lack: a name that no format makes.
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
