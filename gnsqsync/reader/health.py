"""Whether a started Reader hangs, and whether it is connected, for those who may restart it.

Takes no lock: a thread that never gives one back is what it looks for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from gnsqsync.addresses import Address
from gnsqsync.discovery.polling import Discovery
from gnsqsync.reader.chunks import Chunks
from gnsqsync.reader.dead_letters import DeadLetters
from gnsqsync.reader.subscription import Subscription
from gnsqsync.runtime import Runtime
from gnsqsync.runtime.timer import Timer
from gnsqsync.writer.health import LATE_SECONDS, stuck_threads

__all__ = ["Health"]


@dataclass(eq=False)
class Health:
    """What can be seen of a Reader's threads from outside.

    Each thread has a time by which it comes round. The timer: the time of its next job. A reading
    thread: two heartbeats, after which it gives a silent connection up. A poll thread: the
    interval. So an nsqd or nsqlookupd that is away makes none of them late. A dial has no such
    time, because the look-up of a name takes as long as the resolver likes.
    """

    name: str
    runtime: Runtime
    timer: Timer
    subscription: Subscription
    discovery: Discovery[Address]
    chunks: Chunks
    dead_letters: DeadLetters
    # By worker: what it was at when we looked last, and since when.
    handlers: dict[int, tuple[tuple[float, int], float]] = field(default_factory=dict)

    def stuck(self, handler_limit: float | None) -> list[str]:
        """A sentence for each thread that hangs, and each handler above the limit (seconds)."""
        found = []
        behind = self.timer.behind()
        if behind == math.inf:
            found.append(f"{self.name}: the timer thread has died")
        elif behind > LATE_SECONDS:
            found.append(f"{self.name}: the timer thread is stuck since {behind:.0f} s")
        found += stuck_threads(self.name, self.subscription.connections(), self.discovery)
        found += self.dead_letters.stuck(f"{self.name}, dead letters")
        if handler_limit is not None:
            found += self._slow_handlers(handler_limit)
        return found

    def _slow_handlers(self, limit: float) -> list[str]:
        """A worker may have several messages in turn, so the time of the first counts only for that
        one; for the others, since when we have seen it there."""
        now = self.runtime.now()
        before, self.handlers = self.handlers, {}
        found = []
        for worker, at, begun in self.chunks.at_work():
            since = at[0] if begun <= 1 else now
            was, seen = before.get(worker, (None, now))
            if was == at:
                since = min(since, seen)
            self.handlers[worker] = at, since
            if now - since > limit:
                found.append(
                    f"{self.name}: a handler runs since {now - since:.0f} s; the limit is"
                    f" {limit:g} s"
                )
        return found

    def not_connected(self) -> str | None:
        """Why it has no connection, as far as it knows; None where it has one."""
        if self.subscription.is_connected:
            return None
        failures = self.discovery.failures
        if failures:
            return f"{self.name} has no connection to an nsqd; {failures[0]}"
        return f"{self.name} has no connection to an nsqd"
