"""The write-ahead log: numbered entries of each epoch and partition, and the mark of commits.

Knows names and their order over a Store; must not know nsqd or Spark. The layout::

    <stream>/plan                          the driver's mark, which each task must see
    <stream>/committed                     [last committed epoch, first kept epoch, time]
    <stream>/plans/<epoch>.json            the plan of an epoch, see plans
    <stream>/e=<epoch>/p=<partition>/<n>   entries 0, 1, ... and the END, which has no rows
    <stream>/ids/<source>/<epoch>-<low>-<high>   ids that outlive their entries, see seen

Older versions mark the last entry with rows as END, and know neither plans nor ids.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from gnsqsync.errors import NSQError
from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.records import BadRecord, open_record, record
from gnsqsync.spark.rows import BadEntry, Entry, Head, open_entry, open_head
from gnsqsync.spark.stores import Store

__all__ = [
    "EpochCommitted",
    "LogDamaged",
    "Marker",
    "PendingEpoch",
    "Place",
    "Wal",
    "pending",
    "pending_of",
]

log: logging.Logger = logging.getLogger("gnsqsync.spark")

# First bytes of an entry that contain its head, unless the error of an nsqd is very long.
_HEAD_BYTES = 8192
_ENTRY = re.compile(r"e=(\d+)/p=(\d+)/(\d+)\.arrow")


class EpochCommitted(NSQError):
    """This attempt is too late: its epoch is committed, so another attempt has read it."""


class LogDamaged(NSQError):
    """The log lacks rows that it must have; set failOnDataLoss=false to go on without them."""

    @classmethod
    def file(cls, store: Store, name: str, problem: object) -> LogDamaged:
        return cls(
            f"log entry {name} in {store.url} is damaged: {problem}; put the file back from a copy,"
            " or set failOnDataLoss=false to go on without what it held"
        )


@dataclass(frozen=True)
class Marker:
    """The contents of the file ``committed``. ``committed``: the last such epoch, -1 for none.

    ``keep_from``: the first epoch that is kept. ``at``: time of the write, seconds since 1970 by
    the driver's clock; 0 if unknown.
    """

    committed: int = -1
    keep_from: int = 0
    at: float = 0.0


class Place(NamedTuple):
    """The place of an entry: its epoch, its partition, and its number there."""

    epoch: int
    partition: int
    number: int


class Wal:
    """The log of one stream. The driver announces and commits; tasks do the rest."""

    def __init__(self, store: Store, stream: str, retention: float = 60.0) -> None:
        """Open the log. ``retention``: seconds that a committed epoch is kept for late attempts."""
        self.store = store
        self.stream = stream
        self._retention = retention
        # Commit time of each epoch that is not deleted yet. Only the driver uses it; None before
        # its first commit.
        self._committed_at: dict[int, float] | None = None

    # -- the driver --------------------------------------------------------------------------

    def announce(self, identity: Mapping[str, Any] | None = None) -> None:
        """Write the mark by which a task knows that it sees the driver's storage.

        ``identity``: channel and topics of the query. It replaces an older identity.
        """
        data = self.store.read(self.mark_name)
        if data is None or (identity and self._open(self.mark_name, data) != identity):
            self.store.put(self.mark_name, record(identity or {}))

    def identity(self) -> dict[str, Any]:
        """Return the query's channel and topics from the mark; empty in marks of older versions."""
        return self.record(self.mark_name) or {}

    def record(self, name: str) -> dict[str, Any] | None:
        """Return the fields of a record, or None if it is not there. Raises LogDamaged."""
        data = self.store.read(name)
        return None if data is None else self._open(name, data)

    def create_plan(self, epoch: int, fields: Mapping[str, Any]) -> bool:
        """Make the plan of an epoch, durably, unless it is there. Return True if it was made."""
        return self.store.create(self.plan_name(epoch), record(fields))

    def _open(self, name: str, data: bytes) -> dict[str, Any]:
        try:
            return open_record(data)
        except BadRecord as error:
            raise LogDamaged.file(self.store, name, error) from error

    def commit(
        self,
        epoch: int,
        now: float,
        today: float,
        keep_ids: Callable[[int], None] | None = None,
    ) -> None:
        """Note that the rows of ``epoch`` are safe in the sink, and delete long committed epochs.

        ``now``: seconds of a steady clock. ``today``: seconds since 1970. ``keep_ids`` is called
        for each epoch before the marker declares it deleted. The marker is written before anything
        is deleted, because entries below its keep_from are never read.
        """
        marker = self.marker()
        if self._committed_at is None:
            # An earlier process wrote the marker, so only the wall clock gives its age. A short run
            # on a schedule would never see one of its own epochs grow old.
            ago = max(0.0, today - marker.at) if marker.at else 0.0
            self._committed_at = {
                old: now - ago if old <= marker.committed else now
                for old in sorted({*self.epochs(), *self.planned()})
                if old <= epoch
            }
        self._committed_at.setdefault(epoch, now)
        over = [e for e, at in self._committed_at.items() if now - at >= self._retention]
        keep_from = max([*over, marker.keep_from - 1]) + 1
        if epoch > marker.committed or keep_from > marker.keep_from:
            for old in [e for e in self._committed_at if marker.keep_from <= e < keep_from]:
                if keep_ids is not None:
                    keep_ids(old)
            committed = max(epoch, marker.committed)
            marker = Marker(committed, keep_from, today)
            text = json.dumps([marker.committed, marker.keep_from, marker.at])
            self.store.put(f"{self.stream}/committed", text.encode())
        for old in [e for e in self._committed_at if e < marker.keep_from]:
            self.store.delete_folder(f"{self.stream}/e={old}")
            self.store.delete([self.plan_name(old)])
            del self._committed_at[old]

    # -- tasks -------------------------------------------------------------------------------

    def check_announced(self) -> None:
        """Raise LogDamaged if this process does not see the driver's mark."""
        if not self.is_announced():
            raise LogDamaged(
                f"this executor does not see the log that the driver keeps in walPath"
                f" {self.store.url!r}: set walPath to storage that all of them share (NFS, or an"
                " object store as s3://bucket/path)"
            )

    def is_announced(self) -> bool:
        """Return True if the driver's mark is there."""
        return self.store.read(self.mark_name) is not None

    def marker(self) -> Marker:
        """Return the last committed and the first kept epoch. Raises LogDamaged."""
        name = f"{self.stream}/committed"
        data = self.store.read(name)
        if data is None:
            return Marker()
        try:
            # Older versions wrote no time.
            found = Marker(*json.loads(data))
            if not -1 <= found.keep_from - 1 <= found.committed:
                raise ValueError(f"it says {data!r}")
        except (TypeError, ValueError) as error:
            raise LogDamaged.file(self.store, name, error) from error
        return found

    def create(self, epoch: int, partition: int, number: int, data: bytes) -> bool:
        """Make this entry, durably, unless it is there. Return True if it was made."""
        return self.store.create(self.entry_name(epoch, partition, number), data)

    def read(self, epoch: int, partition: int, number: int) -> Entry | None:
        """Return this entry, or None if it is not there. Raises LogDamaged."""
        return self.read_named(self.entry_name(epoch, partition, number))

    def read_named(self, name: str) -> Entry | None:
        data = self.store.read(name)
        if data is None:
            return None
        try:
            return open_entry(data, name.removeprefix(f"{self.stream}/"))
        except BadEntry as error:
            raise LogDamaged.file(self.store, name, error) from error

    def numbers(self, epoch: int, partition: int) -> list[int]:
        """Return the numbers of the entries that a partition has, sorted."""
        names = self.store.list(f"{self.stream}/e={epoch}/p={partition}")
        return sorted(place.number for place in map(self._place, names) if place)

    def last_heads(self, epoch: int, partitions: int) -> list[Head | None]:
        """Return the head of the END of each partition, None for a partition without an END.

        Rows are not read. Raises LogDamaged if an entry is damaged, or if an entry before an END is
        missing.
        """
        numbers: dict[int, list[int]] = {}
        for place in self.places(epoch):
            numbers.setdefault(place.partition, []).append(place.number)
        wanted = [partition for partition in sorted(numbers) if partition < partitions]
        names = [self.entry_name(epoch, part, max(numbers[part])) for part in wanted]
        found: list[Head | None] = [None] * partitions
        for partition, head in zip(wanted, self.heads(names), strict=True):
            if head is None or not head.end:
                continue
            self.check_whole(epoch, partition, numbers[partition])
            found[partition] = head
        return found

    def check_whole(self, epoch: int, partition: int, numbers: Sequence[int]) -> None:
        """Raise LogDamaged if an entry is missing before the last one of ``numbers``."""
        missing = sorted(set(range(max(numbers, default=-1) + 1)) - set(numbers))
        if missing:
            name = self.entry_name(epoch, partition, missing[0])
            raise LogDamaged.file(self.store, name, "it is missing, and later ones are there")

    def heads(self, names: Sequence[str]) -> list[Head | None]:
        """Return the heads of these entries, None for a missing one. Raises LogDamaged."""
        found = zip(names, self.store.heads(names, _HEAD_BYTES), strict=True)
        return [None if data is None else self._head(name, data) for name, data in found]

    def _head(self, name: str, data: bytes) -> Head | None:
        try:
            return open_head(data)
        except BadEntry:
            pass  # the head may be longer than _HEAD_BYTES
        whole = self.store.read(name)
        if whole is None:
            return None
        try:
            return open_head(whole)
        except BadEntry as error:
            raise LogDamaged.file(self.store, name, error) from error

    def places(self, epoch: int | None = None) -> list[Place]:
        """Return the places of all entries, or of the entries of one epoch, sorted."""
        folder = self.stream if epoch is None else f"{self.stream}/e={epoch}"
        return sorted(place for place in map(self._place, self.store.list(folder)) if place)

    def names(self) -> dict[str, int]:
        """Return the names of all entries with their epochs."""
        return {self.entry_name(*place): place.epoch for place in self.places()}

    def epochs(self) -> list[int]:
        """Return the epochs that have entries."""
        return sorted({place.epoch for place in self.places()})

    def planned(self) -> list[int]:
        """Return the epochs that have a plan."""
        names = self.store.list(f"{self.stream}/plans")
        found = (re.fullmatch(r".*/(\d+)\.json", name) for name in names)
        return sorted(int(match[1]) for match in found if match)

    def plan_name(self, epoch: int) -> str:
        return f"{self.stream}/plans/{epoch:012d}.json"

    def entry_name(self, epoch: int, partition: int, number: int) -> str:
        return f"{self.stream}/e={epoch}/p={partition}/{number:06d}.arrow"

    def _place(self, name: str) -> Place | None:
        found = _ENTRY.fullmatch(name.removeprefix(f"{self.stream}/"))
        return Place(*map(int, found.groups())) if found else None

    @property
    def mark_name(self) -> str:
        return f"{self.stream}/plan"


