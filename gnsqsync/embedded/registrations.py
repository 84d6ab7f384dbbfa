"""nsqlookupd's registration database (docs/protocol/nsqlookupd#registrations), without I/O.

Knows producers, topics, channels and tombstones. The caller gives times in unix seconds. Does not
know the commands and requests that change the database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from gnsqsync.daemon.names import is_ephemeral

_ANY = "*"


class Peer:
    """A connection that has sent IDENTIFY. ``id`` and ``remote_address`` are its ip:port."""

    def __init__(
        self,
        *,
        id: str,
        remote_address: str,
        hostname: str,
        broadcast_address: str,
        tcp_port: int,
        http_port: int,
        version: str,
        last_update: float,
    ) -> None:
        self.id = id
        self.remote_address = remote_address
        self.hostname = hostname
        self.broadcast_address = broadcast_address
        self.tcp_port = tcp_port
        self.http_port = http_port
        self.version = version
        self.last_update = last_update

    @property
    def node(self) -> str:
        """Name of the peer in /topic/tombstone."""
        return f"{self.broadcast_address}:{self.http_port}"

    def is_active(self, now: float, timeout: float) -> bool:
        """Return True if IDENTIFY or PING came within the last ``timeout`` seconds."""
        return now - self.last_update <= timeout

    def info(self) -> dict[str, Any]:
        """Return the six keys of a producer in /lookup."""
        return {
            "remote_address": self.remote_address,
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
        }


class Producer:
    """A peer under one registration. Each registration has its own tombstone."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.tombstoned_at: float | None = None

    def is_tombstoned(self, now: float, lifetime: float) -> bool:
        return self.tombstoned_at is not None and now - self.tombstoned_at < lifetime


class _Topic:
    def __init__(self) -> None:
        self.producers: dict[str, Producer] = {}
        # False if the entry exists only because a channel of the topic is registered.
        self.registered = False
        self.channels: dict[str, dict[str, Producer]] = {}


class RegistrationDB:
    """The producers of each topic and channel (docs/protocol/nsqlookupd#registrations).

    Names stay after their producers are gone, except ephemeral ones that were unregistered by
    command. Lists are in the order of the first registration.
    """

    def __init__(self) -> None:
        self._peers: dict[str, Producer] = {}
        self._topics: dict[str, _Topic] = {}

    def add_peer(self, peer: Peer) -> None:
        self._peers[peer.id] = Producer(peer)

    def remove_peer(self, peer: Peer) -> list[tuple[str, str]]:
        """Remove a peer whose connection is gone. Return its (topic, channel or "") pairs."""
        self._peers.pop(peer.id, None)
        removed = []
        for name, topic in self._topics.items():
            for channel, producers in topic.channels.items():
                if producers.pop(peer.id, None):
                    removed.append((name, channel))
            if topic.producers.pop(peer.id, None):
                removed.append((name, ""))
        return removed

    def register(self, peer: Peer, topic: str, channel: str = "") -> None:
        """Add the peer to the topic, and to the channel if one is given. Idempotent."""
        if channel:
            self.create_channel(topic, channel).setdefault(peer.id, Producer(peer))
        self.create_topic(topic).setdefault(peer.id, Producer(peer))

    def unregister_channel(self, peer: Peer, topic: str, channel: str) -> bool:
        """Remove the peer from the channel, and an ephemeral channel with its last producer.

        Return True if the peer was there.
        """
        channels = self._channels(topic)
        producers = channels.get(channel, {})
        removed = producers.pop(peer.id, None) is not None
        if not producers and is_ephemeral(channel):
            channels.pop(channel, None)
            self._forget_if_empty(topic)
        return removed

    def unregister_topic(self, peer: Peer, topic: str) -> bool:
        """Remove the peer from the topic and all its channels. True if the topic had the peer."""
        entry = self._topics.get(topic)
        if entry is None:
            return False
        for producers in entry.channels.values():
            producers.pop(peer.id, None)
        removed = entry.producers.pop(peer.id, None) is not None
        if not entry.producers and is_ephemeral(topic):
            entry.registered = False
            self._forget_if_empty(topic)
        return removed

    def create_topic(self, topic: str) -> dict[str, Producer]:
        """Add the topic if it is missing. Return its producers by peer id."""
        entry = self._topics.setdefault(topic, _Topic())
        entry.registered = True
        return entry.producers

    def create_channel(self, topic: str, channel: str) -> dict[str, Producer]:
        """Add the channel if it is missing, without its topic. Return its producers by peer id."""
        entry = self._topics.setdefault(topic, _Topic())
        return entry.channels.setdefault(channel, {})

    def delete_topic(self, topic: str) -> None:
        """Remove the topic and its channels; "*" removes everything."""
        if topic == _ANY:
            self._topics.clear()
        self._topics.pop(topic, None)

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Remove the channel. Return False if there is none."""
        found = self._channels(topic).pop(channel, None) is not None
        self._forget_if_empty(topic)
        return found

    def tombstone(self, topic: str, node: str, now: float) -> None:
        """Hide the node (``broadcast_address:http_port``) as a producer of the topic for a time."""
        for producer in self.producers(topic):
            if producer.peer.node == node:
                producer.tombstoned_at = now

    def has_topic(self, topic: str) -> bool:
        return any(entry.registered for entry in self._matching(topic))

    def topics(self) -> list[str]:
        return [name for name, entry in self._topics.items() if entry.registered]

    def channels(self, topic: str) -> list[str]:
        """Return the topic's channels. For "*" a name comes once for each topic that has it."""
        return [name for entry in self._matching(topic) for name in entry.channels]

    def producers(self, topic: str) -> list[Producer]:
        """Return the topic's producers. For "*" return each peer once, under any of its topics."""
        found: dict[str, Producer] = {}
        for entry in self._matching(topic):
            found = entry.producers | found
        return list(found.values())

    def peers(self) -> list[Peer]:
        return [producer.peer for producer in self._peers.values()]

    def registrations(self) -> Iterable[tuple[str, Collection[Producer]]]:
        """Yield ("category:key:subkey", producers) for each registration, for /debug."""
        yield "client::", self._peers.values()
        for name, entry in self._topics.items():
            if entry.registered:
                yield f"topic:{name}:", entry.producers.values()
            for channel, producers in entry.channels.items():
                yield f"channel:{name}:{channel}", producers.values()

    def _matching(self, topic: str) -> Iterable[_Topic]:
        """Return the topic's entry, if any. "*", which is no valid name, means all topics."""
        if topic == _ANY:
            return self._topics.values()
        entry = self._topics.get(topic)
        return () if entry is None else (entry,)

    def _channels(self, topic: str) -> dict[str, dict[str, Producer]]:
        entry = self._topics.get(topic)
        return entry.channels if entry is not None else {}

    def _forget_if_empty(self, topic: str) -> None:
        entry = self._topics.get(topic)
        if entry is not None and not entry.registered and not entry.channels:
            del self._topics[topic]
