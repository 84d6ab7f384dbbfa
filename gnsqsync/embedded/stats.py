"""The figures of /stats, as JSON and as text (docs/protocol/nsqd-http#stats).

Reads the broker and the sessions; changes nothing.
"""

from __future__ import annotations

import gc
import resource
import sys
import time
from collections.abc import Iterable
from typing import Any

from gnsqsync.daemon.flags import version_text
from gnsqsync.daemon.goflag import format_duration
from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.channel import Channel
from gnsqsync.embedded.latency import LatencyWindow, latency_figures
from gnsqsync.embedded.queueing import Consumer
from gnsqsync.embedded.session import Session
from gnsqsync.embedded.topic import Topic

__all__ = ["gather", "memory_figures", "render_text"]


def gather(
    broker: Broker,
    sessions: Iterable[Session],
    *,
    topic: str = "",
    channel: str = "",
    include_clients: bool = True,
) -> dict[str, Any]:
    """Return ``topics`` and ``producers``. An empty ``topic`` or ``channel`` means all of them."""
    if topic and topic not in broker.topics:
        return {"topics": None, "producers": None}
    wanted = [broker.topics[topic]] if topic else list(broker.topics.values())
    topics = []
    for found in sorted(wanted, key=lambda item: item.name):
        if channel and channel not in found.channels:
            continue
        topics.append(_topic_figures(broker, found, topic, channel, include_clients))
    producers = None
    if include_clients:
        producers = [
            client_figures(session, topic) for session in sessions if session.pub_counts
        ] or None
    return {"topics": topics, "producers": producers}


def _topic_figures(
    broker: Broker, topic: Topic, asked_topic: str, only_channel: str, include_clients: bool
) -> dict[str, Any]:
    channels = [topic.channels[name] for name in sorted(topic.channels)]
    return {
        "topic_name": topic.name,
        "channels": [
            _channel_figures(broker, channel, asked_topic, include_clients)
            for channel in channels
            if not only_channel or channel.name == only_channel
        ],
        "depth": topic.depth,
        "backend_depth": topic.backend_depth,
        "message_count": topic.message_count,
        "message_bytes": topic.message_bytes,
        "paused": topic.paused,
        "e2e_processing_latency": latency_figures(_windows(channels), broker.now()),
    }


def _windows(channels: Iterable[Channel]) -> list[LatencyWindow]:
    return [channel.latency for channel in channels if channel.latency is not None]


def _channel_figures(
    broker: Broker, channel: Channel, asked_topic: str, include_clients: bool
) -> dict[str, Any]:
    clients = None
    if include_clients:
        clients = [_consumer_figures(consumer, asked_topic) for consumer in channel.consumers]
    return {
        "channel_name": channel.name,
        "depth": channel.depth,
        "backend_depth": channel.backend_depth,
        "in_flight_count": len(channel.in_flight),
        "deferred_count": len(channel.deferred),
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.consumers),
        "clients": clients,
        "paused": channel.paused,
        "e2e_processing_latency": latency_figures(_windows([channel]), broker.now()),
    }


def _consumer_figures(consumer: Consumer, asked_topic: str) -> dict[str, Any]:
    assert isinstance(consumer, Session)
    return client_figures(consumer, asked_topic)


def client_figures(session: Session, topic: str) -> dict[str, Any]:
    """Return the figures of one connection.

    ``pub_counts`` has one entry, as in nsqd: for ``topic``, or for any topic if ``topic`` is "".
    """
    settings = session.settings
    figures: dict[str, Any] = {
        "client_id": settings.client_id,
        "hostname": settings.hostname,
        "version": "V2",
        "remote_address": session.peer.name,
        "state": session.state,
        "ready_count": session.ready_count,
        "in_flight_count": session.in_flight,
        "message_count": session.message_count,
        "finish_count": session.finish_count,
        "requeue_count": session.requeue_count,
        "connect_ts": session.connected_at // 10**9,
        "sample_rate": settings.sample_rate,
        "deflate": session.deflate,
        "snappy": session.snappy,
        "user_agent": settings.user_agent,
    }
    authorization = session.authorization
    if authorization is not None and authorization.permissions:
        figures["authed"] = True
        if authorization.identity:
            figures["auth_identity"] = authorization.identity
        if authorization.identity_url:
            figures["auth_identity_url"] = authorization.identity_url
    counts = [
        {"topic": name, "count": count}
        for name, count in session.pub_counts.items()
        if not topic or name == topic
    ]
    if counts:
        figures["pub_counts"] = counts[:1]
    figures |= {
        "tls": session.tls,
        "tls_cipher_suite": session.peer.cipher,
        "tls_version": session.peer.tls_version.replace("TLSv", "TLS"),
        "tls_negotiated_protocol": "",
        "tls_negotiated_protocol_is_mutual": session.tls,
    }
    return figures


