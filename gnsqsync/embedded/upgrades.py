"""The writes of a connection through TLS and compression, cut as nsqd cuts them.

A client can see the cuts: with TLS each write is a record, and some records decode to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gnsqsync.wire.codec import DeflateLayer, Layer, SnappyLayer

__all__ = ["EMPTY_FLUSH", "writes"]

_UNCOMPRESSED, _IDENTIFIER = 0x01, 0xFF
# Bytes of a chunk's type, size and checksum.
_SNAPPY_HEAD = 8
# Bytes after which Go's compressor passes its output on.
_DEFLATE_WRITE = 240
_SYNC_MARK = b"\x00\x00\xff\xff"

EMPTY_FLUSH = (b"\x00", _SYNC_MARK)
"""The writes of nsqd to a DEFLATE stream for a flush without data."""


def writes(layer: Layer, data: bytes) -> Iterable[bytes]:
    """Encode ``data`` by ``layer``, and cut it where nsqd begins another write."""
    encoded = layer.encode(data)
    if isinstance(layer, SnappyLayer):
        return _snappy_writes(encoded)
    if isinstance(layer, DeflateLayer):
        return _deflate_writes(encoded)
    return (encoded,)


def _snappy_writes(encoded: bytes) -> Iterator[bytes]:
    """Cut after the head of each uncompressed chunk, and after each chunk.

    The stream's identifier goes with the first head.
    """
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
    """Cut every ``_DEFLATE_WRITE`` bytes, and before the mark of the flush."""
    end = len(encoded) - len(_SYNC_MARK)
    for offset in range(0, end, _DEFLATE_WRITE):
        yield encoded[offset : min(offset + _DEFLATE_WRITE, end)]
    yield encoded[end:]
