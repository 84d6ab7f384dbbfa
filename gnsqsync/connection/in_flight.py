"""In-flight table of one connection: the unanswered messages by id, as nsqd counts them.

Knows what a redelivery does to the first copy, and when nsqd ignores RDY. Must not know commands.

The thread that reads adds messages, and the thread whose ``pop`` succeeds answers one. ``time_out``
frees the slots of messages that a user took and forgot.

Surprise: two copies of a message may be in the table, one under the id and one under itself. nsqd
delivered the message again while a handler held the first copy, and an answer to either copy
answers both.
"""

from __future__ import annotations

from typing import Final

from gnsqsync.errors import ProtocolError
from gnsqsync.message import ANSWERED, BEGUN, TIMED_OUT, Message

__all__ = ["MESSAGE_COST", "MOST_BEYOND", "TIME_OUT_GRACE", "InFlight"]

# Bytes that nsqd may send beyond the allowed RDY before it counts as broken. After a lower RDY, or
# when nsqd resends timed-out messages, both kernels' buffers (10 MB by default) are on the way.
MOST_BEYOND: Final = 64 * 1024 * 1024
# Seconds after its deadline for which nsqd may still accept the FIN of a message. nsqd looks for
# timeouts each 0.1 s at 20 of its channels, so it is late with hundreds of channels; and a TOUCH
# counts from the moment at which nsqd reads it.
TIME_OUT_GRACE: Final = 5.0
# Bytes that a message costs here beside its body, so that many empty bodies are bounded, too.
MESSAGE_COST: Final = 500


class InFlight(dict["bytes | Message", Message]):
    """Messages by id. A copy that nsqd delivered again while a handler held it is its own key.

    nsqd knows a message in flight by its id and consumer, so an answer to any copy answers all
    copies. The latest delivery stands under the id. If the first copy still waits in the queue, the
    redelivery only updates it. If a handler or the user holds the first copy, it stays in the
    table, keyed by the Message object, and counts as in flight. Its answer also removes the latest
    copy, which then does not run.

    No lock: single operations on a dict are atomic, and only the thread that reads adds. The
    thread whose ``pop`` succeeds sends the answer, so two threads cannot both send FIN.
    """

    __slots__ = ("_beyond", "_due")

    def __init__(self) -> None:
        super().__init__()
        # Earliest time at which a message may time out: before it, ``time_out`` returns at once.
        self._due = 0.0
        # Bytes received since the table grew beyond the allowed number of messages.
        self._beyond = 0

    # -- by the thread that reads -------------------------------------------------------------

    def redelivered(self, message: Message, waiting_from: float) -> tuple[bool, bool]:
        """Store a message whose id is in the table. Return (to be handled, is a double).

        A double was not redelivered after a timeout: the first copy was received or touched after
        ``waiting_from`` (seconds), too late to have timed out. nsqd sends doubles after a crash,
        and counts both copies as in flight for ever.
        """
        first = self.get(message._id)
        if first is None:
            # Another thread answered the first copy just now.
            self[message._id] = message
            return True, False
        double = first._touched_at > waiting_from
        if first._status & BEGUN:
            # Order matters: if another thread answers the first copy now, it is neither lost nor
            # kept.
            self[first] = first
            if self.pop(message._id, None) is None:
                self.pop(first, None)
            self[message._id] = message
            return True, double
        first.attempts = message.attempts
        first._received_at = first._touched_at = message._received_at
        if first._status & TIMED_OUT:
            # nsqd had refused a TOUCH of it, and has now delivered it to this connection again.
            first._status = 0
        return False, double

    def check_ceiling(self, had: int, came: list[Message], allowed: int, nsqd: str) -> None:
        """Raise ProtocolError if nsqd goes on sending with more than ``allowed`` messages here.

        ``came``: the messages just added. ``had``: the size of the table before. A healthy nsqd
        resends any number of timed-out messages, but stops when it reads the RDY 0 sent for that.
        """
        if had <= allowed:
            self._beyond = 0
        # max(): handlers may have answered some messages since the caller looked.
        over = max(0, len(self) - allowed)
        beyond = came[max(0, len(came) - over) :]
        self._beyond += sum([len(message.body) + MESSAGE_COST for message in beyond])
        if self._beyond <= MOST_BEYOND:
            return
        # Messages may all time out at once, so nsqd may send again as many bytes as it was allowed.
        granted = sum([len(m.body) + MESSAGE_COST for m in list(self.values())[:allowed]])
        if self._beyond > granted:
            raise ProtocolError(
                f"{nsqd} ignores RDY: it was allowed {allowed} unanswered messages, and while"
                f" they were there {self._beyond} bytes more came ({len(self)} messages in all);"
                f" {max(MOST_BEYOND, granted)} bytes may be on their way"
            )

    # -- from any thread -----------------------------------------------------------------------

    def holds(self, message: Message) -> bool:
        """Return True if an answer to this copy would answer a message in flight."""
        return self.get(message._id) is message or (message in self and message._id in self)

    def take(self, message: Message) -> bool:
        """Remove a message and the copy under its id. Return True if the caller must answer it."""
        if message._status & (TIMED_OUT | ANSWERED):
            self.forget(message)
            return False
        taken = self.pop(message._id, None)
        return taken is message or self.take_copies(message, taken)

    def take_copies(self, message: Message, taken: Message | None) -> bool:
        """Finish ``take`` for a copy that was replaced under its id by ``taken``."""
        if self.pop(message, None) is None:
            # The message was answered before, and ``taken`` was delivered after that.
            if taken is not None:
                self[message._id] = taken
            return False
        if taken is None:
            # The latest copy was answered, or timed out.
            message._status |= TIMED_OUT
            return False
        taken._status |= TIMED_OUT
        return True

    def time_out(self, now: float) -> int:
        """Remove the messages that were held for longer than nsqd waits. Return their count.

        Called often, by the timer. Returns at once while no message is due.
        """
        if now < self._due or not self:
            return 0
        messages = list(self.values())
        responder = messages[0]._responder
        # Messages that arrive from now on cannot time out before this.
        due = now + min(responder.msg_timeout, responder.max_msg_timeout) + TIME_OUT_GRACE
        count = 0
        for message in messages:
            over_at = message.deadline + TIME_OUT_GRACE
            if over_at <= now and message._status & BEGUN:
                message._status |= TIMED_OUT
                self.forget(message)
                count += 1
            else:
                due = min(due, over_at)
        self._due = due
        return count

    def forget(self, message: Message) -> None:
        """Free the slot of a message that timed out or was answered through its copy."""
        if self.pop(message, None) is None and self.get(message._id) is message:
            self.pop(message._id, None)
