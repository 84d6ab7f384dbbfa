"""Work that is due each 100 ms while messages are in flight.

It flushes unsent answers, settles RDY and touches messages. It frees the slots of messages that
were taken and forgotten, and moves chunks that wait for a slow message to other workers.

Surprise: a Reader without messages in flight does nothing here. ``wake`` plans a round when
messages arrive, and a round that finds nothing plans no other.
"""

from __future__ import annotations

from collections.abc import Callable

from gnsqsync.connection.subscribed import SubscribedConnection
from gnsqsync.reader.chunks import Chunks
from gnsqsync.reader.options import ReaderOptions
from gnsqsync.reader.workers import Workers
from gnsqsync.runtime import Runtime
from gnsqsync.runtime.timer import Timer

__all__ = ["HOUSEKEEPING_SECONDS", "Housekeeping"]

# Seconds between two rounds. A FIN waits no longer for a handler that suddenly runs long.
HOUSEKEEPING_SECONDS = 0.1
# Seconds between two looks for messages and workers that a kill has lost.
_LOST_SECONDS = 1.0


class Housekeeping:
    """Job of the Reader's timer, asleep while nothing is in flight.

    ``_lock`` guards changes of ``_awake``, which each chunk reads without the lock.
    """

    def __init__(
        self,
        connections: Callable[[], list[SubscribedConnection]],
        flow: ReaderOptions,
        runtime: Runtime,
        timer: Timer,
        chunks: Chunks,
        workers: Workers,
        on_overdue: Callable[[SubscribedConnection, int], None] | None = None,
    ) -> None:
        """``on_overdue``: called when taken messages were not answered in time.

        None with a handler, whose messages count until it returns.
        """
        self._connections = connections
        self._chunks = chunks
        self._workers = workers
        self._on_overdue = on_overdue
        self._auto_touch = flow.auto_touch
        self._now = runtime.now
        self._timer = timer
        # True if another worker can take the rest of a chunk.
        self._relieves = flow.concurrency > 1
        # Time of the next look for what a kill has lost.
        self._lost_at = 0.0
        self._lock = runtime.lock()
        # True while the next round is planned.
        self._awake = False

    def wake(self) -> None:
        """Plan a round, because messages arrived. By reading threads, for each chunk."""
        if self._awake:
            return
        with self._lock:
            was_awake, self._awake = self._awake, True
        if not was_awake:
            self._timer.after(HOUSEKEEPING_SECONDS, self._run)

    def _run(self) -> None:
        if self._look_after_all():
            # Planned first, so that it goes on even if a thread cannot be started below.
            self._timer.after(HOUSEKEEPING_SECONDS, self._run)
            if self._relieves:
                self._chunks.relieve()
            now = self._now()
            if now >= self._lost_at:
                self._lost_at = now + _LOST_SECONDS
                self._chunks.requeue_lost(self._connections())
                self._workers.replace_killed()
            return
        with self._lock:
            self._awake = False
        # Messages may have come, and been finished, between the look and the flag.
        if self._look_after_all():
            self.wake()

    def _look_after_all(self) -> bool:
        now = self._now()
        busy = [self._look_after(connection, now) for connection in self._connections()]
        return any(busy)

    def _look_after(self, connection: SubscribedConnection, now: float) -> bool:
        """Look after one connection. Return True if it needs another look in 100 ms."""
        # RDY stays high after a stream until ``settle`` ends it.
        streaming = connection.level.settle(now)
        send_queue = connection.send_queue
        # A TOUCH that cannot be sent now is useless, and each round would add one.
        if self._auto_touch and not send_queue.is_stuck:
            self._touch(connection, now)
        if self._on_overdue is not None:
            count = connection.in_flight.time_out(now)
            if count:
                self._on_overdue(connection, count)
        if send_queue.has_unsent:
            send_queue.flush()
        return streaming or bool(connection.in_flight) or send_queue.has_unsent

    def _touch(self, connection: SubscribedConnection, now: float) -> None:
        """Send TOUCH for messages past half of their timeout, while nsqd still grants time."""
        timeout = connection.msg_timeout
        for message in list(connection.in_flight.values()):
            hard = message._received_at + connection.max_msg_timeout
            if now - message._touched_at > timeout / 2 and message._touched_at + timeout < hard:
                connection.touch(message)
