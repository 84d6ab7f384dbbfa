"""A topic: its messages, and their copies for the channels.

No I/O. The rules are in docs/protocol/publishing and docs/protocol/flow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from gnsqsync.embedded.channel import Channel
from gnsqsync.embedded.disk.queue import DiskQueue
from gnsqsync.embedded.guid import GuidFactory
from gnsqsync.embedded.queueing import DiskFailed, QueuedMessage, Queueing
from gnsqsync.embedded.schedule import Schedule

__all__ = ["Topic", "TopicGone"]


# Seconds after which a topic tries again to copy to channels that could not write.
_RETRY = 1.0
# Messages that a topic copies before other greenlets go on: about 10 ms from disk to disk.
_ROUND = 500


class TopicGone(Exception):
    """The topic was deleted while the caller waited for it. The text is nsqd's "exiting"."""


class Topic(Queueing):
    """A topic, made by ``Broker.topic``. It copies nothing to channels before ``start``.

    ``open_queue`` returns the disk queue of a name, or None. ``on_written``: see Backlog.
    ``on_channel`` is called with each new channel. ``on_deserted``: see Channel.

    A message goes to all channels or to none. It waits in the topic if one channel cannot write it
    to disk.
    """

    def __init__(
        self,
        name: str,
        schedule: Schedule,
        *,
        node_id: int,
        open_queue: Callable[[str], DiskQueue | None],
        on_written: Callable[[str, str | None], object],
        on_channel: Callable[[Channel], object],
        on_deserted: Callable[[Channel], object],
    ) -> None:
        super().__init__(
            name,
            schedule,
            lambda: open_queue(name),
            lambda error: on_written(f"TOPIC({name}) ERROR", error),
        )
        self._open_queue = open_queue
        self._written = on_written
        self._on_channel = on_channel
        self._on_deserted = on_deserted
        self.channels: dict[str, Channel] = {}
        self._others: list[Channel] = []
        self._last: Channel
        self.message_bytes: int = 0
        self._started = False
        # Time of the schedule's next call of expire(), for messages that wait for the next round
        # or for a disk; math.inf if nothing is planned.
        self.wake_at: float = math.inf
        self._guid = GuidFactory(node_id)

    def start(self) -> None:
        """Let messages flow, because the channels that the first message needs exist now."""
        self._started = True
        self._flush()

    def publish(self, bodies: Sequence[bytes], delay: float = 0.0) -> None:
        """Store messages in order. ``delay`` (seconds) begins when a channel gets them.

        TopicGone if the topic was deleted meanwhile. DiskFailed if a message must go to disk and
        cannot; the messages before it are stored, as in nsqd.
        """
        if self.deleted:
            raise TopicGone("exiting")
        wall_ns = self._schedule.wall_ns
        new_id = self._guid.new_id
        flows = self._flows() and not self.queue and self.unread is None
        stored = 0
        try:
            for body in bodies:
                now = wall_ns()  # One time for each message: the timestamps of one MPUB rise.
                message = QueuedMessage(new_id(now), now, body, delay)
                if not flows or not self._copy(message):
                    flows = False
                    self._enqueue(message)
                stored += 1
                self.message_bytes += len(body)
        finally:
            self.message_count += stored
        if not flows and self._flows():
            self._schedule.wake(self)

    def channel(self, name: str) -> Channel:
        """Return the channel, or create it. The first channel gets the topic's waiting messages."""
        channel = self.channels.get(name)
        if channel is None:
            channel = Channel(
                name,
                self._schedule,
                self.name,
                open_queue=lambda: (
                    None if self.ephemeral else self._open_queue(f"{self.name}:{name}")
                ),
                on_written=lambda error: self._written(f"CHANNEL({name})", error),
                on_deserted=self._on_deserted,
            )
            self.channels[name] = channel
            self._set_order()
            self._on_channel(channel)
            self._flush()
        return channel

    def remove(self, channel: Channel) -> None:
        """Send no more messages to the channel, which is deleted."""
        del self.channels[channel.name]
        if self.channels:
            self._set_order()

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self._flush()

    def empty(self) -> None:
        """Drop the messages that wait in the topic. Channels keep their messages."""
        self._drop_waiting()

    def pump(self) -> None:
        """Copy waiting messages to the channels. Called by the schedule."""
        self._flush()

    def expire(self, now: float) -> None:
        """Copy the messages that a round left, or that a channel could not write."""
        self._flush()

    def _retry(self) -> None:
        self._schedule.wake(self)

    def _flows(self) -> bool:
        return self._started and not self.paused and bool(self.channels)

    def _flush(self) -> None:
        for _ in range(_ROUND):
            if not self._flows() or (message := self.peek_oldest()) is None:
                return
            # The message leaves the topic after the channels have it, so a crash loses nothing.
            if not self._copy(message):
                self._flush_later(_RETRY)
                return
            self.drop(message)
        self._flush_later(0.0)

    def _flush_later(self, delay: float) -> None:
        when = self._schedule.now() + delay
        if when < self.wake_at:
            self._schedule.plan(self, when)

    def _copy(self, message: QueuedMessage) -> bool:
        """Give each channel a copy. Return False if one channel failed; then no channel has it."""
        done = 0
        try:
            for channel in self._others:
                channel.put(message.copy())
                done += 1
            self._last.put(message)
        except DiskFailed:
            for channel in self._others[:done]:
                channel.take_back(message)
            return False
        return True

    def _set_order(self) -> None:
        """Set the order in which channels get a message. The last one gets the message itself.

        Channels without a disk come last. They cannot fail, and a message that they have delivered
        cannot be taken back.
        """
        *self._others, self._last = sorted(
            self.channels.values(), key=lambda channel: channel.backlog is None
        )

    def _enqueue(self, message: QueuedMessage) -> None:
        if len(self.queue) < self._slots:
            if len(self.queue) >= self._schedule.options.mem_queue_size:
                # nsqd would write this message to disk, which loses its delay
                # (docs/protocol/flow#lost-delays).
                message.delay = 0.0
            self.queue.append(message)
        elif self.backlog is not None:
            self._write(self.backlog, message)
