"""Counts of topics and channels, added up over the nsqds of a cluster. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gnsqsync.http.nsqd_types import Stats

__all__ = ["ChannelTotal", "TopicTotal", "totals"]


@dataclass(slots=True)
class ChannelTotal:
    """Counts of a channel. ``requeued``, ``timed_out``, ``messages`` count from nsqds' starts.

    ``ready``: sum of the consumers' RDY, where the answers have the consumers.
    """

    depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    requeued: int = 0
    timed_out: int = 0
    messages: int = 0
    clients: int = 0
    ready: int = 0
    paused: bool = False


@dataclass(slots=True)
class TopicTotal:
    """Counts of a topic, and of its channels by name in alphabetical order."""

    depth: int = 0
    messages: int = 0
    paused: bool = False
    channels: dict[str, ChannelTotal] = field(default_factory=dict)


def totals(answers: Iterable[Stats]) -> dict[str, TopicTotal]:
    """Return the sums over the answers of nsqds, by topic in alphabetical order.

    A topic or channel is paused if it is paused at one nsqd.
    """
    found: dict[str, TopicTotal] = {}
    for stats in answers:
        for topic in stats.topics:
            total = found.setdefault(topic.topic_name, TopicTotal())
            total.depth += topic.depth
            total.messages += topic.message_count
            total.paused |= topic.paused
            for channel in topic.channels:
                one = total.channels.setdefault(channel.channel_name, ChannelTotal())
                one.depth += channel.depth
                one.in_flight += channel.in_flight_count
                one.deferred += channel.deferred_count
                one.requeued += channel.requeue_count
                one.timed_out += channel.timeout_count
                one.messages += channel.message_count
                one.clients += channel.client_count
                one.ready += sum(client.ready_count for client in channel.clients)
                one.paused |= channel.paused
    for total in found.values():
        total.channels = dict(sorted(total.channels.items()))
    return dict(sorted(found.items()))
