"""Health of a started Reader for probes: threads that hang, and a missing connection.

Takes no lock, because it looks for threads that never give a lock back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gnsqsync.addresses import Address
from gnsqsync.discovery.polling import Discovery
from gnsqsync.message import Message
from gnsqsync.reader.chunks import Chunks
from gnsqsync.reader.dead_letters import DeadLetters
from gnsqsync.reader.subscription import Subscription
from gnsqsync.reader.workers import Workers
from gnsqsync.runtime import Runtime
from gnsqsync.runtime.timer import Timer
from gnsqsync.writer.health import LATE_SECONDS, stuck_threads

__all__ = ["Health"]


class HandlerTimes:
    """Running times of handlers, as repeated looks at the workers tell."""

    def __init__(self, chunks: Chunks, now: Callable[[], float]) -> None:
        self._chunks = chunks
        self._now = now
        # Position of each worker at the last look, and the time since which it is there.
        self._seen: dict[int, tuple[tuple[float, int], float]] = {}

    def above(self, limit: float) -> Iterator[tuple[int, float, Message | None]]:
        """Yield worker, seconds and message of each handler that runs longer than ``limit``.

        A chunk has one time for several messages. That time counts for its first message; for the
        others, the first look that saw them counts. Call it from one thread only.
        """
        now = self._now()
        before, self._seen = self._seen, {}
        for worker, at, begun in self._chunks.at_work():
            since = at[0] if len(begun) <= 1 else now
            was, seen = before.get(worker, (None, now))
            if was == at:
                since = min(since, seen)
            self._seen[worker] = at, since
            if now - since > limit:
                yield worker, now - since, begun[-1] if begun else None


@dataclass(eq=False)
class Health:
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
    # Looks of the probes and of the hard limit, each on its own thread.
    _probed: HandlerTimes = field(init=False)
    _limited: HandlerTimes = field(init=False)

    def __post_init__(self) -> None:
        self._probed = HandlerTimes(self.chunks, self.runtime.now)
        self._limited = HandlerTimes(self.chunks, self.runtime.now)

    def stuck(self, handler_limit: float | None) -> list[str]:
        """Return a sentence for each hung thread, and each handler above the limit (seconds)."""
        found = []
        behind = self.timer.behind()
        if behind == math.inf:
            found.append(f"{self.name}: the timer thread has died")
        elif behind > LATE_SECONDS:
            found.append(f"{self.name}: the timer thread has been stuck for {behind:.0f} s")
        found += stuck_threads(self.name, self.subscription.connections(), self.discovery)
        found += self.dead_letters.stuck(f"{self.name}, dead letters")
        if handler_limit is not None:
            found += [
                f"{self.name}: a handler has run for {seconds:.0f} s; the limit is"
                f" {handler_limit:g} s"
                for _, seconds, _ in self._probed.above(handler_limit)
            ]
        return found

    def overdue(self, limit: float) -> list[str]:
        """Return a text for each handler above ``limit`` (seconds): its message, and its stack."""
        found = []
        for worker, seconds, message in self._limited.above(limit):
            on = ""
            if message is not None:
                on = f" on message {message.id} (attempt {message.attempts}) from"
                on += f" {message.nsqd_address}"
            found.append(
                f"{self.name}: handler {self.workers.handler_name} has run for {seconds:.1f} s{on};"
                f" the hard limit is {limit:g} s, so this process ends. The handler is at\n"
                f"{self.workers.stack_of(worker)}".rstrip()
            )
        return found

    def not_connected(self) -> str | None:
        """Return why the Reader has no connection, as far as it knows, or None if it has one."""
        if self.subscription.is_connected:
            return None
        failures = self.discovery.failures
        if failures:
            return f"{self.name} has no connection to an nsqd; {failures[0]}"
        return f"{self.name} has no connection to an nsqd"
