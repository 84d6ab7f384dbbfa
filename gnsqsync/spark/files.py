"""File operations that survive a crash: when a call returns, its work is on the disk.

Knows the local file system only. Nothing of Spark, Parquet or messages.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from typing import Any


def sync_folder(path: str) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: str) -> None:
    """Make the content of a file durable that another library wrote."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: str) -> None:
    """Make a folder and those above it; each name that is new is durable."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_folder(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    sync_folder(parent)


def write_json(path: str, value: object) -> None:
    """Replace a file in one step: a reader sees the old value or the new one."""
    temporary = f"{path}.new"
    with open(temporary, "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(os.path.dirname(path))


def read_json(path: str) -> Any:
    """The value of ``write_json``; None when there is no file."""
    try:
        with open(path) as file:
            return json.load(file)
    except FileNotFoundError:
        return None


def move_all(moves: Iterable[tuple[str, str]]) -> None:
    """Rename each (from, to), replacing a file that is there; skips pairs that were renamed before.

    Raises FileNotFoundError when a file is in neither place.
    """
    folders = set()
    for source, target in moves:
        make_folder(os.path.dirname(target))
        try:
            os.replace(source, target)
        except FileNotFoundError:
            # An earlier attempt came this far.
            os.stat(target)
        folders.add(os.path.dirname(target))
    for folder in sorted(folders):
        sync_folder(folder)


def remove_all(paths: Iterable[str]) -> None:
    """Remove files; those that are gone are no error."""
    folders = set()
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
        folders.add(os.path.dirname(path))
    for folder in sorted(folders):
        sync_folder(folder)


def remove_tree(path: str) -> None:
    """Remove a folder with all that is in it, if it is there."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def parquet_files(folder: str) -> list[str]:
    """The Parquet files below ``folder``, as paths relative to it, sorted."""
    found = []
    for above, _, names in os.walk(folder):
        found += [
            os.path.relpath(os.path.join(above, name), folder)
            for name in names
            if name.endswith(".parquet") and name[0] not in "._"
        ]
    return sorted(found)


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold an exclusive lock on a file; waits for another process. A dead process holds none."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
