"""The channels that have work, and the times at which to check them again.

No I/O: the clock is an argument, and the owner is told when to call ``settle`` or ``expire``. Knows
that a channel can deliver and expire messages. Knows no message.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gnsqsync.embedded.options import NsqdOptions

__all__ = ["Schedule"]


class _Scheduled(Protocol):
    """A channel, a topic or a disk queue, as the schedule sees it."""

    # Time of the next call of expire(); math.inf if nothing is planned.
    wake_at: float
    deleted: bool

    def pump(self) -> None: ...
    def expire(self, now: float) -> None: ...


def _no_work() -> None:
    """Do nothing: the hook of a schedule without an owner."""


def _no_plan(when: float) -> None:
    """Do nothing: the hook of a schedule without an owner."""


class Schedule:
    """The clocks of one nsqd and the work of its channels. Everything runs in one thread.

    ``now`` returns monotonic seconds, ``wall_ns`` nanoseconds since the epoch. ``settle`` delivers
    the messages that other calls have made ready. ``on_work`` tells the owner, once before each
    ``settle``, that there are such messages. ``on_plan(when)`` tells the owner to call ``expire``
    at ``when``, which is earlier than the time told before.
    """

    def __init__(
        self,
        options: NsqdOptions,
        *,
        now: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        rng: random.Random | None = None,
    ) -> None:
        self.options = options
        self.now = now
        self.wall_ns = wall_ns
        self.rng: random.Random = rng or random.Random()
        self.on_work: Callable[[], None] = _no_work
        self.on_plan: Callable[[float], None] = _no_plan
        self._awake: dict[_Scheduled, None] = {}
        self._plans: list[tuple[float, int, _Scheduled]] = []
        self._plan_number = 0

    def wake(self, channel: _Scheduled) -> None:
        """Have ``settle`` look at ``channel``, which may have messages to deliver."""
        if not self._awake:
            self.on_work()
        self._awake[channel] = None

    def forget(self, channel: _Scheduled) -> None:
        """Keep ``settle`` from looking at ``channel``, which is deleted."""
        self._awake.pop(channel, None)

    def settle(self) -> None:
        """Deliver messages in every channel that was woken."""
        while self._awake:
            awake, self._awake = self._awake, {}
            for channel in awake:
                channel.pump()

    def plan(self, channel: _Scheduled, when: float) -> None:
        """Have ``channel.expire`` called at ``when``, which is earlier than planned so far."""
        channel.wake_at = when
        self._plan_number += 1
        first = self._plans[0][0] if self._plans else math.inf
        heapq.heappush(self._plans, (when, self._plan_number, channel))
        if when < first:
            self.on_plan(when)

    def next_at(self) -> float | None:
        """Return the time at which ``expire`` is due, or None."""
        return self._plans[0][0] if self._plans else None

    def expire(self) -> None:
        """Time out and release the messages that are due. ``settle`` then delivers them."""
        now = self.now()
        plans = self._plans
        while plans and plans[0][0] <= now:
            when, _, channel = heapq.heappop(plans)
            # An earlier plan replaced this one, or the channel is deleted.
            if when != channel.wake_at or channel.deleted:
                continue
            channel.wake_at = math.inf
            channel.expire(now)
