"""A topic: its messages, and copying them to the channels.

No I/O. Follows docs/protocol/publishing and docs/protocol/requeue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gnsqsync.embedded.channel import Channel, QueuedMessage, Queueing
from gnsqsync.embedded.guid import GuidFactory
from gnsqsync.embedded.schedule import Schedule

__all__ = ["Topic", "TopicGone"]


class TopicGone(Exception):
    """The topic was deleted while the caller waited for it; the text is nsqd's "exiting"."""


class Topic(Queueing):
    """One topic. Made by ``Broker.topic``; it copies nothing to channels before ``start``.

    ``on_channel``: called with each new channel; ``on_deserted``: as of Channel.
    """

    def __init__(
        self,
        name: str,
        schedule: Schedule,
        *,
        node_id: int,
        on_channel: Callable[[Channel], object],
        on_deserted: Callable[[Channel], object],
    ) -> None:
        super().__init__(name, schedule)
        self._on_channel = on_channel
        self._on_deserted = on_deserted
        self.channels: dict[str, Channel] = {}
        self.message_bytes: int = 0
        self._started = False
        self._guid = GuidFactory(node_id)

    def start(self) -> None:
        """Let messages flow: the channels that must exist before the first message do."""
        self._started = True
        self._flush()

    def publish(self, bodies: Sequence[bytes], delay: float = 0.0) -> None:
        """Store messages, in order. ``delay`` in seconds starts when a channel gets them.

        Raises TopicGone when the topic was deleted meanwhile.
        """
        if self.deleted:
            raise TopicGone("exiting")
        wall_ns = self._schedule.wall_ns
        new_id = self._guid.new_id
        self.message_count += len(bodies)
        flows = self._flows()
        for body in bodies:
            self.message_bytes += len(body)
            now = wall_ns()  # anew for each: the timestamps of one MPUB rise
            message = QueuedMessage(new_id(now), now, body, delay)
            if flows:
                self._copy(message)
            else:
                self._enqueue(message)

    def restore(self, messages: Iterable[QueuedMessage]) -> None:
        """Messages kept over a restart. They do not count as published."""
        self.queue.extend(messages)
        self._flush()

    def channel(self, name: str) -> Channel:
        """The channel, made when it is missing. The first one gets what waits in the topic."""
        channel = self.channels.get(name)
        if channel is None:
            channel = Channel(name, self._schedule, self.name, on_deserted=self._on_deserted)
            self.channels[name] = channel
            self._on_channel(channel)
            self._flush()
        return channel

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self._flush()

    def empty(self) -> None:
        """Drop what waits in the topic itself; the channels keep theirs."""
        self.queue.clear()

    def _flows(self) -> bool:
        return self._started and not self.paused and bool(self.channels)

    def _flush(self) -> None:
        if self._flows():
            queue = self.queue
            while queue:
                self._copy(queue.popleft())

    def _copy(self, message: QueuedMessage) -> None:
        channels = iter(self.channels.values())
        first = next(channels)
        for channel in channels:
            channel.put(message.copy())
        first.put(message)

    def _enqueue(self, message: QueuedMessage) -> None:
        if len(self.queue) >= self._schedule.options.mem_queue_size:
            if self.ephemeral:
                return
            # On nsqd's disk the delay is not kept (docs/protocol/requeue#lost-delays).
            message.delay = 0.0
        self.queue.append(message)
