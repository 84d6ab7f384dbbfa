"""A message in nsqd's format: length, time, attempts, id, body. Bytes only.

A record is signed: nsqd makes the id from the time of publishing, which the record also contains.
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
"""Bytes of the shortest payload: a message without a body."""

SIGNED = re.compile(rb"(?=[\s\S]{14}[0-9a-f]{16})")
"""Positions at which a record may begin in any bytes; ``is_signed`` decides."""

# Largest difference of the two times of one message, in units of 1.05 ms: about a minute. An nsqd
# may give ids in advance.
_TOLERANCE = 1 << 16


class Stored(NamedTuple):
    """The fields of a record. ``timestamp`` is in nanoseconds since the epoch."""

    timestamp: int
    attempts: int
    id: bytes
    body: bytes


def encode(timestamp: int, attempts: int, id: bytes, body: bytes) -> bytes:
    """Return the record with its length. ``id`` has 16 bytes."""
    return _HEAD.pack(SHORTEST + len(body), timestamp, attempts, id) + body


def decode(payload: bytes) -> Stored:
    """Return the fields of a payload, which has at least SHORTEST bytes and no length."""
    timestamp, attempts, id = _PAYLOAD_HEAD.unpack_from(payload)
    return Stored(timestamp, attempts, id, payload[SHORTEST:])


def decode_timestamp(payload: bytes) -> int:
    """Return the timestamp of a payload, without decoding the rest."""
    return int.from_bytes(payload[:8], signed=True)


def length_of(data: bytes, offset: int = 0) -> int:
    """Return the length at ``offset``: any signed number of 32 bits, as it may be damaged."""
    length: int = _LENGTH.unpack_from(data, offset)[0]
    return length


def is_signed(data: bytes, offset: int = 0) -> bool:
    """Return True if the HEAD_SIZE bytes at ``offset`` are a head whose id fits its time."""
    if len(data) - offset < HEAD_SIZE:
        return False
    timestamp: int
    _, timestamp, _, id = _HEAD.unpack_from(data, offset)
    try:
        millis = millis_of(id)
    except ValueError:
        return False
    return -_TOLERANCE < millis - (timestamp >> 20) < _TOLERANCE
