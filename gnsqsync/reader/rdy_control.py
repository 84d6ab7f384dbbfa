"""Division of a Reader's max_in_flight among its live connections, and its backoff.

Holds the policy objects. Takes no lock and sends nothing: the Subscription does both.

``plan`` decides: it asks the allocator for shares, limits them by the rate, and returns the
connections whose RDY changes.

Surprise: the share of a connection is not all that counts. A turn and a rate limit also bound the
messages that may come, by a credit (``RdyLevel.allow``).
"""

from __future__ import annotations

import random
from collections import Counter

from gnsqsync.addresses import Address
from gnsqsync.connection.subscribed import SubscribedConnection
from gnsqsync.policy.backoff import Backoff, Phase, Rule
from gnsqsync.policy.latency import JointRate
from gnsqsync.policy.rate import RateLimit
from gnsqsync.policy.rdy import Load, RdyAllocator
from gnsqsync.policy.rdy_turns import MOST_MESSAGES
from gnsqsync.reader.counters import counts_of
from gnsqsync.reader.options import ReaderOptions
from gnsqsync.reader.retiring import why_useless

__all__ = ["SILENT_SECONDS", "UNCONNECTED", "RdyControl", "Silence"]

# Upper bound of the seconds for which a lowered RDY counts as used, until nsqd has it.
_TRANSIT_SECONDS = 0.1

# Seconds without RDY everywhere after which that is logged.
SILENT_SECONDS = 30.0

# The reason for silence that the log line of an outage may have given before.
UNCONNECTED = "no nsqd is connected"


class Silence:
    """Log of silence: tells each reason for RDY 0 everywhere once. Under the owner's lock."""

    def __init__(self) -> None:
        self._reason = ""
        self._since = 0.0
        # True once the present reason was logged.
        self._told = False

    def note(self, reason: str, now: float) -> float | None:
        """Note the reason why no nsqd may send, "" if one may.

        Returns the seconds for which it has lasted when it is time to log it, else None.
        """
        if reason != self._reason:
            self._reason, self._since, self._told = reason, now, False
        if not reason or self._told or now - self._since < SILENT_SECONDS:
            return None
        self._told = True
        return now - self._since


