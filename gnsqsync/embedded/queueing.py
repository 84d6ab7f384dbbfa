"""Messages that wait in a topic or a channel: in memory, and on disk what does not fit there.

No I/O but that of the disk queue that comes from outside.
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
    """One copy of a message: each channel has its own, and they share id and body."""

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
        # Set while in flight.
        self.owner: Consumer | None = None
        self.deadline: float = 0.0
        self.delivered_at: float = 0.0

    def copy(self) -> QueuedMessage:
        return QueuedMessage(self.id, self.timestamp, self.body, self.delay, self.attempts)


class Consumer(Protocol):
    """What a channel needs of a subscribed connection.

    ``in_flight`` is counted by the channel. ``delivery_timeout`` is in seconds.
    """

    in_flight: int
    delivery_timeout: float
    sample_rate: int
    requeue_count: int
    finish_count: int

    @property
    def msg_timeout(self) -> float: ...

    def room(self) -> int:
        """How many messages it takes now: 0 when not ready, or when its buffer is full."""
        ...

    def deliver(self, messages: list[QueuedMessage]) -> None:
        """Write them. Must not block and must not fail."""
        ...

    def pump_turned(self) -> None:
        """It may take no more messages: what waits in its buffer is sent then."""
        ...

    def channel_closed(self) -> None:
        """The channel was deleted: close the connection."""
        ...


class Backlog:
    """The disk queue of one topic or channel, as messages, and its syncs in the schedule.

    ``on_written`` is called with None after a message was written, and with the reason when it
    was not. ``on_retry``: the queue may be readable again.
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
        """Write it; its delay is lost. DiskFailed when it cannot be written."""
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
        """Undo the ``put`` before."""
        self._queue.take_back()
        self._schedule.wake(self)

    def next_timestamp(self) -> int | None:
        """Of the message that ``take`` would give; None when there is none to be read now."""
        head = self._queue.head()
        if head is None:
            # Reading may have found a damage.
            self._schedule.wake(self)
            return None
        return decode_timestamp(head)

    def peek(self) -> QueuedMessage:
        """What ``take`` would give, as it stands on disk."""
        head = self._queue.head()
        assert head is not None
        return _message(head)

    def take(self) -> QueuedMessage:
        """The next message. Only after ``next_timestamp`` has shown that there is one."""
        self._schedule.wake(self)
        return _message(self._queue.take())

    def empty(self) -> None:
        self._queue.empty()

    def close(self) -> None:
        """Sync and close the files; what fails is logged."""
        self._queue.close()
        self.forget()

    def forget(self) -> None:
        """The queue is closed or deleted: nothing is to be synced any more."""
        self.deleted = True
        self._schedule.forget(self)

    # -- what the schedule calls -----------------------------------------------------------------

    def pump(self) -> None:
        """After a round of puts and takes: sync when that is due, or plan it."""
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
    """A queue of waiting messages, as a topic and a channel have one.

    ``open_queue`` gives the disk queue for what does not fit in memory, or None: then everything
    is in memory. The first --mem-queue-size messages stay in memory. The older one of those that
    come first in memory and on disk is taken first.
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
        # The backlog while it has messages.
        self.unread: Backlog | None = None
        if self.backlog is not None and self.backlog.depth:
            self.unread = self.backlog
        # How many messages the memory takes, before the rest goes to disk or is dropped.
        in_memory = disk_queue is None and not self.ephemeral
        self._slots: float = math.inf if in_memory else schedule.options.mem_queue_size

    @property
    def depth(self) -> int:
        return len(self.queue) + (self.backlog.depth if self.backlog is not None else 0)

    @property
    def backend_depth(self) -> int:
        """What is on disk. Without a disk queue, what would be there."""
        if self.ephemeral:
            return 0
        if self.backlog is not None:
            return self.backlog.depth
        return max(0, len(self.queue) - self._schedule.options.mem_queue_size)

    def has_waiting(self) -> bool:
        """Whether a message can be taken now."""
        if self.queue:
            return True
        return self.unread is not None and self._next_on_disk(self.unread) is not None

    def oldest(self, unread: Backlog) -> QueuedMessage | None:
        """Take the next message out of both; None when there is none to be read now."""
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
        """What ``oldest`` would take; it stays until ``drop`` is called with it."""
        unread = self.unread
        on_disk = None if unread is None else self._next_on_disk(unread)
        if self.queue and (on_disk is None or self.queue[0].timestamp <= on_disk):
            return self.queue[0]
        return None if unread is None or on_disk is None else unread.peek()

    def drop(self, message: QueuedMessage) -> None:
        """Take what ``peek_oldest`` gave; nothing was taken since."""
        if self.queue and self.queue[0] is message:
            self.queue.popleft()
        elif self.unread is not None:
            self.oldest(self.unread)

    def _next_on_disk(self, unread: Backlog) -> int | None:
        timestamp = unread.next_timestamp()
        if timestamp is None and not unread.depth:
            # All that was left was damaged.
            self.unread = None
        return timestamp

    def _write(self, backlog: Backlog, message: QueuedMessage) -> None:
        """To disk; DiskFailed when that fails."""
        backlog.put(message)
        self.unread = backlog

    def _take_back(self, backlog: Backlog) -> None:
        """Undo the ``_write`` before."""
        backlog.take_back()
        self.unread = backlog if backlog.depth else None

    def _drop_waiting(self) -> None:
        self.queue.clear()
        self.unread = None
        if self.backlog is not None:
            self.backlog.empty()

    def _retry(self) -> None:
        """The disk may work again."""
        raise NotImplementedError

    def save(self, messages: Iterable[QueuedMessage]) -> None:
        """A clean stop: write these to disk and close it. Those that cannot be written are lost."""
        assert self.backlog is not None
        for message in messages:
            try:
                self.backlog.put(message)
            except DiskFailed:
                # Logged by the broker. The next one may be smaller.
                continue
        self.backlog.close()
