"""Health of a started Reader for probes: threads that hang, and a missing connection.

Takes no lock, because it looks for threads that never give a lock back.

``Look`` compares the time by which each thread must come round with the present time.
``HandlerTimes`` does so for handlers.

Surprise: nothing measures a single message of a chunk. A worker that is at the same message in two
looks has been there since the first of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from gnsqsync.addresses import Address
from gnsqsync.discovery.polling import Discovery
from gnsqsync.message import Message
from gnsqsync.options import check_duration
from gnsqsync.reader.chunks import Chunks
from gnsqsync.reader.dead_letters import DeadLetters
from gnsqsync.reader.subscription import Subscription
from gnsqsync.reader.workers import Workers
from gnsqsync.runtime import Runtime
from gnsqsync.runtime.timer import Timer
from gnsqsync.stats import Health, SlowHandler
from gnsqsync.writer.health import LATE_SECONDS, stuck_threads

__all__ = ["Look"]


class HandlerTimes:
    """Running times of handlers, as repeated looks at the workers tell."""

    def __init__(self, chunks: Chunks, now: Callable[[], float]) -> None:
        self._chunks = chunks
        self._now = now
        # Position of each worker at the last look, and the time since which it is there.
        self._seen: dict[int, tuple[tuple[float, int], float]] = {}

    def above(self, limit: float) -> list[tuple[int, float, Message | None]]:
        """Return worker, seconds and message of each handler that runs longer than ``limit``.

        A chunk has one time for several messages. That time counts for its first message; for the
        others, the first look that saw them counts. Of two looks at a time, one is remembered.
        """
        now = self._now()
        seen: dict[int, tuple[tuple[float, int], float]] = {}
        found: list[tuple[int, float, Message | None]] = []
        for worker, at, begun in self._chunks.at_work():
            since = at[0] if len(begun) <= 1 else now
            was, first = self._seen.get(worker, (None, now))
            if was == at:
                since = min(since, first)
            seen[worker] = at, since
            if now - since > limit:
                found.append((worker, now - since, begun[-1] if begun else None))
        self._seen = seen
        return found


@dataclass(eq=False)
class Look:
    """Look from outside at the threads of a Reader.

    Each thread has a time by which it must come round. For the timer, this is the time of its next
    job; for a reading thread, two heartbeats, after which it gives a silent connection up; for a
    poll thread, the interval. An nsqd or nsqlookupd that is away therefore makes none of them late.
    A dial has no such time, because the look-up of a name may take as long as the resolver likes.
    """

    name: str
    runtime: Runtime
    timer: Timer
    subscription: Subscription
    discovery: Discovery[Address]
    chunks: Chunks
    dead_letters: DeadLetters
    workers: Workers
    _times: HandlerTimes = field(init=False)

    def __post_init__(self) -> None:
        self._times = HandlerTimes(self.chunks, self.runtime.now)

    def health(self, handler_limit: float | None) -> Health:
        """Return the health of this moment. Without a limit (seconds), no handler is too slow."""
        if handler_limit is not None:
            check_duration("handler_limit", handler_limit)
        found = []
        behind = self.timer.behind()
        if behind == math.inf:
            found.append(f"{self.name}: the timer thread has died")
        elif behind > LATE_SECONDS:
            found.append(f"{self.name}: the timer thread has been stuck for {behind:.0f} s")
        found += stuck_threads(self.name, self.subscription.connections(), self.discovery)
        found += self.dead_letters.stuck(f"{self.name}, dead letters")
        why = self._not_connected()
        return Health(
            threads=tuple(found),
            handlers=() if handler_limit is None else self._above(handler_limit),
            not_ready=() if why is None else (why,),
        )

    def _above(self, limit: float) -> tuple[SlowHandler, ...]:
        found = []
        for worker, seconds, message in self._times.above(limit):
            on = ""
            if message is not None:
                on = f"{message.id} (attempt {message.attempts}) from {message.nsqd_address}"
            name, stack = self.workers.handler_name, self.workers.stack_of(worker)
            found.append(SlowHandler(self.name, name, seconds, limit, on, stack))
        return tuple(found)

    def _not_connected(self) -> str | None:
        """Return why the Reader has no connection, as far as it knows, or None if it has one."""
        if self.subscription.is_connected:
            return None
        failures = self.discovery.failures
        if failures:
            return f"{self.name} has no connection to an nsqd; {failures[0]}"
        return f"{self.name} has no connection to an nsqd"
