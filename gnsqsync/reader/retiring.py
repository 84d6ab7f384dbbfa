"""Connections that take no more messages, and are closed when theirs are answered.

Knows when a connection is drained, and when it is of no more use.
"""

from __future__ import annotations

from collections.abc import Iterable

from gnsqsync.connection.connection import Connection, State
from gnsqsync.runtime.timer import Timer

__all__ = ["Retiring", "why_useless"]

# How long nsqd has to close its side.
_EOF_SECONDS = 1.0
# An answer to SUB that comes so much later (seconds) than the one to IDENTIFY is no chance ...
_HELD_UP_SECONDS = 0.1
# ... and after so long (seconds) without a message another SUB is worth it.
_QUIET_SECONDS = 2.0
# So many refused answers are not just a few slow handlers.
_MANY_REFUSED = 5


def why_useless(connection: Connection, now: float) -> str:
    """Why this connection is to be made anew; "" when it is not."""
    if _is_stranded(connection, now):
        return "answered SUB late, as while it deletes a topic, and has sent no message since"
    if _is_choked(connection, now):
        return (
            "refused answers, and may count those messages as in flight for good, which uses up RDY"
        )
    return ""


def _is_choked(connection: Connection, now: float) -> bool:
    """Whether half of its RDY or more may be used up for good, and nothing is in flight.

    nsqd counts the messages in flight on a connection. A FIN, REQ or TOUCH that it refuses does
    not lower that count. If the message had timed out, the timeout lowered it. But after a crash
    nsqd may have a message twice under one id. It can be answered once, and the copy counts until
    the connection ends. With as many copies as RDY, nothing is delivered any more.

    The answer to a message that timed out is refused as well, so a few are no sign while messages
    come. An #ephemeral channel has no copies: a crash of nsqd ends it. It would also end with its
    connection.
    """
    level = connection.level
    if level is None or connection.end_was_asked or connection.in_flight or connection.is_ephemeral:
        return False
    refused = connection.unanswerable
    if now - connection.last_message_at > _QUIET_SECONDS:
        return 0 < level.wanted(0) <= 2 * refused
    return refused >= _MANY_REFUSED and 0 < level.share <= 2 * refused


def _is_stranded(connection: Connection, now: float) -> bool:
    """Whether it may be subscribed to a topic that nsqd has deleted.

    A SUB that comes while nsqd deletes the topic, which takes seconds where its queue is long,
    waits for the end of that and then gets a channel of the old topic. It is answered with OK,
    and heartbeats come, but no message: the next publish makes the topic anew. The only sign is
    that the OK came late.
    """
    if connection.end_was_asked or connection.received or connection.sub_delay <= _HELD_UP_SECONDS:
        return False
    return now - connection.connected_at > _QUIET_SECONDS


class Retiring:
    """Connections that are closing, of a Reader that goes on.

    Lock-free on purpose: only single operations on a dict, which are atomic.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._connections: dict[Connection, None] = {}
        # Whether the timer is going to look.
        self._due = False

    def add(self, connections: Iterable[Connection]) -> None:
        """These are sent CLS just now."""
        self._connections.update(dict.fromkeys(connections))

    def look(self) -> None:
        """Have those closed that are drained. From any thread; cheap."""
        if self._connections and not self._due:
            self._due = True
            # Not here: a reading thread cannot close its own connection.
            self._timer.after(0.0, self._close_drained)

    def _close_drained(self) -> None:
        # Before the look: a connection that is drained after it needs another one.
        self._due = False
        drained = [
            connection
            for connection in list(self._connections)
            if connection.is_closed
            or (connection.state is State.DRAINED and not connection.in_flight)
        ]
        for connection in drained:
            self._connections.pop(connection, None)
            connection.close()
            # When nsqd does not end its side.
            self._timer.after(_EOF_SECONDS, connection.cut)
