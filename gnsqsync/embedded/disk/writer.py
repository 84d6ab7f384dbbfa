"""The writer of a queue's data files. Knows one open file; the queue knows names and positions."""

from __future__ import annotations

from collections.abc import Callable

from gnsqsync.embedded.disk.files import DataFile, Files, reason

__all__ = ["DiskFailed", "FileWriter"]


class DiskFailed(Exception):
    """A message could not be written, and the queue does not have it. The text is nsqd's."""


class FileWriter:
    """A writer of one file at a time. The first ``write`` after a ``close`` opens the file."""

    def __init__(self, files: Files, opened: Callable[[str], None]) -> None:
        self._files = files
        self._opened = opened
        self._file: DataFile | None = None

    def write(self, name: str, record: bytes, position: int) -> None:
        """Write ``record`` at ``position`` of ``name``. If that fails, close it; DiskFailed.

        A different name needs a ``close`` before.
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
        """Truncate the open file at ``position``, if the disk allows it."""
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
        """Sync the open file. If that fails, close the file and raise OSError."""
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
    """Write the whole record, or truncate the file again and raise OSError."""
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
        # The next record overwrites the rest, because the queue's positions do not include it.
        pass
