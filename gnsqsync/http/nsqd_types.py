"""What nsqd's HTTP API answers, as frozen dataclasses (docs/protocol/nsqd-http#info and
docs/protocol/nsqd-http#stats).

Knows the shapes. Knows nothing of requests, URLs or sockets. Unknown keys are ignored; a value of
a wrong type is a ProtocolError.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnsqsync.http.json_fields import Entry, boolean, integer, mapping, number, objects, string

_NANOSECONDS = 1e9


@dataclass(frozen=True, slots=True)
class NsqdInfo:
    """``GET /info`` of nsqd (docs/protocol/nsqd-http#info); durations in seconds, ports -1 on unix
    sockets."""

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
        return cls(
            version=string(entry, "version"),
            broadcast_address=string(entry, "broadcast_address"),
            hostname=string(entry, "hostname"),
            http_port=integer(entry, "http_port"),
            tcp_port=integer(entry, "tcp_port"),
            start_time=integer(entry, "start_time"),
            max_heartbeat_interval=integer(entry, "max_heartbeat_interval") / _NANOSECONDS,
            max_output_buffer_size=integer(entry, "max_output_buffer_size"),
            max_output_buffer_timeout=integer(entry, "max_output_buffer_timeout") / _NANOSECONDS,
            max_deflate_level=integer(entry, "max_deflate_level"),
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
    """One connection in /stats: a consumer of a channel, or under ``producers`` a publisher.

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
        return cls(
            client_id=string(entry, "client_id"),
            hostname=string(entry, "hostname"),
            version=string(entry, "version"),
            remote_address=string(entry, "remote_address"),
            user_agent=string(entry, "user_agent"),
            state=integer(entry, "state"),
            ready_count=integer(entry, "ready_count"),
            in_flight_count=integer(entry, "in_flight_count"),
            message_count=integer(entry, "message_count"),
            finish_count=integer(entry, "finish_count"),
            requeue_count=integer(entry, "requeue_count"),
            connect_ts=integer(entry, "connect_ts"),
            sample_rate=integer(entry, "sample_rate"),
            deflate=boolean(entry, "deflate"),
            snappy=boolean(entry, "snappy"),
            tls=boolean(entry, "tls"),
            tls_cipher_suite=string(entry, "tls_cipher_suite"),
            tls_version=string(entry, "tls_version"),
            authed=boolean(entry, "authed"),
            auth_identity=string(entry, "auth_identity"),
            auth_identity_url=string(entry, "auth_identity_url"),
            pub_counts=objects(
                entry, "pub_counts", lambda item: (string(item, "topic"), integer(item, "count"))
            ),
        )


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """One channel in /stats. ``depth`` leaves out what is in flight or deferred."""

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
    def parse(cls, entry: Entry) -> ChannelStats:
        clients = objects(entry, "clients", ClientStats.parse)
        return cls(
            channel_name=string(entry, "channel_name"),
            depth=integer(entry, "depth"),
            backend_depth=integer(entry, "backend_depth"),
            in_flight_count=integer(entry, "in_flight_count"),
            deferred_count=integer(entry, "deferred_count"),
            message_count=integer(entry, "message_count"),
            requeue_count=integer(entry, "requeue_count"),
            timeout_count=integer(entry, "timeout_count"),
            # Older servers send no client_count.
            client_count=integer(entry, "client_count", len(clients)),
            clients=clients,
            paused=boolean(entry, "paused"),
            e2e_processing_latency=Latency.parse(entry),
        )


@dataclass(frozen=True, slots=True)
class TopicStats:
    """One topic in /stats. ``message_count`` and ``message_bytes`` count since nsqd started."""

    topic_name: str
    channels: tuple[ChannelStats, ...]
    depth: int
    backend_depth: int
    message_count: int
    message_bytes: int
    paused: bool
    e2e_processing_latency: Latency

    @classmethod
    def parse(cls, entry: Entry) -> TopicStats:
        return cls(
            topic_name=string(entry, "topic_name"),
            channels=objects(entry, "channels", ChannelStats.parse),
            depth=integer(entry, "depth"),
            backend_depth=integer(entry, "backend_depth"),
            message_count=integer(entry, "message_count"),
            message_bytes=integer(entry, "message_bytes"),
            paused=boolean(entry, "paused"),
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
        return cls(**{name: integer(entry, name) for name in cls.__dataclass_fields__})


@dataclass(frozen=True, slots=True)
class Stats:
    """``GET /stats`` of nsqd (docs/protocol/nsqd-http#stats).

    ``health`` is ``OK`` or ``NOK - <the last disk error>``. ``memory`` is None when it was not
    asked for. ``producers`` are the connections that published something.
    """

    version: str
    health: str
    start_time: int
    topics: tuple[TopicStats, ...]
    memory: MemoryStats | None
    producers: tuple[ClientStats, ...]

    @classmethod
    def parse(cls, data: object) -> Stats:
        entry = mapping(data, "/stats")
        memory = entry.get("memory")
        return cls(
            version=string(entry, "version"),
            health=string(entry, "health"),
            start_time=integer(entry, "start_time"),
            topics=objects(entry, "topics", TopicStats.parse),
            memory=None if memory is None else MemoryStats.parse(mapping(memory, "'memory'")),
            producers=objects(entry, "producers", ClientStats.parse),
        )
