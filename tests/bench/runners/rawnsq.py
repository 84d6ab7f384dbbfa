"""nsqd's TCP protocol on a bare socket: just enough for the floor and for feeding topics.

Own code on purpose: the floor must not become slower or faster with the client it is compared to.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from itertools import chain
from struct import Struct

SIZE = Struct(">i")
OK = b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
FRAME_RESPONSE, FRAME_ERROR, FRAME_MESSAGE = 0, 1, 2
CHUNK = 65536


class Refused(Exception):
    """nsqd answered with an error frame, closed the connection or sent what nobody asked for."""


def connect(host_port: tuple[str, int]) -> socket.socket:
    """A socket after magic and IDENTIFY; nsqd may buffer 64 KiB for it (nsq-reference 1.8)."""
    sock = socket.create_connection(host_port, timeout=10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A timeout of the socket object would cost a poll before every call.
    sock.settimeout(None)
    options = {"feature_negotiation": True, "output_buffer_size": CHUNK}
    body = json.dumps(options).encode()
    sock.sendall(b"  V2IDENTIFY\n" + SIZE.pack(len(body)) + body)
    read_answer(sock)
    return sock


def read_answer(sock: socket.socket) -> bytes:
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


def read_ok(sock: socket.socket) -> None:
    """One OK: in nearly all cases a single recv and a comparison."""
    reply = sock.recv(CHUNK)
    if reply != OK:
        read_oks(sock, 1, reply)


def read_oks(sock: socket.socket, count: int, reply: bytes = b"") -> None:
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


def _sort_out(sock: socket.socket, reply: bytes, count: int) -> tuple[bytes, int]:
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


def _exactly(sock: socket.socket, size: int) -> bytes:
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
