"""The dead letters of a channel, as far as the names of topics tell them, and how they go back.

Which topic one came from is what people call the topics, ``orders-dead`` or ``orders.archive.dlq``
for ``orders``: nsqadmin looks at no message, and without headers none says it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from gnsqsync.addresses import Address
from gnsqsync.admin.cluster import Cluster
from gnsqsync.admin.shapes import Shape
from gnsqsync.admin.troubles import TopicRow
from gnsqsync.dead_letters import DeadLetter, DeadLetters
from gnsqsync.errors import NSQError

__all__ = ["CHANNEL", "MOST_AT_A_TIME", "Waiting", "found_in", "holds", "send_back"]

# Takes dead letters from a topic that has no channel.
CHANNEL = "send-back"
MOST_AT_A_TIME = 10_000
# Seconds that one round takes at most, and without a message until it is over.
_LONGEST = 20.0
_PATIENCE = 1.0

_EPHEMERAL = "#ephemeral"


class Waiting(NamedTuple):
    """``waiting`` dead letters in a channel of ``topic``; ``channel`` "" is the topic itself."""

    topic: str
    channel: str
    waiting: int


def holds(name: str, topic: str, channel: str) -> bool:
    """Whether a topic of this name is one for dead letters of the channel."""
    owner = re.escape(topic.removesuffix(_EPHEMERAL))
    part = re.escape(channel.removesuffix(_EPHEMERAL))
    words = r"(?:dead|dead[-._]?letters?|dlq)"
    return bool(
        re.fullmatch(rf"{owner}(?:[-._]{part})?[-._]{words}(?:{_EPHEMERAL})?", name, re.IGNORECASE)
    )


def found_in(topics: Sequence[TopicRow], topic: str, channel: str) -> list[Waiting]:
    """The dead letters of a channel among all topics, also where none wait."""
    found = []
    for row in topics:
        if holds(row.name, topic, channel):
            if row.figures.depth or not row.channels:
                found.append(Waiting(row.name, "", row.figures.depth))
            found += [Waiting(row.name, one.name, one.figures.depth) for one in row.channels]
    return found


def send_back(cluster: Cluster, source: str, channel: str, topic: str) -> tuple[int, list[str]]:
    """Publish the messages that wait in ``source`` to ``topic``, each at the nsqd that has it.

    As ``gnsqsync dead-letters requeue``. No more go than wait at the start, 10,000 or 20 seconds at
    most: what is given up again meanwhile stays. ``channel`` "" is a channel of its own.

    Returns:
        How many went, and what failed.

    Raises:
        AllFailed: The nsqds cannot be found.
    """
    cluster.forget()
    nodes, errors = cluster.having(source)
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
            channel or CHANNEL,
            nsqd_tcp_addresses=addresses,
            limit=limit,
            patience=_PATIENCE,
        )
        with letters:
            letters.requeue_all(to=topic, told=count)
    except NSQError as error:
        return sent, [*errors, str(error)]
    return sent, [*errors, *letters.problems]


def _waiting(topic: Shape, channel: str) -> int:
    if not channel:
        return int(topic["depth"])
    channels = topic["channels"] or ()
    return sum(each["depth"] for each in channels if each["channel_name"] == channel)
