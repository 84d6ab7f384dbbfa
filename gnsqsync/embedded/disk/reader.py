"""The messages of one data file, also of a damaged one. Knows records and an open file.

A record is taken as it stands when another one, or the end, follows it. Otherwise something is
damaged, and what is signed decides what that is (see records). ``.bad`` files, numbers and
positions are the queue's affair.
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
    """A message, or a piece of the file that is none (``payload`` None), and where it stops.

    ``trouble`` says what is wrong; a message may have one, too: its length is repaired then.
    """

    payload: bytes | None
    stop: int
    trouble: str = ""


class FileReader:
    """Reads one file from its records' begin to ``end``.

    ``end`` may be raised while the file grows. ``whole``: the last record stops there for sure, as
    the one who wrote it says. ``boundary``: a record is known to stop at this position, and what
    comes after it may be anything. ``longest``: the largest length that is believed without a
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
        """What begins at ``position``, which is before ``end``. OSError when it cannot be read.

        Lowers ``end`` when the file is shorter.
        """
        end = self.end
        found = self._find(position)
        # What was found before that was known may be wrong.
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

    # -- what follows is not as it should be -----------------------------------------------------

    def _examine(self, position: int, head: bytes) -> Found:
        length = length_of(head)
        stop = position + LENGTH_SIZE + length
        fits = length >= SHORTEST and stop <= self.end
        signed = is_signed(head)
        if fits and (self._leads_on(stop) if signed else self._is_plausible(stop)):
            # The next one's id or time is damaged; or the messages are not of an nsqd.
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
            # A crash left something after it.
            return self._message(position, stop)
        return Found(None, self.end, trouble)

    def _up_to(self, position: int, stop: int, length: int, fits: bool, trouble: str) -> Found:
        """The message at ``position`` if one wrong byte in its length explains all."""
        real = stop - position - LENGTH_SIZE
        if _differ_in_one_byte(length, real):
            return self._message(position, stop, f"{trouble}, should be {real}")
        if fits and position + LENGTH_SIZE + length <= stop:
            # What is damaged comes after it.
            return self._message(position, position + LENGTH_SIZE + length)
        return Found(None, stop, trouble)

    def _is_plausible(self, position: int) -> bool:
        """Whether a length stands there that may be one, and its record fits."""
        data = self._bytes(position, LENGTH_SIZE)
        if len(data) < LENGTH_SIZE:
            return False
        length = length_of(data)
        return SHORTEST <= length <= self._longest and position + LENGTH_SIZE + length <= self.end

    def _leads_on(self, position: int) -> bool:
        """Whether the length there leads to a record, or to the end."""
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
        """What was read ahead may have been written anew."""
        self._buffer = b""

    def _bytes(self, position: int, size: int) -> bytes:
        """The bytes of the file there; fewer when it ends."""
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
