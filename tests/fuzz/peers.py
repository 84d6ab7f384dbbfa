"""Targets on the side of the client: what an nsqd, an nsqlookupd or whoever sits there may send."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any
from unittest.mock import patch

import trustme

from gnsqsync import envelope
from gnsqsync.addresses import Address
from gnsqsync.connection.opening import Opening
from gnsqsync.daemon.golog import Log
from gnsqsync.embedded.auth import AuthFailure, Authorization
from gnsqsync.embedded.lookup_peer import _Lost, _Peer
from gnsqsync.errors import ConfigError, NSQError, server_error
from gnsqsync.http.clients import LookupdHTTP, NsqdHTTP
from gnsqsync.http.envelopes import http_error, payload
from gnsqsync.http.lookupd_types import (
    LookupdInfo,
    LookupResult,
    parse_names,
    parse_nodes,
    parse_registrations,
)
from gnsqsync.http.nsqd_types import NsqdInfo, Stats
from gnsqsync.options import ConnectionOptions
from gnsqsync.wire.codec import DeflateLayer, Layer, SnappyLayer
from gnsqsync.wire.frames import FrameDecoder
from gnsqsync.wire.tls import TlsLayer
from tests.fuzz.harness import Target, pieces, promise

MAX_FRAME = 65536
MAX_DECODED = 1024 * 1024
# As many inflated mebibytes of one input as are looked at.
_INFLATIONS = 64


# -- frames and codecs -----------------------------------------------------------------------------


def frames(data: bytes) -> None:
    """The verdict does not depend on the cuts, and no more is kept than a frame."""
    whole = FrameDecoder(None, MAX_FRAME)  # type: ignore[arg-type]
    messages, replies = whole.feed(data[1:])
    cut = FrameDecoder(None, MAX_FRAME)  # type: ignore[arg-type]
    found: tuple[list[Any], list[Any]] = ([], [])
    for piece in pieces(data):
        for seen, new in zip(found, cut.feed(piece), strict=True):
            seen += new
        parts = cut._pieces.kept
        kept = sum(map(len, parts))
        promise(kept <= MAX_FRAME + 4 + len(piece), f"{kept} bytes are kept")
        promise(len(parts) <= 2 + kept // 1024 * 2, f"{len(parts)} parts are kept")
    promise([m.body for m in found[0]] == [m.body for m in messages], "other messages when cut")
    promise(found[1] == replies, "other replies when cut")
    promise(str(cut.broken) == str(whole.broken), f"{cut.broken} when cut, else {whole.broken}")
    for _, text in replies:
        shown = str(server_error(text))
        promise(shown.isprintable() and len(shown) <= 10_000, "an error's text is no short line")


def _inflate(layer: Layer, data: bytes) -> None:
    for piece in pieces(data):
        try:
            decoded = layer.decode(piece)
            promise(len(decoded) <= max(MAX_DECODED, 32 * (len(piece) + 76_501)), "too much")
            for _ in range(_INFLATIONS):
                if not layer.pending:
                    break
                promise(len(layer.decode(b"")) <= MAX_DECODED, "too much at once")
        except NSQError:
            return


def deflate(data: bytes) -> None:
    _inflate(DeflateLayer(6), data)


def snappy(data: bytes) -> None:
    layer = SnappyLayer()
    _inflate(layer, data)
    promise(sum(map(len, layer._pieces.kept)) <= 76_501 + 65536, "more than a chunk is kept")


@cache
def tls_contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(client's, server's)."""
    authority = trustme.CA()
    client = ssl.create_default_context()
    authority.configure_trust(client)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    return client, server


