"""A channel: its queue, its messages in flight and deferred, and their delivery to consumers.

No I/O; the schedule has the clock. The rules are in docs/protocol/flow and
docs/protocol/timeouts.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from itertools import count

from gnsqsync.embedded.disk.queue import DiskQueue
from gnsqsync.embedded.latency import LatencyWindow
from gnsqsync.embedded.queueing import Consumer, DiskFailed, QueuedMessage, Queueing
from gnsqsync.embedded.schedule import Schedule

__all__ = [
    "NOT_IN_FLIGHT",
    "NOT_OWNER",
    "Channel",
    "TooManyConsumers",
]

NOT_IN_FLIGHT = b"ID not in flight"
NOT_OWNER = b"client does not own message"

# Bytes after which a batch for one consumer ends. Then the limit of the consumer's output buffer is
# checked again before more bodies are copied into frames.
_BATCH_BYTES = 256 * 1024
# Seconds between two passes over the in-flight table of one channel, at least.
_SCAN_SPACING = 0.01


class TooManyConsumers(Exception):
    """The channel has --max-channel-consumers consumers."""


class Channel(Queueing):
    """A channel of a topic, made by ``Topic.channel``.

    ``open_queue`` and ``on_written``: see Queueing and Backlog. ``on_deserted`` is called with an
    ephemeral channel whose last consumer left.
    """

    def __init__(
        self,
        name: str,
        schedule: Schedule,
        topic_name: str,
        *,
        open_queue: Callable[[], DiskQueue | None],
        on_written: Callable[[str | None], object],
        on_deserted: Callable[[Channel], object],
    ) -> None:
        super().__init__(name, schedule, open_queue, on_written)
        self.topic_name = topic_name
        self._on_deserted = on_deserted
        self.in_flight: dict[bytes, QueuedMessage] = {}
        self.deferred: list[tuple[float, int, QueuedMessage]] = []
        self.consumers: list[Consumer] = []
        self.requeue_count: int = 0
        self.timeout_count: int = 0
        self.latency: LatencyWindow | None = LatencyWindow.for_options(
            schedule.options, schedule.now()
        )
        # Time at which the schedule calls expire() next; math.inf if nothing is planned.
        self.wake_at: float = math.inf
        # Time before which no message in flight times out. It may be too early, because FIN does
        # not change it.
        self._next_timeout = math.inf
        self._turn = 0
        self._order = count()

    # -- messages in ---------------------------------------------------------------------------

    def put(self, message: QueuedMessage) -> None:
        """Take a new message from the topic. A delayed one goes to the deferred set first.

        DiskFailed if the message must go to disk and cannot; then the channel does not have it.
        """
        if message.delay > 0:
            self._defer(message, message.delay)
        else:
            self._enqueue(message)
        self.message_count += 1

    def take_back(self, message: QueuedMessage) -> None:
        """Undo the ``put`` of a copy without delay, before anything else happens here."""
        self.message_count -= 1
        if self.queue and self.queue[-1].id == message.id:
            self.queue.pop()
        elif self.backlog is not None:
            self._take_back(self.backlog)

    def _enqueue(self, message: QueuedMessage) -> None:
        if len(self.queue) < self._slots:
            self.queue.append(message)
        elif self.backlog is not None:
            self._write(self.backlog, message)
        else:
            # nsqd drops messages that do not fit, unless a consumer takes one at this moment.
            self.pump()
            if len(self.queue) >= max(1, self._slots):
                return
            self.queue.append(message)
            if self._slots == 0:
                self.pump()
                self.queue.clear()
                return
        self._schedule.wake(self)

    def _enqueue_again(self, message: QueuedMessage) -> None:
        """Queue a message that was in flight or deferred. If the disk fails, keep it in memory."""
        try:
            self._enqueue(message)
        except DiskFailed:
            self.queue.append(message)
            self._schedule.wake(self)

    def _defer(self, message: QueuedMessage, delay: float) -> None:
        due = self._schedule.now() + delay
        heapq.heappush(self.deferred, (due, next(self._order), message))
        if due < self.wake_at:
            self._schedule.plan(self, due)

    # -- messages out --------------------------------------------------------------------------

    def pump(self) -> None:
        """Deliver waiting messages to the consumers that have room, evenly and in turn."""
        queue = self.queue
        while (queue or self.unread is not None) and not self.paused:
            ready = [(consumer, room) for consumer in self.consumers if (room := consumer.room())]
            if not ready or not (queue or self.has_waiting()):
                return
            if len(ready) == 1:
                self._hand_over(*ready[0])
                continue
            # Each consumer gets an equal share of the waiting messages. The turn decides which
            # consumers get one more.
            share = -(-self.depth // len(ready))
            first = self._turn % len(ready)
            for consumer, room in ready[first:] + ready[:first]:
                if not (queue or self.has_waiting()):
                    break
                self._hand_over(consumer, min(room, share))
                self._turn += 1

    def _retry(self) -> None:
        self._schedule.wake(self)

    def _hand_over(self, consumer: Consumer, limit: int) -> None:
        queue = self.queue
        now = self._schedule.now()
        deadline = now + consumer.delivery_timeout
        in_flight = self.in_flight
        sample_rate = consumer.sample_rate
        batch: list[QueuedMessage] = []
        size = 0
        while len(batch) < limit and size < _BATCH_BYTES:
            if self.unread is not None:
                oldest = self.oldest(self.unread)
                if oldest is None:
                    break
                message = oldest
            elif queue:
                message = queue.popleft()
            else:
                break
            if sample_rate and self._schedule.rng.randrange(100) > sample_rate:
                continue  # The message is lost for all consumers, docs/protocol/flow#sampling.
            message.attempts = (message.attempts + 1) & 0xFFFF
            message.owner = consumer
            message.deadline = deadline
            message.delivered_at = now
            in_flight[message.id] = message
            size += len(message.body)
            batch.append(message)
        if not batch:
            return
        consumer.in_flight += len(batch)
        if deadline < self._next_timeout:
            self._next_timeout = deadline
        if deadline < self.wake_at:
            self._schedule.plan(self, deadline)
        consumer.deliver(batch)

    # -- answers of consumers ------------------------------------------------------------------

    def finish(self, id: bytes, consumer: Consumer) -> bytes | None:
        """Finish the message (FIN). Return None, or the reason of the error
        (docs/protocol/flow#fin)."""
        message = self.in_flight.get(id)
        if message is None:
            return NOT_IN_FLIGHT
        if message.owner is not consumer:
            return NOT_OWNER
        del self.in_flight[id]
        consumer.in_flight -= 1
        consumer.finish_count += 1
        if self.latency is not None:
            self.latency.add(self._schedule.now(), self._schedule.wall_ns() - message.timestamp)
        if self.queue or self.unread is not None:
            self._schedule.wake(self)
        return None

    def requeue(self, id: bytes, consumer: Consumer, delay: float) -> bytes | None:
        """Requeue the message (REQ) after ``delay`` seconds. Return None or the error's reason."""
        message = self.in_flight.get(id)
        if message is None:
            return NOT_IN_FLIGHT
        if message.owner is not consumer:
            return NOT_OWNER
        del self.in_flight[id]
        message.owner = None
        consumer.in_flight -= 1
        consumer.requeue_count += 1
        self.requeue_count += 1
        if delay > 0:
            self._defer(message, delay)
        else:
            self._enqueue_again(message)
        if self.queue or self.unread is not None:
            self._schedule.wake(self)
        return None

    def touch(self, id: bytes, consumer: Consumer) -> bytes | None:
        """Give the message a new deadline (TOUCH), --max-msg-timeout after delivery at most.

        Return None, or the reason of the error.
        """
        message = self.in_flight.get(id)
        if message is None:
            return NOT_IN_FLIGHT
        if message.owner is not consumer:
            return NOT_OWNER
        cap = message.delivered_at + self._schedule.options.max_msg_timeout
        message.deadline = min(self._schedule.now() + consumer.msg_timeout, cap)
        if message.deadline < self._next_timeout:
            self._next_timeout = message.deadline
            if message.deadline < self.wake_at:
                self._schedule.plan(self, message.deadline)
        return None

    # -- time ----------------------------------------------------------------------------------

    def expire(self, now: float) -> None:
        """Queue the deferred messages that are due and the messages in flight that timed out."""
        deferred = self.deferred
        while deferred and deferred[0][0] <= now:
            self._enqueue_again(heapq.heappop(deferred)[2])
        if now >= self._next_timeout:
            self._time_out(now)
        wake_at = self._next_timeout
        if deferred:
            wake_at = min(wake_at, deferred[0][0])
        if wake_at < self.wake_at:
            self._schedule.plan(self, wake_at)

    def _time_out(self, now: float) -> None:
        overdue = []
        earliest = math.inf
        for message in self.in_flight.values():
            if message.deadline <= now:
                overdue.append(message)
            elif message.deadline < earliest:
                earliest = message.deadline
        if overdue:
            earliest = max(earliest, now + _SCAN_SPACING)
        # This comes before the loop, where an ephemeral queue may deliver at once and so set an
        # earlier time.
        self._next_timeout = earliest if self.in_flight else math.inf
        for message in overdue:
            del self.in_flight[message.id]
            owner, message.owner = message.owner, None
            if owner is not None:
                owner.in_flight -= 1
            self.timeout_count += 1
            self._enqueue_again(message)

    # -- consumers, pause, empty, close ----------------------------------------------------------

    def add_consumer(self, consumer: Consumer) -> None:
        """Attach a consumer, or raise TooManyConsumers."""
        limit = self._schedule.options.max_channel_consumers
        if 0 < limit <= len(self.consumers):
            raise TooManyConsumers
        self.consumers.append(consumer)

    def remove_consumer(self, consumer: Consumer) -> None:
        """Detach a consumer. Its messages stay in flight until their timeout
        (docs/protocol/errors#closing)."""
        if consumer in self.consumers:
            self.consumers.remove(consumer)
            if not self.consumers and self.ephemeral:
                self._on_deserted(self)

    def pause(self, paused: bool) -> None:
        self.paused = paused
        for consumer in self.consumers:
            consumer.pump_turned()
        if not paused:
            self._schedule.wake(self)

    def empty(self) -> None:
        """Drop all messages, deferred and in flight, too. Counters stay."""
        self._drop_waiting()
        self.deferred.clear()
        self.in_flight.clear()
        self._next_timeout = math.inf
        for consumer in self.consumers:
            consumer.in_flight = 0

    def close(self) -> None:
        """Close the consumers, because the channel was deleted or the server stops."""
        self.deleted = True
        consumers, self.consumers = self.consumers, []
        for consumer in consumers:
            consumer.channel_closed()

    def unsaved(self) -> Iterator[QueuedMessage]:
        """Yield the messages that a clean stop writes: in memory, in flight, deferred."""
        yield from self.queue
        yield from self.in_flight.values()
        yield from (message for _, _, message in sorted(self.deferred, key=lambda item: item[:2]))
