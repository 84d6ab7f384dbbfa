"""Counts of topics and channels from nsqd's /stats, and their rates, for the first page.

Knows numbers only: no requests, no threads, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from gnsqsync.admin import shapes
from gnsqsync.admin.shapes import Shape
from gnsqsync.cluster.totals import COUNTS, ChannelTotal, TopicTotal

__all__ = [
    "NodeFigures",
    "Rates",
    "Span",
    "TopicRates",
    "node_figures",
    "rates_between",
    "rates_over",
]


class NodeFigures(NamedTuple):
    """The topics of one nsqd at the monotonic time ``at``."""

    at: float
    topics: Mapping[str, TopicTotal]
    # Sentences about entries of the answer that could not be read.
    left_out: tuple[str, ...] = ()


@dataclass(slots=True)
class Rates:
    """Messages a second. A topic has the rate ``incoming`` only."""

    incoming: float = 0.0
    outgoing: float = 0.0
    requeued: float = 0.0
    timed_out: float = 0.0

    def add(self, other: Rates, share: float) -> None:
        """Add a share of the other rates."""
        self.incoming += other.incoming * share
        self.outgoing += other.outgoing * share
        self.requeued += other.requeued * share
        self.timed_out += other.timed_out * share


def node_figures(stats: Shape, at: float) -> NodeFigures:
    """Read an answer to ``/stats?format=json``. Raise Failed if nothing in it can be read."""
    left_out: list[str] = []
    topics = shapes.each(stats, "topics", lambda entry: _topic(entry, left_out), left_out.append)
    return NodeFigures(at, dict(topics), tuple(left_out))


def _topic(entry: Shape, left_out: list[str]) -> tuple[str, TopicTotal]:
    channels = dict(shapes.each(entry, "channels", _channel, left_out.append))
    depth, messages = shapes.numbers(entry, ("depth", "message_count"))
    name: str = shapes.value(entry, "topic_name", str)
    return name, TopicTotal(depth, messages, shapes.value(entry, "paused", bool), 1, channels)


def _channel(entry: Shape) -> tuple[str, ChannelTotal]:
    name: str = shapes.value(entry, "channel_name", str)
    counts = (*shapes.numbers(entry, COUNTS), shapes.value(entry, "paused", bool))
    return name, ChannelTotal(*counts)


@dataclass(slots=True)
class TopicRates:
    """The rates of a topic and of its channels."""

    own: Rates = field(default_factory=Rates)
    channels: dict[str, Rates] = field(default_factory=dict)


class Span(NamedTuple):
    """The rates of all topics between two looks, and the seconds between them."""

    seconds: float
    topics: Mapping[str, TopicRates]


def rates_over(spans: Sequence[Span], topic: str) -> TopicRates:
    """Return the rates of a topic over all spans: messages divided by the sum of seconds."""
    found = TopicRates()
    seconds = sum(span.seconds for span in spans)
    for span in spans:
        rates = span.topics.get(topic)
        if rates is None:
            continue
        share = span.seconds / seconds
        found.own.add(rates.own, share)
        for name, one in rates.channels.items():
            found.channels.setdefault(name, Rates()).add(one, share)
    return found


def rates_between(pairs: Iterable[tuple[NodeFigures, NodeFigures]]) -> dict[str, TopicRates]:
    """Return the rates between two looks at each nsqd, summed over the nsqds.

    A count that became smaller is ignored, because its nsqd has been restarted.
    """
    found: dict[str, TopicRates] = {}
    for before, after in pairs:
        seconds = after.at - before.at
        if seconds <= 0:
            continue
        for name, topic in after.topics.items():
            old = before.topics.get(name)
            if old is None:
                continue
            rates = found.setdefault(name, TopicRates())
            rates.own.incoming += max(0, topic.messages - old.messages) / seconds
            for channel, figures in topic.channels.items():
                earlier = old.channels.get(channel)
                if earlier is None or figures.messages < earlier.messages:
                    continue
                one = rates.channels.setdefault(channel, Rates())
                one.incoming += (figures.messages - earlier.messages) / seconds
                one.outgoing += max(0, figures.left - earlier.left) / seconds
                one.requeued += max(0, figures.requeued - earlier.requeued) / seconds
                one.timed_out += max(0, figures.timed_out - earlier.timed_out) / seconds
    return found
