"""Appends records to the data files of a queue. Knows one open file; the queue knows where."""

from __future__ import annotations

from collections.abc import Callable

from gnsqsync.embedded.disk.files import DataFile, Files, reason

__all__ = ["DiskFailed", "FileWriter"]


class DiskFailed(Exception):
    """A message could not be written; nothing of it is in the queue. The text is nsqd's."""


class FileWriter:
    """The file that is written to, opened by the first ``write`` after a ``close``."""

    def __init__(self, files: Files, opened: Callable[[str], None]) -> None:
        self._files = files
        self._opened = opened
        self._file: DataFile | None = None

    def write(self, name: str, record: bytes, position: int) -> None:
        """All of ``record`` at ``position`` of file ``name``; DiskFailed, and the file is closed.

        Another name only after ``close``.
        """
        file = self._file
        if file is None:
            file = self._file = self._open(name)
        try:
            _write(file, record, position)
        except OSError as error:
            self.close()
            raise DiskFailed(f"write {self._files.path(name)}: {reason(error)}") from error

    def cut(self, position: int) -> None:
        """Drop what was written from ``position`` on, if the disk lets us."""
        if self._file is not None:
            _cut(self._file, position)

    def _open(self, name: str) -> DataFile:
        path = self._files.path(name)
        try:
            file = self._files.open(name, create=True)
        except OSError as error:
            raise DiskFailed(f"open {path}: {reason(error)}") from error
        self._opened(path)
        return file

    def sync(self) -> None:
        """Have the disk take what was written. OSError, and the file is closed."""
        if self._file is not None:
            try:
                self._file.sync()
            except OSError:
                self.close()
                raise

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def _write(file: DataFile, record: bytes, position: int) -> None:
    """All of the record, or nothing that lasts."""
    try:
        written = file.write(record, position)
        while written < len(record):
            more = file.write(record[written:], position + written)
            if more == 0:
                raise OSError(None, "short write")
            written += more
    except OSError:
        _cut(file, position)
        raise


def _cut(file: DataFile, position: int) -> None:
    try:
        file.truncate(position)
    except OSError:
        # The next record is written over it, and the positions say where that begins.
        pass
