"""The waiting messages of a topic or a channel: in memory, and on disk if the memory is full.

The disk queue, an argument, does the only I/O.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from gnsqsync.daemon.names import is_ephemeral
from gnsqsync.embedded.disk.queue import DiskQueue
from gnsqsync.embedded.disk.records import decode, decode_timestamp, encode
from gnsqsync.embedded.disk.writer import DiskFailed
from gnsqsync.embedded.schedule import Schedule

__all__ = ["Backlog", "Consumer", "DiskFailed", "QueuedMessage", "Queueing"]


class QueuedMessage:
    """A copy of a message for one channel. Copies share id and body."""

    __slots__ = (
        "attempts",
        "body",
        "deadline",
        "delay",
        "delivered_at",
        "id",
        "owner",
        "timestamp",
    )

    def __init__(
        self, id: bytes, timestamp: int, body: bytes, delay: float = 0.0, attempts: int = 0
    ) -> None:
        self.id: bytes = id
        self.timestamp: int = timestamp
        self.body: bytes = body
        self.delay: float = delay
        self.attempts: int = attempts
        # The next three are set while the message is in flight.
        self.owner: Consumer | None = None
        self.deadline: float = 0.0
        self.delivered_at: float = 0.0

    def copy(self) -> QueuedMessage:
        return QueuedMessage(self.id, self.timestamp, self.body, self.delay, self.attempts)


class Consumer(Protocol):
    """A subscribed connection, as a channel sees it.

    The channel counts ``in_flight``. ``delivery_timeout`` is in seconds.
    """

    in_flight: int
    delivery_timeout: float
    sample_rate: int
    requeue_count: int
    finish_count: int

    @property
    def msg_timeout(self) -> float: ...

    def room(self) -> int:
        """Return the number of messages it takes now: 0 if not ready, or its buffer is full."""
        ...

    def deliver(self, messages: list[QueuedMessage]) -> None:
        """Write the messages. This must not block and must not fail."""
        ...

    def pump_turned(self) -> None:
        """Send the buffered messages if the consumer takes no more of them."""
        ...

    def channel_closed(self) -> None:
        """Close the connection, because the channel was deleted."""
        ...


class Backlog:
    """The disk queue of one topic or channel, with messages instead of records.

    The schedule calls its syncs. ``on_written`` is called with None after a write, or with the
    reason why the write failed. ``on_retry`` is called when the queue may be readable again.
    """

    def __init__(
        self,
        queue: DiskQueue,
        schedule: Schedule,
        on_written: Callable[[str | None], object],
        on_retry: Callable[[], object],
    ) -> None:
        self._queue = queue
        self._schedule = schedule
        self._on_written = on_written
        self._on_retry = on_retry
        self.wake_at: float = math.inf
        self.deleted: bool = False

    @property
    def depth(self) -> int:
        return self._queue.depth

    def put(self, message: QueuedMessage) -> None:
        """Write the message without its delay. DiskFailed if it cannot be written."""
        record = encode(message.timestamp, message.attempts, message.id, message.body)
        try:
            self._queue.put(record)
        except DiskFailed as error:
            self._on_written(str(error))
            raise
        finally:
            self._schedule.wake(self)
        self._on_written(None)

    def take_back(self) -> None:
        """Undo the last ``put``."""
        self._queue.take_back()
        self._schedule.wake(self)

    def next_timestamp(self) -> int | None:
        """Return the timestamp of the next message, or None if none can be read now."""
        head = self._queue.head()
        if head is None:
            # The read may have found a damage, and then a sync is due.
            self._schedule.wake(self)
            return None
        return decode_timestamp(head)

    def peek(self) -> QueuedMessage:
        """Return the next message, which stays. ``next_timestamp`` must have returned a time."""
        head = self._queue.head()
        assert head is not None
        return _message(head)

    def take(self) -> QueuedMessage:
        """Remove and return the next message. ``next_timestamp`` must have returned a time."""
        self._schedule.wake(self)
        return _message(self._queue.take())

    def empty(self) -> None:
        self._queue.empty()

    def close(self) -> None:
        """Sync and close the files. A sync that fails is logged."""
        self._queue.close()
        self.forget()

    def forget(self) -> None:
        """Leave the schedule, because the queue is closed or deleted."""
        self.deleted = True
        self._schedule.forget(self)

    # -- called by the schedule ------------------------------------------------------------------

    def pump(self) -> None:
        """Sync if that is due after a round of puts and takes. Otherwise plan the sync."""
        self._queue.sync_if_due()
        self._plan()

    def expire(self, now: float) -> None:
        self._queue.tick()
        self._plan()
        self._on_retry()

    def _plan(self) -> None:
        sync_at = self._queue.sync_at
        if sync_at is not None and sync_at < self.wake_at:
            self._schedule.plan(self, sync_at)


def _message(payload: bytes) -> QueuedMessage:
    timestamp, attempts, id, body = decode(payload)
    return QueuedMessage(id, timestamp, body, 0.0, attempts)


class Queueing:
    """The queue of waiting messages that a topic and a channel have.

    ``open_queue`` returns the disk queue, or None to keep everything in memory. The first
    --mem-queue-size messages stay in memory, the rest goes to disk. The next message is the older
    one of the first in memory and the first on disk.
    """

    def __init__(
        self,
        name: str,
        schedule: Schedule,
        open_queue: Callable[[], DiskQueue | None],
        on_written: Callable[[str | None], object],
    ) -> None:
        self._schedule = schedule
        self.name = name
        self.ephemeral: bool = is_ephemeral(name)
        self.paused: bool = False
        self.deleted: bool = False
        self.queue: deque[QueuedMessage] = deque()
        self.message_count = 0
        self.backlog: Backlog | None = None
        disk_queue = None if self.ephemeral else open_queue()
        if disk_queue is not None:
            self.backlog = Backlog(disk_queue, schedule, on_written, self._retry)
        # The backlog while it has messages, otherwise None.
        self.unread: Backlog | None = None
        if self.backlog is not None and self.backlog.depth:
            self.unread = self.backlog
        # Upper bound of messages in memory. Further ones go to disk or are dropped.
        in_memory = disk_queue is None and not self.ephemeral
        self._slots: float = math.inf if in_memory else schedule.options.mem_queue_size

    @property
    def depth(self) -> int:
        return len(self.queue) + (self.backlog.depth if self.backlog is not None else 0)

    @property
    def backend_depth(self) -> int:
        """Number of messages on disk, or without a disk queue the number that nsqd would have."""
        if self.ephemeral:
            return 0
        if self.backlog is not None:
            return self.backlog.depth
        return max(0, len(self.queue) - self._schedule.options.mem_queue_size)

    def has_waiting(self) -> bool:
        """Return True if a message can be taken now."""
        if self.queue:
            return True
        return self.unread is not None and self._next_on_disk(self.unread) is not None

    def oldest(self, unread: Backlog) -> QueuedMessage | None:
        """Take the older one of the first messages in memory and on disk. None if there is none."""
        on_disk = self._next_on_disk(unread)
        if self.queue and (on_disk is None or self.queue[0].timestamp <= on_disk):
            return self.queue.popleft()
        if on_disk is None:
            return None
        message = unread.take()
        if not unread.depth:
            self.unread = None
        return message

    def peek_oldest(self) -> QueuedMessage | None:
        """Return the message that ``oldest`` would take. It stays until ``drop``."""
        unread = self.unread
        on_disk = None if unread is None else self._next_on_disk(unread)
        if self.queue and (on_disk is None or self.queue[0].timestamp <= on_disk):
            return self.queue[0]
        return None if unread is None or on_disk is None else unread.peek()

    def drop(self, message: QueuedMessage) -> None:
        """Remove the message that ``peek_oldest`` returned. No message may be taken in between."""
        if self.queue and self.queue[0] is message:
            self.queue.popleft()
        elif self.unread is not None:
            self.oldest(self.unread)

    def _next_on_disk(self, unread: Backlog) -> int | None:
        timestamp = unread.next_timestamp()
        if timestamp is None and not unread.depth:
            # The rest of the files was damaged.
            self.unread = None
        return timestamp

    def _write(self, backlog: Backlog, message: QueuedMessage) -> None:
        """Write the message to disk. DiskFailed if that fails."""
        backlog.put(message)
        self.unread = backlog

    def _take_back(self, backlog: Backlog) -> None:
        """Undo the last ``_write``."""
        backlog.take_back()
        self.unread = backlog if backlog.depth else None

    def _drop_waiting(self) -> None:
        self.queue.clear()
        self.unread = None
        if self.backlog is not None:
            self.backlog.empty()

    def _retry(self) -> None:
        """Try again, because the disk may work again."""
        raise NotImplementedError

    def save(self, messages: Iterable[QueuedMessage]) -> None:
        """Write the messages to disk at a clean stop, and close it. Unwritable ones are lost."""
        assert self.backlog is not None
        for message in messages:
            try:
                self.backlog.put(message)
            except DiskFailed:
                # The broker logs the failure. The next message may be smaller and fit.
                continue
        self.backlog.close()
