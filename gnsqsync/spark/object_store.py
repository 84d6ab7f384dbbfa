"""Stores on S3, Google Cloud Storage and Azure, over their filesystems in fsspec.

Knows which filesystems can create conditionally; must not know what the bytes mean. Each request
goes through ``transport``.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

from gnsqsync.errors import ConfigError
from gnsqsync.spark.stores import Names, Store
from gnsqsync.spark.transport import as_os_error, code_of, patiently

__all__ = ["SCHEMES", "ObjectStore"]

# The package to install for a scheme. Only filesystems that map create to a conditional request are
# here. Other filesystems of fsspec first look and then write, so that two writers both succeed.
_S3, _GCS, _AZURE = "s3fs>=2025.7", "gcsfs>=2025.7", "adlfs>=2024.12"
_NEEDED = {
    "s3": _S3,
    "s3a": _S3,
    "gs": _GCS,
    "gcs": _GCS,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "az": _AZURE,
}
SCHEMES = tuple(_NEEDED)

T = TypeVar("T")

# Answers to a conditional write of a name that exists.
_EXISTS = ("PreconditionFailed", "412")
# Number of copies at a time.
_COPIES = 8
# Bytes: files up to this size are read with one request.
_WHOLE = 32 << 20
# Bytes of one request for a part of a larger file.
_BLOCK = 8 << 20


class ObjectStore(Store):
    """A prefix in a bucket or container.

    This class and the library below it repeat requests, so the answer to a successful create may
    get lost. The repeated create then finds the object there. Equal bytes mean that the object is
    ours.
    """

    def __init__(self, url: str, options: Mapping[str, Any], *, what: str = "walPath") -> None:
        self.url = url
        self.what = what
        scheme = urlsplit(url).scheme
        needed = _NEEDED[scheme]
        try:
            import fsspec
            from fsspec.core import url_to_fs

            with as_os_error(f"{what} {url!r}"):
                fs, root = url_to_fs(url, **options)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(
                f'{what} {url!r} needs {needed}: pip install "{needed}" on the driver and the'
                f" executors, and options that it knows ({error})"
            ) from error
        create = getattr(fs, "_pipe_file", fs.pipe_file)
        if "mode" not in inspect.signature(create).parameters:
            raise ConfigError(
                f"{what} {url!r}: the filesystem that is installed cannot create exclusively;"
                f' pip install -U "{needed}" on the driver and the executors'
                f" (fsspec here is {fsspec.__version__})"
            )
        self._fs = fs
        self._root = root.rstrip("/")
        # False on Azure, which may answer before a copy is done.
        self._copies_at_once = needed is not _AZURE

    def create(self, name: str, data: bytes) -> bool:
        try:
            self._ask(lambda: self._fs.pipe_file(self._path(name), data, mode="create"))
        except FileExistsError:
            pass
        except OSError as error:
            if code_of(error) not in _EXISTS:
                raise
        else:
            return True
        return self.read(name) == data

    def read(self, name: str, limit: int | None = None) -> bytes | None:
        # Some filesystems do not accept None as the end, so without a limit no end is passed.
        part = {} if limit is None else {"start": 0, "end": limit}
        try:
            return bytes(self._ask(lambda: self._fs.cat_file(self._path(name), **part)))
        except FileNotFoundError:
            return None

    def heads(self, names: Sequence[str], size: int) -> list[bytes | None]:
        paths = [self._path(name) for name in names]
        ends = [size] * len(paths)

        def ask() -> list[bytes | None]:
            found = self._fs.cat_ranges(paths, [0] * len(paths), ends, on_error="return")
            return [None if isinstance(data, FileNotFoundError) else _whole(data) for data in found]

        return self._ask(ask)

    def put(self, name: str, data: bytes) -> None:
        self._ask(lambda: self._fs.pipe_file(self._path(name), data))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        folder = self._path(prefix) if prefix else self._root
        # A cached listing lacks names that other processes have created since.
        self._fs.invalidate_cache()
        try:
            found = self._ask(lambda: self._fs.find(folder, detail=True))
        except FileNotFoundError:
            return {}
        return {
            path.removeprefix(f"{self._root}/"): int(found[path]["size"] or 0)
            for path in sorted(found)
        }

    def folders(self, prefix: str = "") -> Names:
        folder = self._path(prefix) if prefix else self._root
        self._fs.invalidate_cache()
        try:
            found = self._ask(lambda: self._fs.ls(folder, detail=True))
        except FileNotFoundError:
            return []
        names = (each["name"] for each in found if each["type"] == "directory")
        return sorted(name.rstrip("/").rpartition("/")[2] for name in names)

    def exists(self, name: str) -> bool:
        self._fs.invalidate_cache()
        try:
            # isfile() would return False for every error of the storage.
            found = self._ask(lambda: self._fs.info(self._path(name)))
        except FileNotFoundError:
            return False
        return bool(found["type"] == "file")

    def modified(self, name: str) -> float | None:
        self._fs.invalidate_cache()
        try:
            at = self._ask(lambda: self._fs.modified(self._path(name)))
        except FileNotFoundError:
            return None
        return float(at.timestamp())

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[BinaryIO]:
        with tempfile.NamedTemporaryFile(prefix="gnsqsync-") as file:
            yield file  # type: ignore[misc]
            file.flush()
            self._ask(lambda: self._fs.put_file(file.name, self._path(name)))

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[BinaryIO]:
        path = self._path(name)
        if int(self._ask(lambda: self._fs.info(path))["size"] or 0) <= _WHOLE:
            yield io.BytesIO(self._ask(lambda: self._fs.cat_file(path)))
        else:
            with as_os_error(self._where), self._fs.open(path, "rb", block_size=_BLOCK) as file:
                yield file

    def copy(self, pairs: Iterable[tuple[str, str]]) -> None:
        with ThreadPoolExecutor(_COPIES) as pool:
            for _ in pool.map(self._copy_one, pairs):
                pass

    def _copy_one(self, pair: tuple[str, str]) -> None:
        source, target = pair
        try:
            if self._copies_at_once:
                self._ask(lambda: self._fs.cp_file(self._path(source), self._path(target)))
            else:
                with self.reading(source) as read, self.writing(target) as write:
                    while data := read.read(_BLOCK):
                        write.write(data)
        except FileNotFoundError:
            if not self.exists(target):
                raise

    def delete(self, names: Iterable[str], *, durable: bool = False) -> None:
        paths = [self._path(name) for name in names]
        if not paths:
            return
        try:
            # Many names go in one request, if the storage can do that.
            self._ask(lambda: self._fs.rm(paths))
        except FileNotFoundError:
            for path in paths:
                self._delete_one(path)

    def _delete_one(self, path: str) -> None:
        try:
            self._ask(lambda: self._fs.rm_file(path))
        except FileNotFoundError:
            pass  # another writer was first

    def delete_folder(self, prefix: str) -> None:
        self.delete(self.list(prefix))

    def _ask(self, request: Callable[[], T]) -> T:
        return patiently(request, self._where)

    @property
    def _where(self) -> str:
        return f"{self.what} {self.url!r}"

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def _whole(data: bytes | Exception) -> bytes:
    if isinstance(data, Exception):
        raise data
    return bytes(data)
