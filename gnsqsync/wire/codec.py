"""Compression between socket and frames: raw DEFLATE and Snappy's framing format.

Incremental and symmetric, for both ends (docs/protocol/handshake#upgrades). Must not know frames.
"""

from __future__ import annotations

import zlib
from typing import Any, Protocol

from gnsqsync.errors import NegotiationFailed, ProtocolError
from gnsqsync.wire.pieces import Pieces

__all__ = ["DeflateLayer", "Layer", "SnappyLayer"]

# Upper bound in bytes of one decode. DEFLATE makes up to a thousand bytes of one, so the size of a
# receive does not bound what a peer can make us hold.
_MAX_DECODED = 1024 * 1024


class Layer(Protocol):
    """TLS or compression between the socket and the frames.

    One thread may encode while another decodes, but no two threads may do the same. The bytes that
    ``encode`` returns must reach the peer in the order of the calls, each exactly once.
    """

    @property
    def eof(self) -> bool:
        """True once the peer ended its stream in this layer. ``decode`` then returns nothing."""
        ...

    @property
    def pending(self) -> bool:
        """True while ``decode(b"")`` may return more: call that before the socket's receive."""
        ...

    def encode(self, data: bytes) -> bytes:
        """Return all of ``data`` in a form that the peer can decode without further bytes."""
        ...

    def decode(self, data: bytes) -> bytes:
        """Return what ``data`` completes, often b"", which is not EOF. ProtocolError if broken."""
        ...


class DeflateLayer:
    """Raw DEFLATE (RFC 1951), one endless stream per direction, a sync flush after each encode.

    ``level`` (1 to 9) is the compression of our own direction. nsqd flushes twice in a row, so a
    decode may return b"". A final block counts as EOF; gnsq sends one at its end, nsqd never. One
    decode returns 1 MiB at most. The rest stays compressed, and ``pending`` is then True.
    """

    def __init__(self, level: int) -> None:
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._decompressor = zlib.decompressobj(-zlib.MAX_WBITS)
        self.pending: bool = False

    @property
    def eof(self) -> bool:
        return self._decompressor.eof

    def encode(self, data: bytes) -> bytes:
        compressor = self._compressor
        return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> bytes:
        decompressor = self._decompressor
        if decompressor.eof:
            self.pending = False
            return b""
        if decompressor.unconsumed_tail:
            data = decompressor.unconsumed_tail + data
        try:
            decoded = decompressor.decompress(data, _MAX_DECODED)
        except zlib.error as error:
            raise ProtocolError(f"the DEFLATE stream is broken: {error}") from error
        # An exactly full decode may have left nothing; the next one then returns b"".
        self.pending = len(decoded) == _MAX_DECODED
        return decoded


# Chunk with which a stream of the Snappy framing format begins.
_SNAPPY_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_COMPRESSED, _UNCOMPRESSED, _IDENTIFIER = 0x00, 0x01, 0xFF
# Largest size of a chunk by its type: 65536 bytes, a sixth more at worst if compressed, and a CRC.
_MAX_CHUNK = {_COMPRESSED: 4 + 32 + 65536 + 65536 // 6, _UNCOMPRESSED: 4 + 65536, _IDENTIFIER: 6}


class SnappyLayer:
    """Snappy's framing format by python-snappy, which the first layer imports.

    python-snappy's decompressor gets whole chunks only. By itself it accepts a stream without
    identifier, and copies a chunk of up to 16 MiB again with every piece that arrives.
    """

    eof = False  # the format has no end mark
    pending = False  # a chunk is 64 KiB at most, made of 3 KiB at least

    def __init__(self) -> None:
        try:
            import snappy
        except ImportError as error:
            raise NegotiationFailed(
                f"snappy needs the package python-snappy, which cannot be imported: {error}"
            ) from error
        self._compressor: Any = snappy.StreamCompressor()
        self._decompressor: Any = snappy.StreamDecompressor()
        # True once the first chunk has arrived, which must be the identifier.
        self._identified = False
        self._pieces = Pieces()
        # Bytes yet to arrive of a chunk that is skipped.
        self._skip = 0

    def encode(self, data: bytes) -> bytes:
        encoded: bytes = self._compressor.add_chunk(data)
        return encoded

    def decode(self, data: bytes) -> bytes:
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        if self._pieces.kept:
            chunk = self._pieces.add(data)
            if chunk is None:
                return b""
            data = chunk
        if not self._identified:
            if not _SNAPPY_IDENTIFIER.startswith(data[:10]):
                raise ProtocolError("the Snappy stream does not start with its identifier")
            self._identified = len(data) >= 10
        whole = self._whole_chunks(data)
        if not whole:
            return b""
        try:
            decoded: bytes = self._decompressor.decompress(whole)
        except Exception as error:
            # The class differs between versions. In some it is OSError, which callers would take
            # for a socket's error.
            raise ProtocolError(f"the Snappy stream is broken: {error}") from error
        return decoded

    def _whole_chunks(self, data: bytes) -> bytes:
        """Return the whole chunks in ``data`` without skipped ones, and keep the rest."""
        end = len(data)
        wanted: list[bytes] = []
        start = offset = 0
        self._pieces.need = 4
        while end - offset >= 4:
            kind = data[offset]
            size = int.from_bytes(data[offset + 1 : offset + 4], "little")
            stop = offset + 4 + size
            if 0x80 <= kind <= 0xFE:
                wanted.append(data[start:offset])
                start = offset = min(stop, end)
                self._skip = stop - offset
                continue
            if kind not in _MAX_CHUNK:
                raise ProtocolError(f"the Snappy stream has a chunk of unknown type {kind:#04x}")
            if size > _MAX_CHUNK[kind]:
                raise ProtocolError(
                    f"the Snappy stream has a chunk of {size} bytes;"
                    f" type {kind:#04x} has at most {_MAX_CHUNK[kind]}"
                )
            if stop > end:
                self._pieces.need = 4 + size
                break
            offset = stop
        wanted.append(data[start:offset])
        if offset < end:
            self._pieces.begin(data[offset:])
        return b"".join(wanted)
