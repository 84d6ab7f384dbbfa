"""What is wrong with a topic, as far as its counts and rates tell it. Pure.

nsqd does not say whether a consumer is in backoff, nor how old a message is; what can be told is
whether messages wait and nobody takes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import NamedTuple

from gnsqsync.admin.figures import ChannelFigures, Rates, TopicFigures, TopicRates
from gnsqsync.dead_letters.places import CHANNEL, OLD_CHANNEL
from gnsqsync.stats import counted

__all__ = [
    "LETTER_CHANNELS",
    "ChannelRow",
    "Level",
    "TopicRow",
    "Trouble",
    "channel_row",
    "letters_of",
    "names_letters_of",
    "topic_row",
]

# Channels that the tools for dead letters make. Nobody consumes them for long.
LETTER_CHANNELS = (CHANNEL, OLD_CHANNEL)
_LETTERS = re.compile(r"(.+)[-._](?:dead|dead[-._]?letters?|dlq)(?:#ephemeral)?", re.IGNORECASE)

# Requeues a second, and their share of the messages that leave, from which on they are told.
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
    """``slowest``: the channel where most messages wait. ``waiting``: there and in the topic.

    ``away``: nsqds that have the topic by nsqlookupd's list, and have not answered. What they have
    is in no figure. ``letters_of``: the topic whose dead letters these are, or "".
    """

    name: str
    figures: TopicFigures
    incoming: float
    channels: tuple[ChannelRow, ...]
    slowest: ChannelRow | None
    waiting: int
    troubles: tuple[Trouble, ...]
    level: Level
    away: tuple[str, ...] = ()
    letters_of: str = ""

    @property
    def is_known(self) -> bool:
        """True if some nsqd has answered for the topic."""
        return self.figures.nodes > 0


def names_letters_of(name: str) -> str | None:
    """The topic, or the topic and a channel of it, that a name such as ``orders-dead`` begins with.

    Return None for a name that is not one of a topic for dead letters.
    """
    found = _LETTERS.fullmatch(name)
    return None if found is None else found[1]


def letters_of(name: str, topics: Mapping[str, TopicFigures]) -> str:
    """The topic whose dead letters are in the topic ``name``; "" if these are other messages.

    The name decides, if there is a topic that it begins with. Without that topic it decides if no
    channel but those of the tools is there.
    """
    owner = names_letters_of(name)
    if owner is None:
        return ""
    if owner in topics:
        return owner
    for place in (found.start() for found in re.finditer("[-._]", owner)):
        topic, channel = owner[:place], owner[place + 1 :]
        if topic in topics and channel in topics[topic].channels:
            return topic
    is_of_tools = name in topics and set(topics[name].channels) <= {*LETTER_CHANNELS}
    return owner if is_of_tools else ""


def channel_row(
    name: str,
    figures: ChannelFigures,
    rates: Rates | None,
    before: ChannelFigures | None,
    *,
    is_idle: bool = False,
    has_letters: bool = False,
) -> ChannelRow:
    """``rates`` and ``before`` are None at the first look.

    ``is_idle``: all consumers were asked, and have RDY 0. ``has_letters``: the messages are dead
    letters, which wait for a person.
    """
    known = rates if rates is not None else Rates()
    drain = _drain(figures.depth, known) if rates is not None else (None if figures.depth else 0.0)
    if has_letters and not figures.clients:
        troubles = [Trouble(Level.NOTE, f"{name} is paused")] if figures.paused else []
    else:
        troubles = _of_channel(name, figures, known, before, drain, is_idle)
    return ChannelRow(name, figures, known, drain, tuple(troubles))


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
    is_idle: bool,
) -> list[Trouble]:
    found = []
    was_stuck = before is not None and before.is_stuck and not rates.outgoing
    if figures.paused:
        level = Level.WARNING if figures.depth else Level.NOTE
        found.append(Trouble(level, f"{name} is paused"))
    elif not figures.clients:
        level = Level.BAD if figures.depth else Level.NOTE
        found.append(Trouble(level, f"{name} has no consumers"))
    elif figures.is_stuck and (is_idle or was_stuck):
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


def topic_row(
    name: str,
    figures: TopicFigures,
    rates: TopicRates | None,
    before: TopicFigures | None,
    *,
    idle: Collection[str] = (),
    away: Collection[str] = (),
    letters_of: str = "",
) -> TopicRow:
    """``rates`` and ``before`` are None at the first look. ``idle``: channels with RDY 0 only.

    ``away`` and ``letters_of``: see TopicRow.
    """
    channels = tuple(
        channel_row(
            channel,
            one,
            rates.channels.get(channel, Rates()) if rates is not None else None,
            before.channels.get(channel) if before is not None else None,
            is_idle=channel in idle,
            has_letters=bool(letters_of),
        )
        for channel, one in sorted(figures.channels.items())
    )
    slowest = max(channels, key=lambda row: row.figures.depth, default=None)
    troubles = [trouble for row in channels for trouble in row.troubles]
    if figures.paused:
        level = Level.WARNING if figures.depth else Level.NOTE
        troubles.append(Trouble(level, "the topic is paused"))
    elif not channels and figures.depth and not letters_of:
        troubles.append(Trouble(Level.WARNING, "messages wait, and there is no channel"))
    if letters_of:
        unread = [row.figures.depth for row in channels if not row.figures.clients]
        letters = figures.depth + max(unread, default=0)
        if letters:
            text = f"{counted(letters, 'dead letter')} of {letters_of}"
            troubles.append(Trouble(Level.WARNING, text))
    troubles += _of_nodes(figures.nodes, away)
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
        tuple(away),
        letters_of,
    )


def _of_nodes(nodes: int, away: Collection[str]) -> list[Trouble]:
    """``nodes``: nsqds that have answered for the topic."""
    if away:
        level = Level.WARNING if nodes else Level.BAD
        text = "cannot be reached" if len(away) > 1 else f"{next(iter(away))} cannot be reached"
        whole = nodes + len(away)
        which = f"{len(away)} of {whole} nsqds" if len(away) > 1 else "nsqd"
        return [Trouble(level, f"{which} {text}")]
    return [] if nodes else [Trouble(Level.NOTE, "no nsqd has it")]
