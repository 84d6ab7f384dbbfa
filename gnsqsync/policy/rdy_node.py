"""What the RDY allocator knows of one nsqd: its load, whether it is idle, what it still holds.

Judges by what is observed; decides nothing about who gets how much.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Key", "Load", "RdyNode"]

Key = TypeVar("Key", bound=Hashable)


class Load(NamedTuple):
    """What one connection is doing: messages not yet answered, and when the last one came.

    ``last_message_at`` is in seconds of the same clock as ``now``; 0.0 for never.
    """

    in_flight: int
    last_message_at: float


class RdyNode(Generic[Key]):
    """One nsqd as the allocator sees it: its RDY, its turn, and when it last had messages."""

    def __init__(self, key: Key, cap: int, now: float, queued: int, draw: float) -> None:
        self.key: Key = key
        self.cap: int = cap  # the server's max_rdy_count
        self.draw: float = draw  # breaks ties, differently in each process
        self.rdy: int = 0
        self.target: int = 0
        self.in_flight: int = 0
        self.turn_at: float = now  # since when RDY is above 0
        self.queued: int = queued  # in which update it came to RDY 0
        self.busy_at: float = now  # when it last gave a sign of having messages
        self.idle: bool = False
        self.held: int = 0  # the RDY that nsqd may still be acting on ...
        self.held_until: float = now  # ... until then

    def observe(self, now: float, load: Load | None, idle_timeout: float) -> None:
        """Decide whether it is idle: silent for ``idle_timeout`` seconds with room to send."""
        self.in_flight, last_message_at = load or (0, 0.0)
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
        """Its turn begins, or begins again."""
        self.turn_at = self.busy_at = now
        self.idle = False