def tls(data: bytes) -> None:
    """Records into a handshake of either side, or into a connection that stands."""
    client_context, server_context = tls_contexts()
    client = TlsLayer(client_context, server_hostname="127.0.0.1")
    server = TlsLayer(server_context, server_side=True)
    mode = data[1] % 3 if len(data) > 1 else 0
    out = client.handshake(b"")
    target = server if mode == 1 else client
    if mode == 2:
        while not (client.done and server.done):
            out = client.handshake(server.handshake(out))
    for piece in pieces(data[:1] + data[2:]):
        try:
            if target.done:
                promise(len(target.decode(piece)) <= 65536, "more than was sent")
            else:
                target.handshake(piece)
        except NSQError:
            break
    target.close()


# -- opening a connection --------------------------------------------------------------------------


class _Socket:
    """Gives what the input has, piece by piece, and then EOF."""

    peer = local = "peer"

    def __init__(self, data: bytes) -> None:
        self._left = deque(pieces(data))

    def recv(self, size: int) -> bytes:
        return self._left.popleft() if self._left else b""

    def receive(self, chunks: deque[bytes], size: int) -> None:
        chunks.append(self.recv(size))

    def send(self, data: bytes) -> int:
        return len(data)

    def wait_writable(self, timeout: float | None) -> bool:
        return True

    def set_read_timeout(self, seconds: float | None) -> None:
        promise(seconds is None or seconds > 0, "a time-out that is none")

    def peer_has_ended(self) -> bool:
        return False

    def end_sending(self) -> None:
        pass

    shutdown = close = end_sending


class _Runtime:
    """A runtime without time and tasks, whose only socket is ``sock``."""

    def __init__(self, sock: _Socket) -> None:
        self._sock = sock
        self._now = 0.0

    def now(self) -> float:
        self._now += 0.0001
        return self._now

    def connect(self, *_: object) -> _Socket:
        return self._sock

    def lock(self) -> Any:
        return nullcontext()

    def cutter(self) -> Any:
        return None


@cache
def _opening_options() -> tuple[ConnectionOptions, ...]:
    common: dict[str, Any] = {"max_frame_size": MAX_FRAME}
    return (
        ConnectionOptions(**common),
        ConnectionOptions(snappy=True, **common),
        ConnectionOptions(deflate=True, **common),
        ConnectionOptions(auth_secret="geheim", **common),
        ConnectionOptions(tls=tls_contexts()[0], **common),
        ConnectionOptions(tls=tls_contexts()[0], deflate=True, auth_secret="geheim", **common),
    )


def opening(data: bytes) -> None:
    """IDENTIFY, the upgrades, AUTH and SUB; the second byte chooses the client's options."""
    chosen = _opening_options()
    options = chosen[data[1] % len(chosen)] if len(data) > 1 else chosen[0]
    decoder = FrameDecoder(None, options.max_frame_size)  # type: ignore[arg-type]
    runtime: Any = _Runtime(_Socket(data[:1] + data[2:]))
    attempt = Opening(Address("127.0.0.1", 4150), options, runtime, decoder, topic="t", channel="c")
    try:
        negotiated = attempt.run(lambda stream: None, 1000.0)
    except NSQError as error:
        promise("geheim" not in str(error), "the secret is in the error")
        promise(len(str(error)) < 20_000, "an error of enormous length")
        return
    promise(negotiated.tls == options.uses_tls, "TLS was asked for and is not on")
    promise(negotiated.msg_timeout >= 0, "a time-out below zero")


# -- HTTP ------------------------------------------------------------------------------------------


def _skip(text: str) -> None:
    promise(len(text) < 1000, "a long text about what is left out")


def _lookup(data: object) -> None:
    for producer in LookupResult.parse(data, _skip).producers:
        promise(0 < producer.tcp_address.port < 65536, "a port that is none")
        promise(producer.broadcast_address.isprintable(), "a host that is none")
        str(producer.tcp_address), producer.http_address


_PARSERS: tuple[Callable[[Any], object], ...] = (
    _lookup,
    lambda data: parse_nodes(data, _skip),
    lambda data: parse_names(data, "topics", _skip),
    lambda data: parse_names(data, "channels", _skip),
    parse_registrations,
    LookupdInfo.parse,
    NsqdInfo.parse,
    lambda data: Stats.parse(data, lambda text: None),
)


