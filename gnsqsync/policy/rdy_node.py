"""The RDY allocator's knowledge of one nsqd: its load, its turn, what it still holds.

Judges by what is observed; decides nothing about who gets how much.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from gnsqsync.policy.rdy_turns import Turn

__all__ = ["Key", "Load", "RdyNode"]

Key = TypeVar("Key", bound=Hashable)


class Load(NamedTuple):
    """Work of one connection: messages not yet answered, when the last one came, how many came.

    ``last_message_at`` is in seconds of the same clock as ``now``; 0.0 for never. ``received`` is
    read before ``in_flight``, so that a message counted in it was in flight.
    """

    in_flight: int
    last_message_at: float
    received: int = 0


class RdyNode(Generic[Key]):
    """One nsqd as the allocator sees it: its RDY, its turn, and when it last had messages."""

    def __init__(
        self,
        key: Key,
        cap: int,
        now: float,
        queued: tuple[int, int],
        draw: float,
        transit: float = 0.0,
        round_trip: float = 0.0,
    ) -> None:
        self.key: Key = key
        self.cap: int = cap  # the server's max_rdy_count
        self.draw: float = draw  # breaks ties, differently in each process
        self.transit: float = transit  # seconds in which a lowered RDY surely arrives
        self.round_trip: float = round_trip
        self.rdy: int = 0  # the RDY that nsqd has, or will have when all is written
        self.told: int = 0  # the RDY that update() returned last
        self.target: int = 0
        self.in_flight: int = 0
        self.received: int = 0
        self.turn: Turn = Turn()
        self.queued: tuple[int, int] = queued  # order of nodes at RDY 0
        self.busy_at: float = now  # when it last gave a sign of having messages
        self.idle: bool = False
        self.held: int = 0  # the RDY that nsqd may still be acting on ...
        self.held_until: float = now  # ... until then

    def observe(self, now: float, load: Load | None, idle_timeout: float) -> None:
        """Decide whether it is idle: silent for ``idle_timeout`` seconds with room to send."""
        self.in_flight, last_message_at, self.received = load or (0, 0.0, 0)
        if self.in_flight >= self.rdy > 0 and not self.idle:
            self.busy_at = now  # it cannot get more, so its silence says nothing
        else:
            self.busy_at = max(self.busy_at, last_message_at)
        # A node at RDY 0 has no way to show that it has messages: the last judgement stands.
        if self.rdy:
            self.idle = self.busy_at + idle_timeout <= now
        if self.held_until <= now:
            self.held = 0

    def restart(self, now: float) -> None:
        """Give it a new chance to show that it has messages."""
        self.busy_at = now
        self.idle = False
