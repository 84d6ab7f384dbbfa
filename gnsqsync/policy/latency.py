"""How much of its share a connection asks for: little while messages trickle, more in a stream.

Pure arithmetic on counts and moments. Must not know what is sent or received.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["STREAM_BELOW", "STREAM_FROM", "RdyLevel", "Together"]

# Messages a second. The gap is wide, so that one steady rate cannot be on both sides of it.
STREAM_FROM: Final = 1000.0
STREAM_BELOW: Final = 500.0

# A rate is measured over the time that this many messages take at the limit: a tenth or a fifth of
# a second. With fewer, chance would look like a stream, or like its end. Where connections are
# many, each is measured over fewer messages, or it would take too long.
_SAMPLE: Final = 100
_LEAST_SAMPLE: Final = 20
# The rate of all connections together is taken over so many seconds.
_ROUND_SECONDS: Final = 0.2

# In a stream nsqd is to send what it has about so often (seconds), for all connections together:
# at most 500 packets a second.
_BATCH_SECONDS: Final = 0.002
# How often (seconds) it is measured how many messages that are.
_PACE_SECONDS: Final = 0.02
# A longer time is left to nsqd's own timer of 25 ms, and a higher rate (messages a second) to its
# buffer, which is full as soon.
_LONGEST_BATCH: Final = 0.0125
_FULL_FROM: Final = 100_000.0
# More than any share.
_ALL: Final = 1 << 31


class Together:
    """What the connections of a Reader, or of all Readers of a group, receive together.

    Reading threads add to it without a lock: two threads may lose a count, which is less than what
    chance adds.
    """

    __slots__ = ("_count", "_levels", "_rate", "_since")

    def __init__(self) -> None:
        self._levels: set[RdyLevel] = set()
        self._count = 0
        self._since = 0.0
        self._rate = 0.0

    def join(self, level: RdyLevel) -> None:
        """Add a connection; before its first message."""
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
        """Messages a second lately."""
        if now - self._since >= _ROUND_SECONDS:
            self._begin_round(now)
        return self._rate

    def _begin_round(self, now: float) -> None:
        since, self._since = self._since, now
        # Else another thread has done it.
        if now - since >= _ROUND_SECONDS:
            self._rate = self._count / (now - since)
            self._count = 0


class RdyLevel:
    """The RDY of one connection, from 0 to ``share``, the part of max_in_flight it may use.

    nsqd buffers outgoing messages, and sends the buffer when it is full, when a timer ticks (25 to
    250 ms), or when the consumer cannot take more: as many messages in flight as its RDY
    (docs/protocol/flow#output-buffer). So with RDY 100 a lone message waits for the timer, with RDY
    1 it is sent at once. While messages trickle in, this class therefore asks for one more than
    there are in flight ("tight"): each message fills the RDY and is sent without delay. That costs
    one RDY command and one packet a message. So in a stream it asks for more at a time: for as many
    beyond those in flight as come in 2 ms. It asks for the whole share when more than that are in
    flight, which then wait here anyway, when messages come late, and when nsqd sends as often by
    itself: with many connections, or at a high rate.

    A stream begins above STREAM_FROM messages a second and ends below STREAM_BELOW. Tight, nsqd
    sends about one message a round trip, so on a slow network that rate could never be
    reached: after ``set_round_trip()`` half of what is possible counts as a stream. The same holds
    where messages come late: beside a thread that computes, a reading thread waits 5 ms for the
    interpreter's lock.
    With others (``Together``), which may all be busy with less than that, it also is one when
    all together reach the limit and this one has its part of it; a quiet one beside a stream
    stays tight. ``adaptive=False`` asks for the whole share always.

    With a rate limit, and in a turn, ``credit`` is the number of messages that may come beyond
    those in flight; each one that comes takes one off. It is set under the lock of the RDY
    allocator and counted down by the thread that reads: where both meet, the next one who sets it
    puts it right.

    ``share`` may be set by any thread; ``allowed`` is the highest one ever, and so the most that
    nsqd was ever allowed to have in flight here. ``note()`` belongs to the thread that reads and
    ``settle()`` to the timer: each has its own fields, and ``streaming`` is a flag that either
    corrects within one more sample if they set it at the same moment.
    """

    __slots__ = (
        "_adaptive",
        "_batch",
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
        "credit",
        "streaming",
    )

    def __init__(self, adaptive: bool) -> None:
        self._share = 0
        self.allowed: int = 0
        self.streaming: bool = not adaptive
        # None: there is no rate limit.
        self.credit: int | None = None
        self._adaptive = adaptive
        # How many messages at a time, in a stream.
        self._batch = _ALL
        self._limit = STREAM_FROM
        self._round_trip = 0.0
        self._together: Together | None = None
        self._connections = 1
        self._on, self._off, self._sample = STREAM_FROM, STREAM_BELOW, _SAMPLE
        # Of the thread that reads: the sample at hand, and all messages so far.
        self._since = 0.0
        self._count = 0
        self._total = 0
        self._opened_at = 0.0
        self._paced_at = 0.0
        self._paced_total = 0
        # The least age of a newest message, in seconds: in the sample at hand, and ever; and how
        # much more the one is than the other, so how late messages come.
        self._youngest = math.inf
        self._freshest = math.inf
        self._late = 0.0
        # The timer's.
        self._settled_at = 0.0
        self._settled_total = 0

    @property
    def share(self) -> int:
        return self._share

    @share.setter
    def share(self, share: int) -> None:
        # In this order, because the thread that reads the share sends the RDY.
        self.allowed = max(self.allowed, share)
        self._share = share

    @property
    def round_trip(self) -> float:
        """Seconds that nsqd took to answer a command; 0 means unknown."""
        return self._round_trip

    def set_round_trip(self, seconds: float) -> None:
        """Tell how long nsqd takes to answer a command, as measured in the handshake (seconds).

        It matters above 0.5 ms; 0 means unknown. Call it before the first message.
        """
        self._round_trip = seconds
        self._divide()

    def share_limit(self, together: Together, connections: int) -> None:
        """So many connections are judged together, this one among them. By ``together``."""
        self._connections = connections
        self._together = together if connections > 1 else None
        self._divide()

    def _divide(self) -> None:
        # By those that join and by the thread that reads: what one writes over the other comes
        # right with the next sample.
        delay = max(self._round_trip, self._late)
        self._limit = min(STREAM_FROM, 0.5 / delay) if delay > 0 else STREAM_FROM
        self._on = min(self._limit, STREAM_FROM / self._connections)
        self._off = self._on * (STREAM_BELOW / STREAM_FROM)
        self._sample = max(_LEAST_SAMPLE, _SAMPLE // self._connections)

    def wanted(self, in_flight: int) -> int:
        """The RDY to have with so many messages in flight. For every send; never above share.

        0 if more than the share are in flight. nsqd stops counting messages that time out while
        they wait here. It would fill their places for ever, with messages that time out in the same
        queue.
        """
        share, credit = self._share, self.credit
        if credit is not None and in_flight + credit < share:
            share = in_flight + credit
        if in_flight >= share:
            return share if in_flight == share else 0
        if not self.streaming:
            return in_flight + 1
        batch = self._batch
        return share if in_flight > batch else min(share, in_flight + batch)

    def note(self, now: float, count: int, age: float = 0.0) -> None:
        """``count`` messages arrived. For every recv; by the thread that reads.

        ``age``: seconds since the newest of them was published. Its publish and ``now`` are of two
        clocks, so only how it changes means something.
        """
        self._total += count
        if self.credit is not None:
            self.credit = max(0, self.credit - count)
        if self._together is not None:
            self._together.add(now, count)
        if self._share == 1:
            return  # tight or not, it is 1
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
        """Set the batch by the rate since the last time."""
        rate = (self._total - self._paced_total) / (now - self._paced_at)
        self._paced_at, self._paced_total = now, self._total
        # A batch that takes less than some round trips would hold the stream up.
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
        """How late the sample's messages came, at least: a pause that passes is none."""
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
        """End the stream if it is over: then flush, as RDY is lower. Returns whether one goes on.

        Call it about every 100 ms until it returns False, also with nothing in flight: after the
        last message of a stream there is no ``note()`` any more.
        """
        if not self._adaptive or not self.streaming:
            return False
        total = self._total
        elapsed = now - self._settled_at
        if self._settled_at < self._opened_at:
            # The first look at this stream: measure from here.
            self._settled_at, self._settled_total = now, total
        elif elapsed * self._off >= self._sample:
            if self._ends(now, elapsed, total - self._settled_total):
                self.streaming = False
            self._settled_at, self._settled_total = now, total
        return self.streaming