def http_json(data: bytes) -> None:
    """The body of an answer; the first byte chooses which one it is taken for."""
    which, body = data[:1] or b"\0", data[1:]
    try:
        _PARSERS[which[0] % len(_PARSERS)](payload(body, "http://x/y"))
    except NSQError as error:
        promise(len(str(error)) < 2000, "an error of enormous length")
    shown = str(http_error(400, "Bad Request", body, "http://x/y"))
    promise(len(shown) < 2000 and shown.isprintable(), "an error's text is no short line")


class _RawServer:
    """A server that answers each connection with the bytes of ``answer``, and closes it.

    A client that follows redirects dials again and keeps its old connections, so each connection
    has a thread of its own.
    """

    def __init__(self) -> None:
        self.answer = b""
        self._serving: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for thread in self._serving:
            thread.join()
        self._listener.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            thread.start()
            self._serving = [*filter(threading.Thread.is_alive, self._serving), thread]

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(65536)
                connection.sendall(self.answer)
                connection.shutdown(socket.SHUT_WR)
                # A close amid unread bytes would take the answer from the client.
                connection.settimeout(1)
                while connection.recv(65536):
                    pass
            except OSError:
                pass  # The client has ended the connection.


@cache
def raw_server() -> _RawServer:
    return _RawServer()


def http_answer(data: bytes) -> None:
    """A whole answer as it is on the socket. A redirect leads back to the same answer."""
    server = raw_server()
    server.answer = data.replace(b"PORT", b"%d" % server.port)
    with patch("urllib3.util.connection.create_connection", _connect_to_raw_server):
        _ask_raw_server(server)


def _connect_to_raw_server(address: tuple[str, int], *args: Any, **options: Any) -> socket.socket:
    """A redirect leads nowhere else than where the target wants it."""
    if address != ("127.0.0.1", raw_server().port):
        raise ConnectionRefusedError(111, "Connection refused")
    return socket.create_connection(address, 2.0)


def _ask_raw_server(server: _RawServer) -> None:
    for client in (LookupdHTTP, NsqdHTTP):
        with client(f"http://me:geheim@127.0.0.1:{server.port}", timeout=2.0) as http:
            try:
                http.topics() if isinstance(http, LookupdHTTP) else http.ping()
            except NSQError as error:
                promise("geheim" not in str(error), "the secret is in the error")
                promise(len(str(error)) < 2000, "an error of enormous length")


# -- what the embedded nsqd asks -------------------------------------------------------------------


class _Silent:
    def write(self, text: str) -> None:
        pass

    def flush(self) -> None:
        pass


QUIET = Log("", "debug", _Silent())  # type: ignore[arg-type]


class _AnsweringSocket:
    def __init__(self, data: bytes) -> None:
        self._left = deque(pieces(data))

    def sendall(self, data: bytes) -> None:
        pass

    def recv(self, size: int) -> bytes:
        if not self._left:
            return b""
        piece = self._left.popleft()
        if len(piece) > size:
            self._left.appendleft(piece[size:])
        return piece[:size]


def lookup_peer(data: bytes) -> None:
    """An nsqlookupd's answers to the embedded nsqd's IDENTIFY and REGISTER."""
    peer = _Peer("127.0.0.1:4160", {}, list, QUIET, 65536)
    peer._socket = _AnsweringSocket(data)
    try:
        peer._learn(peer._call(b""))
        peer._call(b"")
    except _Lost as error:
        promise(len(str(error)) < 2000, "an error of enormous length")
    if peer.http_address is not None:
        promise(0 < peer.http_address[1] < 65536, "a port that is none")


