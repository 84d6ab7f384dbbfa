"""Topics and channels of a snapshot, over all nsqds that have them. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from gnsqsync.cluster.sight import Nsqd, Snapshot
from gnsqsync.cluster.totals import channel_total
from gnsqsync.http.nsqd_types import ChannelStats, ClientStats, TopicStats

__all__ = ["ChannelPart", "ChannelView", "TopicView", "topic_views"]


@dataclass(frozen=True, slots=True)
class ChannelPart:
    """A channel at one nsqd. ``before``: its figures at the first look, None for a new channel."""

    nsqd: Nsqd
    before: ChannelStats | None
    now: ChannelStats

    @property
    def is_stuck(self) -> bool:
        """True if messages wait, no consumer may get one (RDY 0), and none is in flight."""
        looks = [self.now] if self.before is None else [self.before, self.now]
        return all(channel_total(one).is_idle for one in looks)

    def grown(self, attribute: str) -> int:
        """Return the increase of a count between the looks, 0 if nsqd has restarted in between."""
        if self.before is None:
            return 0
        return max(0, int(getattr(self.now, attribute)) - int(getattr(self.before, attribute)))

    @property
    def finished(self) -> int:
        """Number of messages that left the channel between the looks."""
        if self.before is None:
            return 0
        return max(0, channel_total(self.now).left - channel_total(self.before).left)


@dataclass(frozen=True, slots=True)
class ChannelView:
    """A channel over all nsqds."""

    topic: str
    name: str
    parts: tuple[ChannelPart, ...]

    @property
    def where(self) -> str:
        return f"{self.topic}/{self.name}"

    @property
    def clients(self) -> tuple[ClientStats, ...]:
        return tuple(client for part in self.parts for client in part.now.clients)

    def total(self, attribute: str) -> int:
        """Return the sum of a count over the nsqds."""
        return sum(int(getattr(part.now, attribute)) for part in self.parts)

    def grown(self, attribute: str) -> int:
        """Return the increase of a count over all nsqds."""
        return sum(part.grown(attribute) for part in self.parts)

    @property
    def finished(self) -> int:
        return sum(part.finished for part in self.parts)


@dataclass(frozen=True, slots=True)
class TopicView:
    """A topic over all nsqds: its figures at each, and its channels."""

    name: str
    at: tuple[tuple[Nsqd, TopicStats], ...]
    channels: tuple[ChannelView, ...]

    @property
    def depth(self) -> int:
        """Number of messages in the topic itself."""
        return sum(topic.depth for _, topic in self.at)

    @property
    def published(self) -> int:
        return sum(topic.message_count for _, topic in self.at)


def topic_views(seen: Snapshot) -> Iterator[TopicView]:
    """Yield each topic in alphabetical order. With a channel in the question, only this channel."""
    at: dict[str, list[tuple[Nsqd, TopicStats]]] = defaultdict(list)
    for nsqd in seen.nsqds:
        for name, topic in nsqd.topics.items():
            if seen.topic in (None, name):
                at[name].append((nsqd, topic))
    for name in sorted(at):
        parts: dict[str, list[ChannelPart]] = defaultdict(list)
        for nsqd, topic in at[name]:
            known = nsqd.topics_before.get(name)
            before = {one.channel_name: one for one in known.channels} if known else {}
            for channel in topic.channels:
                part = ChannelPart(nsqd, before.get(channel.channel_name), channel)
                parts[channel.channel_name].append(part)
        channels = tuple(
            ChannelView(name, each, tuple(found))
            for each, found in sorted(parts.items())
            if seen.channel in (None, each)
        )
        yield TopicView(name, tuple(at[name]), channels)
