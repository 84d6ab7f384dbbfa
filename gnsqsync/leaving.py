"""Connections that take no more messages, and are closed when theirs are answered.

Knows when one is drained; knows nothing of why it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable

from gnsqsync.net.connection import Connection
from gnsqsync.timer import Timer

__all__ = ["Leaving"]

# How long nsqd has to close its side.
_EOF_SECONDS = 1.0


class Leaving:
    """Those of a Reader that goes on without them.

    Lock-free on purpose: only single operations on a set, which are atomic.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._connections: set[Connection] = set()

    def add(self, connections: Iterable[Connection]) -> None:
        """These are sent CLS just now."""
        self._connections.update(connections)

    def look(self) -> None:
        """Have those closed that are drained. From any thread; cheap."""
        if self._connections:
            # Not here: a reading thread cannot close its own connection.
            self._timer.after(0.0, self._close_drained)

    def _close_drained(self) -> None:
        drained = [
            connection
            for connection in list(self._connections)
            if connection.closed or (connection.quiet and not connection.in_flight)
        ]
        self._connections.difference_update(drained)
        for connection in drained:
            connection.close()
            # When nsqd does not end its side.
            self._timer.after(_EOF_SECONDS, connection.cut)
