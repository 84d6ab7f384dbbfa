"""Ids of messages that the log has, to recognise messages that nsqd delivers again.

Knows which files of the log can contain an id, and reads no others. The plan of an epoch names the
source of each entry. The head of an entry has its lowest and its highest id. Before an entry is
deleted whose messages nsqd may still deliver, its ids are written to a file of their own. The name
of that file has source, epoch, lowest id and highest id.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from gnsqsync.spark.plan import Source, parts_of
from gnsqsync.spark.records import BadRecord, open_record
from gnsqsync.spark.returns import Returns
from gnsqsync.spark.rows import BadEntry, Head, has_seal, seal
from gnsqsync.spark.wal import LogDamaged, Place, Wal

__all__ = ["IdKeeper", "Seen"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")

_IDS_FILE = re.compile(r"(\d+)-(\w+)-(\w+)\.arrow")
# Upper bound of the files with ids of one stream, in bytes. Beyond it the oldest are deleted.
MOST_BYTES = 256 << 20


class _File:
    """A file of the log that may contain ids: the range of its ids, and the ids once read."""

    def __init__(self, low: str | None = None, high: str | None = None) -> None:
        # The ids, None until the file is read.
        self.ids: pa.StringArray | None = None
        self._low = low
        self._high = high

    def may_have(self, wanted: Sequence[str]) -> bool:
        """Return True if one of ``wanted`` lies in the range, or if the range is not known."""
        low, high = self._low, self._high
        return low is None or high is None or any(low <= each <= high for each in wanted)

    def among(self, wanted: pa.StringArray) -> list[str]:
        assert self.ids is not None, "the ids are read first"
        found: list[str] = self.ids.filter(pc.is_in(self.ids, value_set=wanted)).to_pylist()
        return found


class Seen:
    """The message ids of one source that the log contains.

    Reads each file once. Entries below keep_from do not count: a late attempt may still make an
    entry in a deleted epoch, and no task ever emits it. ``strict``: option failOnDataLoss.
    """

    def __init__(self, wal: Wal, nsqd: str, topic: str, *, strict: bool = True) -> None:
        self._wal = wal
        self._strict = strict
        self._source = Source(nsqd, topic)
        self._ids_folder = _ids_folder(wal, self._source)
        self._files: dict[str, _File] = {}
        # The source by epoch and partition. None if the log has no plan of the epoch.
        self._sources: dict[tuple[int, int], Source | None] = {}

    def among(self, ids: Sequence[str]) -> set[str]:
        """Return those of ``ids`` that a kept file of this source contains. Raises LogDamaged."""
        try:
            return self._among(ids)
        except LogDamaged as error:
            if self._strict:
                raise
            log.warning("%s; going on, as failOnDataLoss is false", error)
            return set()

    def _among(self, ids: Sequence[str]) -> set[str]:
        wanted = pa.array(ids, pa.string())
        while True:
            self._refresh()
            found: set[str] = set()
            vanished = False
            for name, file in self._files.items():
                if not file.may_have(ids):
                    continue
                if file.ids is None:
                    file.ids = self._read(name)
                if file.ids is None:
                    vanished = True
                else:
                    found.update(file.among(wanted))
            # If an entry was deleted since the listing, its ids may be in another file: look again.
            if not vanished:
                return found

    def _refresh(self) -> None:
        """List the files of the log that can contain ids of this source now."""
        wal = self._wal
        keep_from = wal.marker().keep_from
        places = [place for place in wal.places() if place.epoch >= keep_from]
        self._learn_sources(places)
        mine = {
            wal.entry_name(*place): place
            for place in places
            if self._sources[place.epoch, place.partition] in (self._source, None)
        }
        numbers: dict[tuple[int, int], list[int]] = {}
        for place in mine.values():
            numbers.setdefault((place.epoch, place.partition), []).append(place.number)
        try:
            for (epoch, partition), there in numbers.items():
                wal.check_whole(epoch, partition, there)
        except LogDamaged:
            if wal.marker().keep_from == keep_from:
                raise
            # The entry is missing because a commit deletes the epoch at this moment.
            self._refresh()
            return
        kept = set(wal.store.list(self._ids_folder))
        for name in self._files.keys() - mine.keys() - kept:
            del self._files[name]
        fresh = [name for name in mine if name not in self._files]
        for name, head in zip(fresh, wal.heads(fresh), strict=True):
            if head is not None and Source(head.nsqd, head.topic) == self._source:
                self._files[name] = _File(head.low, head.high)
        for name in kept - self._files.keys():
            found = _IDS_FILE.fullmatch(name.rpartition("/")[2])
            self._files[name] = _File(found[2], found[3]) if found else _File()

    def _learn_sources(self, places: Sequence[Place]) -> None:
        """Note the source of each partition of ``places``, from the plan of its epoch if any."""
        wal = self._wal
        wanted = {place[:2] for place in places} - self._sources.keys()
        epochs = sorted({epoch for epoch, _ in wanted})
        names = [wal.plan_name(epoch) for epoch in epochs]
        self._sources.update(dict.fromkeys(wanted))
        for epoch, data in zip(epochs, wal.store.heads(names, MOST_BYTES), strict=True):
            if data is None:
                continue  # an older version made this epoch: the heads of entries name the source
            try:
                parts = parts_of(open_record(data)["offset"])
            except (BadRecord, KeyError) as error:
                raise LogDamaged.file(wal.store, wal.plan_name(epoch), error) from error
            for number, part in enumerate(parts):
                self._sources[epoch, number] = Source(part.nsqd, part.topic)

    def _read(self, name: str) -> pa.StringArray | None:
        if not name.startswith(f"{self._ids_folder}/"):
            entry = self._wal.read_named(name)
            return None if entry is None else entry.ids
        data = self._wal.store.read(name)
        if data is None:
            return None
        try:
            if not has_seal(data):
                raise BadEntry("its end is cut off: the checksum is missing")
            with pa.ipc.open_stream(data) as reader:
                ids: pa.StringArray = reader.read_next_batch().column("id")
        except (BadEntry, pa.ArrowException, StopIteration, OSError) as error:
            raise LogDamaged.file(self._wal.store, name, error) from error
        return ids


class IdKeeper:
    """The part of the driver that keeps ids of deleted entries while nsqd may deliver them again.

    ``returns``: the driver's knowledge of the channels.
    """

    def __init__(self, wal: Wal, returns: Returns) -> None:
        self._wal = wal
        self._returns = returns
        # False once it is known that the stream has no files with ids.
        self._has_ids = True
        # The epoch of each source up to which files with ids are deleted.
        self._dropped: dict[Source, int] = {}

    def keep(self, epoch: int) -> None:
        """Write the ids of an epoch into files, for the sources that are in doubt.

        Called before the entries of the epoch are deleted. A damaged entry only gives a warning,
        because its rows are in the sink.
        """
        if self._returns.is_finished(epoch):
            return
        wal = self._wal
        ids: dict[Source, list[pa.StringArray]] = {}
        names = [wal.entry_name(*place) for place in wal.places(epoch)]
        try:
            for name, head in zip(names, wal.heads(names), strict=True):
                if head is None or head.low == "" or not self._wants(head, epoch):
                    continue
                entry = wal.read_named(name)
                if entry is not None and entry.rows:
                    ids.setdefault(Source(entry.nsqd, entry.topic), []).append(entry.ids)
        except LogDamaged as error:
            log.warning("the ids of epoch %d cannot be kept whole: %s", epoch, error)
        for source, arrays in ids.items():
            whole = pa.chunked_array(arrays).combine_chunks()
            whole = whole.take(pc.sort_indices(whole))
            name = f"{epoch:012d}-{whole[0].as_py()}-{whole[-1].as_py()}.arrow"
            wal.store.create(f"{_ids_folder(wal, source)}/{name}", _encode(whole))
        if ids:
            self._has_ids = True
            _limit(wal)

    def _wants(self, head: Head, epoch: int) -> bool:
        return self._returns.in_doubt(Source(head.nsqd, head.topic), epoch)

    def drop(self) -> None:
        """Delete the ids of messages that nsqd will not deliver again."""
        drained = self._returns.drained()
        if not self._has_ids or drained == self._dropped:
            return
        store = self._wal.store
        for source, epoch in drained.items():
            if epoch > self._dropped.get(source, -1):
                names = store.list(_ids_folder(self._wal, source))
                store.delete([name for name in names if _epoch_of(name) <= epoch])
        self._dropped = drained
        self._has_ids = bool(store.list(f"{self._wal.stream}/ids"))


def _limit(wal: Wal) -> None:
    """Delete the oldest files with ids of the stream while they have more than MOST_BYTES."""
    sizes = wal.store.sizes(f"{wal.stream}/ids")
    over = sum(sizes.values()) - MOST_BYTES
    for name in sorted(sizes, key=_epoch_of):
        if over <= 0:
            return
        log.warning(
            "the ids of epoch %d are deleted, as the log keeps %d MiB of ids at most: a message"
            " of it that nsqd delivers again will be a row again",
            _epoch_of(name),
            MOST_BYTES >> 20,
        )
        wal.store.delete([name])
        over -= sizes[name]


def _epoch_of(name: str) -> int:
    found = _IDS_FILE.fullmatch(name.rpartition("/")[2])
    return int(found[1]) if found else -1


def _ids_folder(wal: Wal, source: Source) -> str:
    """Return the name of a source's folder, readable and unique."""
    text = f"{source.topic}@{source.nsqd}"
    readable = re.sub(r"[^A-Za-z0-9._-]", "_", text)[:100]
    return f"{wal.stream}/ids/{readable}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _encode(ids: pa.StringArray) -> bytes:
    batch = pa.record_batch([ids], names=["id"])
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    return seal(bytes(sink.getvalue()))
