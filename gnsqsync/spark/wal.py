"""The write-ahead log: numbered entries of each epoch and partition, and what is committed.

Knows names and their order over a Store; must not know nsqd or Spark. The layout::

    <stream>/plan                          the driver's mark: a task must see it
    <stream>/committed                     [last committed epoch, first epoch that is kept, when]
    <stream>/e=<epoch>/p=<partition>/<n>   entries 0, 1, ... of which the last says END
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from gnsqsync.errors import NSQError
from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.rows import BadEntry, Entry, Head, open_entry, open_head
from gnsqsync.spark.stores import Store

__all__ = [
    "EpochCommitted",
    "LogDamaged",
    "Marker",
    "PendingEpoch",
    "Seen",
    "Wal",
    "pending",
    "pending_of",
]


# Bytes at the beginning of an entry in which its head lies, unless an nsqd's error is very long.
_HEAD_BYTES = 8192


class EpochCommitted(NSQError):
    """This attempt is late: its epoch is committed, so another attempt has read these messages."""


class LogDamaged(NSQError):
    """The log lacks rows that it must have; set failOnDataLoss=false to go on without them."""


@dataclass(frozen=True)
class Marker:
    """What the file ``committed`` says. -1: no epoch is committed yet.

    ``at``: when it was written, seconds since 1970 by the driver's clock; 0 when that is not known.
    """

    committed: int = -1
    keep_from: int = 0
    at: float = 0.0


class Wal:
    """The log of one stream. Of the driver: announce, commit. Of tasks: the rest."""

    def __init__(self, store: Store, stream: str, retention: float = 60.0) -> None:
        """``retention``: seconds that a committed epoch is kept for late attempts."""
        self.store = store
        self.stream = stream
        self._retention = retention
        # The driver's: epochs that are not deleted yet, and when each was committed.
        self._committed_at: dict[int, float] | None = None

    # -- the driver --------------------------------------------------------------------------

    def announce(self) -> None:
        """Leave the mark by which a task knows that it sees the driver's storage."""
        if self.store.read(self._plan_name) is None:
            self.store.put(self._plan_name, b"{}")

    def commit(self, epoch: int, now: float, today: float) -> None:
        """The rows of ``epoch`` are safe in the sink; delete epochs that were committed long ago.

        ``now``: seconds of any steady clock. ``today``: seconds since 1970. The marker is written
        before anything is deleted: what lies below its keep_from is never read.
        """
        marker = self.marker()
        if self._committed_at is None:
            # Since an earlier process wrote the marker, the wall clock tells how long ago that was.
            # A run on a schedule may be too short to see any of its own epochs grow old.
            ago = max(0.0, today - marker.at) if marker.at else 0.0
            self._committed_at = {
                old: now - ago if old <= marker.committed else now
                for old in self.epochs()
                if old <= epoch
            }
        self._committed_at.setdefault(epoch, now)
        over = [e for e, at in self._committed_at.items() if now - at >= self._retention]
        keep_from = max(over, default=-1) + 1
        if epoch > marker.committed or keep_from > marker.keep_from:
            committed = max(epoch, marker.committed)
            marker = Marker(committed, max(keep_from, marker.keep_from), today)
            text = json.dumps([marker.committed, marker.keep_from, marker.at])
            self.store.put(f"{self.stream}/committed", text.encode())
        for old in [e for e in self._committed_at if e < marker.keep_from]:
            self.store.delete_folder(f"{self.stream}/e={old}")
            del self._committed_at[old]

    # -- tasks -------------------------------------------------------------------------------

    def check_announced(self) -> None:
        """Raises LogDamaged with a sentence when the driver's mark cannot be seen from here."""
        if self.store.read(self._plan_name) is None:
            raise LogDamaged(
                f"this executor does not see the log that the driver keeps in walPath"
                f" {self.store.url!r}: set walPath to storage that all of them share (NFS, or an"
                " object store as s3://bucket/path)"
            )

    def marker(self) -> Marker:
        """What is committed now."""
        data = self.store.read(f"{self.stream}/committed")
        if data is None:
            return Marker()
        # Older versions did not write when.
        return Marker(*json.loads(data))

    def create(self, epoch: int, partition: int, number: int, data: bytes) -> bool:
        """Make this entry, durably, unless it is there; whether it was made."""
        return self.store.create(self._entry_name(epoch, partition, number), data)

    def read(self, epoch: int, partition: int, number: int) -> Entry | None:
        """This entry, or None when it is not there. Raises LogDamaged when it is no entry."""
        return self.read_named(self._entry_name(epoch, partition, number))

    def read_named(self, name: str) -> Entry | None:
        data = self.store.read(name)
        if data is None:
            return None
        try:
            return open_entry(data)
        except BadEntry as error:
            raise LogDamaged(f"log entry {name} in {self.store.url}: {error}") from error

    def last_heads(self, epoch: int, partitions: int) -> list[Head | None]:
        """What the last entry of each partition tells, None as long as it has no END.

        Raises LogDamaged as read(). Rows are not read.
        """
        firsts = [self._entry_name(epoch, partition, 0) for partition in range(partitions)]
        heads = self._heads(firsts)
        longer = [p for p, head in enumerate(heads) if head is not None and not head.end]
        if longer:
            # In the order of their numbers, so that the last one stays.
            lasts = {os.path.dirname(n): n for n in self.store.list(f"{self.stream}/e={epoch}")}
            found = self._heads([lasts[os.path.dirname(firsts[p])] for p in longer])
            for partition, head in zip(longer, found, strict=True):
                heads[partition] = head if head is not None and head.end else None
        return heads

    def _heads(self, names: Sequence[str]) -> list[Head | None]:
        found = zip(names, self.store.heads(names, _HEAD_BYTES), strict=True)
        return [None if data is None else self._head(name, data) for name, data in found]

    def _head(self, name: str, data: bytes) -> Head:
        try:
            return open_head(data)
        except BadEntry:
            pass  # too short, perhaps
        try:
            return open_head(self.store.read(name) or b"")
        except BadEntry as error:
            raise LogDamaged(f"log entry {name} in {self.store.url}: {error}") from error

    def names(self) -> dict[str, int]:
        """The names of all entries with their epochs."""
        found = {}
        for name in self.store.list(self.stream):
            folder = name.removeprefix(f"{self.stream}/").split("/")[0]
            if folder.startswith("e="):
                found[name] = int(folder[2:])
        return found

    def epochs(self) -> list[int]:
        """The epochs that have entries."""
        return sorted(set(self.names().values()))

    @property
    def _plan_name(self) -> str:
        return f"{self.stream}/plan"

    def _entry_name(self, epoch: int, partition: int, number: int) -> str:
        return f"{self.stream}/e={epoch}/p={partition}/{number:06d}.arrow"


