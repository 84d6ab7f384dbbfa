"""Message frames as nsqd writes them."""

from __future__ import annotations

import struct

__all__ = ["encode_message"]


def encode_message(timestamp: int, attempts: int, id: bytes, body: bytes) -> bytes:
    """``timestamp`` in ns, ``attempts`` 0 to 65535, ``id`` 16 bytes."""
    assert len(id) == 16
    return struct.pack(">iiqH16s", 30 + len(body), 2, timestamp, attempts, id) + body
