"""Questions to nsqlookupds. Equal questions get equal answers, so their askers share them."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from gnsqsync.addresses import Address

if TYPE_CHECKING:
    from gnsqsync.http.clients import LookupdHTTP

__all__ = ["ALL_NSQDS", "Found", "Question", "nsqds_of", "topics_like"]

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Question(Generic[Found]):
    """A question for a set. ``what``: its name in the log; ``about`` tells equal names apart."""

    what: str
    about: Hashable
    ask: Callable[[LookupdHTTP], set[Found]] = field(compare=False)


def nsqds_of(topic: str) -> Question[Address]:
    """Return the question for the nsqds that have ``topic``."""
    return Question(
        topic, "a topic", lambda client: {p.tcp_address for p in client.lookup(topic).producers}
    )


def _all_nsqds(client: LookupdHTTP) -> set[Address]:
    # An nsqd whose topics are all tombstoned counts as not listed.
    nodes = client.nodes()
    return {n.tcp_address for n in nodes if not n.tombstones or not all(n.tombstones)}


ALL_NSQDS: Question[Address] = Question("nsqds", "all", _all_nsqds)


def topics_like(pattern: re.Pattern[str]) -> Question[str]:
    """Return the question for the topics in whose names the pattern is found."""
    return Question(
        "topics", pattern, lambda client: {t for t in client.topics() if pattern.search(t)}
    )
