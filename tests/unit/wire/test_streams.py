"""All layers together in memory: handshake, then traffic, through each combination, however cut."""

from __future__ import annotations

import itertools
import json
import ssl
from typing import Any

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsqsync.options import ConnectionOptions
from gnsqsync.wire import commands, frames
from gnsqsync.wire.codec import DeflateLayer, Layer, SnappyLayer
from gnsqsync.wire.frames import FrameDecoder, Reply
from gnsqsync.wire.handshake import Negotiated, Receive, Send, handshake
from gnsqsync.wire.tls import TlsLayer
from tests.support.marks import few_and_many
from tests.unit.wire.encoding import encode_message

ID = b"18a203f27f269000"
BODY = bytes(range(256)) * 20_480  # 5 MiB
COMBINATIONS = list(itertools.product([False, True], [None, "snappy", "deflate"]))
IDS = ["+".join(filter(None, ["tls" if t else "", c or ""])) or "clear" for t, c in COMBINATIONS]
combinations = pytest.mark.parametrize(("tls", "codec"), COMBINATIONS, ids=IDS)
CA = trustme.CA()
CERTIFICATE = CA.issue_cert("127.0.0.1")
# Made once: a default context loads all authorities of the machine.
CLIENT_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
CA.configure_trust(CLIENT_TLS)
SERVER_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
CERTIFICATE.configure_cert(SERVER_TLS)


class Responder:
    """A decoder only passes it on."""

    nsqd_address = "127.0.0.1:4150"
    msg_timeout = 60.0
    max_msg_timeout = 900.0

    def is_in_flight(self, *_: Any) -> bool:
        raise NotImplementedError

    finish = requeue = touch = is_in_flight


class Stack:
    """Layers on top of each other; the first one is next to the socket."""

    def __init__(self) -> None:
        self.layers: list[Layer] = []

    def encode(self, data: bytes) -> bytes:
        for layer in reversed(self.layers):
            data = layer.encode(data)
        return data

    def decode(self, data: bytes) -> bytes:
        for layer in self.layers:
            data = layer.decode(data)
            while layer.pending:
                data += layer.decode(b"")
        return data


class ScriptedServer:
    """nsqd's side up to SUB: gives what it sends for what it gets."""

    def __init__(self, tls: bool, codec: str | None) -> None:
        self.stack = Stack()
        self.upgrades = [name for name in ("tls" if tls else None, codec) if name]
        self.answered = False
        self.tls: TlsLayer | None = None
        self.received = b""

    def take(self, data: bytes) -> bytes:
        if self.tls is not None and not self.tls.done:
            return self._shake(data)
        self.received += self.stack.decode(data)
        if self.answered or not self.received:
            return b""
        assert self.received.startswith(b"  V2IDENTIFY\n")
        start = len(b"  V2IDENTIFY\n") + 4
        size = int.from_bytes(self.received[start - 4 : start], "big")
        if len(self.received) < start + size:
            return b""
        self.answered = True
        asked = json.loads(self.received[start:])
        self.received = b""
        keys = ("tls_v1", "snappy", "deflate", "deflate_level")
        body = {key: asked[key] for key in keys if key in asked}
        return frames.encode_response(json.dumps(body).encode()) + self._upgrade()

    def _upgrade(self) -> bytes:
        sent = b""
        while self.upgrades:
            name = self.upgrades.pop(0)
            if name == "tls":
                self.tls = TlsLayer(SERVER_TLS, server_side=True)
                return sent
            self.stack.layers.append(SnappyLayer() if name == "snappy" else DeflateLayer(6))
            sent += self.stack.encode(frames.encode_response(b"OK"))
        return sent

    def _shake(self, data: bytes) -> bytes:
        assert self.tls is not None
        sent = self.tls.handshake(data)
        if self.tls.done:
            self.stack.layers.append(self.tls)
            sent += self.stack.encode(frames.encode_response(b"OK")) + self._upgrade()
        return sent


class Client:
    """The client's side of a connection as a driver without socket would have it."""

    def __init__(self, server: ScriptedServer, step: int) -> None:
        self.server = server
        self.step = step
        self.wire: list[bytes] = []
        self.stack = Stack()
        self.decoder = FrameDecoder(Responder(), 16 * 1024 * 1024)
        self.replies: list[Reply] = []

    def open(self, options: ConnectionOptions) -> Negotiated:
        generator = handshake(options, server="127.0.0.1:4150")
        reply = None
        try:
            while True:
                step = generator.send(reply)
                reply = None
                if isinstance(step, Send):
                    self.send(step.data)
                elif isinstance(step, Receive):
                    reply = self.receive()
                else:
                    self.upgrade(step.kind, step.level)
        except StopIteration as stop:
            assert isinstance(stop.value, Negotiated)
            return stop.value

    def send(self, data: bytes) -> None:
        self.transmit(self.stack.encode(data))

    def transmit(self, data: bytes) -> None:
        back = self.server.take(data)
        self.wire += [back[at : at + self.step] for at in range(0, len(back), self.step)]

    def receive(self) -> Reply:
        while not self.replies:
            if self.decoder.broken:
                raise self.decoder.broken
            _, replies = self.decoder.feed(self.stack.decode(self.wire.pop(0)))
            self.replies += replies
        return self.replies.pop(0)

    def upgrade(self, kind: str, level: int) -> None:
        rest = self.decoder.take_rest()
        if kind == "tls":
            layer = TlsLayer(CLIENT_TLS, server_hostname="127.0.0.1")
            self.transmit(layer.handshake(rest))
            while not layer.done:
                self.transmit(layer.handshake(self.wire.pop(0)))
            self.stack.layers.append(layer)
            rest = layer.decode(b"")
        else:
            top: Layer = SnappyLayer() if kind == "snappy" else DeflateLayer(level)
            self.stack.layers.append(top)
            rest = top.decode(rest)
        _, replies = self.decoder.feed(rest)
        self.replies += replies


