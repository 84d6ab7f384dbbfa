"""Where the log lies: a store of names with bytes, with exclusive create.

Knows local disks; must not know what the bytes mean.
"""

from __future__ import annotations

import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path

from gnsqsync.errors import ConfigError
from gnsqsync.spark.files import make_folder, sync_folder

__all__ = ["FileStore", "Store"]

# Hidden, so that list() and Spark pass it by.
_TEMPORARY = ".tmp-"


class Store(ABC):
    """Names (relative, with /) and their bytes. From any thread; of any process at a time.

    Errors of the storage (OSError) are raised unchanged.
    """

    # The path or URL as given, for texts.
    url: str

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Make ``name`` with all of ``data``, durably, only if it is not there.

        False when another one made it first. Of all that try, one gets True.
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
    def list(self, prefix: str = "") -> list[str]:
        """All names below the folder ``prefix``, however deep, sorted."""

    @abstractmethod
    def delete(self, names: Iterable[str]) -> None:
        """Remove these names; one that is not there is no error."""

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
            first, second = self.create(name, b"1"), self.create(name, b"2")
            kept = self.read(name)
            self.delete([name])
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"walPath {self.url!r} cannot be written and read: {error}; set walPath to storage"
                " that the driver and every executor may write to"
            ) from error
        if (first, second, kept) != (True, False, b"1"):
            raise ConfigError(
                f"walPath {self.url!r} lies on storage that lets two writers create one name, so"
                " messages could be lost; set walPath to a file system with hard links or to an"
                " object store with conditional writes (If-None-Match)"
            )


class FileStore(Store):
    """A folder on a local disk or a shared file system (NFS).

    A file is made whole under a temporary name, then hard-linked to its own: link(2) fails when
    the name is there, on NFS too, where rename(2) would replace it. File and folder are fsynced.
    """

    def __init__(self, path: str, *, url: str | None = None) -> None:
        if not os.path.isabs(path):
            raise ConfigError(
                f"walPath {path!r} is not absolute; executors run in other folders, so give the"
                " whole path or a URL"
            )
        self.url: str = path if url is None else url
        self._root = Path(path)

    def create(self, name: str, data: bytes) -> bool:
        path = self._root / name
        if path.exists():
            return False
        temporary = self._write_temporary(path, data)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        finally:
            os.unlink(temporary)
        sync_folder(str(path.parent))
        return True

    def read(self, name: str, limit: int | None = None) -> bytes | None:
        try:
            with open(self._root / name, "rb") as file:
                return file.read() if limit is None else file.read(limit)
        except FileNotFoundError:
            return None

    def put(self, name: str, data: bytes) -> None:
        path = self._root / name
        os.replace(self._write_temporary(path, data), path)
        sync_folder(str(path.parent))

    def list(self, prefix: str = "") -> list[str]:
        names = []
        for folder, _, files in os.walk(self._root / prefix):
            below = os.path.relpath(folder, self._root)
            for file in files:
                if not file.startswith(_TEMPORARY):
                    names.append(file if below == "." else f"{below}/{file}")
        return sorted(names)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            (self._root / name).unlink(missing_ok=True)

    def delete_folder(self, prefix: str) -> None:
        shutil.rmtree(self._root / prefix, ignore_errors=True)

    def _write_temporary(self, path: Path, data: bytes) -> Path:
        temporary = path.parent / f"{_TEMPORARY}{uuid.uuid4().hex}"
        make_folder(str(path.parent))
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return temporary
