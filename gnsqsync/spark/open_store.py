"""The choice of a store by path or URL: a disk or an object store. Knows schemes and options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from gnsqsync.errors import ConfigError
from gnsqsync.spark.object_store import SCHEMES, ObjectStore
from gnsqsync.spark.stores import FileStore, Store

__all__ = ["open_store"]


def open_store(
    path: str,
    options: Mapping[str, Any] | str | None = None,
    *,
    what: str = "walPath",
    options_name: str = "walOptions",
) -> Store:
    """Return the store at a path, a file: URL, or a URL of an object store.

    ``options``: for the object store's filesystem in fsspec, as a mapping or JSON text. ``what``
    and ``options_name``: the user's names of ``path`` and ``options``, for errors. Raises
    ConfigError for a scheme without exclusive create, and for a missing package.
    """
    settings = _parse_options(options, options_name)
    scheme = urlsplit(path).scheme if "://" in path or path.startswith("file:") else ""
    if not path:
        raise ConfigError(f"{what} is empty; set it to a folder or URL that all executors see")
    if scheme in ("", "file"):
        if settings:
            raise ConfigError(f"{options_name} are for object stores; {path!r} is a local path")
        if not scheme:
            return FileStore(path, what=what)
        parts = urlsplit(path)
        if parts.netloc not in ("", "localhost"):
            raise ConfigError(
                f"{what} {path!r} names another machine; mount its folder and write file:///..."
            )
        return FileStore(unquote(parts.path), url=path, what=what)
    if scheme not in SCHEMES:
        raise ConfigError(
            f"{what} {path!r}: {scheme}: has no exclusive create that is known to work; use a"
            f" path on a shared file system, or one of {', '.join(f'{s}://' for s in SCHEMES)}"
        )
    return ObjectStore(path, settings, what=what)


def _parse_options(options: Mapping[str, Any] | str | None, name: str) -> dict[str, Any]:
    if isinstance(options, str):
        try:
            options = json.loads(options or "{}")
        except ValueError as error:
            raise ConfigError(f"{name} are not JSON: {error}") from error
    if options is not None and not isinstance(options, Mapping):
        raise ConfigError(name + ' must be a JSON object, as {"anon": true}')
    return dict(options or {})
