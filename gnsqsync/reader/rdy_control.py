"""How the live connections of a Reader share max_in_flight, and when all of them back off.

Holds the policy objects. Takes no lock and sends nothing: the Subscription does both.
"""

from __future__ import annotations

import random
from collections import Counter

from gnsqsync.addresses import Address
from gnsqsync.connection.connection import Connection
from gnsqsync.policy.backoff import Backoff, Phase, Rule
from gnsqsync.policy.latency import Together
from gnsqsync.policy.rate import RateLimit
from gnsqsync.policy.rdy import Load, RdyAllocator
from gnsqsync.policy.rdy_turns import MOST_MESSAGES
from gnsqsync.reader.counters import counts_of
from gnsqsync.reader.options import ReaderOptions
from gnsqsync.reader.retiring import why_useless

__all__ = ["SILENT_SECONDS", "UNCONNECTED", "RdyControl", "Silence"]

# Upper bound of the seconds that a lowered RDY counts as used, until nsqd has it.
_TRANSIT_SECONDS = 0.1

# A shorter time without RDY is nothing to talk about.
SILENT_SECONDS = 30.0

# The reason that an outage may have told before.
UNCONNECTED = "no nsqd is connected"


class Silence:
    """Tells once of each reason why all RDY is 0. Not thread-safe: the owner holds a lock."""

    def __init__(self) -> None:
        self._reason = ""
        self._since = 0.0
        self._told = False

    def note(self, reason: str, now: float) -> float | None:
        """``reason``: why no nsqd may send, "" when one may.

        Returns for how many seconds it has been so, when it is time to say it; else None.
        """
        if reason != self._reason:
            self._reason, self._since, self._told = reason, now, False
        if not reason or self._told or now - self._since < SILENT_SECONDS:
            return None
        self._told = True
        return now - self._since


