"""The storage of logs and archives: a store of names with bytes, with exclusive create.

Knows local disks; must not know what the bytes mean.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

from gnsqsync import durable
from gnsqsync.durable import sync_folder
from gnsqsync.errors import ConfigError

__all__ = ["FileStore", "Store"]

# Error numbers of a full disk, and of a used-up quota.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

# The type has a name of its own, because ``list`` is a method within Store.
Names = list[str]


class Store(ABC):
    """Names (relative, with /) and their bytes. Any thread of any process may use it at a time.

    Errors of the storage (OSError) are raised unchanged.
    """

    # The path or URL as given.
    url: str
    # The user's name of the path in texts, such as the option.
    what: str

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Make ``name`` with all of ``data``, durably, unless it exists. Return True if made.

        Exactly one of several writers gets True. Writers of the same bytes may all get True,
        because their requests cannot be told from repetitions of one request.
        """

    @abstractmethod
    def read(self, name: str, limit: int | None = None) -> bytes | None:
        """Return the bytes of ``name``, the first ``limit`` of them if given; None if missing."""

    def heads(self, names: Sequence[str], size: int) -> list[bytes | None]:
        """Return the first ``size`` bytes of each name, None for a missing one.

        Requests are made at the same time if that is faster.
        """
        return [self.read(name, size) for name in names]

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Make or replace ``name`` durably. A reader sees either all old or all new bytes."""

    @abstractmethod
    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return all names at any depth below the folder ``prefix``, sorted, with their sizes."""

    def list(self, prefix: str = "") -> Names:
        """Return the names of ``sizes``."""
        return [*self.sizes(prefix)]

    @abstractmethod
    def folders(self, prefix: str = "") -> Names:
        """Return the names of the folders directly below the folder ``prefix``, sorted."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Return True if ``name`` exists."""

    @abstractmethod
    def modified(self, name: str) -> float | None:
        """Return the time of the last write of ``name``, seconds since 1970; None if missing."""

    @abstractmethod
    def writing(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Return a file to write, of any size. It is durable after the block.

        If the block raises, no file is left. On a disk the file is visible while it grows, so use
        this for names that nobody reads before.
        """

    @abstractmethod
    def reading(self, name: str) -> AbstractContextManager[BinaryIO]:
        """Return a file to read that can seek. Raises FileNotFoundError."""

    @abstractmethod
    def copy(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Give the file of each pair (from, to) the second name, durably.

        A second name appears with all of its bytes at once. A second name that exists is left as
        it is. The bytes must never change. Raises FileNotFoundError if both names of a pair are
        missing.
        """

    @abstractmethod
    def delete(self, names: Iterable[str], *, durable: bool = False) -> None:
        """Remove these names. A missing name is no error.

        ``durable``: True if even a power cut must not bring them back.
        """

    @abstractmethod
    def delete_folder(self, prefix: str) -> None:
        """Remove all files below the folder ``prefix``, also those that a killed process left."""

    def probe(self) -> None:
        """Write to the storage, and check that it keeps the promise of ``create``.

        Raises ConfigError if not: if two attempts of one task both believe that they made an entry,
        messages are lost.
        """
        name = f"probe-{uuid.uuid4().hex}"
        try:
            try:
                self.create(name, b"1")
                second = self.create(name, b"2")
                kept = self.read(name)
            finally:
                self.delete([name])
        except ConnectionError:
            raise  # the storage is away, so its promise is not known
        except (OSError, ValueError) as error:
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                raise ConfigError(
                    f"{self.what} {self.url!r}: {error}; make room there, or set {self.what} to"
                    " another place, and start again"
                ) from error
            raise ConfigError(
                f"{self.what} {self.url!r} cannot be written and read: {error}; set {self.what} to"
                " storage that the driver and every executor may write to"
            ) from error
        # The name is ours alone. A refusal of the first create can only mean that its answer was
        # lost and a repetition met its own bytes, so only the second create counts.
        if second or kept != b"1":
            raise ConfigError(
                f"{self.what} {self.url!r} lies on storage that lets two writers create one name,"
                f" so messages could be lost; set {self.what} to a file system with hard links or"
                " to an object store with conditional writes (If-None-Match)"
            )


class FileStore(Store):
    """A folder on a local disk or a shared file system (NFS).

    A file is written whole under a temporary name, then hard-linked to its own name. link(2) fails
    if the name exists, even on NFS; rename(2) would replace it. File and folder are fsynced.
    """

    def __init__(self, path: str, *, url: str | None = None, what: str = "walPath") -> None:
        if not os.path.isabs(path):
            raise ConfigError(
                f"{what} {path!r} is not absolute; executors run in other folders, so give the"
                " whole path or a URL"
            )
        self.url: str = path if url is None else url
        self.what: str = what
        self._root = Path(path)

    def create(self, name: str, data: bytes) -> bool:
        path = self._root / name
        if path.exists():
            return False
        durable.make_folder(str(path.parent))
        try:
            durable.create(str(path), data)
        except FileExistsError:
            return False
        return True

    def read(self, name: str, limit: int | None = None) -> bytes | None:
        try:
            with open(self._root / name, "rb") as file:
                return file.read() if limit is None else file.read(limit)
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        path = self._root / name
        durable.make_folder(str(path.parent))
        durable.write(str(path), data)

    def sizes(self, prefix: str = "") -> dict[str, int]:
        found = {}
        left = [prefix]
        while left:
            folder = left.pop()
            for entry in self._scan(folder):
                name = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    left.append(name)
                elif not entry.name.startswith(durable.TEMPORARY) and not entry.is_dir():
                    # A file that is removed at this moment counts as missing.
                    with contextlib.suppress(FileNotFoundError):
                        found[name] = os.stat(entry.path).st_size
        return dict(sorted(found.items()))

    def folders(self, prefix: str = "") -> Names:
        return sorted(entry.name for entry in self._scan(prefix) if entry.is_dir())

    def _scan(self, folder: str) -> list[os.DirEntry[str]]:
        """Return the entries directly in a folder, none for a missing folder.

        A folder that cannot be read is an error: its files would otherwise count as gone.
        """
        try:
            with os.scandir(self._root / folder) as entries:
                return list(entries)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, name: str) -> bool:
        return (self._root / name).exists()

    def modified(self, name: str) -> float | None:
        try:
            return (self._root / name).stat().st_mtime
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        path = self._root / name
        durable.make_folder(str(path.parent))
        with durable.new_file(str(path)) as file:
            yield file
        sync_folder(str(path.parent))

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[BinaryIO]:
        with open(self._root / name, "rb") as file:
            yield file

    def copy(self, pairs: Iterable[tuple[str, str]]) -> None:
        paths = [(str(self._root / source), str(self._root / target)) for source, target in pairs]
        for _, target in paths:
            durable.make_folder(os.path.dirname(target))
        durable.link_all(paths)

    def delete(self, names: Iterable[str], *, durable: bool = False) -> None:
        folders = set()
        for name in names:
            path = self._root / name
            path.unlink(missing_ok=True)
            folders.add(str(path.parent))
        if durable:
            for folder in sorted(folders):
                with contextlib.suppress(FileNotFoundError):
                    sync_folder(folder)

    def delete_folder(self, prefix: str) -> None:
        shutil.rmtree(self._root / prefix, ignore_errors=True)
