"""Questions to nsqlookupds. Equal questions get equal answers, so their askers share them."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from gnsqsync.addresses import Address
from gnsqsync.errors import ProtocolError

if TYPE_CHECKING:
    from gnsqsync.http.clients import LookupdHTTP

__all__ = ["ALL_NSQDS", "Found", "Question", "nsqds_of", "topics_like"]

Found = TypeVar("Found")

# Upper bound of the nsqds that an answer may list. Each one costs a Reader a connection and a
# thread, and a Writer a dial, so an answer beyond that is taken for wrong.
MOST_NSQDS = 2000


@dataclass(frozen=True, slots=True)
class Question(Generic[Found]):
    """A question for a set. ``what``: its name in the log; ``about`` tells equal names apart."""

    what: str
    about: Hashable
    ask: Callable[[LookupdHTTP], set[Found]] = field(compare=False)


def nsqds_of(topic: str) -> Question[Address]:
    """Return the question for the nsqds that have ``topic``."""

    def ask(client: LookupdHTTP) -> set[Address]:
        return _bounded(producer.tcp_address for producer in client.lookup(topic).producers)

    return Question(topic, "a topic", ask)


def _all_nsqds(client: LookupdHTTP) -> set[Address]:
    # An nsqd whose topics are all tombstoned counts as not listed.
    nodes = client.nodes()
    return _bounded(n.tcp_address for n in nodes if not n.tombstones or not all(n.tombstones))


def _bounded(addresses: Iterable[Address]) -> set[Address]:
    """Return the addresses. Raise ProtocolError for more than ``MOST_NSQDS``."""
    found = set(addresses)
    if len(found) > MOST_NSQDS:
        raise ProtocolError(
            f"the answer lists {len(found)} nsqds, and at most {MOST_NSQDS} are believed"
        )
    return found


# The question of a Writer, which may publish to any nsqd.
ALL_NSQDS: Question[Address] = Question("nsqds", "all", _all_nsqds)


def topics_like(pattern: re.Pattern[str]) -> Question[str]:
    """Return the question for the topics in whose names the pattern is found."""
    return Question(
        "topics", pattern, lambda client: {t for t in client.topics() if pattern.search(t)}
    )
