"""Claims of a process on channels: two handlers must not share a channel by accident.

Knows topics, channels, servers and functions. Must not know a Reader, a framework or a connection.

A program makes a Claim for each handler, and each pair of claims is compared.

Surprise: servers are compared by name, without a look-up. Two names of one machine are two
clusters, except for the names of the loopback.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import CodeType
from typing import Any
from urllib.parse import urlsplit

from gnsqsync.addresses import AddressLike, UrlLike, http_urls, parse_addresses
from gnsqsync.errors import ConfigError

__all__ = ["Claim", "check_claims", "is_same_statement", "problems_of_claims", "servers_of"]

# Names of this machine's loopback, all of which lead to the same server.
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Claim:
    """The wish of one handler for the messages of one channel."""

    topic: str
    channel: str
    # Module and name of the handler, for errors.
    where: str
    # The handler's function; None for a Reader without a handler.
    handler: object
    # Names of servers. Two claims with a common server belong to one cluster.
    servers: frozenset[str]
    # True if its author says that other handlers of the process may take the messages, too.
    shared: bool = False
    dead_letter_topic: str | None = None
    # Claims with the same owner, other than None, are handled alike by whichever gets a message.
    owner: object = None

    @property
    def place(self) -> str:
        """Topic and channel, for errors."""
        return f"{self.topic}/{self.channel}"

    def meets(self, other: Claim) -> bool:
        """Return True if both belong to one cluster."""
        return not self.servers.isdisjoint(other.servers)


def servers_of(nsqd: AddressLike = (), lookupd: UrlLike = ()) -> frozenset[str]:
    """Return the names by which the servers of two claims are compared.

    Raises ConfigError for an invalid address.
    """
    names = {f"nsqd {address.path or _named(*address[:2])}" for address in parse_addresses(nsqd)}
    for url in http_urls(lookupd):
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        names.add(f"nsqlookupd {_named(parts.hostname or '', port)}")
    return frozenset(names)


def _named(host: str, port: int) -> str:
    return f"{'loopback' if host in _LOOPBACK else host.lower()}:{port}"


def check_claims(claims: Iterable[Claim]) -> None:
    """Raise ConfigError with the first problem of the claims of one process."""
    for problem in problems_of_claims([*claims]):
        raise ConfigError(problem)


def problems_of_claims(claims: Sequence[Claim]) -> Iterator[str]:
    """Yield a sentence for each problem, with the functions and the cure."""
    for one, other in combinations(claims, 2):
        if (
            (one.topic, one.channel) == (other.topic, other.channel)
            and one.meets(other)
            and not (one.shared and other.shared)
            and not (one.owner is not None and one.owner == other.owner)
        ):
            yield _clash(one, other)
    yield from _circles(claims)


def _clash(one: Claim, other: Claim) -> str:
    both = f"{one.where} and {other.where} both consume {one.place}"
    if one.where != other.where and is_same_statement(one.handler, other.handler):
        return (
            f"{both}, and are one function of one file, which is imported under two names of its"
            " module; import it under one name"
        )
    missing = "both" if one.shared == other.shared else (other if one.shared else one).where
    return (
        f"{both}: nsqd gives each message to one of them, and the other never sees it; give one of"
        f" them another channel to have every message handled by both, or give {missing}"
        " shared=True if either may handle any message"
    )


def _circles(claims: Sequence[Claim]) -> Iterator[str]:
    """Yield the circles of dead letter topics, in which a message would go round for ever.

    A Reader refuses the circle of one topic itself.
    """
    told: set[frozenset[str]] = set()
    for first in claims:
        path = _way_back(first, claims)
        topics = frozenset(claim.topic for claim in path)
        if len(topics) > 1 and topics not in told:
            told.add(topics)
            steps = ", ".join(
                f"{claim.where} gives up messages of {claim.topic} to {claim.dead_letter_topic}"
                for claim in path
            )
            yield (
                f"{steps}: a message that fails in all of them goes round for ever; give one of"
                " them a dead_letter_topic that none of these consumes"
            )


def _way_back(first: Claim, claims: Sequence[Claim]) -> list[Claim]:
    """Return the shortest way of a dead letter from ``first`` back to its topic; [] for none."""
    ways, seen = [[first]], {first.topic}
    for way in ways:
        end = way[-1]
        if end.dead_letter_topic == first.topic and len(way) > 1:
            return way
        for claim in claims:
            if (
                claim.topic == end.dead_letter_topic
                and claim.topic not in seen
                and claim.dead_letter_topic is not None
                and claim.meets(end)
            ):
                ways.append([*way, claim])
        seen.update(way[-1].topic for way in ways)
    return []


def is_same_statement(one: object, other: object) -> bool:
    """Return True if both functions were made by one ``def`` of one file."""
    code, others = _code_of(one), _code_of(other)
    return code is not None and others is not None and _place_of(code) == _place_of(others)


def _place_of(code: CodeType) -> tuple[str, int]:
    return code.co_filename, code.co_firstlineno


def _code_of(function: object) -> CodeType | None:
    called: Any = function
    while not isinstance(getattr(called, "__code__", None), CodeType):
        if isinstance(called, functools.partial):
            called = called.func
        elif hasattr(called, "__wrapped__"):
            called = called.__wrapped__
        else:
            return None
    code: CodeType = called.__code__
    return code
