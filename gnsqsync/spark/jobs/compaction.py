"""Merges the small files of an archive's folders into larger ones; survives kill -9 at any point.

Knows which files to merge and in which steps. That nobody will look for one of these files again,
and that nobody else compacts the folder meanwhile, is the caller's to see to.

The steps: merge to a hidden folder, compare the numbers of rows, write down what becomes of which
file (the intent), rename the merged file into place, remove its parts, remove the intent. After a
crash ``finish`` does what the intent says. Between the rename and the last removal, for some
milliseconds, a reader that lists the folder may see rows twice.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from gnsqsync.errors import NSQError
from gnsqsync.spark import files
from gnsqsync.spark.jobs import parquet
from gnsqsync.spark.jobs.layout import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INTENT = "compaction.json"


def groups(sizes: Iterable[tuple[str, int]], target: int) -> list[list[str]]:
    """Which files (name, bytes) to merge into one each, in the order given.

    Files of at least half the target stay as they are: merging them again and again would cost
    more than it brings. A group ends when it has reached the target; one file is no group.
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


def compact_folder(
    spark: SparkSession,
    archive: str,
    state: str,
    folder: str,
    prefix: str,
    *,
    target_size: int,
    compression: str,
) -> int:
    """Merge the small files of one folder whose names begin with ``prefix``; how many went away.

    ``folder`` is relative to the archive. ``state`` is the hidden folder of the writer.
    """
    here = os.path.join(archive, folder)
    sizes = [
        (name, os.path.getsize(os.path.join(here, name)))
        for name in files.parquet_files(here)
        if name.startswith(prefix)
    ]
    gone = 0
    for names in groups(sizes, target_size):
        attempt = os.path.join(state, "staging", f"merge-{uuid.uuid4().hex}")
        parts = [os.path.join(here, name) for name in names]
        rows = spark.read.schema(COLUMNS).parquet(*map(parquet.uri, parts))
        parquet.write(rows.coalesce(1).sortWithinPartitions("timestamp"), attempt, compression)
        merged = [os.path.join(attempt, name) for name in files.parquet_files(attempt)]
        before, after = parquet.count_rows(parts), parquet.count_rows(merged)
        if before != after:
            raise NSQError(f"merging {len(parts)} files of {here} made {after} rows of {before}")
        for path in merged:
            files.sync_file(path)
        moves = [
            (
                os.path.relpath(path, state),
                os.path.join(folder, f"{prefix}merged-{uuid.uuid4().hex[:12]}.parquet"),
            )
            for path in merged
        ]
        intent = {"moves": moves, "remove": [os.path.join(folder, name) for name in names]}
        files.write_json(os.path.join(state, _INTENT), intent)
        finish(archive, state)
        files.remove_tree(attempt)
        gone += len(parts) - len(merged)
    return gone


def finish(archive: str, state: str) -> None:
    """Do what an intent says, if there is one; what was done of it before is left as it is."""
    path = os.path.join(state, _INTENT)
    intent: dict[str, Any] | None = files.read_json(path)
    if intent is None:
        return
    files.move_all(
        (os.path.join(state, source), os.path.join(archive, target))
        for source, target in intent["moves"]
    )
    files.remove_all(os.path.join(archive, name) for name in intent["remove"])
    files.remove_all([path])
