"""Answers of nsqlookupd's HTTP API as frozen dataclasses (docs/protocol/nsqlookupd#lookupd-http).

Knows the shapes. Must not know requests, URLs or sockets. In answers that discovery needs (lookup,
nodes, topics, channels), a broken entry is left out and the others count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from gnsqsync.addresses import Address
from gnsqsync.errors import ProtocolError
from gnsqsync.options import check_channel, check_topic
from gnsqsync.wire.json_fields import Entry, each_valid, items, mapping, objects, port, read, scalar

# Upper bound of characters of a host. A DNS name has at most 253, an IPv6 address with zone fewer.
_LONGEST_HOST = 255


@dataclass(frozen=True, slots=True)
class LookupdInfo:
    """``GET /info`` of nsqlookupd.

    Attributes:
        version: The version, as ``1.3.0``.
    """

    version: str

    @classmethod
    def parse(cls, data: object) -> LookupdInfo:
        return read(cls, mapping(data, "/info"))


@dataclass(frozen=True, slots=True)
class Producer:
    """An nsqd as registered at nsqlookupd. Clients reach it at ``broadcast_address``.

    Attributes:
        remote_address: ``host:port`` from which the nsqd talks to nsqlookupd.
        hostname: Host name of the nsqd.
        broadcast_address: Host at which clients reach the nsqd.
        tcp_port: Port of the TCP protocol.
        http_port: Port of the HTTP API.
        version: The version of the nsqd.
    """

    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str

    @property
    def tcp_address(self) -> Address:
        """Address to dial for the TCP protocol."""
        return Address(self.broadcast_address, self.tcp_port)

    @property
    def http_address(self) -> str:
        """``broadcast_address:http_port``, for NsqdHTTP, and the name of a node in a tombstone."""
        return str(Address(self.broadcast_address, self.http_port))

    @classmethod
    def parse(cls, data: object) -> Producer:
        entry = mapping(data, "a producer")
        return read(cls, entry, **_address(entry))


def _address(entry: Entry) -> dict[str, Any]:
    """Return the fields by which a Producer is dialled. ProtocolError if they cannot be right."""
    host = scalar(entry, "broadcast_address", "")
    if not 0 < len(host) <= _LONGEST_HOST or any(
        c.isspace() or not c.isprintable() or c in "/,@?#\\" for c in host
    ):
        raise ProtocolError(
            f"'broadcast_address' is {host[:80]!r}; it must be a host name or an IP"
        )
    return {"broadcast_address": host, "tcp_port": port(entry, "tcp_port")}


@dataclass(frozen=True, slots=True)
class LookupResult:
    """``GET /lookup``: a topic's channels, and the nsqds that have it and are not tombstoned.

    Attributes:
        channels: Names of the channels.
        producers: The nsqds that have the topic.
    """

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
    """An entry of ``GET /nodes``: an nsqd with its topics.

    Attributes:
        remote_address: As in Producer.
        hostname: As in Producer.
        broadcast_address: As in Producer.
        tcp_port: Port, as in Producer.
        http_port: Port, as in Producer.
        version: As in Producer.
        topics: Names of its topics.
        tombstones: True for each of ``topics`` that a tombstone hides from lookups, in their order.
    """

    topics: tuple[str, ...] = ()
    tombstones: tuple[bool, ...] = ()

    @classmethod
    def parse(cls, data: object) -> Node:
        entry = mapping(data, "a node")
        pairs = zip_longest(items(entry, "topics"), items(entry, "tombstones"))
        shown = [(topic, flag is True) for topic, flag in pairs if isinstance(topic, str)]
        return read(
            cls,
            entry,
            **_address(entry),
            topics=tuple(topic for topic, _ in shown),
            tombstones=tuple(flag for _, flag in shown),
        )


@dataclass(frozen=True, slots=True)
class Registration:
    """An entry of nsqlookupd's ``GET /debug``: an nsqd, with one of its topics or channels.

    Attributes:
        id: ``host:port`` from which the nsqd talks to nsqlookupd.
        hostname: As in Producer.
        broadcast_address: As in Producer.
        tcp_port: Port, as in Producer.
        http_port: Port, as in Producer.
        version: As in Producer.
        last_update: Nanoseconds since 1970 at which the nsqd was last heard.
        tombstoned: True if a tombstone hides it.
        tombstoned_at: Nanoseconds since 1970 at which it was hidden.
    """

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
        return read(cls, entry)


def parse_registrations(data: object) -> dict[str, tuple[Registration, ...]]:
    """Parse ``GET /debug`` of nsqlookupd: ``category:key:subkey`` to registrations."""
    entry = mapping(data, "/debug")
    return {key: objects(entry, key, Registration.parse) for key in entry}


def parse_nodes(data: object, skipped: Callable[[str], None]) -> tuple[Node, ...]:
    """Parse ``GET /nodes`` of nsqlookupd."""
    return each_valid(mapping(data, "/nodes"), "producers", Node.parse, skipped)


def parse_names(data: object, key: str, skipped: Callable[[str], None]) -> tuple[str, ...]:
    """Parse ``GET /topics`` and ``GET /channels`` of nsqlookupd."""
    check = check_topic if key == "topics" else check_channel
    return each_valid(mapping(data, f"/{key}"), key, check, skipped)