@dataclass(frozen=True)
class PendingEpoch:
    """An epoch in a log whose rows were taken from nsqd and not committed by its query.

    Attributes:
        stream: Id of the stream; each checkpoint has one of its own.
        epoch: Number of the epoch in its stream.
        rows: Number of rows in the log.
        nsqds: ``host:port`` of the nsqds that the rows come from.
        topics: Names of the topics that the rows come from.
    """

    stream: str
    epoch: int
    rows: int
    nsqds: tuple[str, ...]
    topics: tuple[str, ...]
    _wal: Wal = field(repr=False)
    _names: tuple[str, ...] = field(repr=False)

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield ``columns`` of the rows, one log entry at a time."""
        for name in self._names:
            entry = self._wal.read_named(name)
            if entry is not None and entry.rows:
                yield entry.batch(columns)


def pending(wal_path: str, options: Mapping[str, Any] | str | None = None) -> list[PendingEpoch]:
    """Return the epochs that a query took from nsqd into its log and has not committed.

    Use it if a checkpoint was lost: a new query has a new stream and never reads the rows of the
    old one. The newest epoch of a running query is always among the result. So is every batch read,
    because Spark commits none (its stream begins with "drain-").

    Args:
        wal_path: The path or URL of the log, as option ``walPath``.
        options: As option ``walOptions``. Default: none.

    Returns:
        The epochs, oldest first.

    Raises:
        ConfigError: The path cannot be a log.
    """
    store = open_store(wal_path, options)
    names = sorted({n.split("/")[0] for n in store.list() if n.endswith("/plan")})
    return [epoch for name in names for epoch in pending_of(Wal(store, name))]


def _warn_of_gaps(wal: Wal, epoch: int) -> None:
    places = wal.places(epoch)
    for partition in sorted({place.partition for place in places}):
        numbers = [place.number for place in places if place.partition == partition]
        try:
            wal.check_whole(epoch, partition, numbers)
        except LogDamaged as error:
            log.warning("the pending rows are not all that were taken: %s", error)


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
        _warn_of_gaps(wal, epoch)
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
