"""Answers of nsqd's HTTP API as frozen dataclasses (docs/protocol/nsqd-http#info and
docs/protocol/nsqd-http#stats).

Knows the shapes. Must not know requests, URLs or sockets. Unknown keys are ignored. A value of a
wrong type is a ProtocolError; with ``skipped``, ``parse`` of /stats leaves only the entry out, and
calls ``skipped`` with a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gnsqsync.wire.json_fields import Entry, integer, mapping, number, objects, read, scalar, sound

_NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True)
class NsqdInfo:
    """``GET /info`` of nsqd (docs/protocol/nsqd-http#info).

    Durations are in seconds. Ports are -1 on unix sockets.
    """

    version: str
    broadcast_address: str
    hostname: str
    http_port: int
    tcp_port: int
    start_time: int
    max_heartbeat_interval: float
    max_output_buffer_size: int
    max_output_buffer_timeout: float
    max_deflate_level: int

    @classmethod
    def parse(cls, data: object) -> NsqdInfo:
        entry = mapping(data, "/info")
        return read(
            cls,
            entry,
            max_heartbeat_interval=integer(entry, "max_heartbeat_interval") / _NANOSECONDS,
            max_output_buffer_timeout=integer(entry, "max_output_buffer_timeout") / _NANOSECONDS,
        )


@dataclass(frozen=True, slots=True)
class Latency:
    """End-to-end latency: ``percentiles`` are (quantile, seconds), none unless configured."""

    count: int = 0
    percentiles: tuple[tuple[float, float], ...] = ()

    @classmethod
    def parse(cls, entry: Entry) -> Latency:
        data = entry.get("e2e_processing_latency")
        if data is None:
            return cls()
        data = mapping(data, "'e2e_processing_latency'")
        pairs = objects(
            data,
            "percentiles",
            lambda item: (number(item, "quantile"), number(item, "value") / _NANOSECONDS),
        )
        return cls(integer(data, "count"), pairs)


@dataclass(frozen=True, slots=True)
class ClientStats:
    """A connection in /stats: a consumer of a channel, or under ``producers`` a publisher.

    ``connect_ts`` is in unix seconds. ``pub_counts`` are (topic, count) pairs; nsqd shows at most
    one of them (docs/protocol/nsqd-http#stats).
    """

    client_id: str
    hostname: str
    version: str
    remote_address: str
    user_agent: str
    state: int
    ready_count: int
    in_flight_count: int
    message_count: int
    finish_count: int
    requeue_count: int
    connect_ts: int
    sample_rate: int
    deflate: bool
    snappy: bool
    tls: bool
    tls_cipher_suite: str
    tls_version: str
    authed: bool
    auth_identity: str
    auth_identity_url: str
    pub_counts: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, entry: Entry) -> ClientStats:
        pub_counts = objects(
            entry, "pub_counts", lambda item: (scalar(item, "topic", ""), integer(item, "count"))
        )
        return read(cls, entry, pub_counts=pub_counts)


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """A channel in /stats. ``depth`` does not count messages in flight or deferred."""

    channel_name: str
    depth: int
    backend_depth: int
    in_flight_count: int
    deferred_count: int
    message_count: int
    requeue_count: int
    timeout_count: int
    client_count: int
    clients: tuple[ClientStats, ...]
    paused: bool
    e2e_processing_latency: Latency

    @classmethod
    def parse(cls, entry: Entry, skipped: Callable[[str], None] | None = None) -> ChannelStats:
        clients = sound(entry, "clients", ClientStats.parse, skipped)
        return read(
            cls,
            entry,
            # Older servers send no client_count.
            client_count=scalar(entry, "client_count", len(clients)),
            clients=clients,
            e2e_processing_latency=Latency.parse(entry),
        )


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic in /stats. ``message_count`` and ``message_bytes`` count since nsqd started."""

    topic_name: str
    channels: tuple[ChannelStats, ...]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: Latency

    @classmethod
    def parse(cls, entry: Entry, skipped: Callable[[str], None] | None = None) -> TopicStats:
        def channel(item: Entry) -> ChannelStats:
            return ChannelStats.parse(item, skipped)

        return read(
            cls,
            entry,
            channels=sound(entry, "channels", channel, skipped),
            e2e_processing_latency=Latency.parse(entry),
        )


@dataclass(frozen=True, slots=True)
class MemoryStats:
    """Go's memory counters in /stats: bytes, and garbage collector pauses in microseconds."""

    heap_objects: int
    heap_idle_bytes: int
    heap_in_use_bytes: int
    heap_released_bytes: int
    gc_pause_usec_100: int
    gc_pause_usec_99: int
    gc_pause_usec_95: int
    next_gc_bytes: int
    gc_total_runs: int

    @classmethod
    def parse(cls, entry: Entry) -> MemoryStats:
        return read(cls, entry)


@dataclass(frozen=True, slots=True)
class Stats:
    """``GET /stats`` of nsqd (docs/protocol/nsqd-http#stats).

    ``health`` is ``OK`` or ``NOK - <the last disk error>``. ``memory`` is None if it was not asked
    for. ``producers`` are the connections that published something.
    """

    version: str
    health: str
    start_time: int
    topics: tuple[TopicStats, ...]
    memory: MemoryStats | None
    producers: tuple[ClientStats, ...]

    @classmethod
    def parse(cls, data: object, skipped: Callable[[str], None] | None = None) -> Stats:
        def topic(item: Entry) -> TopicStats:
            return TopicStats.parse(item, skipped)

        entry = mapping(data, "/stats")
        memory = entry.get("memory")
        return read(
            cls,
            entry,
            topics=sound(entry, "topics", topic, skipped),
            memory=None if memory is None else MemoryStats.parse(mapping(memory, "'memory'")),
            producers=sound(entry, "producers", ClientStats.parse, skipped),
        )
