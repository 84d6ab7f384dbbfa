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

    Attributes:
        version: The version, as ``1.3.0``.
        broadcast_address: Host that nsqd gives to nsqlookupds.
        hostname: Host name of the nsqd.
        http_port: Port of the HTTP API; -1 on a unix socket.
        tcp_port: Port of the TCP protocol; -1 on a unix socket.
        start_time: Seconds since 1970 at which nsqd started.
        max_heartbeat_interval: Seconds: upper bound of a client's ``heartbeat_interval``.
        max_output_buffer_size: Bytes: upper bound of a client's ``output_buffer_size``.
        max_output_buffer_timeout: Seconds: upper bound of a client's ``output_buffer_timeout``.
        max_deflate_level: Upper bound of a client's ``deflate_level``.
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
    """Time from the publish of messages to their FIN, as nsqd counts it.

    Attributes:
        count: Number of messages counted.
        percentiles: Pairs of a quantile and seconds; none unless nsqd was told which to count.
    """

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

    The fields are those of docs/protocol/nsqd-http#stats.

    Attributes:
        client_id: The client's ``client_id``.
        hostname: The client's ``hostname``.
        version: Version of the protocol, ``V2``.
        remote_address: ``host:port`` of the client.
        user_agent: The client's ``user_agent``.
        state: Number of the state in nsqd.
        ready_count: Number of messages in the client's last RDY.
        in_flight_count: Number of messages in flight.
        message_count: Number of messages sent to the client.
        finish_count: Number of FINs.
        requeue_count: Number of REQs.
        connect_ts: Seconds since 1970 at which the client connected.
        sample_rate: The client's ``sample_rate``: the percent of messages delivered; 0 means all.
        deflate: True if DEFLATE is on.
        snappy: True if Snappy is on.
        tls: True if TLS is on.
        tls_cipher_suite: Name of the cipher suite; empty without TLS.
        tls_version: Name of the TLS version; empty without TLS.
        authed: True if the client sent a secret that nsqd took.
        auth_identity: Identity by the auth server; empty without one.
        auth_identity_url: URL of the identity; empty without one.
        pub_counts: Pairs of a topic and the number of messages published; nsqd shows at most one.
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
    """A channel in /stats. Counters run since nsqd started.

    Attributes:
        channel_name: Name of the channel.
        depth: Number of messages that wait, without those in flight or deferred.
        backend_depth: Number of these messages that wait on disk.
        in_flight_count: Number of messages in flight.
        deferred_count: Number of messages whose time has not come.
        message_count: Number of messages that came into the channel.
        requeue_count: Number of REQs.
        timeout_count: Number of messages that timed out.
        client_count: Number of consumers, also without ``clients``.
        clients: The consumers; none if they were not asked for.
        paused: True if the channel is paused.
        e2e_processing_latency: Time from publish to FIN.
    """

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
    """A topic in /stats. Counters run since nsqd started.

    Attributes:
        topic_name: Name of the topic.
        channels: The channels of the topic, by name.
        depth: Number of messages that wait in the topic itself.
        backend_depth: Number of these messages that wait on disk.
        message_count: Number of messages published.
        message_bytes: Bytes of the bodies published.
        paused: True if the topic is paused.
        e2e_processing_latency: Time from publish to FIN, over all channels.
    """

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
    """Go's memory counters in /stats.

    Attributes:
        heap_objects: Number of objects in use.
        heap_idle_bytes: Bytes of the heap that nothing uses.
        heap_in_use_bytes: Bytes of the heap in use.
        heap_released_bytes: Bytes that were returned to the system.
        gc_pause_usec_100: Microseconds of the longest pause for garbage collection.
        gc_pause_usec_99: Microseconds of the pause at the 99th percentile.
        gc_pause_usec_95: Microseconds of the pause at the 95th percentile.
        next_gc_bytes: Bytes of the heap at which the next garbage collection begins.
        gc_total_runs: Number of garbage collections.
    """

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

    Attributes:
        version: The version of the nsqd.
        health: ``OK``, or ``NOK - <the last disk error>``.
        start_time: Seconds since 1970 at which nsqd started.
        topics: The topics, by name.
        memory: Go's memory counters; None if they were not asked for.
        producers: The connections that published something; none if clients were not asked for.
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