class RdyControl:
    """Live connections, RDY allocator and backoff of a Reader.

    Every method is called under the lock of the Subscription, which guards the allocator and the
    backoff, too; their attributes may be read without it. Methods that change something return the
    connections to flush after the lock, those with a lowered RDY first.
    """

    def __init__(
        self, flow: ReaderOptions, together: JointRate, rng: random.Random, *, worker_may_read: bool
    ) -> None:
        """``worker_may_read``: True if the worker may read from a connection that is alone."""
        self._worker_may_read = worker_may_read
        self.connections: dict[Address, SubscribedConnection] = {}
        # Rate of all connections, or of all in a group.
        self._together = together
        # Sums of the counts of connections that are gone.
        self._past: Counter[str] = Counter()
        # True once the log has said that there are more nsqds than max_in_flight.
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
        # Limit that the user wishes. The allocator's limit is lower while the backoff grows.
        self.max_in_flight: int = flow.initial_max_in_flight
        self.backoff.whole = self.max_in_flight
        self._rate: RateLimit | None = None
        if flow.rate_limit is not None:
            self._rate = RateLimit(flow.rate_limit, flow.burst)
        # Number of messages that the rate limit has counted, and the time of its next tokens.
        self._counted = 0
        self.rate_at: float | None = None

    def plan(self, now: float) -> list[SubscribedConnection]:
        """Share max_in_flight anew, within what the rate limit allows."""
        changed = self._share(now)
        return changed if self._rate is None else self._grant(self._rate, now)

    def _share(self, now: float) -> list[SubscribedConnection]:
        limit = self.backoff.limit
        self.allocator.phase = self.backoff.phase
        self.allocator.max_in_flight = (
            self.max_in_flight if limit is None else min(limit, self.max_in_flight)
        )
        loads = {}
        for address, connection in self.connections.items():
            # Order matters: a message is in the table before it is counted.
            received = connection.received
            loads[address] = Load(len(connection.in_flight), connection.last_message_at, received)
        changes = self.allocator.update(now, loads)
        freed = [] if self._rate is not None else self._bound_turns(loads)
        changed = []
        for address, rdy in changes:
            connection = self.connections[address]
            if not connection.end_was_asked:
                connection.level.share = rdy
                changed.append(connection)
        # A worker that reads one connection does not see messages of another. It does not fetch the
        # next message while a handler runs. After the one message of a turn, nothing would come.
        if self._worker_may_read:
            alone = len(self.connections) == 1 and not self.allocator.one_message
            for connection in self.connections.values():
                could_read = connection.worker_may_read
                connection.worker_may_read = alone and connection.level.share == 1
                if could_read and not connection.worker_may_read:
                    # A message that nobody reads is not counted, and its slot would be given away.
                    connection.messages.recall()
        return changed + freed

    def _bound_turns(self, loads: dict[Address, Load]) -> list[SubscribedConnection]:
        """Allow each turn its messages, so that RDY 0 leaves before the answer to the last one.

        ``loads``: those by which the turns were decided. Return the connections for which this
        bound has ended.
        """
        begun, takes_turns = self.allocator.begun, self.allocator.takes_turns
        freed = []
        for address, connection in self.connections.items():
            level = connection.level
            if not takes_turns:
                if level.credit is not None:
                    level.allow(None)
                    freed.append(connection)
            elif address in begun:
                level.allow(begun[address], loads[address].received)
            elif level.credit is None:
                level.allow(0)
        return freed

    def _grant(self, rate: RateLimit, now: float) -> list[SubscribedConnection]:
        """Divide tokens over the connections that may send. Return all whose RDY changes.

        Each connection gets at least one, because any of them may be the one with messages. With
        more nsqds than tokens, each may send a message too many; the next tokens then come later.
        """
        counts = {address: c.received for address, c in self.connections.items()}
        received = sum(counts.values(), self._past["received"])
        rate.take(received - self._counted, now)
        self._counted = received
        tokens = rate.tokens(now)
        sharing = [c for c in self.connections.values() if c.level.share]
        each, more = divmod(tokens, len(sharing) or 1)
        for number, connection in enumerate(sharing):
            granted = max(each + (number < more), 1) if tokens else 0
            if self.allocator.takes_turns:
                granted = min(granted, self.allocator.turn_left(connection.address))
            connection.level.allow(granted, counts[connection.address])
        self.rate_at = rate.next_at(now) if sharing and not tokens else None
        changed = []
        for connection in self.connections.values():
            if not connection.end_was_asked:
                level = connection.level.wanted(len(connection.in_flight))
                change = level - connection.send_queue.rdy_sent
                if change:
                    changed.append((change > 0, connection))
        return [connection for _, connection in sorted(changed, key=lambda pair: pair[0])]

    def hand_over(self) -> None:
        """Let queued messages reach handlers, or hold them back, as the backoff demands now."""
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
        going_on = [level for level in levels if level.share and level.credit]
        return len(going_on) >= self.allocator.max_in_flight

    def is_used_up(self, connection: SubscribedConnection) -> bool:
        """Return True if a connection needs new tokens of the rate limit. Takes no lock."""
        return connection.level.credit == 0

    # -- connections that come and go ----------------------------------------------------------

    def join(self, connection: SubscribedConnection, now: float) -> list[SubscribedConnection]:
        self.connections[connection.address] = connection
        level = connection.level
        self._together.join(level)
        most = connection.negotiated.max_rdy_count
        self.allocator.add(connection.address, most, now, level.round_trip)
        return self.plan(now)

    def leave(self, address: Address, now: float) -> list[SubscribedConnection]:
        """Take an nsqd out. It sends no more, while its messages in flight are answered."""
        self.allocator.retire(address)
        return self.plan(now)

    def leave_useless(self, now: float) -> list[tuple[SubscribedConnection, str]]:
        """Take out useless connections. Return them with the reason; ``plan()`` must follow."""
        useless = []
        for connection in self.connections.values():
            if why := why_useless(connection, now):
                self.allocator.retire(connection.address)
                useless.append((connection, why))
        return useless

    def lose(
        self, connection: SubscribedConnection, now: float
    ) -> list[SubscribedConnection] | None:
        """Remove an ended connection and keep its counts. None if it is not in the table."""
        self._past.update(counts_of(connection))
        self._together.leave(connection.level)
        address = connection.address
        if self.connections.get(address) is not connection:
            return None
        del self.connections[address]
        self.allocator.remove(address)
        return self.plan(now)

    def lend(self, slots: int, now: float, *, one_message: bool) -> None:
        """Take the part of a group's limit. With ``one_message``, it ends when a message came.

        ``plan()`` must follow.
        """
        self.max_in_flight = slots
        self.allocator.lend(slots, one_message=one_message)
        if slots:
            self._silence.note("", now)

    @property
    def round_trip(self) -> float:
        """Seconds that the slowest nsqd took to answer a command; 0 means unknown."""
        trips = [c.level.round_trip for c in self.connections.values()]
        return 0.0 if 0.0 in trips else max(trips, default=0.0)

    def is_new_crowd(self) -> bool:
        """Return True, once, when there are more connections than max_in_flight."""
        crowd = len(self.connections) > self.max_in_flight > 0 and not self._told_crowd
        self._told_crowd = self._told_crowd or crowd
        return crowd

    # -- state ---------------------------------------------------------------------------------

    def silent_for(self, now: float) -> tuple[float, str, bool] | None:
        """Return, once for each long silence: its seconds, its reason, and True if it is wanted."""
        asked_for, reason = self._why_silent()
        seconds = self._silence.note(reason, now)
        return None if seconds is None else (seconds, reason, asked_for)

    def _why_silent(self) -> tuple[bool, str]:
        """Return True if it is wanted, and why no nsqd may send, "" if one may."""
        connections = self.connections.values()
        if any(c.level.wanted(len(c.in_flight)) for c in connections):
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
        """Number of messages received by all connections, present and past."""
        return sum((c.received for c in self.connections.values()), self._past["received"])

    def totals(self) -> Counter[str]:
        """Return the sums of the counts of all connections, present and past."""
        totals = self._past.copy()
        for connection in self.connections.values():
            totals.update(counts_of(connection))
        return totals
