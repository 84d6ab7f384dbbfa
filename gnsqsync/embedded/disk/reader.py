"""The messages of one data file, even of a damaged one. Knows records and an open file.

A record is valid if another record, or the end, follows it. Otherwise something is damaged, and the
signatures (see records) show which record that is. The queue knows ``.bad`` files, numbers and
positions.
"""

from __future__ import annotations

from typing import NamedTuple

from gnsqsync.embedded.disk.files import DataFile
from gnsqsync.embedded.disk.records import (
    HEAD_SIZE,
    LENGTH_SIZE,
    SHORTEST,
    SIGNED,
    is_signed,
    length_of,
)

__all__ = ["FileReader", "Found"]

_CHUNK = 64 * 1024


class Found(NamedTuple):
    """A message, or a piece of the file without one (``payload`` None), and the position after it.

    ``trouble`` says what is damaged. A message with a trouble had a wrong length, now repaired.
    """

    payload: bytes | None
    stop: int
    trouble: str = ""


class FileReader:
    """A reader of one file, from the begin of any record to ``end``.

    ``end`` may be raised while the file grows. ``whole``: the last record certainly stops at
    ``end``, because the writer knows. ``boundary``: a record certainly stops at this position, but
    the bytes after it may be anything. ``longest``: the largest length that is believed without a
    signature.
    """

    def __init__(
        self, file: DataFile, end: int, *, whole: bool, boundary: int = -1, longest: int
    ) -> None:
        self._file = file
        self.end: int = end
        self._whole = whole
        self._boundary = boundary
        self._longest = longest
        self._buffer = b""
        self._base = 0

    def close(self) -> None:
        self._file.close()

    def find(self, position: int) -> Found:
        """Find what begins at ``position``, which is before ``end``. OSError if unreadable.

        Lower ``end`` if the file is shorter.
        """
        end = self.end
        found = self._find(position)
        # If ``end`` was lowered, the first result relied on the old value.
        return found if self.end == end else self._find(position)

    def _find(self, position: int) -> Found:
        head = self._bytes(position, HEAD_SIZE)
        if len(head) < HEAD_SIZE:
            return Found(None, max(position, self.end), "unexpected EOF")
        length = length_of(head)
        stop = position + LENGTH_SIZE + length
        if (
            length >= SHORTEST
            and stop <= self.end
            and (stop in (self.end, self._boundary) or is_signed(self._bytes(stop, HEAD_SIZE)))
        ):
            return self._message(position, stop)
        return self._examine(position, head)

    def _message(self, position: int, stop: int, trouble: str = "") -> Found:
        begin = position + LENGTH_SIZE
        payload = self._bytes(begin, stop - begin)
        if len(payload) < stop - begin:
            return Found(None, self.end, "unexpected EOF")
        return Found(payload, stop, trouble)

    # -- damages ---------------------------------------------------------------------------------

    def _examine(self, position: int, head: bytes) -> Found:
        length = length_of(head)
        stop = position + LENGTH_SIZE + length
        fits = length >= SHORTEST and stop <= self.end
        signed = is_signed(head)
        if fits and (self._leads_on(stop) if signed else self._is_plausible(stop)):
            # The next record has a damaged id or time, or the writer is no nsqd and signs nothing.
            return self._message(position, stop)
        if not SHORTEST <= length <= self._longest:
            trouble = f"invalid message read size ({length})"
        elif not fits:
            trouble = "unexpected EOF"
        else:
            trouble = f"message read size ({length}) leads to no message"
        begin = position + (HEAD_SIZE if signed else 1)
        following = self._next_signed(begin)
        if not signed:
            return Found(None, self.end if following is None else following, trouble)
        if following is not None:
            return self._up_to(position, following, length, fits, trouble)
        if self._whole or not SHORTEST <= length <= self._longest:
            return self._up_to(position, self.end, length, fits, trouble)
        if fits:
            # A crash left other bytes after this message.
            return self._message(position, stop)
        return Found(None, self.end, trouble)

    def _up_to(self, position: int, stop: int, length: int, fits: bool, trouble: str) -> Found:
        """Return the message at ``position`` if one wrong byte in its length explains ``stop``."""
        real = stop - position - LENGTH_SIZE
        if _differ_in_one_byte(length, real):
            return self._message(position, stop, f"{trouble}, should be {real}")
        if fits and position + LENGTH_SIZE + length <= stop:
            # The message is whole, and the damage comes after it.
            return self._message(position, position + LENGTH_SIZE + length)
        return Found(None, stop, trouble)

    def _is_plausible(self, position: int) -> bool:
        """Return True if ``position`` has a possible length whose record ends before ``end``."""
        data = self._bytes(position, LENGTH_SIZE)
        if len(data) < LENGTH_SIZE:
            return False
        length = length_of(data)
        return SHORTEST <= length <= self._longest and position + LENGTH_SIZE + length <= self.end

    def _leads_on(self, position: int) -> bool:
        """Return True if the length at ``position`` leads to a signed record or to the end."""
        if not self._is_plausible(position):
            return False
        stop = position + LENGTH_SIZE + length_of(self._bytes(position, LENGTH_SIZE))
        return stop in (self.end, self._boundary) or is_signed(self._bytes(stop, HEAD_SIZE))

    def _next_signed(self, position: int) -> int | None:
        while self.end - position >= HEAD_SIZE:
            data = self._bytes(position, min(_CHUNK, self.end - position))
            for match in SIGNED.finditer(data):
                if is_signed(data, match.start()):
                    return position + match.start()
            if len(data) < HEAD_SIZE:
                return None
            position += len(data) - HEAD_SIZE + 1
        return None

    def forget(self) -> None:
        """Drop the bytes that were read ahead, because the file was changed there."""
        self._buffer = b""

    def _bytes(self, position: int, size: int) -> bytes:
        """Return ``size`` bytes at ``position``, or fewer if the file ends."""
        start = position - self._base
        if start < 0 or start + size > len(self._buffer):
            wanted = min(max(size, _CHUNK), self.end - position)
            self._buffer = self._file.read(wanted, position) if wanted > 0 else b""
            self._base = position
            if len(self._buffer) < wanted:
                self.end = position + len(self._buffer)
                self._whole = False
            start = 0
        return self._buffer[start : start + size]


def _differ_in_one_byte(one: int, other: int) -> bool:
    difference = (one ^ other) & 0xFFFFFFFF
    return sum(1 for byte in difference.to_bytes(4) if byte) == 1
