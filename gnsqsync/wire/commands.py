"""Commands of a client as bytes (docs/protocol/commands#command-lines,
docs/protocol/commands#command-summary and docs/protocol/handshake#identify-body).

Must not know answers or connections. The caller checks bodies.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

from gnsqsync.errors import ConfigError
from gnsqsync.options import ConnectionOptions, check_channel, check_topic

__all__ = [
    "CLS",
    "MAGIC_V2",
    "MAX_DELAY_MS",
    "NOP",
    "auth",
    "dpub",
    "identify",
    "identify_body",
    "mpub",
    "pub",
    "pub_head",
    "rdy",
    "req",
    "sub",
    "touch",
]

# First bytes of a connection: the version of the protocol.
MAGIC_V2 = b"  V2"
# Answer to a heartbeat.
NOP = b"NOP\n"
# Request for no more messages, before a close.
CLS = b"CLS\n"

# Longest delay in ms. nsqd counts in 64 bit nanoseconds, and a longer one would wrap around.
MAX_DELAY_MS = (2**63 - 1) // 10**6

_pack_size = struct.Struct(">I").pack

# "PUB <topic>\n" by topic. No lock: each access is one dict operation, and a head that two threads
# make at once is the same.
_pub_heads: dict[str, bytes] = {}
# Upper bound of ``_pub_heads``, for programs that publish to ever new topics.
_MAX_PUB_HEADS = 10_000


def identify_body(options: ConnectionOptions) -> dict[str, Any]:
    """Return the fields of IDENTIFY: integers, durations in milliseconds, only fields that are set.

    nsqd refuses floats, even whole ones (docs/protocol/handshake#identify-body).
    """
    body: dict[str, Any] = {
        "client_id": options.client_id,
        "hostname": options.hostname,
        "user_agent": options.user_agent,
        "feature_negotiation": True,
        "heartbeat_interval": _milliseconds(options.heartbeat_interval),
    }
    if options.output_buffer_size:
        body["output_buffer_size"] = options.output_buffer_size
    if options.output_buffer_timeout == -1:
        body["output_buffer_timeout"] = -1
    elif options.output_buffer_timeout:
        body["output_buffer_timeout"] = _milliseconds(options.output_buffer_timeout)
    if options.msg_timeout is not None:
        body["msg_timeout"] = _milliseconds(options.msg_timeout)
    if options.sample_rate:
        body["sample_rate"] = options.sample_rate
    if options.uses_tls:
        body["tls_v1"] = True
    if options.snappy:
        body["snappy"] = True
    if options.deflate:
        body["deflate"] = True
        body["deflate_level"] = options.deflate_level
    if options.topology_region is not None:
        body["topology_region"] = options.topology_region
    if options.topology_zone is not None:
        body["topology_zone"] = options.topology_zone
    return body


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)


def identify(body: Mapping[str, Any]) -> bytes:
    """Return IDENTIFY with ``body`` as JSON.

    If it asks for TLS or compression, its answer must come before anything else is sent, because
    nsqd throws away what it read ahead (docs/protocol/handshake#upgrades).
    """
    return _with_body(b"IDENTIFY\n", json.dumps(dict(body), allow_nan=False).encode())


def auth(secret: bytes) -> bytes:
    """Return AUTH with the secret."""
    return _with_body(b"AUTH\n", secret)


def sub(topic: str, channel: str) -> bytes:
    """Return SUB to a topic and channel. ConfigError for a name that nsqd would refuse."""
    return f"SUB {check_topic(topic)} {check_channel(channel)}\n".encode("ascii")


def rdy(count: int) -> bytes:
    """Return RDY: the upper bound of unanswered messages on this connection."""
    return b"RDY %d\n" % count


def req(id: bytes, delay_ms: int) -> bytes:
    """Return REQ, which makes nsqd deliver the message again after ``delay_ms``.

    nsqd lowers a delay above its --max-req-timeout silently. ConfigError for a delay outside
    0..MAX_DELAY_MS.
    """
    return b"REQ %b %d\n" % (id, _delay(delay_ms))


def touch(id: bytes) -> bytes:
    """Return TOUCH, which gives the message with this id of 16 bytes another msg_timeout."""
    return b"TOUCH %b\n" % id


def pub_head(topic: str) -> bytes:
    """Return ``PUB <topic>`` with its newline. ConfigError for a name that nsqd would refuse."""
    head = _pub_heads.get(topic)
    if head is None:
        head = f"PUB {check_topic(topic)}\n".encode("ascii")
        if len(_pub_heads) >= _MAX_PUB_HEADS:
            _pub_heads.clear()
        _pub_heads[topic] = head
    return head


def pub(topic: str, body: bytes) -> bytes:
    """Return PUB of one message. ConfigError for a topic name that nsqd would refuse."""
    # A known head needs no call.
    head = _pub_heads.get(topic) or pub_head(topic)
    return b"".join((head, _pack_size(len(body)), body))


def mpub(topic: str, bodies: Iterable[bytes]) -> bytes:
    """Return MPUB of one or more bodies, which are stored whole or not at all.

    See docs/protocol/publishing#publish. ConfigError for a bad topic name.
    """
    whole = list(bodies)
    sizes = list(map(len, whole))
    count = len(whole)
    head = b"M" + pub_head(topic)
    start = b"".join((head, _pack_size(4 + 4 * count + sum(sizes)), _pack_size(count)))
    if sizes.count(sizes[0]) == count:
        # Bodies of one size: a single join in C puts the field before each.
        return _pack_size(sizes[0]).join((start, *whole))
    parts = [start] * (2 * count + 1)
    parts[1::2] = map(_pack_size, sizes)
    parts[2::2] = whole
    return b"".join(parts)


def dpub(topic: str, delay_ms: int, body: bytes) -> bytes:
    """Return DPUB: a PUB that nsqd delivers after ``delay_ms``.

    Unlike with REQ, nsqd refuses a delay above its --max-req-timeout and ends the connection.
    ConfigError for a bad name, or a delay outside 0..MAX_DELAY_MS.
    """
    head = f"DPUB {check_topic(topic)} {_delay(delay_ms)}\n".encode("ascii")
    return _with_body(head, body)


def _with_body(head: bytes, body: bytes) -> bytes:
    return b"".join((head, _pack_size(len(body)), body))


def _delay(delay_ms: int) -> int:
    if not 0 <= delay_ms <= MAX_DELAY_MS:
        raise ConfigError(f"delay is {delay_ms!r} ms; allowed is 0 to {MAX_DELAY_MS}")
    return int(delay_ms)
