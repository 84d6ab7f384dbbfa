"""One queue on disk: writing, reading, syncing, emptying. Takes payloads as they stand in records.

Its files, clock and log come from outside. Everything runs in one thread, and blocks it while the
disk works.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import NamedTuple, Protocol

from gnsqsync.embedded.disk.files import Files, reason
from gnsqsync.embedded.disk.positions import FileNames, Positions
from gnsqsync.embedded.disk.reader import FileReader
from gnsqsync.embedded.disk.start import Start, find_start, write_meta
from gnsqsync.embedded.disk.writer import DiskFailed, FileWriter

__all__ = ["DiskFailed", "DiskQueue", "Limits"]


class Log(Protocol):
    """The part of golog.Log that is used here."""

    def info(self, text: str, *args: object) -> None: ...
    def warning(self, text: str, *args: object) -> None: ...
    def error(self, text: str, *args: object) -> None: ...


class Limits(NamedTuple):
    """What nsqd's flags say. ``sync_timeout`` in seconds, sizes in bytes.

    ``sync_every`` operations, writes and reads together, are followed by a sync; 0 or less: only
    the time does it. ``longest`` is the largest payload that is believed when nothing confirms it.
    """

    max_bytes_per_file: int
    sync_every: int
    sync_timeout: float
    longest: int


class DiskQueue:
    """The queue ``name`` in a folder. Made with what is there; files are made by the first ``put``.

    ``now`` gives seconds of a clock that only rises. ``tick`` must be called at ``sync_at``, and
    ``sync_if_due`` after a round of ``put`` and ``take``.
    """

    def __init__(
        self, name: str, files: Files, limits: Limits, now: Callable[[], float], log: Log
    ) -> None:
        self.name: str = name
        self._files = files
        self._limits = limits
        self._now = now
        self._log = log
        self._names = FileNames(name)
        self._writer = FileWriter(files, self._opened)
        self._reader: FileReader | None = None
        self._head: tuple[bytes, int] | None = None
        self._damaged = False
        # What the disk refused to read is asked for again after the next tick.
        self._is_unreadable = False
        self._operations = 0
        self._needs_sync = False
        self.sync_at: float | None = None
        self._last_size = 0
        start = find_start(self._names, files, limits.longest, self._warn)
        self._take_positions(start)
        if start.is_changed:
            # Files without a message are left behind.
            self.head()
            # A queue that is killed before its next sync must find this, whoever starts on it.
            self._try_sync()

    def _take_positions(self, start: Start) -> None:
        (
            self._count,
            self._read_number,
            self._read_position,
            self._write_number,
            self._write_position,
        ) = start.positions
        # Ends of files that are known, and boundaries behind which anything may be, by number.
        self._ends: dict[int, int] = {}
        self._boundaries: dict[int, int] = dict(start.boundaries)

    # -- how much is there -----------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """How many messages wait: too many or too few only after a damage, until it is read."""
        return max(1, self._count) if self.has_unread else 0

    @property
    def has_unread(self) -> bool:
        return (self._read_number, self._read_position) < (
            self._write_number,
            self._write_position,
        )

    @property
    def positions(self) -> Positions:
        return Positions(
            self.depth,
            self._read_number,
            self._read_position,
            self._write_number,
            self._write_position,
        )

    # -- writing ---------------------------------------------------------------------------------

    def put(self, record: bytes) -> None:
        """Append a record (records.encode). DiskFailed when it cannot be written; then it is not
        there, and the next ``put`` tries at the same place."""
        size = len(record)
        if self._write_position > 0 and (
            self._write_position + size > self._limits.max_bytes_per_file
        ):
            self._roll()
        self._writer.write(self._names.data(self._write_number), record, self._write_position)
        self._write_position += size
        self._count += 1
        self._last_size = size
        self._did_one()

    def take_back(self) -> None:
        """Undo the ``put`` before, with nothing in between."""
        self._write_position -= self._last_size
        self._count -= 1
        self._last_size = 0
        self._writer.cut(self._write_position)
        if self._reader is not None:
            self._reader.forget()
        self._did_one()
        # A sync in between may have told of the message.
        self._needs_sync = True

    def _roll(self) -> None:
        """Go on in the next file. It is made by the next write."""
        old, end = self._write_number, self._write_position
        self._ends[old] = end
        if self._reader is not None and self._read_number == old:
            self._reader.end = end
        self._write_number += 1
        self._write_position = 0
        self._try_sync()
        self._writer.close()
        if self._read_number == old and self._read_position >= end:
            self._leave()

    # -- reading ---------------------------------------------------------------------------------

    def head(self) -> bytes | None:
        """The payload of the next message, which stays; None when there is none to be read now."""
        while self._head is None and self.has_unread and not self._is_unreadable:
            try:
                self._read_on()
            except FileNotFoundError as error:
                self._miss(error)
            except OSError as error:
                self._refused(error)
        return self._head[0] if self._head is not None else None

    def take(self) -> bytes:
        """The next message, which is no longer in the queue. Only after ``head`` has shown it."""
        assert self._head is not None
        payload, self._read_position = self._head
        self._head = None
        self._count -= 1
        self._did_one()
        self._moved()
        return payload

    def _read_on(self) -> None:
        reader = self._reader
        if reader is None:
            reader = self._reader = self._open_reader()
        if self._read_number == self._write_number:
            reader.end = self._write_position
        if self._read_position >= reader.end:
            self._moved()
            return
        found = reader.find(self._read_position)
        if found.trouble:
            self._complain(found.trouble)
            self._damaged = True
            if self._read_number == self._write_number:
                # nsqd would give up the file, too: what is written now must not lie behind this.
                self._roll()
        if found.payload is not None:
            self._head = (found.payload, found.stop)
        else:
            self._read_position = found.stop
            self._needs_sync = True
            self._moved()

    def _open_reader(self) -> FileReader:
        number = self._read_number
        name = self._names.data(number)
        file = self._files.open(name)
        end = self._ends.get(number)
        is_whole = end is not None or number == self._write_number
        if number == self._write_number:
            end = self._write_position
        return FileReader(
            file,
            file.size() if end is None else end,
            whole=is_whole,
            boundary=self._boundaries.get(number, -1),
            longest=self._limits.longest,
        )

    def _moved(self) -> None:
        """The read position has changed: leave a file that is read, look at the tail."""
        reader = self._reader
        if (
            self._read_number < self._write_number
            and reader is not None
            and self._read_position >= reader.end
        ):
            self._leave()
        if self.has_unread or self._head is not None:
            return
        if self._count:
            kind = "positive" if self._count > 0 else "negative"
            self._log.error(
                "DISKQUEUE(%s) %s depth at tail (%d), resetting 0...", self.name, kind, self._count
            )
            self._count = 0
            self._needs_sync = True

    def _leave(self) -> None:
        """The file is read: remove it and go on with the next one."""
        number = self._read_number
        self._close_reader()
        name = self._names.data(number)
        try:
            if self._damaged:
                self._set_aside(number)
            else:
                self._files.remove(name)
        except FileNotFoundError:
            # Read to its end before anything was written to it.
            pass
        except OSError as error:
            path = self._files.path(name)
            self._log.error(
                "DISKQUEUE(%s) failed to Remove(%s) - %s", self.name, path, reason(error)
            )
        self._go_to(number + 1)

    def _go_to(self, number: int) -> None:
        self._ends.pop(self._read_number, None)
        self._boundaries.pop(self._read_number, None)
        self._read_number = number
        self._read_position = 0
        self._damaged = False
        self._needs_sync = True

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _set_aside(self, number: int) -> None:
        name, bad = self._names.data(number), self._names.bad(number)
        self._warn(f"saving bad file as {self._files.path(bad)}")
        self._files.rename(name, bad)

    def _complain(self, why: str) -> None:
        self._log.error(
            "DISKQUEUE(%s) reading at %d of %s - %s",
            self.name,
            self._read_position,
            self._files.path(self._names.data(self._read_number)),
            why,
        )

    def _miss(self, error: OSError) -> None:
        """The file is not there: go on with the next one that is."""
        name = self._names.data(self._read_number)
        self._complain(f"open {self._files.path(name)}: {reason(error)}")
        if self._read_number == self._write_number:
            self._roll()
        later = [
            number
            for number in self._names.numbers(self._files.names(self._names.beginning))
            if self._read_number < number <= self._write_number
        ]
        self._close_reader()
        self._go_to(later[0] if later else self._write_number)
        self._moved()

    def _refused(self, error: OSError) -> None:
        self._complain(reason(error))
        self._close_reader()
        if error.errno != errno.EIO:
            self._is_unreadable = True
            self._plan()
            return
        if self._read_number == self._write_number:
            self._roll()
        self._damaged = True
        self._leave()
        self._moved()

    # -- sync ------------------------------------------------------------------------------------

    def _did_one(self) -> None:
        self._operations += 1
        if self.sync_at is None:
            self._plan()

    def _plan(self) -> None:
        self.sync_at = self._now() + self._limits.sync_timeout

    def sync_if_due(self) -> None:
        """Sync when so many operations were done, or a file was left or repaired."""
        every = self._limits.sync_every
        if self._needs_sync or (0 < every <= self._operations):
            self._try_sync()

    def tick(self) -> None:
        """The time of ``sync_at`` has come, or may have."""
        if self.sync_at is None or self._now() < self.sync_at:
            return
        self.sync_at = None
        self._is_unreadable = False
        if self._operations or self._needs_sync:
            self._try_sync()

    def _try_sync(self) -> None:
        """Sync; when it fails, so does the queue after the next operation."""
        try:
            self.sync()
        except OSError as error:
            self._needs_sync = True
            self._plan()
            self._log.error("DISKQUEUE(%s) failed to sync - %s", self.name, reason(error))

    def sync(self) -> None:
        """Have the disk take all data, then the meta file. OSError when it does not."""
        self._writer.sync()
        write_meta(self._files, self._names, self.positions)
        self._operations = 0
        self._needs_sync = False
        if not self._is_unreadable:
            self.sync_at = None

    # -- the end ---------------------------------------------------------------------------------

    def empty(self) -> None:
        """Drop all messages and files, but those set aside. The next file gets the next number."""
        self._close_reader()
        self._writer.close()
        self._head = None
        names = self._files.names(self._names.beginning)
        # The meta file last: data files without one would be read again after a crash.
        doomed = [self._names.data(number) for number in self._names.numbers(names)]
        doomed += [name for name in names if name == self._names.meta]
        for name in doomed:
            try:
                self._files.remove(name)
            except OSError as error:
                path = self._files.path(name)
                self._log.error(
                    "DISKQUEUE(%s) failed to Remove(%s) - %s", self.name, path, reason(error)
                )
        self._count = 0
        self._go_to(self._write_number + 1)
        self._write_number, self._write_position = self._read_number, 0
        self._operations, self._needs_sync, self.sync_at = 0, False, None

    def close(self) -> None:
        """Sync and let go of the files. What cannot be synced is logged."""
        self._try_sync()
        self._close_reader()
        self._writer.close()

    def _opened(self, path: str) -> None:
        self._log.info("DISKQUEUE(%s): writeOne() opened %s", self.name, path)

    def _warn(self, text: str) -> None:
        self._log.warning("DISKQUEUE(%s) %s", self.name, text)
