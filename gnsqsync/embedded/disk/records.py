"""One message as nsqd stores it: length, time, attempts, id, body. Bytes only.

A record is signed: nsqd makes the id of the time of publishing, which also stands beside it.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

from gnsqsync.embedded.guid import millis_of

__all__ = [
    "HEAD_SIZE",
    "LENGTH_SIZE",
    "SHORTEST",
    "SIGNED",
    "Stored",
    "decode",
    "decode_timestamp",
    "encode",
    "is_signed",
    "length_of",
]

_HEAD = struct.Struct(">iqH16s")
_PAYLOAD_HEAD = struct.Struct(">qH16s")
_LENGTH = struct.Struct(">i")
HEAD_SIZE = _HEAD.size
LENGTH_SIZE = _LENGTH.size
SHORTEST = _PAYLOAD_HEAD.size
"""The least length: a message without a body."""

SIGNED = re.compile(rb"(?=[\s\S]{14}[0-9a-f]{16})")
"""Where a record may begin in any bytes; ``is_signed`` decides."""

# How far the two times of one message may be apart, in units of 1.05 ms: about a minute, for an
# nsqd that gave ids in advance.
_TOLERANCE = 1 << 16


class Stored(NamedTuple):
    """What a record holds. ``timestamp`` in nanoseconds since the epoch."""

    timestamp: int
    attempts: int
    id: bytes
    body: bytes


def encode(timestamp: int, attempts: int, id: bytes, body: bytes) -> bytes:
    """The record with its length; ``id`` has 16 bytes."""
    return _HEAD.pack(SHORTEST + len(body), timestamp, attempts, id) + body


def decode(payload: bytes) -> Stored:
    """What is in a record of at least SHORTEST bytes, given without its length."""
    timestamp, attempts, id = _PAYLOAD_HEAD.unpack_from(payload)
    return Stored(timestamp, attempts, id, payload[SHORTEST:])


def decode_timestamp(payload: bytes) -> int:
    """The timestamp alone, of what ``decode`` takes."""
    return int.from_bytes(payload[:8], signed=True)


def length_of(data: bytes, offset: int = 0) -> int:
    """The length at ``offset``, which may be any number of 32 bits with a sign."""
    length: int = _LENGTH.unpack_from(data, offset)[0]
    return length


def is_signed(data: bytes, offset: int = 0) -> bool:
    """Whether the HEAD_SIZE bytes at ``offset`` are a head whose id belongs to its time."""
    if len(data) - offset < HEAD_SIZE:
        return False
    timestamp: int
    _, timestamp, _, id = _HEAD.unpack_from(data, offset)
    try:
        millis = millis_of(id)
    except ValueError:
        return False
    return -_TOLERANCE < millis - (timestamp >> 20) < _TOLERANCE
