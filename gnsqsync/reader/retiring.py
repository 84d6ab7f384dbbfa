"""Connections that take no more messages, and are closed when theirs are answered.

Knows when one is drained, and when one is of no more use. Decides nothing about the others.
"""

from __future__ import annotations

from collections.abc import Iterable

from gnsqsync.connection.connection import Connection, State
from gnsqsync.runtime.timer import Timer

__all__ = ["Retiring", "why_useless"]

# How long nsqd has to close its side.
_EOF_SECONDS = 1.0
# An answer to SUB that comes so much later than that to IDENTIFY did not come late by chance ...
_HELD_UP_SECONDS = 0.1
# ... and so long a time without a message makes it worth another SUB.
_QUIET_SECONDS = 2.0
# So many refused answers are no single handlers that were slow.
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

    nsqd counts what a connection has in flight, and a FIN, REQ or TOUCH that it refuses takes
    nothing off. Where the message had timed out, the time-out did. But a message that is there
    twice under one id, as after a crash of nsqd, is answered once; the copy counts until the
    connection ends, and with as many of them as RDY nothing is delivered any more.

    One message that timed out is refused as well, so a few are no sign while messages come. And an
    #ephemeral channel has no copies, as a crash of nsqd ends it, and would end with its connection.
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
    and heartbeats come, but no message: who publishes makes the topic anew. All that shows
    is that the OK came late.
    """
    if connection.end_was_asked or connection.received or connection.sub_delay <= _HELD_UP_SECONDS:
        return False
    return now - connection.connected_at > _QUIET_SECONDS


class Retiring:
    """Those of a Reader that goes on without them.

    Lock-free on purpose: only single operations on a set, which are atomic.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._connections: set[Connection] = set()
        # Whether the timer is going to look.
        self._due = False

    def add(self, connections: Iterable[Connection]) -> None:
        """These are sent CLS just now."""
        self._connections.update(connections)

    def look(self) -> None:
        """Have those closed that are drained. From any thread; cheap."""
        if self._connections and not self._due:
            self._due = True
            # Not here: a reading thread cannot close its own connection.
            self._timer.after(0.0, self._close_drained)

    def _close_drained(self) -> None:
        # Before the look: what is drained behind it is worth another one.
        self._due = False
        drained = [
            connection
            for connection in list(self._connections)
            if connection.is_closed
            or (connection.state is State.DRAINED and not connection.in_flight)
        ]
        self._connections.difference_update(drained)
        for connection in drained:
            connection.close()
            # When nsqd does not end its side.
            self._timer.after(_EOF_SECONDS, connection.cut)
