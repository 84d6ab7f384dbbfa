"""The files of an archive at one moment, while other processes write and merge.

Knows the log of merges. A merged file and its parts have the same rows: a snapshot has one or the
other.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, BinaryIO
from urllib.parse import unquote

from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.spark.jobs.layout import (
    HIDDEN,
    MERGES,
    Folder,
    as_parquet,
    folder_of,
    is_data,
    old_name,
    refuse_delta,
)
from gnsqsync.spark.stores import Store

_TOPIC = "topic="


def snapshot(store: Store, folders: Iterable[str]) -> dict[str, int]:
    """Return the Parquet files in these folders with their sizes. Each row is in exactly one file.

    A file may be merged into another before it is read. ``opened`` still finds it for an hour.
    """
    wanted = set(folders)
    found = {}
    for folder in sorted(wanted):
        found.update({name: n for name, n in store.sizes(folder).items() if is_data(name)})
    # The log is read after the files, so it has every merge that has moved one of them.
    parts_of: dict[str, list[str]] = {}
    for _, entry in merges(store):
        for merge in entry["merges"]:
            merged = merge["merged"]
            if folder_of(merged) not in wanted:
                continue
            parts_of[merged] = merge["parts"]
            if merged in found or (
                not all(part in found for part in merge["parts"])
                and (store.exists(merged) or store.exists(old_name(merged)))
            ):
                found.setdefault(merged, merge["bytes"])
                _remove_parts(merged, parts_of, found)
    return found


@contextlib.contextmanager
def opened(store: Store, name: str) -> Iterator[BinaryIO]:
    """Open a file of a snapshot for reading, even if it has been merged into another since.

    Raises NSQError if the file is gone.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(store.reading(name))
        except FileNotFoundError:
            try:
                file = stack.enter_context(store.reading(old_name(name)))
            except FileNotFoundError:
                raise NSQError(
                    f"{name} in {store.url} was deleted, or merged more than an hour ago, before it"
                    " was read: run this again"
                ) from None
        yield file


def _remove_parts(name: str, parts_of: dict[str, list[str]], found: dict[str, int]) -> None:
    """Remove the parts of a merged file from ``found``. Parts may be merged files themselves."""
    for part in parts_of.get(name, ()):
        found.pop(part, None)
        _remove_parts(part, parts_of, found)


def merges(store: Store) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the entries of the log of merges with their names, the oldest first."""
    for name in store.list(MERGES):
        data = store.read(name)
        if data is not None:
            yield name, json.loads(data)


def topics_of(store: Store) -> list[str]:
    """Return the topics of an archive, none if there is no archive.

    Raises ConfigError for a Delta table.
    """
    return [unquote(name[len(_TOPIC) :]) for name in _topic_folders(store)]


def _topic_folders(store: Store) -> list[str]:
    names = store.folders()
    refuse_delta(store, names, as_parquet(store.url))
    return [name for name in names if name.startswith(_TOPIC)]


def folders(
    store: Store,
    topics: Iterable[str] = (),
    start: datetime | None = None,
    end: datetime | None = None,
) -> list[str]:
    """Return the folders of an archive that may have rows of these topics and this time.

    ``topics``: default: all. Raises ConfigError if there is no archive.
    """
    there = _topic_folders(store)
    if not there:
        raise ConfigError(f"there is no archive at {store.url}: it has no folder topic=...")
    wanted = set(topics)
    found = []
    for topic in there:
        for date in store.folders(topic):
            if not date.startswith("date="):
                continue
            day = Folder.parse(f"{topic}/{date}/hour=0"), Folder.parse(f"{topic}/{date}/hour=23")
            if wanted and day[0].topic not in wanted:
                break
            if (end is not None and day[0].start >= end) or (
                start is not None and not day[1].overlaps(start, None)
            ):
                continue
            for hour in store.folders(f"{topic}/{date}"):
                name = f"{topic}/{date}/{hour}"
                if hour.startswith("hour=") and Folder.parse(name).overlaps(start, end):
                    found.append(name)
    return found


def unfinished(store: Store) -> set[str]:
    """Return the files of batches that are on their way into the archive."""
    found: set[str] = set()
    for stream in store.folders(HIDDEN):
        records = store.list(f"{HIDDEN}/{stream}/batches")
        data = store.read(records[-1]) if records else None
        if data is not None:
            record = json.loads(data)
            if not record["done"]:
                found.update(target for _, target in record["files"])
    return found
