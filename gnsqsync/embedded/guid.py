"""Message ids: 16 hex digits that rise within a topic (docs/protocol/publishing#ids).

Knows arithmetic only; the wall clock comes as an argument.
"""

from __future__ import annotations

__all__ = ["GuidFactory", "millis_of"]

_EPOCH = 1288834974288
_SEQUENCE_LIMIT = 4096


class GuidFactory:
    """The ids of one topic.

    nsqd gives 4096 ids per 1.05 ms and then waits. This factory takes ids of the next milliseconds
    instead, so that it never blocks. Ids still rise and never repeat.
    """

    __slots__ = ("_millis", "_node_bits", "_sequence")

    def __init__(self, node_id: int) -> None:
        self._node_bits = node_id << 12
        self._millis = 0
        self._sequence = 0

    def new_id(self, wall_ns: int) -> bytes:
        """Return the next id. ``wall_ns`` is in nanoseconds since the epoch."""
        millis = wall_ns >> 20
        if millis > self._millis:
            self._millis = millis
            self._sequence = 0
        else:  # the same millisecond, a clock that stepped back, or ids taken in advance
            self._sequence += 1
            if self._sequence == _SEQUENCE_LIMIT:
                self._millis += 1
                self._sequence = 0
        value = (self._millis - _EPOCH) << 22 | self._node_bits | self._sequence
        return b"%016x" % value


def millis_of(id: bytes) -> int:
    """Return the time in an id, in units of 2**20 ns since the epoch. ValueError for no id."""
    return (int(id, 16) >> 22) + _EPOCH
