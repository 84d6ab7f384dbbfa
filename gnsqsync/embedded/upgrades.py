"""How a connection's bytes pass through TLS and compression: in the same writes as nsqd's.

A client sees the difference: with TLS each write is a record, and some decode to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gnsqsync.wire.codec import DeflateLayer, Layer, SnappyLayer

__all__ = ["EMPTY_FLUSH", "writes"]

_UNCOMPRESSED, _IDENTIFIER = 0x01, 0xFF
# A chunk's type, size and checksum.
_SNAPPY_HEAD = 8
# Go's compressor passes its bytes on when it has this many.
_DEFLATE_WRITE = 240
_SYNC_MARK = b"\x00\x00\xff\xff"

EMPTY_FLUSH = (b"\x00", _SYNC_MARK)
"""What nsqd writes to a DEFLATE stream when it flushes and there is nothing to flush."""


def writes(layer: Layer, data: bytes) -> Iterable[bytes]:
    """``data`` encoded by ``layer``, cut where nsqd begins another write."""
    encoded = layer.encode(data)
    if isinstance(layer, SnappyLayer):
        return _snappy_writes(encoded)
    if isinstance(layer, DeflateLayer):
        return _deflate_writes(encoded)
    return (encoded,)


def _snappy_writes(encoded: bytes) -> Iterator[bytes]:
    """The head of a chunk that is not compressed is a write of its own; the identifier goes with
    the first head."""
    start = offset = 0
    while offset < len(encoded):
        kind = encoded[offset]
        stop = offset + 4 + int.from_bytes(encoded[offset + 1 : offset + 4], "little")
        if kind != _IDENTIFIER:
            if kind == _UNCOMPRESSED:
                yield encoded[start : offset + _SNAPPY_HEAD]
                start = offset + _SNAPPY_HEAD
            yield encoded[start:stop]
            start = stop
        offset = stop


def _deflate_writes(encoded: bytes) -> Iterator[bytes]:
    """The mark of the flush is a write of its own."""
    end = len(encoded) - len(_SYNC_MARK)
    for offset in range(0, end, _DEFLATE_WRITE):
        yield encoded[offset : min(offset + _DEFLATE_WRITE, end)]
    yield encoded[end:]