class Seen:
    """Which message ids the kept log has: for messages that nsqd delivers again.

    Reads an entry once. Entries below keep_from do not count: an entry that a late attempt made in
    a deleted epoch is never emitted.
    """

    def __init__(self, wal: Wal, nsqd: str, topic: str) -> None:
        self._wal = wal
        self._nsqd = nsqd
        self._topic = topic
        self._ids: dict[str, pa.StringArray] = {}

    def among(self, ids: Sequence[str]) -> set[str]:
        """Those of ``ids`` that some kept entry of this nsqd and topic has."""
        self._refresh()
        wanted = pa.array(ids, pa.string())
        found: set[str] = set()
        for known in self._ids.values():
            here = known.filter(pc.is_in(known, value_set=wanted))
            found.update(here.to_pylist())
        return found

    def _refresh(self) -> None:
        keep_from = self._wal.marker().keep_from
        names = {n for n, epoch in self._wal.names().items() if epoch >= keep_from}
        for name in self._ids.keys() - names:
            del self._ids[name]
        for name in names - self._ids.keys():
            entry = self._wal.read_named(name)
            if entry is None:
                continue  # deleted between the listing and now
            mine = (entry.nsqd, entry.topic) == (self._nsqd, self._topic)
            self._ids[name] = entry.ids if mine else pa.array([], pa.string())


@dataclass(frozen=True)
class PendingEpoch:
    """An epoch in a log whose rows were taken from nsqd and not committed by its query.

    ``rows`` counts what the log has; ``nsqds`` and ``topics`` say where they came from.
    """

    stream: str
    epoch: int
    rows: int
    nsqds: tuple[str, ...]
    topics: tuple[str, ...]
    _wal: Wal = field(repr=False)
    _names: tuple[str, ...] = field(repr=False)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Its rows, a log entry at a time."""
        for name in self._names:
            entry = self._wal.read_named(name)
            if entry is not None and entry.rows:
                yield entry.batch(columns)


def pending(wal_path: str, options: Mapping[str, Any] | str | None = None) -> list[PendingEpoch]:
    """Epochs that a query took from nsqd into its log and has not committed, oldest first.

    For a log whose checkpoint was lost: a new query has a new stream and never reads the rows of
    the old one. While a query runs, its newest epoch is always among these. So is every batch read,
    which is never committed (its stream begins with "drain-").

    Args:
        wal_path: The path of the log.
        options: As ``walOptions``.

    Raises:
        ConfigError: The path cannot be a log.
    """
    store = open_store(wal_path, options)
    names = sorted({n.split("/")[0] for n in store.list() if n.endswith("/plan")})
    return [epoch for name in names for epoch in pending_of(Wal(store, name))]


def pending_of(wal: Wal) -> list[PendingEpoch]:
    """Return the pending epochs of one stream, oldest first. Raises LogDamaged."""
    committed = wal.marker().committed
    by_epoch: dict[int, list[str]] = {}
    for name, epoch in wal.names().items():
        if epoch > committed:
            by_epoch.setdefault(epoch, []).append(name)
    found = []
    for epoch in sorted(by_epoch):
        names = sorted(by_epoch[epoch])
        entries = [entry for entry in map(wal.read_named, names) if entry and entry.rows]
        if entries:
            found.append(
                PendingEpoch(
                    stream=wal.stream,
                    epoch=epoch,
                    rows=sum(entry.rows for entry in entries),
                    nsqds=tuple(sorted({entry.nsqd for entry in entries})),
                    topics=tuple(sorted({entry.topic for entry in entries})),
                    _wal=wal,
                    _names=tuple(names),
                )
            )
    return found
