"""Targets on the side of the embedded servers: what a client may send to nsqd and nsqlookupd."""

from __future__ import annotations

import socket as plain_socket
from collections.abc import Callable
from functools import cache
from typing import Any

import gevent
from gevent import socket

from gnsqsync.daemon.web import App
from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.connection import Connection
from gnsqsync.embedded.http_server import HTTPServer
from gnsqsync.embedded.listeners import Gate
from gnsqsync.embedded.lookupd import LookupSession, identity
from gnsqsync.embedded.lookupd_server import LookupdHTTPApi
from gnsqsync.embedded.nsqd_http import NsqdHandlers
from gnsqsync.embedded.options import LookupdOptions, NsqdOptions
from gnsqsync.embedded.registrations import RegistrationDB
from gnsqsync.embedded.server import NsqdServer
from gnsqsync.embedded.session import Peer, Session
from gnsqsync.errors import NSQError
from gnsqsync.wire.codec import DeflateLayer, Layer, SnappyLayer
from gnsqsync.wire.frames import FrameDecoder
from tests.fuzz.harness import Target, pieces, promise
from tests.fuzz.peers import QUIET

MAX_MSG, MAX_BODY = 1000, 5000
# A whole input is handled in milliseconds; what takes this long hangs, on a busy machine, too.
_PATIENCE = 30.0


def _options() -> NsqdOptions:
    return NsqdOptions(max_msg_size=MAX_MSG, max_body_size=MAX_BODY, log_level="fatal")


def nsqd_session(data: bytes) -> None:
    """Commands, through the layers that IDENTIFY asks for; what is answered are whole frames."""
    broker = Broker(_options(), now=lambda: 0.0)
    session = Session(broker, Peer("10.0.0.1", "10.0.0.1:5"))
    answers = FrameDecoder(None, 1 << 24)  # type: ignore[arg-type]
    layers: list[Layer] = []

    def serve(piece: bytes) -> None:
        for layer in layers:
            piece = layer.decode(piece)
        session.receive(piece)
        broker.schedule.settle()
        kept = session._pieces.have
        promise(kept <= 16384 + MAX_BODY + 65536, f"{kept} bytes are kept")
        answers.feed(session.take_output())
        promise(answers.broken is None, f"what is answered is no frame: {answers.broken}")
        while session.upgrades and not session.closed:
            kind, level = session.upgrades[0]
            layers.append(SnappyLayer() if kind == "snappy" else DeflateLayer(level))
            session.layer_ready(kind)

    try:
        for piece in pieces(data):
            serve(piece)
            while layers and layers[-1].pending and not session.closed:
                serve(b"")
            if session.closed:
                break
    except NSQError:
        pass  # a layer is broken, as Connection.run expects
    session.input_ended()
    session.close()
    answers.feed(session.take_output())
    promise(answers.broken is None, f"what is answered is no frame: {answers.broken}")
    promise(
        not any(
            topic.channels[c].consumers for topic in broker.topics.values() for c in topic.channels
        ),
        "a consumer that is gone is still there",
    )


class _Server(NsqdServer):
    def __init__(self) -> None:
        super().__init__(_options(), QUIET)
        self.failure: BaseException | None = None


def _through_sockets(data: bytes, serve: Callable[[Any], None]) -> bytes:
    """What ``serve(socket)``, in a greenlet, answers to the input, until it closes."""
    ours, theirs = plain_socket.socketpair()
    server_side = socket.socket(fileno=theirs.detach())
    client = socket.socket(fileno=ours.detach())
    serving = gevent.spawn(serve, server_side)
    answer = []
    try:
        with gevent.Timeout(_PATIENCE, TimeoutError("the server neither answers nor closes")):
            sending = gevent.spawn(_send, client, data)
            while part := client.recv(65536):
                answer.append(part)
            sending.kill()
            serving.get()
    finally:
        serving.kill()
        client.close()
        server_side.close()
    return b"".join(answer)


def _send(client: Any, data: bytes) -> None:
    try:
        for number, piece in enumerate(pieces(data)):
            client.sendall(piece)
            if number < 20:
                gevent.sleep(0)
        client.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the server was faster


def nsqd_connection(data: bytes) -> None:
    """The whole TCP side of the embedded nsqd, on a socket, the magic included."""
    server = _Server()

    def serve(sock: Any) -> None:
        Connection(server, sock, "").run()

    answer = _through_sockets(data, serve)
    promise(not server._connections, "a connection that is gone is still counted")
    promise(len(answer) < 2 * MAX_BODY + 100 * len(data) + 65536, "an answer of enormous length")


