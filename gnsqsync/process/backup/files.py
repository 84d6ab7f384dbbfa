"""The files of one topic: written, rotated, compressed and synced by nsq_to_file's rules.

Knows no NSQ and starts no thread: time and file operations are arguments.
"""

from __future__ import annotations

import errno
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from gnsqsync.errors import NSQError
from gnsqsync.process.backup.disk import Disk
from gnsqsync.process.backup.leftovers import cut_back
from gnsqsync.process.backup.names import FileNames, with_revision

__all__ = ["CannotBackUp", "Rules", "TopicFiles"]

log: logging.Logger = logging.getLogger("gnsqsync.to_file")


class CannotBackUp(NSQError):
    """A file or folder cannot be written. Messages that were not synced are not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Rules for files. ``work_dir``: folder of open files, ``output_dir`` or another one.

    ``gzip_level``: 1 to 9; 0: no gzip. ``rotate_size`` (bytes before compression) and
    ``rotate_interval`` (seconds): 0 for never.
    """

    output_dir: str
    work_dir: str
    gzip_level: int = 0
    rotate_size: int = 0
    rotate_interval: float = 0.0
    # True if a file is made only when there is a message for it.
    skip_empty_files: bool = False

    @property
    def moves(self) -> bool:
        """True if a finished file is moved to another folder."""
        return self.work_dir != self.output_dir

    @property
    def only_new(self) -> bool:
        """True if existing files are never appended to."""
        return bool(self.gzip_level or self.rotate_interval)

    @property
    def has_revisions(self) -> bool:
        return bool(self.only_new or self.rotate_size or self.moves)


