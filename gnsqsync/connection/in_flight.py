"""The messages of one connection that nobody has answered, under their ids, as nsqd counts them.

Knows what a redelivery does to the first copy, and how much is too much. Must not know commands.
"""

from __future__ import annotations

from typing import Final

from gnsqsync.errors import ProtocolError
from gnsqsync.message import ANSWERED, BEGUN, TIMED_OUT, Message

__all__ = ["MESSAGE_COST", "MOST_BEYOND", "TIME_OUT_GRACE", "InFlight"]

# Bytes that may come while as many messages are in flight as RDY has allowed. That much may be on
# its way when RDY is lowered, or when nsqd takes back what has timed out and sends other messages:
# the buffers of the two kernels, 10 MB by default.
MOST_BEYOND: Final = 64 * 1024 * 1024
# For so long (seconds) after its deadline a FIN may still be accepted: nsqd looks for what has
# timed out each 0.1 s, at 20 of its channels, so with hundreds of them it comes late; and a TOUCH
# counts from when nsqd has read it, which is later than it was sent.
TIME_OUT_GRACE: Final = 5.0
# What a message takes here beside its body, in bytes: so that the number is bounded, too.
MESSAGE_COST: Final = 500


class InFlight(dict["bytes | Message", Message]):
    """Message by id. One that nsqd delivered again while somebody had it is there under itself.

    nsqd knows a message in flight by its id and its consumer: an answer to any copy here answers
    all. So the latest delivery stands under the id. A copy that waits for its turn is
    brought up to date by a redelivery, and stays the only one. One that a handler or the user
    has goes on and still counts; its answer takes the latest copy along, which then does not run.

    Lock-free on purpose: single operations on a dict are atomic. Only the thread that reads adds.
    The thread whose ``pop`` succeeds answers, so two threads cannot both send FIN.
    """

    __slots__ = ("_beyond", "_due")

    def __init__(self) -> None:
        super().__init__()
        # Before that, nothing times out.
        self._due = 0.0
        # Bytes that came since there were more than allowed.
        self._beyond = 0

    # -- by the thread that reads -------------------------------------------------------------

    def redelivered(self, message: Message, waiting_from: float) -> tuple[bool, bool]:
        """Take in one whose id is there. Whether it is to be handled, and whether it is a double.

        A double is no redelivery: the copy before came after ``waiting_from`` (seconds), too late
        to have timed out. nsqd has such after a crash, and counts both for ever.
        """
        first = self.get(message._id)
        if first is None:
            # Answered just now.
            self[message._id] = message
            return True, False
        double = first._touched_at > waiting_from
        if first._status & BEGUN:
            # In this order, an answer by another thread meanwhile neither loses nor keeps it.
            self[first] = first
            if self.pop(message._id, None) is None:
                self.pop(first, None)
            self[message._id] = message
            return True, double
        first.attempts = message.attempts
        first._received_at = first._touched_at = message._received_at
        if first._status & TIMED_OUT:
            # nsqd refused a TOUCH of it, and now it is ours again.
            first._status = 0
        return False, double

    def check_ceiling(self, had: int, came: list[Message], allowed: int, nsqd: str) -> None:
        """ProtocolError when nsqd ignores RDY. After ``came``, with more than ``allowed`` here.

        ``had``: how many there were before. A healthy nsqd sends as many as it likes of what
        timed out here, but stops when it has read the RDY 0 that it is sent for that.
        """
        if had <= allowed:
            self._beyond = 0
        # Handlers may have answered some in this moment.
        over = max(0, len(self) - allowed)
        beyond = came[max(0, len(came) - over) :]
        self._beyond += sum([len(message.body) + MESSAGE_COST for message in beyond])
        if self._beyond <= MOST_BEYOND:
            return
        # Where bodies are large: as much again as was allowed, since as much can time out.
        granted = sum([len(m.body) + MESSAGE_COST for m in list(self.values())[:allowed]])
        if self._beyond > granted:
            raise ProtocolError(
                f"{nsqd} ignores RDY: it was allowed {allowed} unanswered messages, and while"
                f" they were there {self._beyond} bytes more came ({len(self)} messages in all);"
                f" {max(MOST_BEYOND, granted)} bytes may be on their way"
            )

    # -- from any thread -----------------------------------------------------------------------

    def holds(self, message: Message) -> bool:
        """Whether an answer to this copy would be one to a message in flight."""
        return self.get(message._id) is message or (message in self and message._id in self)

    def take(self, message: Message) -> bool:
        """Take it out, and with it the copy under its id. Where that succeeds, answer it."""
        if message._status & (TIMED_OUT | ANSWERED):
            self.forget(message)
            return False
        taken = self.pop(message._id, None)
        return taken is message or self.take_copies(message, taken)

    def take_copies(self, message: Message, taken: Message | None) -> bool:
        """``message`` is to be answered, and this was found under its id in its place."""
        if self.pop(message, None) is None:
            # It was answered before, and ``taken`` is a delivery after that.
            if taken is not None:
                self[message._id] = taken
            return False
        if taken is None:
            # The copy was answered, or timed out.
            message._status |= TIMED_OUT
            return False
        taken._status |= TIMED_OUT
        return True

    def time_out(self, now: float) -> int:
        """Let go of what somebody has had for longer than nsqd waits; how many.

        By the timer, often; cheap while none is due.
        """
        if now < self._due or not self:
            return 0
        messages = list(self.values())
        responder = messages[0]._responder
        # What comes from now on.
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
        """It timed out, or went with its copy: its slot is free."""
        if self.pop(message, None) is None and self.get(message._id) is message:
            self.pop(message._id, None)
