"""State of one nsqd in the RDY allocator: its load, its turn, and the RDY on which it may act.

Knows what was observed. Must not decide which node gets how much.

The allocator keeps one for each connection. ``observe`` takes in what happened, and ``hold``
remembers the RDY before it is lowered.

Surprise: a node at RDY 0 may still use a slot. nsqd may have sent a message before RDY 0 arrived.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

from gnsqsync.policy.rdy_turns import Turn

__all__ = ["Key", "Load", "RdyNode"]

Key = TypeVar("Key", bound=Hashable)


class Load(NamedTuple):
    """Work of one connection: unanswered messages, time of the last message, number received.

    ``last_message_at`` is in seconds of the same clock as ``now``; 0.0 for never. ``received`` is
    read before ``in_flight``, so that a counted message was in flight.
    """

    in_flight: int
    last_message_at: float
    received: int = 0


class RdyNode(Generic[Key]):
    """An nsqd in the eyes of the allocator: its RDY, its turn, and when it last had messages."""

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
        self.round_trip: float = round_trip  # seconds of an answer; 0 means unknown
        self.rdy: int = 0  # RDY that nsqd has, or will have when all is written
        self.told: int = 0  # RDY that update() returned last
        self.target: int = 0  # RDY that the node should have, by the last update
        # Messages in flight and messages received, as last observed.
        self.in_flight: int = 0
        self.received: int = 0
        self.turn: Turn = Turn()
        self.queued: tuple[int, int] = queued  # place of the node among nodes at RDY 0
        self.busy_at: float = now  # time of the last sign that the node has messages
        self.idle: bool = False  # True if nsqd was silent for too long with room to send
        self.held: int = 0  # RDY before it was lowered, by which nsqd may still send
        self.held_until: float = now  # time at which nsqd surely has the lower RDY

    def observe(self, now: float, load: Load | None, idle_timeout: float) -> None:
        """Note the load. A node that is silent for ``idle_timeout`` s with room to send is idle."""
        self.in_flight, last_message_at, self.received = load or (0, 0.0, 0)
        if self.in_flight >= self.rdy > 0 and not self.idle:
            self.busy_at = now  # it cannot send more, so its silence says nothing
        else:
            self.busy_at = max(self.busy_at, last_message_at)
        # A node at RDY 0 cannot show that it has messages, so the last judgement stands.
        if self.rdy:
            self.idle = self.busy_at + idle_timeout <= now
        if self.held_until <= now:
            self.held = 0

    def hold(self, now: float, longest: float) -> None:
        """Count its RDY as used until nsqd surely has a lower one, in ``longest`` seconds."""
        if self.transit > 0:
            self.held = max(self.held, self.rdy)
            # With RDY 1, only one message can be late. With more, all late messages together could
            # exceed the limit, so the longest time counts.
            self.held_until = now + (self.transit if self.rdy == 1 else longest)

    def restart(self, now: float) -> None:
        """Give the node a new chance to show that it has messages."""
        self.busy_at = now
        self.idle = False
