"""The topics and channels of one nsqd: creation, deletion, and listeners for both. No I/O."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gnsqsync.daemon.names import is_ephemeral
from gnsqsync.embedded.channel import Channel
from gnsqsync.embedded.schedule import Schedule
from gnsqsync.embedded.topic import Topic

if TYPE_CHECKING:
    from gnsqsync.embedded.disk.queue import DiskQueue
    from gnsqsync.embedded.options import NsqdOptions

__all__ = [
    "CHANNEL_CREATED",
    "CHANNEL_DELETED",
    "TOPIC_CREATED",
    "TOPIC_DELETED",
    "Broker",
    "Listener",
]

TOPIC_CREATED = "topic created"
TOPIC_DELETED = "topic deleted"
CHANNEL_CREATED = "channel created"
CHANNEL_DELETED = "channel deleted"

Listener = Callable[[str, str, "str | None"], None]
"""Receives one of the four events above, the topic's name, and the channel's name or None."""


def _no_queue(name: str) -> DiskQueue | None:
    """Return None: the queue stays in memory."""
    return None


def _no_log(who: str, error: str) -> None:
    """Ignore the error."""


class Broker:
    """The topics of one nsqd, and the ``schedule`` of their channels.

    ``now``, ``wall_ns`` and ``rng`` go to the Schedule. Everything runs in one thread.

    ``listeners`` are called when a topic or channel is created or deleted. ``known_channels`` may
    be set to a function that returns the channels a new topic needs before its first message
    (docs/protocol/publishing#channels). It may block; other greenlets go on.

    ``open_queue`` may be set, before the first topic is made, to a function that opens the disk
    queue of a name. Without it all messages stay in memory. ``on_write_failed`` is called with the
    topic or channel that could not write a message, and the reason.
    """

    def __init__(
        self,
        options: NsqdOptions,
        *,
        node_id: int = 0,
        now: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
        rng: random.Random | None = None,
    ) -> None:
        self.options = options
        self.node_id = node_id
        self.now = now
        self.wall_ns = wall_ns
        self.schedule: Schedule = Schedule(options, now=now, wall_ns=wall_ns, rng=rng)
        self.topics: dict[str, Topic] = {}
        self.listeners: list[Listener] = []
        self.known_channels: Callable[[str], Iterable[str]] | None = None
        self.open_queue: Callable[[str], DiskQueue | None] = _no_queue
        self.on_write_failed: Callable[[str, str], object] = _no_log
        # Reason why the last write to disk failed; None if it succeeded.
        self.trouble: str | None = None

    @property
    def health(self) -> str:
        """Health as /ping answers it and /stats shows it."""
        return "OK" if self.trouble is None else f"NOK - {self.trouble}"

    def in_memory_only(self) -> dict[str, int]:
        """Return the number of messages that a stop cannot save, by the name of their queue."""
        found: dict[str, int] = {}
        for topic in self.topics.values():
            if topic.ephemeral:
                continue
            if topic.backlog is None and topic.queue:
                found[topic.name] = len(topic.queue)
            for channel in topic.channels.values():
                if channel.backlog is None and not is_ephemeral(channel.name):
                    waiting = sum(1 for _ in channel.unsaved())
                    if waiting:
                        found[f"{topic.name}/{channel.name}"] = waiting
        return found

    # -- topics and channels ---------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Return the topic. If it is missing, create it; this may block in ``known_channels``."""
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        topic = self.topics[name] = Topic(
            name,
            self.schedule,
            node_id=self.node_id,
            open_queue=self.open_queue,
            on_written=self._on_written,
            on_channel=self._on_channel,
            on_deserted=self._on_deserted,
        )
        self._tell(TOPIC_CREATED, name, None)
        try:
            if self.known_channels is not None:
                for channel in self.known_channels(name):
                    if not is_ephemeral(channel) and not topic.deleted:
                        topic.channel(channel)
        finally:
            # Other greenlets may have published while ``known_channels`` blocked.
            topic.start()
        return topic

    def delete_topic(self, name: str) -> bool:
        """Delete the topic and its channels, and close their consumers. Return False if none."""
        topic = self.topics.pop(name, None)
        if topic is None:
            return False
        topic.deleted = True
        for channel in list(topic.channels.values()):
            self._remove_channel(topic, channel)
        topic.empty()
        self._forget(topic)
        self._tell(TOPIC_DELETED, name, None)
        return True

    def delete_channel(self, topic_name: str, name: str) -> bool:
        """Delete the channel, and an ephemeral topic with its last channel. False if none."""
        topic = self.topics.get(topic_name)
        channel = topic.channels.get(name) if topic is not None else None
        if topic is None or channel is None:
            return False
        self._remove_channel(topic, channel)
        if topic.ephemeral and not topic.channels:
            self.delete_topic(topic_name)
        return True

    def _remove_channel(self, topic: Topic, channel: Channel) -> None:
        topic.remove(channel)
        channel.close()
        channel.empty()
        self._forget(channel)
        self._tell(CHANNEL_DELETED, topic.name, channel.name)

    def _forget(self, owner: Topic | Channel) -> None:
        self.schedule.forget(owner)
        if owner.backlog is not None:
            owner.backlog.forget()

    def _on_written(self, who: str, error: str | None) -> None:
        """Note the result of a write to disk: None, or the reason why it failed."""
        self.trouble = error
        if error is not None:
            self.on_write_failed(who, error)

    def _on_channel(self, channel: Channel) -> None:
        self._tell(CHANNEL_CREATED, channel.topic_name, channel.name)

    def _on_deserted(self, channel: Channel) -> None:
        """Delete an ephemeral channel that lost its last consumer."""
        self.delete_channel(channel.topic_name, channel.name)

    def _tell(self, event: str, topic: str, channel: str | None) -> None:
        for listener in list(self.listeners):
            listener(event, topic, channel)
