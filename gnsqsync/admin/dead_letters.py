"""The dead letters of a channel, as far as the names of topics tell them, and how they go back.

A dead letter has the body only (see Reader, ``dead_letter_topic``), so which topic it came from is
what people call the topics: ``orders-dead`` or ``orders.archive.dlq`` for ``orders``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import NamedTuple

from gnsqsync import Message, Reader, Writer
from gnsqsync.addresses import Address
from gnsqsync.admin.cluster import Cluster
from gnsqsync.admin.shapes import Shape
from gnsqsync.admin.troubles import TopicRow
from gnsqsync.errors import ConfigError, NSQError

__all__ = ["CHANNEL", "MOST_AT_A_TIME", "DeadLetters", "found_in", "holds", "send_back"]

# Takes dead letters from a topic that has no channel.
CHANNEL = "send-back"
MOST_AT_A_TIME = 10_000
# Seconds that one round takes at most, and without a message until it is over.
_LONGEST = 20.0
_PATIENCE = 1.0
_IN_FLIGHT = 100
# Bytes of a message: more than nsqd takes by default, as --max-msg-size may be higher.
_MAX_BODY = 16 * 1024 * 1024

_EPHEMERAL = "#ephemeral"


class DeadLetters(NamedTuple):
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


def found_in(topics: Sequence[TopicRow], topic: str, channel: str) -> list[DeadLetters]:
    """The dead letters of a channel among all topics, also where none wait."""
    found = []
    for row in topics:
        if holds(row.name, topic, channel):
            if row.figures.depth or not row.channels:
                found.append(DeadLetters(row.name, "", row.figures.depth))
            found += [DeadLetters(row.name, one.name, one.figures.depth) for one in row.channels]
    return found


def send_back(cluster: Cluster, source: str, channel: str, topic: str) -> tuple[int, list[str]]:
    """Publish the messages that wait in ``source`` to ``topic``, each at the nsqd that has it.

    A message is finished when nsqd has confirmed its publish, so one may be published twice where
    this breaks off. No more go than wait at the start, 10,000 or 20 seconds at most: what is given
    up again meanwhile stays. ``channel`` "" is a channel of its own.

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
    writers: dict[str, Writer] = {}
    sent = 0
    try:
        reader = Reader(
            source,
            channel or CHANNEL,
            nsqd_tcp_addresses=addresses,
            max_in_flight=_IN_FLIGHT,
            # What cannot be published stays where it is.
            max_attempts=0,
        )
        with reader:
            deadline = time.monotonic() + _LONGEST
            size = max(1, _IN_FLIGHT // len(addresses))
            for batch in reader.batches(size, _PATIENCE, 0.05):
                for message in batch[: limit - sent]:
                    _publish(writers, message, topic)
                    message.finish()
                    sent += 1
                if not batch or sent >= limit or time.monotonic() >= deadline:
                    # Leaving gives back what is not answered.
                    break
    except (NSQError, ConfigError) as error:
        errors.append(str(error))
    finally:
        for writer in writers.values():
            writer.close()
    return sent, errors


def _waiting(topic: Shape, channel: str) -> int:
    if not channel:
        return int(topic["depth"])
    channels = topic["channels"] or ()
    return sum(each["depth"] for each in channels if each["channel_name"] == channel)


def _publish(writers: dict[str, Writer], message: Message, topic: str) -> None:
    address = message.nsqd_address
    if address not in writers:
        writers[address] = Writer(address, max_msg_size=_MAX_BODY)
    writers[address].publish(topic, message.body)
