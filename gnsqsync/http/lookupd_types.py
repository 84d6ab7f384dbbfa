"""What nsqlookupd's HTTP API answers, as frozen dataclasses
(docs/protocol/nsqlookupd#lookupd-http).

Knows the shapes. Knows nothing of requests, URLs or sockets. Where discovery depends on an answer
(lookup, nodes, topics, channels), an entry that is broken is left out and the others count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gnsqsync.addresses import Address
from gnsqsync.errors import ProtocolError
from gnsqsync.http.json_fields import (
    Entry,
    boolean,
    each_valid,
    integer,
    items,
    mapping,
    objects,
    port,
    string,
)
from gnsqsync.options import check_channel, check_topic

# A name in the DNS has at most 253 characters; an IPv6 address with its zone has fewer.
_LONGEST_HOST = 255


@dataclass(frozen=True, slots=True)
class LookupdInfo:
    """``GET /info`` of nsqlookupd."""

    version: str

    @classmethod
    def parse(cls, data: object) -> LookupdInfo:
        return cls(string(mapping(data, "/info"), "version"))


@dataclass(frozen=True, slots=True)
class Producer:
    """An nsqd as nsqlookupd knows it. Clients reach it at ``broadcast_address``."""

    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str

    @property
    def tcp_address(self) -> Address:
        """Where to dial it for the TCP protocol."""
        return Address(self.broadcast_address, self.tcp_port)

    @property
    def http_address(self) -> str:
        """``broadcast_address:http_port``: for NsqdHTTP, and the name of a node in a tombstone."""
        return str(Address(self.broadcast_address, self.http_port))

    @classmethod
    def parse(cls, data: object) -> Producer:
        return cls(**_producer_fields(data))


def _producer_fields(data: object) -> dict[str, Any]:
    entry = mapping(data, "a producer")
    host = string(entry, "broadcast_address")
    if not 0 < len(host) <= _LONGEST_HOST or any(
        c.isspace() or not c.isprintable() or c in "/,@" for c in host
    ):
        raise ProtocolError(
            f"'broadcast_address' is {host[:80]!r}; it must be a host name or an IP"
        )
    return {
        "remote_address": string(entry, "remote_address"),
        "hostname": string(entry, "hostname"),
        "broadcast_address": host,
        "tcp_port": port(entry, "tcp_port"),
        "http_port": integer(entry, "http_port"),
        "version": string(entry, "version"),
    }


@dataclass(frozen=True, slots=True)
class LookupResult:
    """``GET /lookup``: a topic's channels, and the nsqds that have it and are not tombstoned."""

    channels: tuple[str, ...]
    producers: tuple[Producer, ...]

    @classmethod
    def parse(cls, data: object, skipped: Callable[[str], None]) -> LookupResult:
        entry = mapping(data, "/lookup")
        return cls(
            channels=each_valid(entry, "channels", check_channel, skipped),
            producers=each_valid(entry, "producers", Producer.parse, skipped),
        )


@dataclass(frozen=True, slots=True)
class Node(Producer):
    """An entry of ``GET /nodes``; ``tombstones`` says of each of ``topics`` if it is tombstoned."""

    topics: tuple[str, ...] = ()
    tombstones: tuple[bool, ...] = ()

    @classmethod
    def parse(cls, data: object) -> Node:
        fields = _producer_fields(data)
        entry = mapping(data, "a node")
        flags = [flag is True for flag in items(entry, "tombstones")]
        topics: list[str] = []
        tombstones: list[bool] = []
        for place, topic in enumerate(items(entry, "topics")):
            if isinstance(topic, str):
                topics.append(topic)
                tombstones.append(place < len(flags) and flags[place])
        return cls(**fields, topics=tuple(topics), tombstones=tuple(tombstones))


@dataclass(frozen=True, slots=True)
class Registration:
    """An entry of nsqlookupd's ``GET /debug``. Times are unix nanoseconds."""

    id: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    last_update: int
    tombstoned: bool
    tombstoned_at: int

    @classmethod
    def parse(cls, entry: Entry) -> Registration:
        return cls(
            id=string(entry, "id"),
            hostname=string(entry, "hostname"),
            broadcast_address=string(entry, "broadcast_address"),
            tcp_port=integer(entry, "tcp_port"),
            http_port=integer(entry, "http_port"),
            version=string(entry, "version"),
            last_update=integer(entry, "last_update"),
            tombstoned=boolean(entry, "tombstoned"),
            tombstoned_at=integer(entry, "tombstoned_at"),
        )


def parse_registrations(data: object) -> dict[str, tuple[Registration, ...]]:
    """``GET /debug`` of nsqlookupd: ``category:key:subkey`` to registrations."""
    entry = mapping(data, "/debug")
    return {key: objects(entry, key, Registration.parse) for key in entry}


def parse_nodes(data: object, skipped: Callable[[str], None]) -> tuple[Node, ...]:
    """``GET /nodes`` of nsqlookupd."""
    return each_valid(mapping(data, "/nodes"), "producers", Node.parse, skipped)


def parse_names(data: object, key: str, skipped: Callable[[str], None]) -> tuple[str, ...]:
    """``GET /topics`` and ``GET /channels`` of nsqlookupd."""
    check = check_topic if key == "topics" else check_channel
    return each_valid(mapping(data, f"/{key}"), key, check, skipped)
