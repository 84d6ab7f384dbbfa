"""What is wrong with a topic, as far as its counts and rates tell it. Pure.

nsqd does not say whether a consumer is in backoff, nor how old a message is; what can be told is
whether messages wait and nobody takes them.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import NamedTuple

from gnsqsync.admin.figures import ChannelFigures, Rates, TopicFigures, TopicRates

__all__ = ["ChannelRow", "Level", "TopicRow", "Trouble", "channel_row", "topic_row"]

# So many a second, and so large a share of what leaves, before requeues are told.
_SOME = 0.05
_SHARE_OF_REQUEUES = 0.1
# Seconds to drain until it is told.
_LONG = 3600.0


class Level(IntEnum):
    """How much a row needs a look."""

    GOOD = 0
    NOTE = 1
    WARNING = 2
    BAD = 3


class Trouble(NamedTuple):
    """``text`` is short and names the channel where there is one."""

    level: Level
    text: str


class ChannelRow(NamedTuple):
    """``drain``: seconds until nothing waits, inf when that does not shrink, None if not known."""

    name: str
    figures: ChannelFigures
    rates: Rates
    drain: float | None
    troubles: tuple[Trouble, ...]


class TopicRow(NamedTuple):
    """``slowest``: the channel where most messages wait. ``waiting``: there and in the topic."""

    name: str
    figures: TopicFigures
    incoming: float
    channels: tuple[ChannelRow, ...]
    slowest: ChannelRow | None
    waiting: int
    troubles: tuple[Trouble, ...]
    level: Level


def channel_row(
    name: str, figures: ChannelFigures, rates: Rates | None, before: ChannelFigures | None
) -> ChannelRow:
    """``rates`` and ``before`` are None at the first look."""
    known = rates if rates is not None else Rates()
    drain = _drain(figures.depth, known) if rates is not None else (None if figures.depth else 0.0)
    return ChannelRow(
        name, figures, known, drain, tuple(_of_channel(name, figures, known, before, drain))
    )


def _drain(waiting: int, rates: Rates) -> float:
    if not waiting:
        return 0.0
    faster = rates.outgoing - rates.incoming
    return waiting / faster if faster > 0 else math.inf


def _of_channel(
    name: str,
    figures: ChannelFigures,
    rates: Rates,
    before: ChannelFigures | None,
    drain: float | None,
) -> list[Trouble]:
    found = []
    if figures.paused:
        level = Level.WARNING if figures.depth else Level.NOTE
        found.append(Trouble(level, f"{name} is paused"))
    elif not figures.clients:
        level = Level.BAD if figures.depth else Level.NOTE
        found.append(Trouble(level, f"{name} has no consumers"))
    elif _is_stuck(figures) and before is not None and _is_stuck(before) and not rates.outgoing:
        # Consumers that are there and want nothing have sent RDY 0, as in backoff.
        found.append(Trouble(Level.BAD, f"{name}: consumers take nothing (RDY 0 or backoff)"))
    if rates.timed_out >= _SOME:
        found.append(Trouble(Level.WARNING, f"{name}: {rates.timed_out:,.1f} time-outs/s"))
    if rates.requeued >= max(_SOME, _SHARE_OF_REQUEUES * rates.outgoing):
        found.append(Trouble(Level.WARNING, f"{name}: {rates.requeued:,.1f} requeues/s"))
    if not found and drain is not None and drain > _LONG:
        text = "grows" if drain == math.inf and rates.incoming > rates.outgoing else "drains slowly"
        if figures.depth > max(rates.incoming, rates.outgoing):
            found.append(Trouble(Level.WARNING, f"{name} {text}"))
    return found


def _is_stuck(figures: ChannelFigures) -> bool:
    return bool(figures.depth and figures.clients and not figures.in_flight)


def topic_row(
    name: str, figures: TopicFigures, rates: TopicRates | None, before: TopicFigures | None
) -> TopicRow:
    """``rates`` and ``before`` are None at the first look."""
    channels = tuple(
        channel_row(
            channel,
            one,
            rates.channels.get(channel, Rates()) if rates is not None else None,
            before.channels.get(channel) if before is not None else None,
        )
        for channel, one in sorted(figures.channels.items())
    )
    slowest = max(channels, key=lambda row: row.figures.depth, default=None)
    troubles = [trouble for row in channels for trouble in row.troubles]
    if figures.paused:
        level = Level.WARNING if figures.depth else Level.NOTE
        troubles.append(Trouble(level, "the topic is paused"))
    elif not channels and figures.depth:
        troubles.append(Trouble(Level.WARNING, "messages wait, and there is no channel"))
    troubles.sort(key=lambda trouble: -trouble.level)
    return TopicRow(
        name,
        figures,
        rates.own.incoming if rates is not None else 0.0,
        channels,
        slowest,
        figures.depth + (slowest.figures.depth if slowest is not None else 0),
        tuple(troubles),
        troubles[0].level if troubles else Level.GOOD,
    )