class RdyControl:
    """The table of live connections, the RDY allocator and the backoff.

    Every method is called under the lock of the Subscription, which guards the allocator and the
    backoff, too; their attributes may be read without it. What changes anything returns the
    connections to flush after the lock, lowered ones first.
    """

    def __init__(
        self, flow: ReaderOptions, together: Together, rng: random.Random, *, lends: bool
    ) -> None:
        """``lends``: whether the worker may read from the one connection that may send."""
        self._lends = lends
        self.connections: dict[Address, Connection] = {}
        self._together = together
        # The counts of connections that are gone.
        self._past: Counter[str] = Counter()
        # Said once: that there are more nsqds than max_in_flight.
        self._told_crowd = False
        self._silence = Silence()
        self.allocator: RdyAllocator[Address] = RdyAllocator(
            flow.initial_max_in_flight,
            low_rdy_idle_timeout=flow.low_rdy_idle_timeout,
            low_rdy_timeout=flow.low_rdy_timeout,
            rng=rng,
            transit=_TRANSIT_SECONDS,
            # A rate limit divides its tokens anew after each message.
            most_messages=MOST_MESSAGES if flow.rate_limit is None else 1,
        )
        every_failure = flow.backoff == "every_failure"
        self.backoff: Backoff = Backoff(
            flow.max_backoff_duration,
            flow.backoff_multiplier,
            flow.backoff_strategy,
            rng,
            Rule.EVERY_FAILURE if every_failure else Rule.OUTAGES,
        )
        # The limit that the user wishes. The allocator's is lower while the backoff grows.
        self.max_in_flight: int = flow.initial_max_in_flight
        self.backoff.whole = self.max_in_flight
        self._rate: RateLimit | None = None
        if flow.rate_limit is not None:
            self._rate = RateLimit(flow.rate_limit, flow.burst)
        # How many messages the rate limit knows of, and when it has more to give; None: never.
        self._counted = 0
        self.rate_at: float | None = None

    def plan(self, now: float) -> list[Connection]:
        """Share max_in_flight anew, and what the rate limit allows."""
        changed = self._share(now)
        return changed if self._rate is None else self._grant(self._rate, now)

    def _share(self, now: float) -> list[Connection]:
        limit = self.backoff.limit
        self.allocator.phase = self.backoff.phase
        self.allocator.max_in_flight = (
            self.max_in_flight if limit is None else min(limit, self.max_in_flight)
        )
        loads = {}
        for address, connection in self.connections.items():
            # In this order: a message is in the table before it is counted.
            received = connection.received
            loads[address] = Load(len(connection.in_flight), connection.last_message_at, received)
        changes = self.allocator.update(now, loads)
        freed = [] if self._rate is not None else self._bound_turns()
        changed = []
        for address, rdy in changes:
            connection = self.connections[address]
            if not connection.end_was_asked and connection.level is not None:
                connection.level.share = rdy
                changed.append(connection)
        # Who reads from one connection does not see what comes on another one, nor fetches the
        # next message while a handler runs. After the one message of a turn nothing would come.
        if self._lends:
            alone = len(self.connections) == 1 and not self.allocator.one_message
            for connection in self.connections.values():
                level = connection.level
                connection.lends = alone and level is not None and level.share == 1
        return changed + freed

    def _bound_turns(self) -> list[Connection]:
        """Allow each turn its messages, so that RDY 0 leaves before the answer to the last one.

        Return the connections that are allowed more than that again.
        """
        begun, takes_turns = self.allocator.begun, self.allocator.takes_turns
        freed = []
        for address, connection in self.connections.items():
            level = connection.level
            if level is None:
                continue
            if not takes_turns:
                if level.credit is not None:
                    level.credit = None
                    freed.append(connection)
            elif address in begun:
                level.credit = begun[address]
            elif level.credit is None:
                level.credit = 0
        return freed

    def _grant(self, rate: RateLimit, now: float) -> list[Connection]:
        """Divide the tokens over the connections that may send; all whose RDY changes.

        Each gets one at least, since nobody knows which of them has messages: so with more nsqds
        than tokens, a message more than allowed may come from each. The next ones come later then.
        """
        received = self.received
        rate.take(received - self._counted, now)
        self._counted = received
        tokens = rate.tokens(now)
        sharing = [c for c in self.connections.values() if c.level is not None and c.level.share]
        each, more = divmod(tokens, len(sharing) or 1)
        for number, connection in enumerate(sharing):
            if connection.level is not None:
                granted = max(each + (number < more), 1) if tokens else 0
                if self.allocator.takes_turns:
                    granted = min(granted, self.allocator.turn_left(connection.address))
                connection.level.credit = granted
        self.rate_at = rate.next_at(now) if sharing and not tokens else None
        changed = []
        for connection in self.connections.values():
            if connection.level is not None and not connection.end_was_asked:
                level = connection.level.wanted(len(connection.in_flight))
                change = level - connection.send_queue.rdy_sent
                if change:
                    changed.append((change > 0, connection))
        return [connection for _, connection in sorted(changed, key=lambda pair: pair[0])]

    def hand_over(self) -> None:
        """Let queued messages reach handlers, or let none, as the backoff has it now."""
        held = self.backoff.gives_back
        for connection in self.connections.values():
            connection.hold_back(held)

    @property
    def turns_go_on(self) -> bool:
        """True while each slot has a turn in which more messages may come. Takes no lock.

        An answer then changes nobody's RDY.
        """
        if not self.allocator.takes_turns:
            return False
        levels = [connection.level for connection in list(self.connections.values())]
        going_on = [level for level in levels if level is not None and level.share and level.credit]
        return len(going_on) >= self.allocator.max_in_flight

    def is_used_up(self, connection: Connection) -> bool:
        """Whether this one needs a new part of what the rate limit allows. Without a lock."""
        return connection.level is not None and connection.level.credit == 0

    # -- connections that come and go ----------------------------------------------------------

    def join(self, connection: Connection, now: float) -> list[Connection]:
        self.connections[connection.address] = connection
        if connection.level is not None:
            self._together.join(connection.level)
        round_trip = 0.0 if connection.level is None else connection.level.round_trip
        self.allocator.add(connection.address, connection.negotiated.max_rdy_count, now, round_trip)
        return self.plan(now)

    def leave(self, address: Address, now: float) -> list[Connection]:
        """No messages from there any more, while those in flight are answered."""
        self.allocator.retire(address)
        return self.plan(now)

    def leave_useless(self, now: float) -> list[tuple[Connection, str]]:
        """The connections to be made anew, and why; ``plan()`` then."""
        useless = []
        for connection in self.connections.values():
            if why := why_useless(connection, now):
                self.allocator.retire(connection.address)
                useless.append((connection, why))
        return useless

    def lose(self, connection: Connection, now: float) -> list[Connection] | None:
        """It ended, and counts for the totals. None if it is not in the table."""
        self._past.update(counts_of(connection))
        if connection.level is not None:
            self._together.leave(connection.level)
        address = connection.address
        if self.connections.get(address) is not connection:
            return None
        del self.connections[address]
        self.allocator.remove(address)
        return self.plan(now)

    def lend(self, slots: int, now: float, *, one_message: bool) -> None:
        """Take the part of a group's limit; ``one_message``: until one has come.

        ``plan()`` then.
        """
        self.max_in_flight = slots
        self.allocator.lend(slots, one_message=one_message)
        if slots:
            self._silence.note("", now)

    @property
    def round_trip(self) -> float:
        """Seconds that the slowest nsqd took to answer a command; 0 means unknown."""
        trips = [c.level.round_trip for c in self.connections.values() if c.level is not None]
        return 0.0 if 0.0 in trips else max(trips, default=0.0)

    def is_new_crowd(self) -> bool:
        """Whether there are more connections than max_in_flight; True once."""
        crowd = len(self.connections) > self.max_in_flight > 0 and not self._told_crowd
        self._told_crowd = self._told_crowd or crowd
        return crowd

    # -- looking -------------------------------------------------------------------------------

    def silent_for(self, now: float) -> tuple[float, str, bool] | None:
        """When no nsqd may send for long, once: for how many seconds, why, and if it is wanted."""
        asked_for, reason = self._why_silent()
        seconds = self._silence.note(reason, now)
        return None if seconds is None else (seconds, reason, asked_for)

    def _why_silent(self) -> tuple[bool, str]:
        """Why no nsqd may send, "" when one may. First: whether it is wanted."""
        connections = self.connections.values()
        if any(c.level is not None and c.level.wanted(len(c.in_flight)) for c in connections):
            return True, ""
        if self.allocator.paused or not self.max_in_flight:
            return True, "it is paused, or max_in_flight is 0"
        if not self.connections:
            return False, UNCONNECTED
        if self.backoff.phase is Phase.BLOCKED:
            return True, "backoff after failures"
        if self.rate_at is not None:
            return True, "rate_limit allows none until later"
        return False, "the messages in flight use up max_in_flight; handlers are slow or stuck"

    @property
    def received(self) -> int:
        """By all connections that there are or were."""
        return sum((c.received for c in self.connections.values()), self._past["received"])

    def totals(self) -> Counter[str]:
        """The counts of all connections that there are or were."""
        totals = self._past.copy()
        for connection in self.connections.values():
            totals.update(counts_of(connection))
        return totals
