"""Connections that take no more messages, and are closed when their messages are answered.

Knows when a connection is drained, and when it has become useless.

``why_useless`` finds such a connection. ``Retiring`` keeps it until nsqd has answered CLS and each
message is answered.

Surprise: a connection can look healthy and be useless. After a SUB to a topic that nsqd was
deleting, nsqd sends heartbeats and never a message.
"""

from __future__ import annotations

from collections.abc import Iterable

from gnsqsync.connection.link import State
from gnsqsync.connection.subscribed import SubscribedConnection
from gnsqsync.runtime.timer import Timer

__all__ = ["Retiring", "why_useless"]

# Seconds that nsqd has to close its side.
_EOF_SECONDS = 1.0
# Seconds beyond a round trip after which an answer to SUB is suspicious.
_HELD_UP_SECONDS = 0.1
# Seconds without a message after which a connection with a suspicious SUB is replaced.
_QUIET_SECONDS = 2.0
# Number of refused answers that cannot come from a few slow handlers only.
_MANY_REFUSED = 5


def why_useless(connection: SubscribedConnection, now: float) -> str:
    """Return why this connection must be replaced, or "" if it is useful."""
    if _is_stranded(connection, now):
        return "answered SUB late, as while it deletes a topic, and has sent no message since"
    if _is_choked(connection, now):
        return (
            "refused answers, and may count those messages as in flight for good, which uses up RDY"
        )
    return ""


def _is_choked(connection: SubscribedConnection, now: float) -> bool:
    """Return True if half of its RDY may be used up for good, with nothing in flight.

    nsqd counts the messages in flight on a connection. A FIN, REQ or TOUCH that it refuses does
    not lower that count. If the message had timed out, the timeout lowered it. But after a crash
    nsqd may have a message twice under one id. It can be answered once, and the copy counts until
    the connection ends. With as many copies as RDY, nothing is delivered any more.

    nsqd also refuses the answer to a message that timed out, so a few refusals mean little while
    messages come. An #ephemeral channel has no copies, because a crash of nsqd ends it. It would
    also end with its connection.
    """
    level = connection.level
    if connection.end_was_asked or connection.in_flight or connection.is_ephemeral:
        return False
    refused = connection.unanswerable
    if now - connection.last_message_at > _QUIET_SECONDS:
        return 0 < level.wanted(0) <= 2 * refused
    return refused >= _MANY_REFUSED and 0 < level.share <= 2 * refused


def _is_stranded(connection: SubscribedConnection, now: float) -> bool:
    """Return True if it may be subscribed to a topic that nsqd has deleted.

    nsqd needs seconds to delete a topic with a long queue. A SUB in that time waits for the end of
    the deletion, and then gets a channel of the old topic. nsqd answers it with OK and sends
    heartbeats, but no message, because the next publish creates the topic anew. The late OK is the
    only sign.
    """
    if connection.end_was_asked or connection.received or connection.sub_delay <= _HELD_UP_SECONDS:
        return False
    return now - connection.connected_at > _QUIET_SECONDS


class Retiring:
    """Connections that are closing, of a Reader that goes on.

    No lock: only single operations on a dict, which are atomic.
    """

    def __init__(self, timer: Timer) -> None:
        self._timer = timer
        self._connections: dict[SubscribedConnection, None] = {}
        # True while the timer has a look to do.
        self._due = False

    def add(self, connections: Iterable[SubscribedConnection]) -> None:
        """Add connections that are sent CLS now."""
        self._connections.update(dict.fromkeys(connections))

    def look(self) -> None:
        """Make the timer close the drained ones. From any thread; cheap."""
        if self._connections and not self._due:
            self._due = True
            # Done by the timer, because a reading thread cannot close its own connection.
            self._timer.after(0.0, self._close_drained)

    def _close_drained(self) -> None:
        # Cleared before the look, so that a connection that drains later gets another one.
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
            # Cut it if nsqd does not close its side.
            self._timer.after(_EOF_SECONDS, connection.cut)
