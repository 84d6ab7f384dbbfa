"""RDY that a connection asks for: little while messages trickle, up to its share in a stream.

Pure arithmetic on counts and moments. Must not know what is sent or received.

``RdyLevel`` judges one connection; ``JointRate`` tells connections that share one limit whether all
of them together are a stream.

Surprise: for a lone message, RDY 1 is faster than RDY 100. nsqd sends its buffer at once when as
many messages are in flight as RDY allows.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["STREAM_BELOW", "STREAM_FROM", "JointRate", "RdyLevel"]

# Messages a second at which a stream begins.
STREAM_FROM: Final = 1000.0
# Messages a second below which a stream ends. The gap between both is wide, so that one steady rate
# cannot be on both sides.
STREAM_BELOW: Final = 500.0

# Number of messages over which a rate is measured: a tenth or a fifth of a second at the limit.
# With fewer, chance would look like a stream or like its end.
_SAMPLE: Final = 100
# Least number of messages over which each of many connections is measured. With 100 each, it would
# take too long.
_LEAST_SAMPLE: Final = 20
# Seconds over which the rate of all connections together is measured.
_ROUND_SECONDS: Final = 0.2

# Seconds between two sends of nsqd in a stream, over all connections together: 500 packets a
# second.
_BATCH_SECONDS: Final = 0.002
# Seconds between two measurements of the number of messages in that time.
_PACE_SECONDS: Final = 0.02
# Upper bound in seconds of a batch. A longer time is left to nsqd's own timer of 25 ms.
_LONGEST_BATCH: Final = 0.0125
# Messages a second from which on there are no batches: they fill nsqd's buffer as quickly.
_FULL_FROM: Final = 100_000.0
# A batch above any share.
_ALL: Final = 1 << 31


class JointRate:
    """Rate of all connections of a Reader, or of all Readers of a group.

    Reading threads add without a lock: two threads may lose a count, which is less than chance
    adds.
    """

    __slots__ = ("_count", "_levels", "_rate", "_since")

    def __init__(self) -> None:
        # Connections that are judged together.
        self._levels: set[RdyLevel] = set()
        # Messages since the time ``_since``, and the rate of the round before it.
        self._count = 0
        self._since = 0.0
        self._rate = 0.0

    def join(self, level: RdyLevel) -> None:
        """Add a connection, before its first message."""
        self._levels.add(level)
        self._tell_number()

    def leave(self, level: RdyLevel) -> None:
        self._levels.discard(level)
        self._tell_number()

    def _tell_number(self) -> None:
        levels = list(self._levels)
        for level in levels:
            level.share_limit(self, len(levels))

    def add(self, now: float, count: int) -> None:
        self._count += count
        if now - self._since >= _ROUND_SECONDS:
            self._begin_round(now)

    def rate(self, now: float) -> float:
        """Return the recent number of messages a second."""
        if now - self._since >= _ROUND_SECONDS:
            self._begin_round(now)
        return self._rate

    def _begin_round(self, now: float) -> None:
        since, self._since = self._since, now
        # If the condition is false, another thread has begun the round.
        if now - since >= _ROUND_SECONDS:
            self._rate = self._count / (now - since)
            self._count = 0


class RdyLevel:
    """RDY of one connection, from 0 to ``share``, its part of max_in_flight.

    nsqd buffers outgoing messages. It sends the buffer when it is full, when a timer ticks (25 to
    250 ms), or when as many messages are in flight as the RDY of the consumer
    (docs/protocol/flow#output-buffer). With RDY 100, a lone message waits for the timer; with RDY 1
    it is sent at once.

    While messages trickle, this class therefore asks for one more than are in flight ("tight"):
    each message fills the RDY and is sent without delay. That costs one RDY command and one packet
    for each message. In a stream it asks for a batch: as many more as come in 2 ms. It asks for the
    whole share when more than a batch are in flight, which then wait here anyway; when messages
    come late; and when nsqd sends as often by itself, with many connections or at a high rate.

    A stream begins above STREAM_FROM messages a second and ends below STREAM_BELOW. Tight, nsqd
    sends about one message a round trip, so a slow network never reaches that rate. After
    ``set_round_trip()``, half of the possible rate counts as a stream. The same holds where
    messages come late: beside a thread that computes, a reading thread waits 5 ms for the
    interpreter's lock.

    Connections that are judged together (``JointRate``) may all be busy below that limit. They are
    in a stream if all together reach it and this one has its part of the rate. A quiet connection
    beside a stream stays tight. ``adaptive=False`` always asks for the whole share.

    With a rate limit, and in a turn, ``credit`` is the number of messages that may come beyond
    those in flight. The holder of the RDY allocator's lock sets it with ``allow()``, as a total:
    a message that comes during the decision takes one off, as any later message does.

    Any thread may set ``share``. ``allowed`` is the highest share so far, and so the most that nsqd
    was ever allowed to have in flight here. ``note()`` belongs to the thread that reads,
    ``settle()`` to the timer, each with fields of its own. Both set the flag ``streaming``; if they
    do so at the same moment, the next sample corrects it.
    """

    __slots__ = (
        "_adaptive",
        "_batch",
        "_bound",
        "_connections",
        "_count",
        "_freshest",
        "_late",
        "_limit",
        "_off",
        "_on",
        "_opened_at",
        "_paced_at",
        "_paced_total",
        "_round_trip",
        "_sample",
        "_settled_at",
        "_settled_total",
        "_share",
        "_since",
        "_together",
        "_total",
        "_youngest",
        "allowed",
        "streaming",
    )

    def __init__(self, adaptive: bool) -> None:
        self._share = 0
        self.allowed: int = 0
        # True while it asks for batches or for the whole share.
        self.streaming: bool = not adaptive
        # Total of messages at which the credit is used up; None without a credit.
        self._bound: int | None = None
        self._adaptive = adaptive
        # Messages of a batch in a stream.
        self._batch = _ALL
        # Rate at which a lone connection is in a stream, given its round trip and lateness.
        self._limit = STREAM_FROM
        # Seconds that nsqd takes to answer a command; 0 means unknown.
        self._round_trip = 0.0
        # Rate of all connections that are judged together, and their number.
        self._together: JointRate | None = None
        self._connections = 1
        # Rates at which its stream begins and ends, and the number of messages of a sample.
        self._on, self._off, self._sample = STREAM_FROM, STREAM_BELOW, _SAMPLE
        # Fields of the thread that reads: the sample at hand, the total, and the last batch.
        self._since = 0.0
        self._count = 0
        self._total = 0
        self._opened_at = 0.0
        self._paced_at = 0.0
        self._paced_total = 0
        # Least age in seconds of a newest message: in the sample at hand, and ever. The difference
        # tells how late messages come.
        self._youngest = math.inf
        self._freshest = math.inf
        self._late = 0.0
        # Fields of the timer: the time and the total of its last measurement.
        self._settled_at = 0.0
        self._settled_total = 0

    @property
    def share(self) -> int:
        return self._share

    @share.setter
    def share(self, share: int) -> None:
        # Order matters: the thread that sends reads ``share``, and nsqd may then use all of it.
        self.allowed = max(self.allowed, share)
        self._share = share

    @property
    def round_trip(self) -> float:
        """Seconds that nsqd took to answer a command; 0 means unknown."""
        return self._round_trip

    def set_round_trip(self, seconds: float) -> None:
        """Set the seconds that nsqd takes to answer a command, as the handshake measured them.

        Values above 0.5 ms change the limits; 0 means unknown. Call it before the first message.
        """
        self._round_trip = seconds
        self._divide()

    @property
    def credit(self) -> int | None:
        """Number of messages that may come beyond those in flight; None for any number."""
        bound = self._bound
        return None if bound is None else max(0, bound - self._total)

    def allow(self, messages: int | None, received: int = 0) -> None:
        """Set the credit. ``received``: the total of messages from which ``messages`` count."""
        self._bound = None if messages is None else received + messages

    def share_limit(self, together: JointRate, connections: int) -> None:
        """Set the number of connections that are judged together. Called by ``together``."""
        self._connections = connections
        self._together = together if connections > 1 else None
        self._divide()

    def _divide(self) -> None:
        # Threads that join and the thread that reads may overwrite each other's results. The next
        # sample corrects them.
        delay = max(self._round_trip, self._late)
        self._limit = min(STREAM_FROM, 0.5 / delay) if delay > 0 else STREAM_FROM
        self._on = min(self._limit, STREAM_FROM / self._connections)
        self._off = self._on * (STREAM_BELOW / STREAM_FROM)
        self._sample = max(_LEAST_SAMPLE, _SAMPLE // self._connections)

    def wanted(self, in_flight: int) -> int:
        """Return the RDY to have with ``in_flight`` messages, never above share. For each send.

        Returns 0 if more than the share are in flight. nsqd stops counting messages that time out
        while they wait here. It would refill their places for ever, with messages that then time
        out in the same queue.
        """
        share, bound = self._share, self._bound
        if bound is not None and in_flight + bound - self._total < share:
            share = in_flight + max(0, bound - self._total)
        if in_flight >= share:
            return share if in_flight == share else 0
        if not self.streaming:
            return in_flight + 1
        batch = self._batch
        return share if in_flight > batch else min(share, in_flight + batch)

    def note(self, now: float, count: int, age: float = 0.0) -> None:
        """Note that ``count`` messages arrived. For each receive, by the thread that reads.

        ``age``: seconds since the newest of them was published. The two times are of different
        clocks, so only changes of the age have a meaning.
        """
        self._total += count
        if self._together is not None:
            self._together.add(now, count)
        if self._share == 1:
            return  # a share of 1 is the same, tight or not
        self._count += count
        if age < self._youngest:
            self._youngest = age
        if self.streaming and now - self._paced_at >= _PACE_SECONDS:
            self._pace(now, age)
        elapsed = now - self._since
        if self._count < self._sample and elapsed * self._on < self._sample:
            return
        self._judge(now, elapsed)

    def _pace(self, now: float, age: float) -> None:
        """Set the batch from the rate since the last call."""
        rate = (self._total - self._paced_total) / (now - self._paced_at)
        self._paced_at, self._paced_total = now, self._total
        # A batch shorter than a few round trips would hold up the stream.
        delay = max(self._round_trip, age - self._freshest)
        seconds = max(_BATCH_SECONDS * self._connections, 4 * delay)
        by_itself = seconds > _LONGEST_BATCH or rate * self._connections >= _FULL_FROM
        self._batch = max(1, int(rate * seconds)) if self._adaptive and not by_itself else _ALL

    def _judge(self, now: float, elapsed: float) -> None:
        if not self.streaming:
            if self._count >= self._sample and self._begins(now, elapsed):
                self._opened_at = self._paced_at = now
                self._paced_total = self._total
                self._batch = _ALL
                self.streaming = True
        elif elapsed * self._off < self._sample:
            return
        elif self._adaptive and self._ends(now, elapsed, self._count):
            self.streaming = False
        self._since = now
        self._count = 0
        self._learn()

    def _learn(self) -> None:
        """Learn how late messages come: the least lateness in the sample, so one pause is none."""
        self._freshest = min(self._freshest, self._youngest)
        self._late = self._youngest - self._freshest
        self._youngest = math.inf
        self._divide()

    def _begins(self, now: float, elapsed: float) -> bool:
        count, together = self._count, self._together
        if together is None or elapsed * self._limit <= count:
            return elapsed * self._limit <= count
        return elapsed * self._on <= count and together.rate(now) >= STREAM_FROM

    def _ends(self, now: float, elapsed: float, count: int) -> bool:
        if count < elapsed * self._off:
            return True
        together = self._together
        return (
            together is not None
            and count < elapsed * self._limit * (STREAM_BELOW / STREAM_FROM)
            and together.rate(now) < STREAM_BELOW
        )

    def settle(self, now: float) -> bool:
        """End the stream if it is over. Return True if it goes on.

        After the end the caller flushes, as RDY is lower. Call it about every 100 ms until it
        returns False, even with nothing in flight: no ``note()`` follows the last message of a
        stream.
        """
        if not self._adaptive or not self.streaming:
            return False
        total = self._total
        elapsed = now - self._settled_at
        if self._settled_at < self._opened_at:
            # At the first look at a new stream, begin to measure.
            self._settled_at, self._settled_total = now, total
        elif elapsed * self._off >= self._sample:
            if self._ends(now, elapsed, total - self._settled_total):
                self.streaming = False
            self._settled_at, self._settled_total = now, total
        return self.streaming
