"""Troubles of a topic, found in its counts and rates. Pure.

nsqd does not tell the age of a message, or that a consumer is in backoff. Its figures do tell that
messages wait and no consumer takes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from enum import IntEnum
from typing import NamedTuple

from gnsqsync.admin.figures import Rates, TopicRates
from gnsqsync.cluster.totals import ChannelTotal, TopicTotal
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

# Channels that the tools for dead letters make. They have consumers only while a tool runs.
LETTER_CHANNELS = (CHANNEL, OLD_CHANNEL)
_LETTERS = re.compile(r"(.+)[-._](?:dead|dead[-._]?letters?|dlq)(?:#ephemeral)?", re.IGNORECASE)

# Lower bounds of a trouble: timeouts or requeues a second, and requeues per finished message.
_SOME = 0.05
_SHARE_OF_REQUEUES = 0.1
# Seconds to drain, above which a channel has a trouble.
_LONG = 3600.0


class Level(IntEnum):
    """Severity of a trouble. The highest one sorts first."""

    GOOD = 0
    NOTE = 1
    WARNING = 2
    BAD = 3


class Trouble(NamedTuple):
    """A trouble of a topic or channel. The short ``text`` names the channel, if any."""

    level: Level
    text: str


class ChannelRow(NamedTuple):
    """A channel. ``drain``: seconds until it is empty, inf if never, None if not known."""

    name: str
    figures: ChannelTotal
    rates: Rates
    drain: float | None
    troubles: tuple[Trouble, ...]


class TopicRow(NamedTuple):
    """A topic. ``slowest``: its deepest channel. ``waiting``: depth of topic and ``slowest``.

    ``away``: nsqds that nsqlookupd lists for the topic and that have not answered. Their messages
    are in no figure. ``letters_of``: the topic whose dead letters these are, or "".
    """

    name: str
    figures: TopicTotal
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
        """True if an nsqd has answered for the topic."""
        return self.figures.nodes > 0


def names_letters_of(name: str) -> str | None:
    """Return the first part of a name such as ``orders-dead``: a topic, or topic and channel.

    Return None if the name is not that of a topic for dead letters.
    """
    found = _LETTERS.fullmatch(name)
    return None if found is None else found[1]


def letters_of(name: str, topics: Mapping[str, TopicTotal]) -> str:
    """Return the topic whose dead letters are in the topic ``name``, or "" for other messages.

    The name decides if the topic in its first part exists. Otherwise it decides only if ``name``
    has no channels except those of the tools.
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
    figures: ChannelTotal,
    rates: Rates | None,
    before: ChannelTotal | None,
    *,
    is_idle: bool = False,
    has_letters: bool = False,
) -> ChannelRow:
    """``rates`` and ``before`` are None at the first look.

    ``is_idle``: True if all consumers have RDY 0. ``has_letters``: True if the messages are dead
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
    if waiting <= rates.outgoing:
        # Consumers keep up: each message waits for a second at most, whether more come or not.
        return waiting / rates.outgoing
    faster = rates.outgoing - rates.incoming
    return waiting / faster if faster > 0 else math.inf


def _of_channel(
    name: str,
    figures: ChannelTotal,
    rates: Rates,
    before: ChannelTotal | None,
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
        # Consumers that are connected and take nothing have sent RDY 0, as in backoff.
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
    figures: TopicTotal,
    rates: TopicRates | None,
    before: TopicTotal | None,
    *,
    idle: Collection[str] = (),
    away: Collection[str] = (),
    letters_of: str = "",
    was_there: bool = False,
) -> TopicRow:
    """Return the row of a topic. ``rates`` and ``before`` are None at the first look.

    ``idle``: channels whose consumers have RDY 0. ``away`` and ``letters_of``: see TopicRow.
    ``was_there``: True if an nsqd has answered for the topic at an earlier look.
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
    troubles += _of_nodes(figures.nodes, away, was_there)
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


def _of_nodes(nodes: int, away: Collection[str], was_there: bool) -> list[Trouble]:
    """Return the trouble of missing nsqds. ``nodes``: number of nsqds that have answered.

    ``was_there``: True if an nsqd has answered for the topic at an earlier look.
    """
    if away:
        level = Level.WARNING if nodes else Level.BAD
        text = "cannot be reached" if len(away) > 1 else f"{next(iter(away))} cannot be reached"
        whole = nodes + len(away)
        which = f"{len(away)} of {whole} nsqds" if len(away) > 1 else "nsqd"
        return [Trouble(level, f"{which} {text}")]
    if nodes:
        return []
    if was_there:
        return [Trouble(Level.WARNING, "its nsqd has stopped or unregistered")]
    return [Trouble(Level.NOTE, "no registered nsqd has it")]
