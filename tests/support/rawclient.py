"""A client of NSQ for tests: raw sockets, frames, TLS, Snappy, DEFLATE and HTTP.

It uses no code of gnsqsync, so that a mistake there cannot hide itself here. Every method that
waits has a deadline.
"""

from __future__ import annotations

import http.client
import json
import select
import socket
import ssl
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import snappy

from tests.support.waiting import LIMIT

Address = tuple[str, int]

RESPONSE, ERROR, MESSAGE = 0, 1, 2
HEARTBEAT = b"_heartbeat_"
SNAPPY_IDENTIFIER = bytes.fromhex("ff060000734e61507059")


class Closed(Exception):
    """The server closed or reset the connection."""


class Frame(NamedTuple):
    type: int
    data: bytes


class Message(NamedTuple):
    timestamp: int
    attempts: int
    id: bytes
    body: bytes


class Layer(Protocol):
    received: bytearray

    def encode(self, data: bytes) -> bytes: ...
    def decode(self, data: bytes) -> bytes: ...


class Deflate:
    """Raw DEFLATE in both directions. `received` keeps the compressed bytes."""

    def __init__(self, level: int = 6) -> None:
        self.received = bytearray()
        self._compressor = zlib.compressobj(level, zlib.DEFLATED, -15)
        self._decompressor = zlib.decompressobj(-15)

    def encode(self, data: bytes) -> bytes:
        return self._compressor.compress(data) + self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def decode(self, data: bytes) -> bytes:
        self.received += data
        return self._decompressor.decompress(data)


class Snappy:
    """The Snappy framing format. It writes compressed chunks, and reads and checks all kinds."""

    def __init__(self) -> None:
        self.received = bytearray()
        self._buffer = b""
        self._started = False

    def encode(self, data: bytes) -> bytes:
        start = b"" if self._started else SNAPPY_IDENTIFIER
        self._started = True
        parts = [data[at : at + 65536] for at in range(0, len(data), 65536)]
        return start + b"".join(snappy_chunk(0, part) for part in parts)

    def decode(self, data: bytes) -> bytes:
        if not self.received and data:
            assert data[:10] == SNAPPY_IDENTIFIER[: len(data)]
        self.received += data
        self._buffer += data
        plain = b""
        while len(self._buffer) >= 4:
            size = int.from_bytes(self._buffer[1:4], "little")
            if len(self._buffer) < 4 + size:
                break
            kind, chunk = self._buffer[0], self._buffer[4 : 4 + size]
            self._buffer = self._buffer[4 + size :]
            if kind == 0xFF:
                continue
            assert kind in (0, 1), f"Snappy chunk of type {kind}"
            part = snappy.uncompress(chunk[4:]) if kind == 0 else chunk[4:]
            assert chunk[:4] == masked_crc32c(part), "wrong checksum in a Snappy chunk"
            plain += part
        return plain


def snappy_chunk(kind: int, data: bytes, checksum: bytes | None = None) -> bytes:
    """Return a chunk of the framing format: kind 0 is compressed, kind 1 uncompressed."""
    payload = (checksum or masked_crc32c(data)) + (snappy.compress(data) if kind == 0 else data)
    return bytes([kind]) + len(payload).to_bytes(3, "little") + payload


def _crc32c_of_byte(crc: int) -> int:
    for _ in range(8):
        crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc


_CRC32C = [_crc32c_of_byte(byte) for byte in range(256)]


