"""The positions at which a queue goes on after a clean stop, a kill or a damage.

Reads the meta file and the data files. ``write_meta`` is the only function that writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from gnsqsync.embedded.disk.files import Files
from gnsqsync.embedded.disk.positions import FileNames, Positions
from gnsqsync.embedded.disk.reader import FileReader

__all__ = ["Start", "find_start", "write_meta"]

# Largest size of the data files, in bytes, at which a start counts the messages to check the meta
# file.
_COUNTED = 16 * 1024 * 1024
_META_LIMIT = 1024


class Start(NamedTuple):
    """The positions to go on with. ``is_changed``: they differ from the meta file.

    ``boundaries``: a position for some files, by number, at which a record certainly stops.
    """

    positions: Positions
    is_changed: bool
    boundaries: Mapping[int, int]


def write_meta(files: Files, names: FileNames, positions: Positions) -> None:
    """Replace the meta file in one step; ``rename`` syncs the new one before. OSError."""
    file = files.open(names.new_meta, create=True)
    try:
        file.truncate(0)
        text = positions.text()
        if file.write(text, 0) < len(text):
            raise OSError(None, f"short write of {files.path(names.new_meta)}")
    finally:
        file.close()
    files.rename(names.new_meta, names.meta)


def find_start(names: FileNames, files: Files, longest: int, warn: Callable[[str], None]) -> Start:
    """Find where the queue goes on. ``warn`` is called with each thing that was wrong.

    ``longest``: see FileReader. OSError if the folder or a file cannot be read.
    """
    return _Finder(names, files, longest, warn).find()


class _Count(NamedTuple):
    """The result of reading the files. ``is_whole``: no damage was found, and no file is missing.

    ``begins_well``: no damage was found before the first message.
    """

    messages: int
    is_whole: bool
    begins_well: bool


class _Finder:
    def __init__(
        self, names: FileNames, files: Files, longest: int, warn: Callable[[str], None]
    ) -> None:
        self._names = names
        self._files = files
        self._longest = longest
        self._warn = warn
        self._boundaries: dict[int, int] = {}
        self._is_changed = False

    def find(self) -> Start:
        found = self._files.names(self._names.beginning)
        for name in self._names.leftovers(found):
            self._files.remove(name)
        self._sizes = {number: self._size(number) for number in self._names.numbers(found)}
        if self._names.meta not in found and not self._sizes:
            return Start(Positions(0, 0, 0, 0, 0), False, {})
        meta = self._read_meta() if self._names.meta in found else None
        positions = self._from_files() if meta is None else self._checked(meta)
        return Start(positions, self._is_changed, self._boundaries)

    def _say(self, text: str) -> None:
        self._warn(text)
        self._is_changed = True

    def _size(self, number: int) -> int:
        file = self._files.open(self._names.data(number))
        try:
            return file.size()
        finally:
            file.close()

    def _read_meta(self) -> Positions | None:
        file = self._files.open(self._names.meta)
        try:
            return Positions.parse(file.read(_META_LIMIT, 0))
        finally:
            file.close()

    def _from_files(self) -> Positions:
        """Return positions without a usable meta file: from the first data file to the last."""
        self._is_changed = True
        if not self._sizes:
            self._say("meta file is broken, and there are no data files")
            return Positions(0, 0, 0, 0, 0)
        first, last = min(self._sizes), max(self._sizes)
        write = self._behind(last)
        count = self._count((first, 0), write)
        if count.messages:
            self._say(
                f"meta file is missing or broken, reading all {count.messages} messages again"
            )
        return Positions(count.messages, first, 0, *write)

    def _behind(self, last: int) -> tuple[int, int]:
        """Return the next position to write if all bytes of the last file count as written."""
        return (last + 1, 0) if self._sizes[last] else (last, 0)

    def _checked(self, meta: Positions) -> Positions:
        write = self._end_of_writing(meta)
        depth, read = meta.depth, meta.read
        before = self._bytes_between((min(self._sizes, default=0), 0), write)
        if before <= _COUNTED:
            depth, read = self._compared(meta, write)
        elif write != meta.write and meta.write_position < self._sizes.get(meta.write_number, 0):
            depth += self._count(meta.write, write).messages
        return Positions(depth, *read, *write)

    def _end_of_writing(self, meta: Positions) -> tuple[int, int]:
        """Return the next position to write: a new file, unless the meta file fits the last one."""
        number, position = meta.write
        highest = max(self._sizes, default=number)
        size = self._sizes.get(number, 0)
        if highest > number:
            self._say(
                f"metadata writeFileNum {number} < {highest} of a file that is there,"
                " reading up to that one"
            )
            self._boundaries[number] = position
            return self._behind(highest)
        if position == size:
            return (number, position)
        path = self._files.path(self._names.data(number))
        if position < size:
            sign = "<"
            self._boundaries[number] = position
        else:
            sign = ">"
        self._say(
            f"{path} metadata writePos {position} {sign} file size of {size}, skipping to new file"
        )
        return (number + 1, 0)

    def _compared(self, meta: Positions, write: tuple[int, int]) -> tuple[int, tuple[int, int]]:
        """Return depth and read position, after comparing the meta file with the messages."""
        read = meta.read
        count = self._count(read, write)
        depth = meta.depth
        if meta.write_number in self._boundaries:
            # The meta file does not count the messages written after the last sync.
            depth += self._count(meta.write, write).messages
        if read[1] and not count.begins_well:
            self._say(f"metadata readPos {read[1]} is inside of a message, reading its file again")
            read = (read[0], 0)
            count = self._count(read, write)
        if count.messages < depth and count.is_whole and self._sizes:
            # The remaining messages are whole, so the position is wrong rather than the depth.
            first = (min(self._sizes), 0)
            everything = self._count(first, write)
            if everything.messages > count.messages:
                read, count = first, everything
                self._say("metadata read position may be wrong, reading all files again")
        if count.messages != depth:
            self._say(f"metadata depth is {depth}, but there are {count.messages} messages")
        return count.messages, read

    # -- looking into the files ------------------------------------------------------------------

    def _bytes_between(self, read: tuple[int, int], write: tuple[int, int]) -> int:
        total = sum(size for number, size in self._sizes.items() if read[0] <= number <= write[0])
        return total - read[1]

    def _count(self, read: tuple[int, int], write: tuple[int, int]) -> _Count:
        """Count the messages between two positions."""
        messages = 0
        is_whole = begins_well = True
        for number, size in sorted(self._sizes.items()):
            if not read[0] <= number <= write[0]:
                continue
            position = read[1] if number == read[0] else 0
            end = write[1] if number == write[0] else size
            for has_payload, trouble in self._walk(number, position, end, number == write[0]):
                messages += has_payload
                if trouble:
                    begins_well = begins_well and messages > 0
                    is_whole = False
        wanted = write[0] + bool(write[1]) - read[0]
        found = sum(read[0] <= number < read[0] + wanted for number in self._sizes)
        is_whole = is_whole and found == wanted
        return _Count(messages, is_whole, begins_well)

    def _walk(
        self, number: int, position: int, end: int, whole: bool
    ) -> Iterator[tuple[bool, str]]:
        if position >= end:
            return
        reader = FileReader(
            self._files.open(self._names.data(number)),
            end,
            whole=whole,
            boundary=self._boundaries.get(number, -1),
            longest=self._longest,
        )
        try:
            while position < end:
                found = reader.find(position)
                yield found.payload is not None, found.trouble
                position = found.stop
        finally:
            reader.close()
