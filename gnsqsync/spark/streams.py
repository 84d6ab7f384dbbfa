"""The streams in a log folder: a list with their contents, and their deletion.

Knows names over a Store, and when a stream was last used. Must not know nsqd or Spark. A stream is
the log of one query (before PySpark 4.2: of one run), or of one ``spark.read`` ("drain-...").
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gnsqsync.spark.open_store import open_store
from gnsqsync.spark.stores import Store
from gnsqsync.spark.wal import LogDamaged, PendingEpoch, Wal, pending_of

__all__ = ["IN_USE", "Sign", "Stream", "delete_ended", "streams"]

log: logging.Logger = logging.getLogger("gnsqsync.spark")

# Seconds between two signs of a driver.
_SIGN_EVERY = 1800.0
# Seconds without a sign after which a stream counts as unused.
IN_USE = 2 * 3600.0
# Seconds from the last commit of a run that ended to the deletion of its stream.
_ENDED = 3600.0
# Bytes of one publish.
_CHUNK = 512 << 10

_EPOCH = re.compile(r"e=(\d+)/.*|plans/(\d+)\.json")

Send = Callable[[str, list[bytes]], object]


class Sign:
    """The sign of a driver that its stream is in use, even if no message comes for a year.

    The time of a file is the sign. If the storage fails, a warning is logged and nothing raised.
    """

    def __init__(self) -> None:
        # Time of the next sign, for the stream that was shown last.
        self._due: dict[str, float] = {}

    def show(self, open_it: Callable[[], Store], stream: str, now: float) -> None:
        """Write the file, at most every _SIGN_EVERY seconds. ``now``: time of a steady clock."""
        if now < self._due.get(stream, now):
            return
        self._due = {stream: now + _SIGN_EVERY}
        try:
            open_it().put(f"{stream}/used", b"{}")
        except OSError as error:
            log.warning("the sign that log %s is in use is not written: %s", stream, error)


@dataclass(frozen=True)
class Stream:
    """A stream as it was found.

    ``last``: its newest epoch, -1 without any. ``committed``: the newest epoch that its query has
    committed. ``used_at``: time of the last write, seconds since 1970. ``pending``: epochs whose
    rows were taken from nsqd and not committed. ``damaged``: the error if ``pending`` is unknown.
    """

    name: str
    bytes: int
    files: int
    last: int
    committed: int
    used_at: float
    pending: tuple[PendingEpoch, ...] = ()
    damaged: str = ""
    _store: Store = field(repr=False, kw_only=True)

    @property
    def rows(self) -> int:
        """Number of pending rows."""
        return sum(epoch.rows for epoch in self.pending)

    @property
    def topics(self) -> list[str]:
        """The topics of the pending rows."""
        return sorted({topic for epoch in self.pending for topic in epoch.topics})

    def in_use(self, now: float, age: float = IN_USE) -> bool:
        """Return True if a driver may still use the stream.

        ``age``: seconds without a sign after which the stream is unused; at least IN_USE.
        """
        return now - self.used_at < max(age, IN_USE)

    def publish(self, send: Send) -> int:
        """Publish the pending rows again, epoch by epoch, and note each epoch as committed.

        ``send`` gets a topic and bodies, and returns when nsqd has them. If ``send`` raises, the
        rows of that epoch stay pending, though some of them are published. Returns the number of
        rows.
        """
        wal = Wal(self._store, self.name, retention=0.0)
        rows = 0
        for epoch in self.pending:
            for batch in epoch.batches(["topic", "value"]):
                topics, values = (batch.column(at).to_pylist() for at in range(2))
                rows += batch.num_rows
                for chunk in _chunks(values):
                    send(topics[0], chunk)
            wal.commit(epoch.epoch, time.monotonic(), time.time())
        return rows

    def delete(self) -> None:
        """Delete all files of the stream. Raises OSError if a file is left."""
        self._store.delete_folder(self.name)
        if left := self._store.list(self.name):
            raise OSError(
                f"{len(left)} files of log {self.name} in {self._store.url} could not be deleted,"
                f" as {left[0]}: look at the rights of this user"
            )


def streams(wal_path: str, options: dict[str, Any] | str | None = None) -> list[Stream]:
    """Return the streams of a log folder, the longest unused one first.

    Raises ConfigError if the path cannot be a log, and OSError.
    """
    store = open_store(wal_path, options)
    found = [_look(store, name) for name in store.folders()]
    return sorted((each for each in found if each), key=lambda each: (each.used_at, each.name))


def _look(store: Store, name: str) -> Stream | None:
    """Return the stream in a folder, or None if the folder is no stream."""
    sizes = store.sizes(name)
    if f"{name}/plan" not in sizes and f"{name}/drain" not in sizes:
        return None
    last = _last_epoch(name, sizes)
    committed, damaged = -1, ""
    pending: tuple[PendingEpoch, ...] = ()
    wal = Wal(store, name)
    try:
        committed = wal.marker().committed
        pending = tuple(pending_of(wal))
    except (LogDamaged, ValueError) as error:
        damaged = str(error)
    # Entries are written in order, so the times of the newest epoch are enough.
    newest = [n for n in sizes if n.startswith((f"{name}/e={last}/", f"{name}/plans/"))][-8:]
    marks = [f"{name}/{mark}" for mark in ("plan", "committed", "drain", "used")]
    times = (store.modified(each) for each in (*newest, *(m for m in marks if m in sizes)))
    return Stream(
        name=name,
        bytes=sum(sizes.values()),
        files=len(sizes),
        last=last,
        committed=committed,
        used_at=max((at for at in times if at is not None), default=time.time()),
        pending=pending,
        damaged=damaged,
        _store=store,
    )


def delete_ended(store: Store, keep: str, retention: float, now: float) -> None:
    """Delete the streams of runs that ended and whose rows are all committed.

    PySpark before 4.2 begins a stream in each run with ``availableNow``, and commits its only epoch
    in the next run. ``keep``: the stream of this run. ``now``: seconds since 1970. The stream of a
    running query is not deleted, because it has the plan of an epoch that is not committed.
    """
    for name in store.folders():
        if name == keep or name.startswith("drain-"):
            continue
        try:
            marker = Wal(store, name).marker()
        except (LogDamaged, ValueError) as error:
            log.warning("log %s is left as it is: %s", name, error)
            continue
        if not marker.at or now - marker.at < max(retention, _ENDED):
            continue
        if _last_epoch(name, store.list(name)) <= marker.committed:
            store.delete_folder(name)


def _last_epoch(stream: str, names: Iterable[str]) -> int:
    matches = (_EPOCH.fullmatch(name.removeprefix(f"{stream}/")) for name in names)
    return max((int(match[1] or match[2]) for match in matches if match), default=-1)


def _chunks(values: list[bytes]) -> list[list[bytes]]:
    """Split the values into lists of about _CHUNK bytes."""
    found: list[list[bytes]] = []
    size = _CHUNK
    for value in values:
        if size + len(value) > _CHUNK:
            found.append([])
            size = 0
        found[-1].append(value)
        size += len(value) + 4
    return found