def _http(app: App) -> Callable[[bytes], None]:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", 0))
    gate = Gate(QUIET, 100)
    server = HTTPServer(listener, app, gate)
    listener.close()  # gevent wants one, and here nobody connects

    def run(data: bytes) -> None:
        answer = _through_sockets(data, lambda sock: server._server.handle(sock, ("127.0.0.1", 1)))
        promise(not answer or answer.startswith(b"HTTP/1."), f"no HTTP: {answer[:80]!r}")
        promise(gate._open == 0, "a connection that is gone is still counted")
        promise(b"INTERNAL_ERROR" not in answer or _may_fail(data), f"an error inside: {answer!r}")

    return run


def _may_fail(data: bytes) -> bool:
    """nsqd itself answers these so, and a body that the client breaks off."""
    lowered = data.lower()
    return b"debug/" in lowered or b"chunked" in lowered or b"content-length" in lowered


@cache
def _nsqd_http() -> Callable[[bytes], None]:
    return _http(App(NsqdHandlers(_Server()).routes, QUIET))


@cache
def _lookupd_http() -> Callable[[bytes], None]:
    api = LookupdHTTPApi(RegistrationDB(), LookupdOptions(), QUIET)
    return _http(App(api.routes(), QUIET))


def nsqd_http(data: bytes) -> None:
    """Requests to nsqd's HTTP API, from the request line on."""
    _nsqd_http()(data)


def lookupd_http(data: bytes) -> None:
    """Requests to nsqlookupd's HTTP API, from the request line on."""
    _lookupd_http()(data)


def lookupd_session(data: bytes) -> None:
    """Protocol V1, the magic included; what a connection registered goes with it."""
    db = RegistrationDB()
    session = LookupSession(db, "10.0.0.1:5", identity("h", "h", 1, 2), QUIET)
    answered = 0
    for piece in pieces(data):
        answered += len(session.feed(piece, 1.0))
        promise(len(session._buffer) <= 1024 * 1024 + 16384 + 65536, "too much is kept")
        if session.closed:
            break
    session.eof()
    promise(answered <= 20_000 + 100 * len(data), "an answer of enormous length")
    LookupdHTTPApi(db, LookupdOptions(), QUIET, lambda: 1.0)
    session.end()
    promise(not db.peers(), "a producer that is gone is still listed")
    promise(not any(db.producers(topic) for topic in db.topics()), "a producer is still listed")


_V2_WORDS = (
    b"  V2", b"IDENTIFY\n", b"SUB t c\n", b"PUB t\n", b"MPUB t\n", b"DPUB t 1\n", b"RDY 1\n",
    b"FIN ", b"REQ ", b"TOUCH ", b"CLS\n", b"NOP\n", b"AUTH\n", b"\0\0\0\x01", b"\x7f\xff\xff\xff",
    b'{"feature_negotiation":true,', b'"snappy":true', b'"deflate":true', b'"heartbeat_interval":',
    b'"msg_timeout":', b'"output_buffer_timeout":', b'"sample_rate":', b"#ephemeral",
)  # fmt: skip
_HTTP_WORDS = (
    b" HTTP/1.1\r\nHost: x\r\n", b" HTTP/1.0\r\n", b"Content-Length: ", b"\r\n\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n", b"Expect: 100-continue\r\n",
    b"GET /", b"POST /", b"PUT /", b"HEAD /", b"OPTIONS *", b"topic=", b"channel=", b"&", b"%00",
)  # fmt: skip

TARGETS = {
    "nsqd_session": Target(nsqd_session, "TCP V2 by the session, without a socket", _V2_WORDS),
    "nsqd_connection": Target(nsqd_connection, "TCP V2 by the embedded nsqd", _V2_WORDS),
    "nsqd_http": Target(
        nsqd_http,
        "HTTP by the embedded nsqd",
        (
            *_HTTP_WORDS,
            *(
                b"ping info stats pub mpub topic/create topic/delete topic/empty topic/pause"
                b" channel/create channel/delete config/log_level debug/setblockrate"
                b" config/nsqlookupd_tcp_addresses defer= binary=true format=json"
            ).split(),
        ),
    ),
    "lookupd_session": Target(
        lookupd_session,
        "TCP V1 by the embedded nsqlookupd",
        (
            b"  V1", b"IDENTIFY\n", b"REGISTER t c\n", b"UNREGISTER t c\n", b"PING\n",
            b'"broadcast_address":"h"', b'"tcp_port":1', b'"http_port":2', b'"version":"v"',
        ),
    ),
    "lookupd_http": Target(
        lookupd_http,
        "HTTP by the embedded nsqlookupd",
        (
            *_HTTP_WORDS,
            *(
                b"ping info debug lookup? topics channels? nodes topic/create? topic/delete?"
                b" channel/create? channel/delete? topic/tombstone? node=h:2"
            ).split(),
        ),
    ),
}  # fmt: skip
