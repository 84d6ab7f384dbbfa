"""The dead letters of a channel, found by the names of topics, and their way back.

The name of a topic, such as ``orders-dead`` or ``orders.archive.dlq``, tells that its letters are
from ``orders``. nsqadmin reads no message, and a message without headers does not tell its origin.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from gnsqsync.addresses import Address
from gnsqsync.admin.cluster import AllFailed, Cluster
from gnsqsync.admin.shapes import Shape
from gnsqsync.admin.troubles import LETTER_CHANNELS, TopicRow, names_letters_of
from gnsqsync.dead_letters import DeadLetter, DeadLetters
from gnsqsync.dead_letters.places import CHANNEL
from gnsqsync.errors import NSQError

__all__ = ["MOST_AT_A_TIME", "Waiting", "found_in", "holds", "send_back"]

MOST_AT_A_TIME = 10_000
# Upper bound of a round in seconds, and seconds without a message after which a round ends.
_LONGEST = 20.0
_PATIENCE = 1.0

_EPHEMERAL = "#ephemeral"


class Waiting(NamedTuple):
    """``waiting`` dead letters in a channel of ``topic``.

    ``exists`` is False for a channel that does not exist yet. nsqd makes it when letters are taken.
    """

    topic: str
    channel: str
    waiting: int
    exists: bool = True


def holds(name: str, topic: str, channel: str) -> bool:
    """Return True if a topic of this name is for dead letters of the channel."""
    owner = names_letters_of(name)
    base = topic.removesuffix(_EPHEMERAL).lower()
    if owner is None:
        return False
    part = re.escape(channel.removesuffix(_EPHEMERAL).lower())
    return bool(re.fullmatch(rf"{re.escape(base)}(?:[-._]{part})?", owner.lower()))


def found_in(topics: Sequence[TopicRow], topic: str, channel: str) -> list[Waiting]:
    """Return the dead letters of a channel in each topic that is for them, even if none wait.

    Messages that wait in the topic itself will go to CHANNEL, so they are counted there. The name
    ``orders.eu.dead`` fits the channel ``eu`` of ``orders``, too, but not if ``orders.eu`` exists.
    """
    found = []
    others = {row.name for row in topics} - {topic}
    for row in topics:
        if not holds(row.name, topic, channel) or row.letters_of in others:
            continue
        depths = {one.name: one.figures.depth for one in row.channels}
        mine = next((name for name in LETTER_CHANNELS if name in depths), CHANNEL)
        exists = mine in depths
        if exists or row.figures.depth or not depths:
            depths[mine] = depths.get(mine, 0) + row.figures.depth
        found += [
            Waiting(row.name, name, depth, exists or name != mine) for name, depth in depths.items()
        ]
    return found


def send_back(
    cluster: Cluster, source: str, channel: str, topic: str, by: str
) -> tuple[int, list[str]]:
    """Publish the messages that wait in ``source`` to ``topic``, each on its own nsqd.

    ``gnsqsync dead-letters requeue`` does the same. A round takes the letters that wait at its
    start, at most 10,000, and at most 20 seconds. Letters that handlers give up again meanwhile
    stay. ``channel`` "" means CHANNEL. ``by`` is for the log.

    Returns:
        The number of published messages, and the failures.

    Raises:
        AllFailed: The nsqds cannot be found.
    """
    cluster.forget()
    channel = channel or CHANNEL
    nodes, errors = cluster.having(source)
    if not nodes and not errors:
        raise AllFailed("nsqd", [])
    total, _ = cluster.topic(source)
    limit = min(_waiting(total, channel), MOST_AT_A_TIME)
    addresses = [str(Address(node["broadcast_address"], node["tcp_port"])) for node in nodes]
    if not limit or not addresses:
        return 0, errors
    sent = 0
    deadline = time.monotonic() + _LONGEST

    def count(letter: DeadLetter, error: NSQError | None) -> None:
        nonlocal sent
        if error is None:
            sent += 1
        elif str(error) not in errors:
            errors.append(str(error))
        if time.monotonic() >= deadline:
            letters.stop()

    try:
        letters = DeadLetters(
            source,
            channel,
            nsqd_tcp_addresses=addresses,
            limit=limit,
            patience=_PATIENCE,
            by=by,
        )
        with letters:
            letters.requeue_all(to=topic, told=count)
    except NSQError as error:
        return sent, [*errors, str(error)]
    return sent, [*errors, *letters.problems]


def _waiting(topic: Shape, channel: str) -> int:
    """Return the number of letters in the channel and in the topic itself."""
    names = LETTER_CHANNELS if channel == CHANNEL else (channel,)
    channels = topic["channels"] or ()
    depths: list[int] = [each["depth"] for each in channels if each["channel_name"] in names]
    return int(topic["depth"]) + sum(depths)
