"""Counts of topics and channels, added up over the nsqds of a cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import add
from types import MappingProxyType
from typing import Any, NamedTuple

from gnsqsync.http.nsqd_types import ChannelStats, Stats

__all__ = ["COUNTS", "ChannelTotal", "TopicTotal", "add_up", "channel_total", "totals"]

# nsqd's names for the first counts of ChannelTotal, in their order.
COUNTS = (
    "depth",
    "in_flight_count",
    "deferred_count",
    "requeue_count",
    "timeout_count",
    "message_count",
    "client_count",
)


class ChannelTotal(NamedTuple):
    """Counts of a channel at one nsqd, or at several together.

    ``requeued``, ``timed_out``, ``messages`` count from nsqds' starts. ``ready``: sum of the
    consumers' RDY, where the answers have the consumers.
    """

    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    requeued: int = 0
    timed_out: int = 0
    messages: int = 0
    clients: int = 0
    # True if the channel is paused at one nsqd or more.
    paused: bool = False
    ready: int = 0

    @property
    def is_stuck(self) -> bool:
        """True if messages wait, consumers are there, and none of them has a message."""
        return bool(self.depth and self.clients and not self.in_flight and not self.paused)

    @property
    def is_idle(self) -> bool:
        """True if the channel is stuck because all consumers have RDY 0. Needs ``ready``."""
        return self.is_stuck and not self.ready

    @property
    def left(self) -> int:
        """Messages that left the channel since nsqd started: finished or emptied."""
        return self.messages - self.depth - self.in_flight - self.deferred

    def plus(self, other: ChannelTotal) -> ChannelTotal:
        """Return the sum. It is paused if one of both is."""
        sums: Iterable[Any] = map(add, self, other)
        return ChannelTotal(*sums)._replace(paused=self.paused or other.paused)


class TopicTotal(NamedTuple):
    """Counts of a topic, and of its channels by name. ``nodes``: number of nsqds with the topic."""

    depth: int = 0
    messages: int = 0
    # True if the topic is paused at one nsqd or more.
    paused: bool = False
    nodes: int = 0
    channels: Mapping[str, ChannelTotal] = MappingProxyType({})


def totals(answers: Iterable[Stats]) -> dict[str, TopicTotal]:
    """Return the sums over the answers of nsqds, topics and channels in alphabetical order."""
    found = add_up(map(_topics, answers))
    return {
        name: topic._replace(channels=dict(sorted(topic.channels.items())))
        for name, topic in sorted(found.items())
    }


def add_up(nsqds: Iterable[Mapping[str, TopicTotal]]) -> dict[str, TopicTotal]:
    """Sum the topics of nsqds. A topic or channel is paused if it is paused at one nsqd."""
    found: dict[str, TopicTotal] = {}
    for topics in nsqds:
        for name, topic in topics.items():
            known = found.get(name)
            if known is None:
                found[name] = topic
                continue
            channels = dict(known.channels)
            for channel, one in topic.channels.items():
                channels[channel] = channels[channel].plus(one) if channel in channels else one
            found[name] = TopicTotal(
                known.depth + topic.depth,
                known.messages + topic.messages,
                known.paused or topic.paused,
                known.nodes + topic.nodes,
                channels,
            )
    return found


def channel_total(channel: ChannelStats) -> ChannelTotal:
    """Return the counts of a channel at one nsqd."""
    counts = (getattr(channel, name) for name in COUNTS)
    ready = sum(client.ready_count for client in channel.clients)
    return ChannelTotal._make((*counts, channel.paused, ready))


def _topics(stats: Stats) -> dict[str, TopicTotal]:
    return {
        topic.topic_name: TopicTotal(
            topic.depth,
            topic.message_count,
            topic.paused,
            1,
            {one.channel_name: channel_total(one) for one in topic.channels},
        )
        for topic in stats.topics
    }
