"""The compaction of an archive: small files become larger ones, safe against kill -9 at any point.

Knows which files to merge and in which steps. Needs no Spark, and runs beside writers, readers
and other compactions. The steps:

1. Write merged files to a hidden folder, and compare the numbers of rows.
2. Make an entry in the log of merges that names each merged file and its parts. Entries are
   numbered, so only one process can make the next, and it must know all entries before.
3. Keep the parts under hidden names.
4. Give the merged files their names.
5. Remove the parts.

After a crash the next compaction finishes the last entry.

Readers with ``snapshot`` know the log, so they see each row once at any moment. Other readers that
list a folder between steps 4 and 5 see rows twice.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.spark.jobs import parquet
from gnsqsync.spark.jobs.common import storage_path
from gnsqsync.spark.jobs.layout import (
    CHANGED,
    COLUMN_NAMES,
    COMPRESSIONS,
    MERGES,
    MERGING,
    Place,
    changed_folder,
    changed_name,
    is_data,
    number_of,
    old_name,
    refuse_delta,
)
from gnsqsync.spark.jobs.snapshot import folders as all_folders
from gnsqsync.spark.jobs.snapshot import merges, topics_of, unfinished
from gnsqsync.spark.stores import Store

# Seconds for which the parts of a merged file are kept for readers that began before.
_KEEP = 3600.0
# Bytes and merges at which an entry is made. Until then its merged files take room beside their
# parts.
_ENTRY_BYTES = 1 << 30
_ENTRY_MERGES = 100


class Compacted(NamedTuple):
    """The result of a compaction: ``folders`` looked at, files ``merged``, and files ``made``."""

    folders: int
    merged: int
    made: int


def compact(
    path: str,
    *,
    whole: bool = False,
    may_be_empty: bool = False,
    target_size: int = 128 << 20,
    compression: str = "zstd",
    storage_options: Mapping[str, Any] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Compacted:
    """Merge the small files of an archive in the folders that got files since the last time.

    Needs no Spark. A compaction may run beside ``archive`` and beside readers. It may be killed at
    any moment: the next compaction finishes its work. If two run at a time, one of them ends early.
    The parts of a merged file are kept for an hour in the hidden folder ``_gnsqsync``, for
    ``replay`` and ``rollup`` that have begun to read them.

    Args:
        path: A folder or URL, as for ``archive``.
        whole: True to look at all folders. Default: False.
        may_be_empty: True if an archive without a batch is no error. Default: False.
        target_size: Bytes of a merged file. Files of at least half of that stay as they are.
            Default: 128 MiB.
        compression: The codec of Parquet. Default: "zstd".
        storage_options: Options of fsspec's file system of ``path``. Default: none.
        stop: Called between two folders; True ends the compaction early. Default: never.

    Returns:
        The numbers of folders and files.

    Raises:
        ConfigError: A value is not allowed, or there is no archive.
        ImportError: PyArrow is missing.
    """
    if target_size < 1:
        raise ConfigError(f"target_size is {target_size}; allowed is 1 or more")
    check_compression(compression)
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ImportError(
            'a compaction needs pyarrow, which is not installed here: pip install "gnsqsync[spark]"'
        ) from error
    place = Place.of(storage_path(path, "the archive's path"), storage_options)
    store = place.open()
    refuse_delta(
        store,
        store.folders(),
        "Delta merges its small files by OPTIMIZE, which 'gnsqsync spark archive --format delta'"
        f" runs as --compact-every says, or spark.sql('OPTIMIZE delta.`{store.url}`')",
    )
    if not topics_of(store):
        if may_be_empty:
            return Compacted(0, 0, 0)
        raise ConfigError(f"there is no archive at {path}: it has no folder topic=...")
    return _Compaction(store, target_size, compression, stop).run(whole)


def check_compression(compression: str) -> None:
    """Raise ConfigError unless ``compression`` is a codec of Parquet that archives may have."""
    if compression not in COMPRESSIONS:
        raise ConfigError(f"compression is {compression!r}; allowed are {', '.join(COMPRESSIONS)}")


def groups(sizes: Iterable[tuple[str, int]], target: int) -> list[list[str]]:
    """Return groups of files, each to be merged into one, in the order given.

    ``sizes``: (name, bytes). ``target``: bytes at which a group ends. Files of at least half the
    target stay as they are, because merging them again and again costs more than it saves. A single
    file is no group.
    """
    found: list[list[str]] = []
    group: list[str] = []
    total = 0
    for name, size in sizes:
        if size >= target / 2:
            continue
        group.append(name)
        total += size
        if total >= target:
            found.append(group)
            group, total = [], 0
    found.append(group)
    return [group for group in found if len(group) > 1]


class _Overtaken(Exception):
    """Another compaction has made the entry with our number, or has merged our files."""


class _Compaction:
    def __init__(
        self, store: Store, target_size: int, compression: str, stop: Callable[[], bool]
    ) -> None:
        self._store = store
        self._target = target_size
        self._compression = compression
        self._stop = stop
        # Number of the next entry in the log of merges.
        self._next = 0
        # Numbers of files merged, and of files made.
        self._merged = self._made = 0
        # The merges of the next entry.
        self._entry: list[dict[str, Any]] = []

    def run(self, whole: bool) -> Compacted:
        store = self._store
        entries = list(merges(store))
        for name, entry in entries:
            finish(store, name, entry)
        if entries:
            self._next = number_of(entries[-1][0]) + 1
        marks = {name: store.read(name) for name in store.list(CHANGED)}
        folders = all_folders(store) if whole else [changed_folder(name) for name in marks]
        # The files are listed after the entries above are finished, so they have no file that one
        # of them has merged. They are listed before the unfinished batches, whose files must stay.
        found = {folder: store.sizes(folder) for folder in folders}
        untouchable = unfinished(store)
        looked_at = 0
        try:
            for folder, sizes in found.items():
                if self._stop():
                    break
                files = [
                    (name, size)
                    for name, size in sizes.items()
                    if is_data(name) and name not in untouchable
                ]
                for names in groups(files, self._target):
                    self._merge(folder, names)
                looked_at += 1
            self._commit()
        except _Overtaken:
            return Compacted(looked_at, self._merged, self._made)
        for folder in list(found)[:looked_at]:
            name = changed_name(folder)
            # A mark that has changed meanwhile stays, because the folder got files.
            if name in marks and store.read(name) == marks[name]:
                store.delete([name])
        self._forget(time.time() - _KEEP)
        return Compacted(looked_at, self._merged, self._made)

    def _merge(self, folder: str, parts: list[str]) -> None:
        """Write a merged file, and add the merge to the next entry."""
        store = self._store
        unique = uuid.uuid4().hex
        staged = f"{MERGING}/{self._next:012}-{unique}.parquet"
        try:
            before = sum(parquet.count(store, part) for part in parts)
            with parquet.writing(store, staged, self._compression) as rows:
                for part in parts:
                    with store.reading(part) as file:
                        for batch in parquet.read(file, list(COLUMN_NAMES)):
                            rows.add(batch)
            after = parquet.count(store, staged)
            size = store.sizes(MERGING)[staged]
        except (FileNotFoundError, KeyError):
            # Another compaction has merged the parts, or has deleted our staged file.
            raise _Overtaken from None
        if before != after:
            raise NSQError(f"merging {len(parts)} files of {folder} made {after} rows of {before}")
        self._entry.append(
            {
                "staged": staged,
                "merged": f"{folder}/part-merged-{self._next:012}-{unique[:12]}.parquet",
                "bytes": size,
                "parts": parts,
            }
        )
        total = sum(merge["bytes"] for merge in self._entry)
        if total >= _ENTRY_BYTES or len(self._entry) >= _ENTRY_MERGES:
            self._commit()

    def _commit(self) -> None:
        """Make the entry in the log, and carry it out."""
        store, made = self._store, self._entry
        if not made:
            return
        self._entry = []
        name = f"{MERGES}/{self._next:012}.json"
        entry = {"at": time.time(), "done": False, "merges": made}
        if not store.create(name, json.dumps(entry).encode()):
            store.delete(merge["staged"] for merge in made)
            raise _Overtaken
        finish(store, name, entry)
        # Nobody can make this entry any more, so files of other attempts at it are of no use.
        store.delete(staged for staged in store.list(MERGING) if number_of(staged) <= self._next)
        self._next += 1
        self._merged += sum(len(merge["parts"]) for merge in made)
        self._made += len(made)

    def _forget(self, before: float) -> None:
        """Delete parts that were merged before this time, and their entries except the last."""
        entries = list(merges(self._store))
        for name, entry in entries[:-1]:
            if entry["done"] and entry["at"] < before:
                self._store.delete(
                    old_name(part) for merge in entry["merges"] for part in merge["parts"]
                )
                self._store.delete([name])


def finish(store: Store, name: str, entry: Mapping[str, Any]) -> None:
    """Carry out an entry of the log, as far as that is not done."""
    if entry["done"]:
        return
    made = entry["merges"]
    try:
        store.copy([(part, old_name(part)) for merge in made for part in merge["parts"]])
        store.copy([(merge["staged"], merge["merged"]) for merge in made])
    except FileNotFoundError:
        data = store.read(name)
        if data is None or json.loads(data)["done"]:
            return  # another compaction did it, and has gone on since
        raise
    store.delete((part for merge in made for part in merge["parts"]), durable=True)
    # The staged files are deleted before the entry is done. After that the merged files may be
    # merged again, and a late copy of a staged file would bring one back.
    store.delete((merge["staged"] for merge in made), durable=True)
    store.put(name, json.dumps({**entry, "done": True}).encode())
