"""Where the log lies: names with bytes, of which one can be created only if it is not there.

Knows local disks and, through fsspec, object stores; must not know what the bytes mean.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from gnsqsync.errors import ConfigError
from gnsqsync.spark.files import make_folder, sync_folder

__all__ = ["FileStore", "Store", "open_store"]

# Hidden, so that list() and Spark pass it by.
_TEMPORARY = ".tmp-"


class Store(ABC):
    """Names (relative, with /) and their bytes. From any thread; of any process at a time.

    Whatever the storage says (OSError) is raised as it is.
    """

    # The path or URL as given, for texts.
    url: str

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Make ``name`` with all of ``data``, durably, only if it is not there.

        False when somebody else made it first. Of all who try, one gets True.
        """

    @abstractmethod
    def read(self, name: str) -> bytes | None:
        """The bytes of ``name``, or None when it is not there."""

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
        """Remove all below the folder ``prefix``, and what a killed process left half made."""

    def probe(self) -> None:
        """Try whether the storage can be written and keeps the promise of ``create``.

        Raises ConfigError with a sentence: two attempts of one task that both think to have made
        an entry would lose messages.
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


def open_store(path: str, options: Mapping[str, Any] | str | None = None) -> Store:
    """The store at a path, a file: URL, or a URL of an object store.

    ``options``: for the object store's filesystem in fsspec, as a mapping or JSON text. Raises
    ConfigError for a scheme without exclusive create, and for a missing package.
    """
    settings = _parse_options(options)
    scheme = urlsplit(path).scheme if "://" in path or path.startswith("file:") else ""
    if not path:
        raise ConfigError("walPath is empty; set it to a folder or URL that all executors see")
    if scheme in ("", "file"):
        if settings:
            raise ConfigError(f"walOptions are for object stores; {path!r} is a local path")
        if not scheme:
            return FileStore(path)
        parts = urlsplit(path)
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(
                f"walPath {path!r} names another machine; mount its folder and write file:///..."
            )
        return FileStore(unquote(parts.path), url=path)
    from gnsqsync.spark.object_store import SCHEMES, ObjectStore

    if scheme not in SCHEMES:
        raise ConfigError(
            f"walPath {path!r}: {scheme}: has no exclusive create that is known to work; use a"
            f" path on a shared file system, or one of {', '.join(f'{s}://' for s in SCHEMES)}"
        )
    return ObjectStore(path, settings)


def _parse_options(options: Mapping[str, Any] | str | None) -> dict[str, Any]:
    if isinstance(options, str):
        try:
            options = json.loads(options or "{}")
        except ValueError as error:
            raise ConfigError(f"walOptions are not JSON: {error}") from error
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError('walOptions must be a JSON object, as {"anon": true}')
    return dict(options or {})


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
        self.url = path if url is None else url
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

    def read(self, name: str) -> bytes | None:
        try:
            return (self._root / name).read_bytes()
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