def masked_crc32c(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC32C[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<I", masked)


class _Stream:
    """A socket with layers. Reads have an exact size and a deadline."""

    def __init__(self, address: Address) -> None:
        self.socket: socket.socket | ssl.SSLSocket = socket.create_connection(address, LIMIT)
        self.layers: list[Layer] = []
        self.buffer = bytearray()

    def send(self, data: bytes) -> None:
        """Send bytes through the layers. Closed if the connection is broken."""
        for layer in reversed(self.layers):
            data = layer.encode(data)
        self.send_raw(data)

    def send_raw(self, data: bytes) -> None:
        """Send bytes without compression, inside of TLS if there is TLS."""
        self.socket.settimeout(LIMIT)
        try:
            self.socket.sendall(data)
        except (ConnectionError, ssl.SSLError) as error:
            raise Closed(str(error)) from error

    def take(self, size: int, timeout: float) -> bytes:
        """Read exactly `size` bytes. After Closed or TimeoutError the next call gets the rest."""
        deadline = time.monotonic() + timeout
        while len(self.buffer) < size:
            self.buffer += self._receive(deadline)
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data

    def _receive(self, deadline: float) -> bytes:
        self.socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            data = self.socket.recv(65536)
        except TimeoutError:
            raise TimeoutError("nothing came in time") from None
        except (ConnectionError, ssl.SSLEOFError) as error:
            raise Closed(str(error)) from error
        if not data:
            raise Closed("end of stream")
        for layer in self.layers:
            data = layer.decode(data)
        return data

    def closed(self, timeout: float = LIMIT) -> None:
        """Assert that the connection ends with no further byte."""
        try:
            data = self.take(1, timeout)
        except Closed:
            return
        raise AssertionError(f"{data + bytes(self.buffer)!r} in place of the end")

    def half_close(self) -> None:
        """End the sending direction. Reading goes on."""
        self.socket.shutdown(socket.SHUT_WR)

    def shutdown(self) -> None:
        """Wake a reading thread. Any thread may call."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # The connection is gone already.

    def close(self) -> None:
        self.socket.close()


class Client(_Stream):
    """A connection to an nsqd, protocol V2."""

    def __init__(self, address: Address, magic: bytes = b"  V2") -> None:
        super().__init__(address)
        self._early: list[Frame] = []
        self.send_raw(magic)

    def command(self, line: str | bytes, body: bytes | None = None) -> None:
        """Send a command line, with size and body if there is a body."""
        data = (line.encode() if isinstance(line, str) else line) + b"\n"
        if body is not None:
            data += struct.pack(">i", len(body)) + body
        self.send(data)

    def frame(self, timeout: float = LIMIT) -> Frame:
        """Return the next frame, including heartbeats."""
        if self._early:
            return self._early.pop(0)
        deadline = time.monotonic() + timeout
        head = self.take(8, timeout)
        size, kind = struct.unpack(">ii", head)
        assert 4 <= size < 1 << 24, f"frame size {size}"
        try:
            return Frame(kind, self.take(size - 4, max(0.001, deadline - time.monotonic())))
        except TimeoutError:
            self.buffer[:0] = head
            raise

    def answer(self, timeout: float = LIMIT) -> Frame:
        """Return the next frame that is not a heartbeat."""
        deadline = time.monotonic() + timeout
        while True:
            frame = self.frame(max(0.001, deadline - time.monotonic()))
            if frame != (RESPONSE, HEARTBEAT):
                return frame

    def ok(self, text: bytes = b"OK") -> None:
        """Assert that the next answer is OK (or `text`)."""
        assert self.answer() == (RESPONSE, text)

    def error(self, text: str) -> None:
        """Assert that the next answer is this error, word for word."""
        kind, data = self.answer()
        assert (kind, data.decode()) == (ERROR, text)

    def fatal(self, text: str) -> None:
        """Assert that this error comes and then the end of the connection."""
        self.error(text)
        self.closed()

    def message(self, timeout: float = LIMIT) -> Message:
        """Return the next answer, which must be a message."""
        kind, data = self.answer(timeout)
        assert kind == MESSAGE, data
        timestamp, attempts, id = struct.unpack_from(">qH16s", data)
        return Message(timestamp, attempts, id, data[26:])

    def messages(self, count: int, timeout: float = LIMIT) -> list[Message]:
        return [self.message(timeout) for _ in range(count)]

    def drain(self, quiet: float = 0.5) -> list[Message]:
        """Return all messages until none comes for `quiet` seconds."""
        found: list[Message] = []
        while True:
            try:
                found.append(self.message(quiet))
            except TimeoutError:
                return found

    def silent(self, seconds: float = 0.3) -> None:
        """Assert that only heartbeats come, and that the connection stays open."""
        try:
            frame = self.answer(seconds)
        except TimeoutError:
            return
        raise AssertionError(f"{frame} in place of silence")

    def cut_off(self, timeout: float = LIMIT) -> None:
        """Assert that the connection ends, after heartbeats only."""
        try:
            frame = self.answer(timeout)
        except Closed:
            return
        raise AssertionError(f"{frame} in place of the end")

    def alive(self) -> None:
        """Assert that the connection is open and nothing waits to be read."""
        self.command("PUB alive", b"x")
        self.ok()

    def identify(self, **fields: Any) -> dict[str, Any]:
        """Send IDENTIFY with feature negotiation. Return the answer; add no layers."""
        body = {"feature_negotiation": True, **fields}
        self.command("IDENTIFY", json.dumps(body).encode())
        kind, data = self.answer()
        assert kind == RESPONSE, data
        answer = json.loads(data)
        assert isinstance(answer, dict)
        return answer

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Use TLS from here on, without reading nsqd's OK. The certificate is for 127.0.0.1."""
        assert not self.buffer, "nsqd spoke before the TLS handshake"
        self.socket.settimeout(LIMIT)
        self.socket = context.wrap_socket(self.socket, server_hostname="127.0.0.1")

    def start_layer(self, layer: Layer) -> None:
        """Use Snappy or DEFLATE from here on, without reading nsqd's OK."""
        surplus = bytes(self.buffer)
        self.buffer.clear()
        self.layers.append(layer)
        if surplus:
            self.buffer += layer.decode(surplus)

    def subscribe(self, topic: str, channel: str, rdy: int | None = None, **fields: Any) -> None:
        """Send IDENTIFY if there are fields, SUB, and RDY if given."""
        if fields:
            self.identify(**fields)
        self.command(f"SUB {topic} {channel}")
        self.ok()
        if rdy is not None:
            self.command(f"RDY {rdy}")

    def publish(self, topic: str, *bodies: bytes) -> None:
        """PUB each body and read its OK. Messages before the OK are kept for message()."""
        for body in bodies:
            self.command(f"PUB {topic}", body)
            early = []
            while (frame := self.answer()).type == MESSAGE:
                early.append(frame)
            assert frame == (RESPONSE, b"OK")
            self._early += early

    def fin(self, *messages: Message) -> None:
        self.send(b"".join(b"FIN %s\n" % message.id for message in messages))


def mpub_body(bodies: Sequence[bytes], count: int | None = None) -> bytes:
    """Return the body of MPUB, with `count` as its number of messages."""
    head = struct.pack(">i", len(bodies) if count is None else count)
    return head + b"".join(struct.pack(">i", len(body)) + body for body in bodies)


class LookupClient(_Stream):
    """A connection to an nsqlookupd, protocol V1. Its answers have no frame type."""

    def __init__(self, address: Address, magic: bytes = b"  V1") -> None:
        super().__init__(address)
        self.send_raw(magic)

    def command(self, line: str, body: bytes | None = None) -> bytes:
        """Send a command. Return the answer."""
        data = line.encode() + b"\n"
        if body is not None:
            data += struct.pack(">i", len(body)) + body
        self.send(data)
        return self.answer()

    def answer(self, timeout: float = LIMIT) -> bytes:
        (size,) = struct.unpack(">i", self.take(4, timeout))
        return self.take(size, timeout)

    def identify(self, **fields: Any) -> dict[str, Any]:
        """Send IDENTIFY as an nsqd, by default at 127.0.0.1 with ports 4150 and 4151."""
        answer = json.loads(self.command("IDENTIFY", lookup_identity(**fields)))
        assert isinstance(answer, dict)
        return answer

    def fatal(self, line: str, text: str, body: bytes | None = None) -> None:
        """Assert that the command gets this answer and the connection ends."""
        assert self.command(line, body).decode() == text
        self.closed()


def lookup_identity(**fields: Any) -> bytes:
    """Return the body of an nsqd's IDENTIFY to nsqlookupd. A field of None is left out."""
    body = {
        "broadcast_address": "127.0.0.1",
        "hostname": "testhost",
        "tcp_port": 4150,
        "http_port": 4151,
        "version": "1.3.0",
        **fields,
    }
    return json.dumps({key: value for key, value in body.items() if value is not None}).encode()


class Reply(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def request(
    address: Address,
    method: str,
    target: str,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Reply:
    """Send an HTTP request on a connection of its own. `target` is sent unchanged."""
    connection: http.client.HTTPConnection
    if tls is not None:
        connection = http.client.HTTPSConnection(*address, timeout=LIMIT, context=tls)
    else:
        connection = http.client.HTTPConnection(*address, timeout=LIMIT)
    try:
        connection.request(method, target, body, headers=dict(headers or {}))
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()


def get(address: Address, target: str) -> Reply:
    return request(address, "GET", target)


def post(address: Address, target: str, body: bytes | None = None) -> Reply:
    return request(address, "POST", target, body)


def stats(address: Address, **parameters: str) -> Any:
    """Return /stats as JSON. In `parameters` only # is escaped."""
    query = "".join(f"&{name}={value.replace('#', '%23')}" for name, value in parameters.items())
    reply = get(address, f"/stats?format=json{query}")
    assert reply.status == 200, reply
    return reply.json


def topic_stats(address: Address, topic: str) -> Any:
    """Return one topic of /stats, or None."""
    topics = stats(address, topic=topic)["topics"]
    return topics[0] if topics else None


def channel_stats(address: Address, topic: str, channel: str) -> Any:
    """Return one channel of /stats, or None."""
    found = topic_stats(address, topic)
    for entry in found["channels"] if found else []:
        if entry["channel_name"] == channel:
            return entry
    return None


def readable(clients: Sequence[Client], timeout: float) -> list[Client]:
    """Return the clients with bytes to read. Connections must be in clear text."""
    buffered = [client for client in clients if client.buffer]
    if buffered:
        return buffered
    sockets = {client.socket: client for client in clients}
    ready, _, _ = select.select(list(sockets), [], [], timeout)
    return [sockets[sock] for sock in ready]