def auth_answer(data: bytes) -> None:
    """What an auth server answers."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return
    try:
        authorization = Authorization.parse(answer, 1.0)
    except AuthFailure:
        return
    promise(authorization.expires_at > 1.0, "a right that has run out")
    # Not searched: a pattern may take for ever, but it is the operator's own.


_IDENTIFY_WORDS = tuple(
    b'"%s":' % word
    for word in (
        b"max_rdy_count version max_msg_timeout msg_timeout tls_v1 deflate deflate_level snappy"
        b" sample_rate auth_required output_buffer_size output_buffer_timeout"
    ).split()
)
_JSON_WORDS = (b"true", b"false", b"null", b"1e999", b"-1", b"99999999999999999999", b'"\\ud800"')
_FRAME_WORDS = (b"\0\0\0\x06\0\0\0\0OK", b"_heartbeat_", b"E_INVALID ", b"\0\0\0\x1e\0\0\0\x02")
_DISCOVERY_WORDS = tuple(
    b'"%s":' % word
    for word in (
        b"producers channels topics tombstones broadcast_address hostname remote_address tcp_port"
        b" http_port version status_code status_txt data message https_port clients depth paused"
        b" e2e_processing_latency percentiles memory count health start_time"
    ).split()
)


def envelopes(data: bytes) -> None:
    """What opens has a body, and headers within their limits that go back as they came."""
    data = data[1:]
    opened = envelope.decode(data)
    if opened is None:
        promise(envelope.split(data) is None, "what splits is an envelope")
        return
    headers, body = opened
    promise(body and data.endswith(body), "the body is the end of it")
    promise(len(headers) <= envelope.MAX_HEADERS, f"{len(headers)} headers")
    promise(all(headers), "a name is empty")
    if all(name.isprintable() for name in headers):
        try:
            promise(envelope.decode(envelope.encode(headers, body)) == opened, "not as it came")
        except ConfigError as error:
            promise("must be 1 to 255 bytes" in str(error), str(error))


TARGETS = {
    "envelopes": Target(envelopes, "headers in front of a body", (envelope.MAGIC, b"\0", b"id\0")),
    "frames": Target(frames, "nsqd's frames by FrameDecoder", _FRAME_WORDS),
    "deflate": Target(deflate, "a DEFLATE stream", (b"\0\0\xff\xff",)),
    "snappy": Target(snappy, "a Snappy stream", (b"\xff\x06\0\0sNaPpY", b"\xfe\0\0\0")),
    "tls": Target(
        tls, "TLS records, in and behind a handshake", (b"\x16\x03\x03", b"\x15\x03\x03")
    ),
    "opening": Target(
        opening,
        "answers to IDENTIFY, upgrades, AUTH and SUB",
        _IDENTIFY_WORDS + _JSON_WORDS + _FRAME_WORDS,
    ),
    "http_json": Target(http_json, "JSON of nsqlookupd and nsqd", _DISCOVERY_WORDS + _JSON_WORDS),
    "http_answer": Target(
        http_answer,
        "HTTP answers, from the status line on",
        (
            b"HTTP/1.1 200 OK\r\n",
            b"HTTP/1.0 302 Found\r\n",
            b"Location: http://127.0.0.1:PORT/\r\n",
            b"Content-Length: ",
            b"Transfer-Encoding: chunked\r\n",
            b"Content-Encoding: gzip\r\n",
            b"Set-Cookie: ",
            b"\r\n\r\n",
        ),
    ),
    "lookup_peer": Target(
        lookup_peer,
        "nsqlookupd's V1 answers to the embedded nsqd",
        (b'"broadcast_address":', b'"http_port":', b"\0\0\0\x02OK", *_JSON_WORDS),
    ),
    "auth_answer": Target(
        auth_answer,
        "answers of auth servers to the embedded nsqd",
        (
            b'"ttl":',
            b'"identity":',
            b'"identity_url":',
            b'"authorizations":',
            b'"topic":',
            b'"channels":',
            b'"permissions":',
            b'"subscribe"',
            b'"publish"',
            *_JSON_WORDS,
        ),
    ),
}
