"""Stores on S3, Google Cloud Storage and Azure, over fsspec's filesystems of them.

Knows which of them can create conditionally; must not know what the bytes mean.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from gnsqsync.errors import ConfigError
from gnsqsync.spark.stores import Store

__all__ = ["SCHEMES", "ObjectStore"]

# What to install for a scheme. Only filesystems that map create to a conditional request. Others of
# fsspec first look, then write, so that two writers both succeed.
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

# S3 answers 409 when two conditional writes of one name meet; nothing is known then (S3 manual,
# "Prevent object overwrites with conditional writes").
_CONFLICTS = ("ConditionalRequestConflict", "OperationAborted", "409")
_EXISTS = ("PreconditionFailed", "412")
_TRIES = 8
_PAUSE = 0.05


class ObjectStore(Store):
    """A prefix in a bucket or container.

    If the answer to a create gets lost, the second try returns False although the first succeeded.
    The caller then reads its own entry as the winner's, which is right.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        self.url = url
        scheme = urlsplit(url).scheme
        needed = _NEEDED[scheme]
        try:
            import fsspec
            from fsspec.core import url_to_fs

            fs, root = url_to_fs(url, **options)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(
                f'walPath {url!r} needs {needed}: pip install "{needed}" on the driver and the'
                f" executors, and options in walOptions that it knows ({error})"
            ) from error
        create = getattr(fs, "_pipe_file", fs.pipe_file)
        if "mode" not in inspect.signature(create).parameters:
            raise ConfigError(
                f"walPath {url!r}: the filesystem that is installed cannot create exclusively;"
                f' pip install -U "{needed}" on the driver and the executors'
                f" (fsspec here is {fsspec.__version__})"
            )
        self._fs = fs
        self._root = root.rstrip("/")

    def create(self, name: str, data: bytes) -> bool:
        for tried in range(_TRIES):
            try:
                self._fs.pipe_file(self._path(name), data, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                code = _code(error)
                if code in _EXISTS:
                    return False
                if code not in _CONFLICTS or tried == _TRIES - 1:
                    raise
                time.sleep(_PAUSE * 2**tried)
            else:
                return True
        raise AssertionError("the last try returns or raises")

    def read(self, name: str, limit: int | None = None) -> bytes | None:
        # The end is no argument without a limit: not every filesystem knows None there.
        part = {} if limit is None else {"start": 0, "end": limit}
        try:
            return bytes(self._fs.cat_file(self._path(name), **part))
        except FileNotFoundError:
            return None

    def heads(self, names: Sequence[str], size: int) -> list[bytes | None]:
        paths = [self._path(name) for name in names]
        ends = [size] * len(paths)
        found = self._fs.cat_ranges(paths, [0] * len(paths), ends, on_error="return")
        return [None if isinstance(data, FileNotFoundError) else _whole(data) for data in found]

    def put(self, name: str, data: bytes) -> None:
        self._fs.pipe_file(self._path(name), data)

    def list(self, prefix: str = "") -> list[str]:
        folder = self._path(prefix) if prefix else self._root
        # A cache would not have names that others created.
        self._fs.invalidate_cache()
        try:
            found = self._fs.find(folder)
        except FileNotFoundError:
            return []
        return sorted(path.removeprefix(f"{self._root}/") for path in found)

    def delete(self, names: Iterable[str]) -> None:
        paths = [self._path(name) for name in names]
        if not paths:
            return
        try:
            # Many in one request, where the storage can.
            self._fs.rm(paths)
        except FileNotFoundError:
            for path in paths:
                self._delete_one(path)

    def _delete_one(self, path: str) -> None:
        try:
            self._fs.rm_file(path)
        except FileNotFoundError:
            pass  # another writer was first

    def delete_folder(self, prefix: str) -> None:
        self.delete(self.list(prefix))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def _whole(data: bytes | Exception) -> bytes:
    if isinstance(data, Exception):
        raise data
    return bytes(data)


def _code(error: OSError) -> str:
    """The store's own word for what went wrong, "" when it is not known."""
    response = getattr(error.__cause__, "response", None)
    if isinstance(response, Mapping):
        return str(response.get("Error", {}).get("Code", ""))
    return ""
