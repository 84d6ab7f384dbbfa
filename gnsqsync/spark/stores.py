"""Where logs and archives lie: a store of names with bytes, with exclusive create.

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

# A disk is full, or the share of this user.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)

# Within Store ``list`` is a method.
Names = list[str]


class Store(ABC):
    """Names (relative, with /) and their bytes. From any thread; of any process at a time.

    Errors of the storage (OSError) are raised unchanged.
    """

    # The path or URL as given, and what it is to the user, for texts.
    url: str
    what: str

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Make ``name`` with all of ``data``, durably, only if it is not there.

        Return False when another writer made it first. Of all writers one gets True; writers of the
        same bytes may all get it, as a request that was repeated cannot be told from theirs.
        """

    @abstractmethod
    def read(self, name: str, limit: int | None = None) -> bytes | None:
        """The bytes of ``name``, or None when it is not there; of these the first ``limit``."""

    def heads(self, names: Sequence[str], size: int) -> list[bytes | None]:
        """The first ``size`` bytes of each, or None; at the same time where that is faster."""
        return [self.read(name, size) for name in names]

    @abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Make or replace ``name`` durably; a reader sees all of the old or all of the new."""

    @abstractmethod
    def sizes(self, prefix: str = "") -> dict[str, int]:
        """All names below the folder ``prefix``, however deep, with their bytes; sorted."""

    def list(self, prefix: str = "") -> Names:
        """The names of ``sizes``."""
        return [*self.sizes(prefix)]

    @abstractmethod
    def folders(self, prefix: str = "") -> Names:
        """The names of the folders directly below the folder ``prefix``, sorted."""

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether ``name`` is there."""

    @abstractmethod
    def modified(self, name: str) -> float | None:
        """Return when ``name`` was written, seconds since 1970; None if it is not there."""

    @abstractmethod
    def writing(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file of any size to write; durable at the end of the block, gone if that raises.

        For a name that nobody looks for before: on a disk it shows while it grows.
        """

    @abstractmethod
    def reading(self, name: str) -> AbstractContextManager[BinaryIO]:
        """A file that can seek. Raises FileNotFoundError."""

    @abstractmethod
    def copy(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Give each (from, to) its second name, durably; it appears whole, with all of its bytes.

        The bytes of both must never change, and a second name that is there is left as it is.
        Raises FileNotFoundError when there is neither of a pair.
        """

    @abstractmethod
    def delete(self, names: Iterable[str], *, durable: bool = False) -> None:
        """Remove these names; one that is not there is no error.

        ``durable``: not even a power cut brings them back.
        """

    @abstractmethod
    def delete_folder(self, prefix: str) -> None:
        """Remove all below the folder ``prefix``, and the unfinished files of a killed process."""

    def probe(self) -> None:
        """Try whether the storage can be written and keeps the promise of ``create``.

        Raises ConfigError with a sentence: if two attempts of one task both think that they made an
        entry, messages are lost.
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
            raise  # the storage is away, which says nothing of what it promises
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
        # No other writer knows the name: if the first create was refused, then by its own bytes,
        # whose answer was lost. That is for ``create`` to see, and no fault of the storage.
        if second or kept != b"1":
            raise ConfigError(
                f"{self.what} {self.url!r} lies on storage that lets two writers create one name,"
                f" so messages could be lost; set {self.what} to a file system with hard links or"
                " to an object store with conditional writes (If-None-Match)"
            )


class FileStore(Store):
    """A folder on a local disk or a shared file system (NFS).

    A file is made whole under a temporary name, then hard-linked to its own: link(2) fails when
    the name is there, on NFS too, where rename(2) would replace it. File and folder are fsynced.
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
                    # A file that is removed at this moment is not there.
                    with contextlib.suppress(FileNotFoundError):
                        found[name] = os.stat(entry.path).st_size
        return dict(sorted(found.items()))

    def folders(self, prefix: str = "") -> Names:
        return sorted(entry.name for entry in self._scan(prefix) if entry.is_dir())

    def _scan(self, folder: str) -> list[os.DirEntry[str]]:
        """Return what is directly in a folder, nothing for one that is not there.

        A folder that cannot be read is an error: what is in it would count as gone.
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
