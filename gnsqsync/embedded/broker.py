"""All topics and channels of one nsqd: creation, deletion, timers, and who listens to changes.

No I/O: the clock comes from outside, and the owner is told when to call ``settle`` or ``expire``.
"""

from __future__ import annotations

import heapq
import math
import random
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from gnsqsync.embedded.channel import Channel
from gnsqsync.embedded.names import is_ephemeral
from gnsqsync.embedded.topic import Topic

if TYPE_CHECKING:
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
"""Called with one of the four words above, the topic's name and the channel's or None."""


def _nothing() -> None:
    """The hooks of a broker without owner."""


class Broker:
    """The topics of one nsqd.

    ``now`` gives monotonic seconds, ``wall_ns`` nanoseconds since the epoch. Everything runs in
    one thread. What a call leaves to be delivered is delivered by ``settle``; the owner hears of
    it by ``on_work`` (once until the next ``settle``), and by ``on_plan(when)`` that ``expire``
    should be called at ``when``, earlier than it was told before.

    ``listeners`` hear of topics and channels coming and going. ``known_channels`` may be set to a
    function that names the channels a new topic should have before its first message flows
    (nsq-reference 1.20); it may block, and other greenlets go on meanwhile.
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
        self.rng = rng or random.Random()
        self.topics: dict[str, Topic] = {}
        self.listeners: list[Listener] = []
        self.known_channels: Callable[[str], Iterable[str]] | None = None
        self.on_work: Callable[[], None] = _nothing
        self.on_plan: Callable[[float], None] = _nothing_at
        self._awake: dict[Channel, None] = {}
        self._plans: list[tuple[float, int, Channel]] = []
        self._plan_number = 0

    # -- topics and channels ---------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """The topic, made when it is missing; then this may block in ``known_channels``."""
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        topic = self.topics[name] = Topic(self, name)
        self._tell(TOPIC_CREATED, name, None)
        try:
            if self.known_channels is not None:
                for channel in self.known_channels(name):
                    if not is_ephemeral(channel) and not topic.deleted:
                        topic.channel(channel)
        finally:
            # Others may have published to it meanwhile.
            topic.start()
        return topic

    def delete_topic(self, name: str) -> bool:
        """Delete it with its channels; their consumers are let go. False when there is none."""
        topic = self.topics.pop(name, None)
        if topic is None:
            return False
        topic.deleted = True
        for channel in list(topic.channels.values()):
            self._remove_channel(topic, channel)
        topic.empty()
        self._tell(TOPIC_DELETED, name, None)
        return True

    def delete_channel(self, topic_name: str, name: str) -> bool:
        """Delete a channel, and an ephemeral topic with its last one. False when there is none."""
        topic = self.topics.get(topic_name)
        channel = topic.channels.get(name) if topic is not None else None
        if topic is None or channel is None:
            return False
        self._remove_channel(topic, channel)
        if topic.ephemeral and not topic.channels:
            self.delete_topic(topic_name)
        return True

    def _remove_channel(self, topic: Topic, channel: Channel) -> None:
        del topic.channels[channel.name]
        self._awake.pop(channel, None)
        channel.close()
        channel.empty()
        self._tell(CHANNEL_DELETED, topic.name, channel.name)

    def channel_created(self, channel: Channel) -> None:
        """Called by a topic."""
        self._tell(CHANNEL_CREATED, channel.topic_name, channel.name)

    def _tell(self, event: str, topic: str, channel: str | None) -> None:
        for listener in list(self.listeners):
            listener(event, topic, channel)

    # -- work and time ---------------------------------------------------------------------------

    def wake(self, channel: Channel) -> None:
        """``channel`` may have something to hand over: ``settle`` is to look at it."""
        if not self._awake:
            self.on_work()
        self._awake[channel] = None

    def settle(self) -> None:
        """Hand messages to consumers, in every channel that was woken."""
        while self._awake:
            awake, self._awake = self._awake, {}
            for channel in awake:
                channel.pump()

    def plan(self, channel: Channel, when: float) -> None:
        """Have ``channel.expire`` called at ``when``, which is earlier than planned so far."""
        channel.wake_at = when
        self._plan_number += 1
        first = self._plans[0][0] if self._plans else math.inf
        heapq.heappush(self._plans, (when, self._plan_number, channel))
        if when < first:
            self.on_plan(when)

    def next_at(self) -> float | None:
        """When ``expire`` is due, or None."""
        return self._plans[0][0] if self._plans else None

    def expire(self) -> None:
        """Time out and release what is due; ``settle`` then delivers it."""
        now = self.now()
        plans = self._plans
        while plans and plans[0][0] <= now:
            when, _, channel = heapq.heappop(plans)
            # A plan that was overtaken by an earlier one, or belongs to a deleted channel.
            if when != channel.wake_at or channel.deleted:
                continue
            channel.wake_at = math.inf
            channel.expire(now)


def _nothing_at(when: float) -> None:
    """As ``_nothing``."""
