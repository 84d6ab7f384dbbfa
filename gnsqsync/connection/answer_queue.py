"""Queue of answers to messages on their way to one nsqd: FIN, REQ, TOUCH, and RDY.

Knows the RDY that the connection asks for. Must not know received frames or publishes.

Any thread appends answers. Each write takes all of them: a lower RDY, then REQ and TOUCH, then the
FINs as one piece, then a higher RDY.

Surprise: RDY is in no list. Each write compares the wanted RDY with the last one sent, so a change
that is undone in time never leaves.
"""

from __future__ import annotations

from collections.abc import Callable

from gnsqsync.connection.send_queue import SendQueue
from gnsqsync.connection.stream import Stream
from gnsqsync.errors import ConnectionLost
from gnsqsync.policy.latency import RdyLevel
from gnsqsync.runtime import Runtime
from gnsqsync.wire import commands

__all__ = ["AnswerQueue"]

# Upper bound of unsent answers. An nsqd that has stopped reading also stops sending as soon as RDY
# messages are in flight, and RDY is never that high.
_MOST_WAITING = 100_000


class AnswerQueue(SendQueue):
    """The outgoing side of a subscribed connection.

    Any thread appends to ``fins``. ``_lock`` also guards ``rdy_sent``, ``finished`` and
    ``requeued``.

    RDY is a level, not a queued command. The sender compares the wanted RDY with the last one
    sent, so two racing decisions cannot arrive in the wrong order, and repeats vanish.
    """

    def __init__(
        self,
        stream: Stream,
        runtime: Runtime,
        *,
        level: RdyLevel,
        in_flight: Callable[[], int],
        stall_timeout: float,
    ) -> None:
        super().__init__(stream, runtime, stall_timeout=stall_timeout)
        # Ids of messages to FIN, written as one piece after the commands.
        self.fins: list[bytes] = []
        # Last RDY written.
        self.rdy_sent: int = 0
        # Counts of FIN and REQ written.
        self.finished: int = 0
        self.requeued: int = 0
        self._level = level
        self._in_flight = in_flight

    @property
    def has_unsent(self) -> bool:
        if self.commands or self.fins or self._unsent is not None:
            return True
        return self._level.wanted(self._in_flight()) != self.rdy_sent

    def _write(self, until: float) -> bool:
        if self._unsent is not None and not self._push(until):
            return False
        # FINs are copied first, so that a TOUCH appended before a FIN is also written before it.
        ids = self.fins[:]
        del self.fins[: len(ids)]
        parts = self.commands[:]
        if parts:
            del self.commands[: len(parts)]
            self.requeued += sum(part.startswith(b"REQ ") for part in parts)
        wanted = self._level.wanted(self._in_flight())
        if wanted < self.rdy_sent:
            # A lower RDY goes before the answers, or nsqd fills the room that they make.
            parts.insert(0, commands.rdy(wanted))
            self.rdy_sent = wanted
        if ids:
            parts.append(b"FIN " + b"\nFIN ".join(ids) + b"\n")
            self.finished += len(ids)
        if wanted > self.rdy_sent:
            parts.append(commands.rdy(wanted))
            self.rdy_sent = wanted
        if parts:
            return self._send(parts[0] if len(parts) == 1 else b"".join(parts), until)
        return True

    def _check_stall(self, now: float) -> None:
        super()._check_stall(now)
        waiting = len(self.commands) + len(self.fins)
        if waiting > _MOST_WAITING:
            raise ConnectionLost(f"nsqd sends and does not read: {waiting} answers wait")
