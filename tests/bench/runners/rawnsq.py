"""nsqd's TCP protocol on a bare socket: just enough for the floor and for feeding topics.

Own code on purpose: the floor must not become slower or faster with the client it is compared to.
"""

from __future__ import annotations

import json
import socket
import ssl
import zlib
from collections.abc import Callable, Sequence
from itertools import chain
from struct import Struct
from typing import Protocol

SIZE = Struct(">i")
OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
FRAME_RESPONSE, FRAME_ERROR, FRAME_MESSAGE = 0, 1, 2
CHUNK = 65536


class Refused(Exception):
    """nsqd answered with an error frame, closed the connection or sent what nobody asked for."""


def connect(host_port: tuple[str, int], transport: str = "", ca_file: str = "") -> Stream:
    """A connection after magic, IDENTIFY and upgrade; nsqd may buffer 64 KiB
    (docs/protocol/handshake#identify-body).

    ``transport``: "", "snappy", "deflate" or "tls", which trusts ``ca_file``.
    """
    sock = socket.create_connection(host_port, timeout=10)
    return greet(sock, host_port[0], transport, ca_file)


def greet(sock: socket.socket, host: str, transport: str = "", ca_file: str = "") -> Stream:
    """What ``connect`` does on a socket, which may be gevent's."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A timeout of the socket object would cost a poll before every call.
    sock.settimeout(None)
    options: dict[str, object] = {"feature_negotiation": True, "output_buffer_size": CHUNK}
    if transport:
        options["tls_v1" if transport == "tls" else transport] = True
    body = json.dumps(options).encode()
    sock.sendall(b"  V2IDENTIFY\n" + SIZE.pack(len(body)) + body)
    read_answer(sock)
    if not transport:
        return sock
    stream: Stream
    if transport == "tls":
        stream = ssl.create_default_context(cafile=ca_file).wrap_socket(sock, server_hostname=host)
    elif transport == "deflate":
        stream = deflated(sock)
    else:
        stream = snapped(sock)
    if read_answer(stream) != b"OK":
        raise Refused(f"nsqd did not upgrade to {transport}")
    return stream


class Stream(Protocol):
    """What a connection is to the floor: a socket, or a layer above one."""

    def recv(self, size: int, /) -> bytes: ...

    def sendall(self, data: bytes, /) -> None: ...


class Layer:
    """Compression above a socket: each send leaves at once, each recv gives all there is."""

    def __init__(
        self,
        sock: socket.socket,
        encode: Callable[[bytes], bytes],
        decode: Callable[[bytes], bytes],
    ) -> None:
        self._sock = sock
        self._encode = encode
        self._decode = decode
        self._rest = b""

    def sendall(self, data: bytes) -> None:
        self._sock.sendall(self._encode(data))

    def recv(self, size: int) -> bytes:
        """At most ``size`` bytes when that is less than CHUNK, otherwise what one recv gave."""
        data, self._rest = self._rest, b""
        while not data:
            raw = self._sock.recv(CHUNK)
            if not raw:
                return b""
            data = self._decode(raw)
        if size < CHUNK and size < len(data):
            data, self._rest = data[:size], data[size:]
        return data


def deflated(sock: socket.socket) -> Layer:
    compressor = zlib.compressobj(6, zlib.DEFLATED, -zlib.MAX_WBITS)

    def encode(data: bytes) -> bytes:
        return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)

    return Layer(sock, encode, zlib.decompressobj(-zlib.MAX_WBITS).decompress)


def snapped(sock: socket.socket) -> Layer:
    import snappy

    return Layer(sock, snappy.StreamCompressor().compress, snappy.StreamDecompressor().decompress)


def read_answer(sock: Stream) -> bytes:
    """The data of the next response frame that is no heartbeat, read by exact sizes."""
    while True:
        (size,) = SIZE.unpack(_exactly(sock, 4))
        data = _exactly(sock, size)
        (kind,) = SIZE.unpack_from(data)
        if kind != FRAME_RESPONSE:
            raise Refused(f"frame of type {kind}: {data[4:]!r}")
        if data[4:] != b"_heartbeat_":
            return data[4:]
        sock.sendall(b"NOP\n")


def read_ok(sock: Stream) -> None:
    """One OK: in nearly all cases a single recv and a comparison."""
    reply = sock.recv(CHUNK)
    if reply != OK:
        read_oks(sock, 1, reply)


def read_oks(sock: Stream, count: int, reply: bytes = b"") -> None:
    """``count`` answers, all of them OK; ``reply`` has been received already."""
    wanted = OK * count
    while reply != wanted:
        if not wanted.startswith(reply):
            # Rare: heartbeats and errors. Whole frames are taken out one by one.
            reply, count = _sort_out(sock, reply, count)
            wanted = OK * count
            continue
        more = sock.recv(CHUNK)
        if not more:
            raise Refused("nsqd closed the connection")
        reply += more


def _sort_out(sock: Stream, reply: bytes, count: int) -> tuple[bytes, int]:
    while len(reply) >= 4:
        end = 4 + SIZE.unpack_from(reply)[0]
        if len(reply) < end:
            break
        frame, reply = reply[:end], reply[end:]
        if frame == OK and count:
            count -= 1
        elif frame[4:] == b"\x00\x00\x00\x00_heartbeat_":
            sock.sendall(b"NOP\n")
        else:
            raise Refused(f"unexpected frame {frame!r}")
    if reply or count:
        more = sock.recv(CHUNK)
        if not more:
            raise Refused("nsqd closed the connection")
        reply += more
    return reply, count


def _exactly(sock: Stream, size: int) -> bytes:
    parts = []
    while size:
        part = sock.recv(size)
        if not part:
            raise Refused("nsqd closed the connection")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def mpub(topic: str, bodies: Sequence[bytes]) -> bytes:
    """An MPUB command; the loop over the bodies runs in C."""
    sizes = map(SIZE.pack, map(len, bodies))
    framed = b"".join(chain.from_iterable(zip(sizes, bodies, strict=True)))
    head = f"MPUB {topic}\n".encode()
    return b"".join((head, SIZE.pack(len(framed) + 4), SIZE.pack(len(bodies)), framed))
