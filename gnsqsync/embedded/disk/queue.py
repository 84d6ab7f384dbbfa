"""A queue on disk: write, read, sync, empty. ``put`` takes encoded records.

Files, clock and log are arguments. Everything runs in one thread, which blocks while the disk
works.
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
    """The methods of golog.Log that are used here."""

    def info(self, text: str, *args: object) -> None: ...
    def warning(self, text: str, *args: object) -> None: ...
    def error(self, text: str, *args: object) -> None: ...


class Limits(NamedTuple):
    """Limits from nsqd's flags. ``sync_timeout`` is in seconds, sizes are in bytes.

    A sync follows after ``sync_every`` writes and reads; if it is 0 or less, only after
    ``sync_timeout``. ``longest`` is the largest length that is believed without a signature.
    """

    max_bytes_per_file: int
    sync_every: int
    sync_timeout: float
    longest: int


class DiskQueue:
    """The queue ``name`` in a folder, which goes on with its files. ``put`` makes new files.

    ``now`` returns monotonic seconds. The owner calls ``tick`` at ``sync_at``, and ``sync_if_due``
    after a round of ``put`` and ``take``.
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
        # The next message and the position after it, once ``head`` has read it.
        self._head: tuple[bytes, int] | None = None
        # True while the file that is read has a damage: it becomes ``.bad``.
        self._damaged = False
        # True after an error of the disk. The next tick clears it, and reading is tried again.
        self._is_unreadable = False
        # Puts and takes since the last sync.
        self._operations = 0
        # True if the next ``sync_if_due`` must sync, whatever the number of operations.
        self._needs_sync = False
        # Time of the next ``tick``; None if nothing is to be synced.
        self.sync_at: float | None = None
        # Bytes of the last record, for ``take_back``.
        self._last_size = 0
        start = find_start(self._names, files, limits.longest, self._warn)
        self._take_positions(start)
        if start.is_changed:
            # This skips files without a message.
            self.head()
            # The repaired positions are saved now, for a start after a kill before the next sync.
            self._try_sync()

    def _take_positions(self, start: Start) -> None:
        (
            self._count,
            self._read_number,
            self._read_position,
            self._write_number,
            self._write_position,
        ) = start.positions
        # Known ends of files, and boundaries (see FileReader), by the number of the file.
        self._ends: dict[int, int] = {}
        self._boundaries: dict[int, int] = dict(start.boundaries)

    # -- how much is there -----------------------------------------------------------------------

    @property
    def depth(self) -> int:
        """Number of waiting messages. After a damage it may be wrong until the damage is read."""
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
        """Append a record (records.encode). DiskFailed if it cannot be written; then the queue
        does not have it, and the next ``put`` writes at the same position."""
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
        """Undo the last ``put``. No other call may come between the two."""
        self._write_position -= self._last_size
        self._count -= 1
        self._last_size = 0
        self._writer.cut(self._write_position)
        if self._reader is not None:
            self._reader.forget()
        self._did_one()
        # A sync inside of ``put`` may have counted the message in the meta file.
        self._needs_sync = True

    def _roll(self) -> None:
        """Go on in the next file. The next write makes it."""
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
        """Return the payload of the next message, which stays. None if none can be read now."""
        while self._head is None and self.has_unread and not self._is_unreadable:
            try:
                self._read_on()
            except FileNotFoundError as error:
                self._miss(error)
            except OSError as error:
                self._refused(error)
        return self._head[0] if self._head is not None else None

    def take(self) -> bytes:
        """Remove the next message and return its payload. ``head`` must have returned it."""
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
                # nsqd would give up the whole file, so new records must not follow the damage.
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
        """Leave a file that is read to its end, and correct the depth of an empty queue."""
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
        """Remove the file that is read, and go on with the next one."""
        number = self._read_number
        self._close_reader()
        name = self._names.data(number)
        try:
            if self._damaged:
                self._set_aside(number)
            else:
                self._files.remove(name)
        except FileNotFoundError:
            # The file was never written to.
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
        """Skip a missing file: go on with the next one that exists."""
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
        """Sync after ``sync_every`` operations, or after a file was left or repaired."""
        every = self._limits.sync_every
        if self._needs_sync or (0 < every <= self._operations):
            self._try_sync()

    def tick(self) -> None:
        """Sync if ``sync_at`` has come, and try again to read."""
        if self.sync_at is None or self._now() < self.sync_at:
            return
        self.sync_at = None
        self._is_unreadable = False
        if self._operations or self._needs_sync:
            self._try_sync()

    def _try_sync(self) -> None:
        """Sync. If the sync fails, log the reason and try again after the next operation."""
        try:
            self.sync()
        except OSError as error:
            self._needs_sync = True
            self._plan()
            self._log.error("DISKQUEUE(%s) failed to sync - %s", self.name, reason(error))

    def sync(self) -> None:
        """Sync the data, then write the meta file. OSError if the disk fails."""
        self._writer.sync()
        write_meta(self._files, self._names, self.positions)
        self._operations = 0
        self._needs_sync = False
        if not self._is_unreadable:
            self.sync_at = None

    # -- the end ---------------------------------------------------------------------------------

    def empty(self) -> None:
        """Drop all messages and files, except ``.bad`` ones. The next file gets the next number."""
        self._close_reader()
        self._writer.close()
        self._head = None
        names = self._files.names(self._names.beginning)
        # The meta file goes last. A crash in between must not leave data files without it, because
        # the next start would read them all again.
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
        """Sync and close the files. A sync that fails is logged."""
        self._try_sync()
        self._close_reader()
        self._writer.close()

    def _opened(self, path: str) -> None:
        self._log.info("DISKQUEUE(%s): writeOne() opened %s", self.name, path)

    def _warn(self, text: str) -> None:
        self._log.warning("DISKQUEUE(%s) %s", self.name, text)