def connect(tls: bool, codec: str | None, step: int = 65536) -> tuple[Client, ScriptedServer]:
    keywords: dict[str, Any] = {codec: True} if codec else {}
    options = ConnectionOptions(tls=CLIENT_TLS if tls else False, **keywords)
    server = ScriptedServer(tls, codec)
    client = Client(server, step)
    negotiated = client.open(options)
    assert negotiated.tls == tls
    assert (negotiated.snappy, negotiated.deflate) == (codec == "snappy", codec == "deflate")
    assert client.replies == []
    return client, server


@combinations
@pytest.mark.parametrize("step", [1, 3, 50, 1_000_000])
def test_handshake_however_cut(tls: bool, codec: str | None, step: int) -> None:
    # A step of a million: JSON answer and compressed OK arrive in one piece.
    client, server = connect(tls, codec, step)
    while client.wire:  # TLS tickets
        assert client.stack.decode(client.wire.pop(0)) == b""
    client.send(commands.NOP)
    client.send(commands.pub("tt", b"hello"))
    assert server.received == commands.NOP + commands.pub("tt", b"hello")
    sent = server.stack.encode(frames.encode_response(b"OK"))
    assert client.decoder.feed(client.stack.decode(sent)) == ([], [(0, b"OK")])


@combinations
def test_five_megabytes_both_ways(tls: bool, codec: str | None) -> None:
    client, server = connect(tls, codec)
    client.send(commands.pub("tt", BODY))
    assert server.received == commands.pub("tt", BODY)
    stream = server.stack.encode(
        encode_message(1, 1, ID, BODY) + frames.encode_response(b"_heartbeat_")
    )
    messages, replies = [], []
    for at in range(0, len(stream), 65536):
        new_messages, new_replies = client.decoder.feed(
            client.stack.decode(stream[at : at + 65536])
        )
        messages += new_messages
        replies += new_replies
    (message,) = messages
    assert message.body == BODY
    assert replies == [(0, b"_heartbeat_")]


traffic = st.lists(
    st.lists(
        st.one_of(
            st.binary(max_size=80).map(frames.encode_response),
            st.binary(max_size=80).map(frames.encode_error),
            st.binary(min_size=1, max_size=80).map(lambda body: encode_message(5, 65535, ID, body)),
        ),
        min_size=1,
        max_size=4,
    ),
    max_size=4,
)


def decode(chunks: list[bytes], client: Client) -> tuple[list[bytes], list[Reply]]:
    bodies: list[bytes] = []
    replies: list[Reply] = []
    for chunk in chunks:
        new_messages, new_replies = client.decoder.feed(client.stack.decode(chunk))
        bodies += [message.body for message in new_messages]
        replies += new_replies
    assert client.decoder.broken is None
    assert client.decoder.take_rest() == b""
    return bodies, replies


@few_and_many(10, 200)
@combinations
def test_traffic_however_cut(tls: bool, codec: str | None, count: int) -> None:
    @settings(max_examples=count, deadline=None)
    @given(writes=traffic, points=st.lists(st.integers(0, 1500), max_size=10))
    def run(writes: list[list[bytes]], points: list[int]) -> None:
        check_traffic(tls, codec, writes, points)

    run()


def check_traffic(
    tls: bool, codec: str | None, writes: list[list[bytes]], points: list[int]
) -> None:
    """Expect the same from a stream that is cut at ``points`` and from the whole one."""
    client, server = connect(tls, codec)
    plain = b"".join(itertools.chain.from_iterable(writes))
    expected = decode([plain], Client(server, 1))
    stream = b"".join(server.stack.encode(b"".join(write)) for write in writes)
    edges = [0, *sorted(min(point, len(stream)) for point in points), len(stream)]
    chunks = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert decode([*client.wire, *chunks], client) == expected


@pytest.mark.parametrize("codec", ["snappy", "deflate"])
@pytest.mark.parametrize("tls", [False, True])
def test_every_cut_in_two(tls: bool, codec: str) -> None:
    def make() -> Layer:
        return SnappyLayer() if codec == "snappy" else DeflateLayer(6)

    sent = [
        frames.encode_response(b"OK"),
        encode_message(9, 2, ID, b"a" * 90),
        frames.encode_error(b"E_FIN_FAILED FIN " + ID + b" failed ID not in flight"),
        encode_message(9, 2, ID, b"b"),
    ]
    encoder = make()
    stream = b"".join(map(encoder.encode, sent))
    connection = connect(True, None) if tls else None
    for at in range(len(stream) + 1):
        stack = Stack()
        chunks = [stream[:at], stream[at:]]
        if connection is not None:
            # One TLS session carries a fresh compressed stream each time, cut inside the records.
            below, server = connection
            chunks = [below.stack.decode(server.stack.encode(chunk)) for chunk in chunks]
        stack.layers.append(make())
        decoder = FrameDecoder(Responder(), 1024 * 1024)
        bodies: list[bytes] = []
        replies: list[Reply] = []
        for chunk in chunks:
            messages, found = decoder.feed(stack.decode(chunk))
            bodies += [message.body for message in messages]
            replies += found
        assert bodies == [b"a" * 90, b"b"]
        assert [kind for kind, _ in replies] == [0, 1]
