"""The embedded nsqlookupd: TCP and HTTP listeners around the registration database.

Knows gevent and nsqlookupd's HTTP API (docs/protocol/nsqlookupd#lookupd-http); the rules are in
registrations.py and lookupd.py.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from gevent.server import StreamServer

from gnsqsync.daemon.flags import NSQ_VERSION
from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.web import Answer, App, HTTPFault, Request, Response, Route, when_whole
from gnsqsync.embedded.http_server import HTTPServer
from gnsqsync.embedded.listeners import Gate, address_text, listen, port_of
from gnsqsync.embedded.lookupd import LookupSession, identity
from gnsqsync.embedded.options import LookupdOptions
from gnsqsync.embedded.registrations import Peer, Producer, RegistrationDB

# Go's time.Time{}.UnixNano(), which /debug shows for "never tombstoned".
_GO_ZERO_TIME_NS = -6795364578871345152


class LookupdServer:
    """An nsqlookupd with these options, in greenlets of the calling thread.

    ``start()`` binds and returns (OptionsError if it cannot bind). ``stop()`` closes everything.
    """

    def __init__(self, options: LookupdOptions) -> None:
        self._options = options
        self._log = Log(options.log_prefix, options.log_level)
        self._db = RegistrationDB()
        self._connections: set[Any] = set()
        self._tcp: Any = None
        self._http: HTTPServer | None = None
        self._addresses: list[tuple[str, str]] = []
        self._identity: dict[str, Any] = {}

    def start(self) -> None:
        tcp_listener = listen(self._options.tcp_address, unix=False)
        try:
            http_listener = listen(self._options.http_address, unix=False)
        except BaseException:  # Only this method knows the first listener.
            tcp_listener.close()
            raise
        self._identity = identity(
            self._options.broadcast_address,
            socket.gethostname(),
            port_of(tcp_listener),
            port_of(http_listener),
        )
        api = LookupdHTTPApi(self._db, self._options, self._log)
        gate = Gate(self._log)
        self._tcp = StreamServer(
            tcp_listener, lambda sock, address: gate.serve(self._serve, sock, address)
        )
        self._http = HTTPServer(http_listener, App(api.routes(), self._log), gate)
        self._addresses = [
            ("TCP", address_text(tcp_listener)),
            ("HTTP", address_text(http_listener)),
        ]
        self._tcp.start()
        self._http.start()
        for label, address in self._addresses:
            self._log.info("%s: listening on %s", label, address)

    def stop(self) -> None:
        for label, address in self._addresses:
            self._log.info("%s: closing %s", label, address)
        self._tcp.stop(timeout=0)
        connections, self._connections = self._connections, set()
        for connection in connections:
            connection.close()
        if self._http is not None:
            self._http.stop()

    def _serve(self, connection: Any, address: Any) -> None:
        """Serve one TCP connection until its end."""
        host, port = address[:2]
        remote = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._log.info("TCP: new client(%s)", remote)
        session = LookupSession(self._db, remote, self._identity, self._log)
        self._connections.add(connection)
        try:
            while not session.closed:
                data = connection.recv(65536)
                answer = session.feed(data, time.time()) if data else session.eof()
                if answer:
                    connection.sendall(answer)
                if not data:
                    break
        except OSError as error:
            # If stop() closed the connection, this is no error.
            if connection in self._connections:
                self._log.error("client(%s) - %s", remote, error)
        finally:
            session.end()
            self._connections.discard(connection)
            _close_gently(connection)
            self._log.info("PROTOCOL(V1): [%s] exiting ioloop", remote)


def _close_gently(connection: Any) -> None:
    """Close so that the last answer arrives although the peer may still be sending."""
    try:
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.5)
        while connection.recv(65536):
            pass
    except OSError:
        # The connection was reset, stop() closed it, or the peer was silent until the timeout.
        return
    finally:
        connection.close()


class LookupdHTTPApi:
    """nsqlookupd's HTTP API (docs/protocol/nsqlookupd#lookupd-http). ``clock`` gives unix
    seconds."""

    def __init__(
        self,
        db: RegistrationDB,
        options: LookupdOptions,
        log: Log,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._db = db
        self._inactive = options.inactive_producer_timeout
        self._tombstone_lifetime = options.tombstone_lifetime
        self._log = log
        self._clock = clock

    def routes(self) -> list[Route]:
        return [
            ("GET", "/ping", lambda request: Response("OK", plain=True)),
            ("GET", "/info", lambda request: {"version": NSQ_VERSION}),
            ("GET", "/debug", self._debug),
            ("GET", "/lookup", when_whole(self._lookup)),
            ("GET", "/topics", lambda request: {"topics": self._db.topics()}),
            ("GET", "/channels", when_whole(self._channels)),
            ("GET", "/nodes", self._nodes),
            ("POST", "/topic/create", when_whole(self._create_topic)),
            ("POST", "/topic/delete", when_whole(self._delete_topic)),
            ("POST", "/channel/create", when_whole(self._create_channel)),
            ("POST", "/channel/delete", when_whole(self._delete_channel)),
            ("POST", "/topic/tombstone", when_whole(self._tombstone)),
        ]

    def _is_active(self, peer: Peer) -> bool:
        return peer.is_active(self._clock(), self._inactive)

    def _is_tombstoned(self, producer: Producer) -> bool:
        return producer.is_tombstoned(self._clock(), self._tombstone_lifetime)

    def _lookup(self, request: Request) -> Answer:
        topic = request.required("topic")
        if not self._db.has_topic(topic):
            raise HTTPFault(404, "TOPIC_NOT_FOUND")
        producers = [
            producer.peer.info()
            for producer in self._db.producers(topic)
            if self._is_active(producer.peer) and not self._is_tombstoned(producer)
        ]
        return {"channels": self._db.channels(topic), "producers": producers}

    def _channels(self, request: Request) -> Answer:
        return {"channels": self._db.channels(request.required("topic"))}

    def _nodes(self, request: Request) -> Answer:
        nodes = []
        for peer in self._db.peers():
            if self._is_active(peer):
                topics = {
                    topic: self._is_tombstoned(producer)
                    for topic in self._db.topics()
                    for producer in self._db.producers(topic)
                    if producer.peer is peer
                }
                lists = {"tombstones": list(topics.values()), "topics": list(topics)}
                nodes.append({**peer.info(), **lists})
        return {"producers": nodes}

    def _debug(self, request: Request) -> Answer:
        return {
            key: [_debug_entry(producer) for producer in producers]
            for key, producers in sorted(self._db.registrations(), key=lambda item: item[0])
            if producers
        }

    def _create_topic(self, request: Request) -> Answer:
        topic = request.name("topic")
        self._log.info("DB: adding topic(%s)", topic)
        self._db.create_topic(topic)
        return None

    def _delete_topic(self, request: Request) -> Answer:
        topic = request.required("topic")
        self._log.info("DB: removing topic(%s)", topic)
        self._db.delete_topic(topic)
        return None

    def _create_channel(self, request: Request) -> Answer:
        topic, channel = request.name("topic"), request.name("channel")
        self._log.info("DB: adding channel(%s) in topic(%s)", channel, topic)
        self._db.create_channel(topic, channel)
        self._db.create_topic(topic)
        return None

    def _delete_channel(self, request: Request) -> Answer:
        topic, channel = request.name("topic"), request.name("channel")
        if not self._db.delete_channel(topic, channel):
            raise HTTPFault(404, "CHANNEL_NOT_FOUND")
        self._log.info("DB: removing channel(%s) from topic(%s)", channel, topic)
        return None

    def _tombstone(self, request: Request) -> Answer:
        topic, node = request.required("topic"), request.required("node")
        self._log.info("DB: setting tombstone for producer@%s of topic(%s)", node, topic)
        self._db.tombstone(topic, node, self._clock())
        return None


def _debug_entry(producer: Producer) -> dict[str, Any]:
    peer, tombstoned_at = producer.peer, producer.tombstoned_at
    return {
        "broadcast_address": peer.broadcast_address,
        "hostname": peer.hostname,
        "http_port": peer.http_port,
        "id": peer.id,
        "last_update": int(peer.last_update * 1e9),
        "tcp_port": peer.tcp_port,
        "tombstoned": tombstoned_at is not None,
        "tombstoned_at": _GO_ZERO_TIME_NS if tombstoned_at is None else int(tombstoned_at * 1e9),
        "version": peer.version,
    }
