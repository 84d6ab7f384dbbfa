"""How the live connections of a Reader share max_in_flight, and when all of them back off.

Holds the policy objects. Takes no lock and sends nothing: the Subscription does both.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from gnsqsync.addresses import Address
from gnsqsync.connection.connection import Connection
from gnsqsync.policy.backoff import Backoff, Phase
from gnsqsync.policy.latency import Together
from gnsqsync.policy.rdy import Load, RdyAllocator, Regime
from gnsqsync.reader.counters import Counters
from gnsqsync.reader.options import ReaderOptions
from gnsqsync.reader.retiring import why_useless
from gnsqsync.reader.silence import UNCONNECTED, Silence

__all__ = ["RdyControl", "Verdict"]

# A lowered RDY takes that long, at most, to reach nsqd and stop messages on the wire.
_TRANSIT_SECONDS = 0.1


class Verdict(NamedTuple):
    """The backoff changed: to this level, for so many seconds. ``error``: of the strategy."""

    changed: list[Connection]
    level: int
    seconds: float
    error: Exception | None


class RdyControl:
    """The table of live connections, the RDY allocator and the backoff.

    Every method is called under the lock of the Subscription, but for reading ``in_backoff``,
    ``paused``, ``waiting``, ``max_in_flight`` and ``backoff_level``. Those that change anything
    return the connections to flush after the lock, lowered ones first.
    """

    def __init__(self, flow: ReaderOptions, together: Together, rng: random.Random) -> None:
        self.in_backoff: bool = False
        self.paused: bool = False
        self.connections: dict[Address, Connection] = {}
        self._together = together
        self._past = Counters()
        # Said once: that there are more nsqds than max_in_flight.
        self._told_crowd = False
        self._silence = Silence()
        self._allocator: RdyAllocator[Address] = RdyAllocator(
            flow.initial_max_in_flight,
            low_rdy_idle_timeout=flow.low_rdy_idle_timeout,
            low_rdy_timeout=flow.low_rdy_timeout,
            rng=rng,
            transit=_TRANSIT_SECONDS,
        )
        self._backoff = Backoff(
            flow.max_backoff_duration, flow.backoff_multiplier, flow.backoff_strategy, rng
        )

    def plan(self, now: float) -> list[Connection]:
        """Share max_in_flight anew."""
        phase = self._backoff.phase
        self.in_backoff = phase is not Phase.OPEN
        self._allocator.set_phase(phase)
        loads = {
            address: Load(len(connection.in_flight), connection.last_message_at)
            for address, connection in self.connections.items()
        }
        changed = []
        for address, rdy in self._allocator.update(now, loads):
            connection = self.connections[address]
            if not connection.end_was_asked and connection.level is not None:
                connection.level.share = rdy
                changed.append(connection)
        return changed

    # -- connections that come and go ----------------------------------------------------------

    def join(self, connection: Connection, now: float) -> list[Connection]:
        self.connections[connection.address] = connection
        if connection.level is not None:
            self._together.join(connection.level)
        self._allocator.add(connection.address, connection.negotiated.max_rdy_count, now)
        return self.plan(now)

    def leave(self, address: Address, now: float) -> list[Connection]:
        """No messages from there any more, while those in flight are answered."""
        self._allocator.retire(address)
        return self.plan(now)

    def leave_useless(self, now: float) -> list[tuple[Connection, str]]:
        """The connections to be made anew, and why; ``plan()`` then."""
        useless = []
        for connection in self.connections.values():
            if why := why_useless(connection, now):
                self._allocator.retire(connection.address)
                useless.append((connection, why))
        return useless

    def lose(self, connection: Connection, now: float) -> list[Connection] | None:
        """It ended, and counts for the totals. None if it is not in the table."""
        self._past.add(connection)
        if connection.level is not None:
            self._together.leave(connection.level)
        address = connection.address
        if self.connections.get(address) is not connection:
            return None
        del self.connections[address]
        under_test = self._allocator.test_node == address
        self._allocator.remove(address, now)
        if under_test:
            self._backoff.test_lost(now)
        return self.plan(now)

    def is_new_crowd(self) -> bool:
        """Whether there are more connections than max_in_flight; True once."""
        crowd = len(self.connections) > self.max_in_flight > 0 and not self._told_crowd
        self._told_crowd = self._told_crowd or crowd
        return crowd

    # -- time, answers, wishes -----------------------------------------------------------------

    def tick(self, now: float) -> bool:
        """Whether a pause of the backoff ended just now; ``plan()`` then."""
        return self._backoff.tick(now)

    def next_times(self) -> list[float]:
        """When time alone will change something."""
        times = (self._allocator.next_at(), self._backoff.resume_at)
        return [at for at in times if at is not None]

    def note(self, finished: int, failed: int, now: float) -> Verdict | None:
        """Judge so many FIN, and REQ with backoff. None when that changes nothing."""
        if not self._backoff.note(finished, failed, now):
            return None
        level, resume_at = self._backoff.level, self._backoff.resume_at
        seconds = 0.0 if resume_at is None else resume_at - now
        return Verdict(self.plan(now), level, seconds, self._backoff.take_error())

    def take_error(self) -> Exception | None:
        """What the user's strategy raised, if it is news."""
        return self._backoff.take_error()

    def set_max_in_flight(self, count: int, now: float) -> list[Connection]:
        self._allocator.set_max_in_flight(count)
        return self.plan(now)

    def pause(self, now: float) -> list[Connection]:
        self.paused = True
        self._allocator.pause()
        return self.plan(now)

    def resume(self, now: float) -> list[Connection]:
        self.paused = False
        self._allocator.resume()
        return self.plan(now)

    # -- looking -------------------------------------------------------------------------------

    @property
    def waiting(self) -> bool:
        """Whether some nsqd gets its RDY only when messages elsewhere were answered."""
        return self._allocator.waiting

    @property
    def max_in_flight(self) -> int:
        return self._allocator.max_in_flight

    @property
    def backoff_level(self) -> int:
        return self._backoff.level

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
        if self.paused or not self._allocator.max_in_flight:
            return True, "it is paused, or max_in_flight is 0"
        if not self.connections:
            return False, UNCONNECTED
        if self._allocator.regime is Regime.SILENT:
            return True, "backoff after failures"
        return False, "the messages in flight use up max_in_flight; handlers are slow or stuck"

    def totals(self) -> Counters:
        totals = self._past.copy()
        for connection in self.connections.values():
            totals.add(connection)
        return totals
