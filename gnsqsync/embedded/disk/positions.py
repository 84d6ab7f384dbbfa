"""The meta file of a queue, and the names of its files. Text only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["FileNames", "Positions"]

_META = re.compile(rb"(-?[0-9]{1,19})\n([0-9]{1,19}),([0-9]{1,19})\n([0-9]{1,19}),([0-9]{1,19})\n?")
_INT64 = 1 << 63


class Positions(NamedTuple):
    """The content of the meta file. The next read is at ``read_position`` of ``read_number``."""

    depth: int
    read_number: int
    read_position: int
    write_number: int
    write_position: int

    def text(self) -> bytes:
        return b"%d\n%d,%d\n%d,%d\n" % self

    @classmethod
    def parse(cls, text: bytes) -> Positions | None:
        """Return None if the text is no meta file, or its positions are impossible."""
        match = _META.fullmatch(text)
        if match is None:
            return None
        found = cls(*map(int, match.groups()))
        if max(found) >= _INT64 or found.read > found.write:
            return None
        return found

    @property
    def read(self) -> tuple[int, int]:
        return (self.read_number, self.read_position)

    @property
    def write(self) -> tuple[int, int]:
        return (self.write_number, self.write_position)


class FileNames:
    """The names of the files of one queue: nsqd's ``TOPIC`` or ``TOPIC:CHANNEL``."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.beginning: str = f"{queue}.diskqueue."
        self.meta: str = f"{self.beginning}meta.dat"
        # nsqd uses a random number in place of the 0. Each rewrite here truncates the same file.
        self.new_meta: str = f"{self.meta}.0.tmp"
        # The whole name must match: the files of topic "t.diskqueue.x" begin like those of "t".
        escaped = re.escape(self.beginning)
        self._data = re.compile(escaped + r"([0-9]{6,19})\.dat")
        self._leftover = re.compile(escaped + r"meta\.dat\.[0-9]+\.tmp")

    def data(self, number: int) -> str:
        return f"{self.beginning}{number:06d}.dat"

    def bad(self, number: int) -> str:
        return f"{self.data(number)}.bad"

    def numbers(self, names: Iterable[str]) -> list[int]:
        """The numbers of the data files among ``names``, in order."""
        matches = (self._data.fullmatch(name) for name in names)
        found = (int(match[1]) for match in matches if match is not None)
        return sorted(number for number in found if number < _INT64)

    def leftovers(self, names: Iterable[str]) -> list[str]:
        """Return the temporary meta files among ``names`` that were never renamed."""
        return [name for name in names if self._leftover.fullmatch(name)]
