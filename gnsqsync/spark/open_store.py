"""Which store a path or URL names: a disk or an object store. Knows schemes and options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from gnsqsync.errors import ConfigError
from gnsqsync.spark.object_store import SCHEMES, ObjectStore
from gnsqsync.spark.stores import FileStore, Store

__all__ = ["open_store"]


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