def memory_figures() -> dict[str, int]:
    """Return nsqd's keys of ``memory``. Python knows the resident set and collector runs only."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": peak if sys.platform == "darwin" else peak * 1024,
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }


def render_text(
    figures: dict[str, Any],
    health: str,
    memory: dict[str, int] | None,
    started_at: float,
    now: float,
) -> str:
    """Return the text form. Both times are in seconds since the epoch."""
    start = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(started_at))
    # RFC 3339 has a colon in the offset, and Go writes Z for the offset 0.
    start = start[:-5] + "Z" if start.endswith("+0000") else f"{start[:-2]}:{start[-2:]}"
    lines = [
        version_text("nsqd"),
        f"start_time {start}",
        f"uptime {format_duration(now - started_at)}",
        "",
        f"Health: {health}",
    ]
    if memory is not None:
        lines += ["", "Memory:"]
        lines += [f"   {name:<25}\t{value}" for name, value in memory.items()]
    lines.append("")
    lines.append("Topics:" if figures["topics"] else "Topics: None")
    for number, topic in enumerate(figures["topics"] or ()):
        if number:
            lines.append("")
        lines.append(
            f"{_mark(topic)}[{topic['topic_name']:<15}] depth: {topic['depth']:<5}"
            f" be-depth: {topic['backend_depth']:<5} msgs: {topic['message_count']:<8}"
            f" e2e%: {_quantiles(topic)}"
        )
        for channel in topic["channels"]:
            lines.append(
                f"   {_mark(channel)}[{channel['channel_name']:<25}] depth: {channel['depth']:<5}"
                f" be-depth: {channel['backend_depth']:<5}"
                f" inflt: {channel['in_flight_count']:<4} def: {channel['deferred_count']:<4}"
                f" re-q: {channel['requeue_count']:<5} timeout: {channel['timeout_count']:<5}"
                f" msgs: {channel['message_count']:<8} e2e%: {_quantiles(channel)}"
            )
            lines += ["        " + _client_line(c, now) for c in channel["clients"] or ()]
    lines.append("")
    lines.append("Producers:" if figures["producers"] else "Producers: None")
    lines += ["   " + _client_line(client, now) for client in figures["producers"] or ()]
    return "\n".join(lines) + "\n"


def _mark(figures: dict[str, Any]) -> str:
    return "*P " if figures["paused"] else "   "


def _quantiles(figures: dict[str, Any]) -> str:
    percentiles = figures["e2e_processing_latency"]["percentiles"] or ()
    return ", ".join(_human(entry["value"]) for entry in percentiles)


def _human(nanoseconds: float) -> str:
    for size, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "us")):
        if nanoseconds > size:
            return f"{nanoseconds / size:.1f}{unit}"
    return f"{nanoseconds:.1f}ns"


def _client_line(client: dict[str, Any], now: float) -> str:
    port = client["remote_address"].rpartition(":")[2] if ":" in client["remote_address"] else ""
    who = f"{client['hostname']}:{port} {client['user_agent']}"
    counts = client.get("pub_counts")
    if counts:
        topics = ",".join(f"{entry['topic']}={entry['count']}" for entry in counts)
        did = f"msgs: {sum(entry['count'] for entry in counts):<8} topics: {topics}"
    else:
        did = (
            f"state: {client['state']}"
            f" inflt: {client['in_flight_count']:<4} rdy: {client['ready_count']:<4}"
            f" fin: {client['finish_count']:<8} re-q: {client['requeue_count']:<8}"
            f" msgs: {client['message_count']:<8}"
        )
    connected = format_duration(float(int(now - client["connect_ts"])))
    return f"[{client['version']} {who:<21}] {did} connected: {connected}"