class TopicFiles:
    """The open file of a topic, if any. One thread may use it at a time.

    ``now`` returns the local time, for names. Methods raise CannotBackUp. After that error only
    ``abandon`` may be called.
    """

    def __init__(
        self,
        names: FileNames,
        rules: Rules,
        disk: Disk,
        *,
        now: Callable[[], time.struct_time],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        # Bytes of messages and newlines, before compression.
        self.written: int = 0
        self._names = names
        self._rules = rules
        self._disk = disk
        self._now = now
        self._monotonic = monotonic
        self._file: int | None = None
        # Name (with <REV>) and revision of the open file, or of the last one.
        self._name = ""
        self._revision = 0
        self._opened_at = 0.0
        # Bytes that count for rotate_size: the size at the opening, and the bytes written since.
        self._size = 0
        # Length of the file on the disk, and length up to which it is synced.
        self._length = 0
        self._synced = 0
        # The gzip member that is being written.
        self._member: zlib._Compress | None = None

    @property
    def path(self) -> str:
        """Path of the open file, or of the last one."""
        return self._in(self._rules.work_dir, with_revision(self._name, self._revision))

    def recover(self) -> None:
        """Repair and finish the files of a killed run. Call this once, at the start."""
        rules, disk = self._rules, self._disk
        with self._told(rules.work_dir):
            for folder in (rules.work_dir, rules.output_dir):
                disk.make_folders(folder)
                disk.check_folder(folder)
            found = disk.files(rules.work_dir, "/" in self._names.template)
            left = [path for path in found if self._names.template_of(path) is not None]
            if not rules.moves:
                # The folder also has finished files. Only the last file can be cut off.
                left = sorted(left, key=self._changed_at)[-1:]
        for path in left:
            with self._told(self._in(rules.work_dir, path)):
                self._recover(path)

    def write(self, body: bytes) -> bool:
        """Write a message and a newline. Return True if that began another file."""
        rotates = self._needs_rotation()
        if rotates:
            self._rotate()
        line = body + b"\n"
        with self._told():
            if self._rules.gzip_level:
                if self._member is None:
                    self._member = zlib.compressobj(self._rules.gzip_level, zlib.DEFLATED, 31)
                self._append(self._member.compress(line))
            else:
                self._append(line)
        self._size += len(line)
        self.written += len(line)
        return rotates

    def tick(self) -> None:
        """Rotate if it is time, without a message. Called every sync interval."""
        if self._needs_rotation():
            if self._rules.skip_empty_files:
                self.close()
            else:
                self._rotate()

    def sync(self) -> None:
        """Sync the file, so that all messages written before survive a power failure."""
        if self._file is None:
            return
        with self._told():
            self._sync(self._file)

    def close(self) -> None:
        """Sync the file, end it, and move it to the output folder. The next write begins one."""
        file = self._file
        if file is None:
            return
        with self._told():
            if self._rules.gzip_level and self._member is None and not self._length:
                # An empty file would not be a valid gzip file.
                self._member = zlib.compressobj(self._rules.gzip_level, zlib.DEFLATED, 31)
            self._sync(file)
            if self._rules.moves:
                self._move(file, self._name, self._revision)
            self._file = None
            self._disk.close(file)

    def abandon(self) -> None:
        """Close the file after an error, cut back to the synced part."""
        file, self._file, self._member = self._file, None, None
        if file is not None:
            with suppress(OSError):
                if self._length != self._synced:
                    self._disk.truncate(file, self._synced)
            with suppress(OSError):
                self._disk.close(file)

    # -- rotation --------------------------------------------------------------------------------

    def _needs_rotation(self) -> bool:
        rules = self._rules
        if self._file is None or self._current_name() != self._name:
            return True
        if rules.rotate_interval and self._monotonic() - self._opened_at > rules.rotate_interval:
            return True
        return bool(rules.rotate_size and self._size > rules.rotate_size)

    def _current_name(self) -> str:
        return self._names.at(self._now())

    def _rotate(self) -> None:
        # The close comes first, because it needs the name and revision of the old file.
        self.close()
        name = self._current_name()
        self._revision = self._revision + 1 if name == self._name else 0
        self._name = name
        self._opened_at = self._monotonic()
        with self._told():
            self._disk.make_folders(os.path.dirname(self.path) or ".")
        while not self._open():
            self._revision += 1
        log.info("opened %s", self.path)

    def _open(self) -> bool:
        """Open the file of this revision. Return False if another file or process has it."""
        rules, disk = self._rules, self._disk
        with self._told():
            target = self._in(rules.output_dir, with_revision(self._name, self._revision))
            if rules.moves and disk.exists(target):
                return False
            try:
                file = disk.open(self.path, new=rules.only_new)
            except FileExistsError:
                return False
            try:
                good = self._can_append_to(file)
            except BaseException:  # Only this method knows the descriptor.
                disk.close(file)
                raise
            if not good:
                disk.close(file)
                return False
            # The name must be durable before the first sync of its data.
            disk.sync_folder(os.path.dirname(self.path))
            self._file = file
        return True

    def _can_append_to(self, file: int) -> bool:
        rules, disk = self._rules, self._disk
        if not disk.lock(file):
            if rules.has_revisions:
                return False
            raise CannotBackUp(
                f"another process writes to {self.path}; give each its --host-identifier, or put"
                " <PID> into --filename-format"
            )
        if not disk.is_at(file, self.path):
            # The file was moved before the lock was taken.
            return False
        if not rules.only_new:
            self._cut_back(file, self.path)
        self._size = self._length = self._synced = disk.size(file)
        return not (rules.rotate_size and self._size > rules.rotate_size)

    # -- bytes -----------------------------------------------------------------------------------

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        while data:
            count = self._disk.write(self._file, data)
            self._length += count
            data = data[count:]

    def _sync(self, file: int) -> None:
        """Sync the file. End the gzip member before, so that it can be read after any crash."""
        if self._member is not None:
            self._append(self._member.flush())
            self._member = None
        if self._length != self._synced:
            self._disk.sync(file)
            self._synced = self._length

    # -- finished files, and files of earlier runs ------------------------------------------------

    def _recover(self, path: str) -> None:
        rules, disk = self._rules, self._disk
        place = self._in(rules.work_dir, path)
        try:
            file = disk.open_existing(place)
        except FileNotFoundError:  # Another process has moved it.
            return
        try:
            if not disk.lock(file) or not disk.is_at(file, place):
                return
            self._cut_back(file, place)
            if not disk.size(file) and (rules.gzip_level or rules.moves):
                disk.remove(place)
            elif rules.moves:
                template = self._names.template_of(path)
                assert template is not None
                self._move(file, *template)
        finally:
            disk.close(file)

    def _cut_back(self, file: int, path: str) -> None:
        cut = cut_back(self._disk, file, gzip=bool(self._rules.gzip_level))
        if cut:
            log.warning(
                "%s ended in the middle of a message: the last %d bytes are cut off, their messages"
                " were not finished and come again",
                path,
                cut,
            )

    def _move(self, file: int, name: str, revision: int) -> None:
        """Move the file to the output folder, as the next revision that is free there."""
        disk = self._disk
        source = self._in(self._rules.work_dir, with_revision(name, revision))
        while True:
            target = self._in(self._rules.output_dir, with_revision(name, revision))
            disk.make_folders(os.path.dirname(target))
            # If a run was killed between the link and the removal, the file is there already.
            if disk.is_at(file, target) or self._linked(source, target):
                break
            log.warning("%s exists already; the next revision is taken", target)
            revision += 1
        disk.sync_folder(os.path.dirname(target))
        disk.remove(source)
        log.info("%s is finished", target)

    def _linked(self, source: str, target: str) -> bool:
        """Link or copy the file. Return False if the name is taken."""
        disk = self._disk
        try:
            disk.link(source, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            if disk.exists(target):
                return False
            part = f"{target}.part"
            try:
                disk.copy(source, part)
                disk.link(part, target)
            except FileExistsError:
                return False
            finally:
                with suppress(FileNotFoundError):  # The copy may have failed before it was made.
                    disk.remove(part)
        return True

    # -- inside ----------------------------------------------------------------------------------

    def _in(self, folder: str, name: str) -> str:
        return os.path.join(folder, name)

    def _changed_at(self, path: str) -> float:
        with suppress(FileNotFoundError):
            return self._disk.changed_at(self._in(self._rules.work_dir, path))
        return 0.0

    @contextmanager
    def _told(self, path: str | None = None) -> Iterator[None]:
        """Turn an OSError into one sentence. ``path``: the open file's by default."""
        try:
            yield
        except OSError as error:
            where = error.filename or path or self.path
            why = error.strerror or str(error)
            raise CannotBackUp(f"cannot write {where}: {why}") from error
