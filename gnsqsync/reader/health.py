"""Whether a started Reader hangs, and whether it is connected, for those who may restart it.

Takes no lock: a thread that never gives one back is what it looks for.
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
    """For how long handlers have run, as repeated looks at the workers tell."""

    def __init__(self, chunks: Chunks, now: Callable[[], float]) -> None:
        self._chunks = chunks
        self._now = now
        # By worker: what it was at when we looked last, and since when.
        self._seen: dict[int, tuple[tuple[float, int], float]] = {}

    def above(self, limit: float) -> Iterator[tuple[int, float, Message | None]]:
        """The worker, the seconds and the message of each handler that runs longer than ``limit``.

        A worker may have several messages in turn, so the time of the first counts only for that
        one; for the others, since when we have seen it there. By one thread.
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
    workers: Workers
    # Of the probes, and of the hard limit, which look on threads of their own.
    _probed: HandlerTimes = field(init=False)
    _limited: HandlerTimes = field(init=False)

    def __post_init__(self) -> None:
        self._probed = HandlerTimes(self.chunks, self.runtime.now)
        self._limited = HandlerTimes(self.chunks, self.runtime.now)

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
            found += [
                f"{self.name}: a handler runs since {seconds:.0f} s; the limit is"
                f" {handler_limit:g} s"
                for _, seconds, _ in self._probed.above(handler_limit)
            ]
        return found

    def overdue(self, limit: float) -> list[str]:
        """For each handler that runs longer than ``limit`` (seconds): on what, and where it is."""
        found = []
        for worker, seconds, message in self._limited.above(limit):
            on = ""
            if message is not None:
                on = f" on message {message.id} (attempt {message.attempts}) from"
                on += f" {message.nsqd_address}"
            found.append(
                f"{self.name}: handler {self.workers.handler_name} runs since {seconds:.1f} s{on};"
                f" the hard limit is {limit:g} s, so this process ends. The handler is at\n"
                f"{self.workers.stack_of(worker)}".rstrip()
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
