"""The embedded nsqd: its listeners, its alarm, and the connections between its parts.

Knows how the parts are connected; the protocol, the queues and the HTTP answers are elsewhere.
"""

from __future__ import annotations

import gc
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import gevent
from gevent.event import Event
from gevent.server import StreamServer

from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.names import is_ephemeral
from gnsqsync.daemon.web import App
from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.connection import Connection
from gnsqsync.embedded.http_server import HTTPServer
from gnsqsync.embedded.listeners import Gate, address_text, listen, port_of, remove_unix
from gnsqsync.embedded.nsqd_http import NsqdHandlers
from gnsqsync.embedded.options import NsqdOptions
from gnsqsync.embedded.session import Session
from gnsqsync.embedded.stats import gather, memory_figures
from gnsqsync.embedded.statsd import Pusher, expand_prefix
from gnsqsync.embedded.store import Store

if TYPE_CHECKING:
    import ssl

    from gnsqsync.embedded.auth import AuthQuery
    from gnsqsync.embedded.lookup_peer import LookupPeers

__all__ = ["NsqdServer"]

# Seconds for which a start waits until every nsqlookupd is connected.
_LOOKUP_WAIT = 1.0
# Upper bound of the queues that a log line names.
_MOST_NAMED = 10
_T = TypeVar("_T")


def in_thread(call: Callable[[], _T]) -> _T:
    """Return ``call()``, run in a native thread of gevent's pool while other greenlets go on."""
    result: _T = gevent.get_hub().threadpool.apply(call)
    return result


class NsqdServer:
    """An nsqd. After ``start`` the addresses and ports are the bound ones.

    Everything runs in greenlets of the thread that calls ``start``. If the server cannot start, it
    closes everything and raises OptionsError or StartError.
    """

    def __init__(self, options: NsqdOptions, log: Log | None = None) -> None:
        self.options: NsqdOptions = options
        self.log: Log = log or Log(options.log_prefix, options.log_level)
        self.broker: Broker = Broker(options, node_id=options.node_id)
        self.broker.schedule.on_work = self._schedule
        self.broker.schedule.on_plan = self._set_alarm
        self.broker.on_write_failed = self._write_failed
        self.started_at: float = time.time()
        self.tls_context: ssl.SSLContext | None = None
        self.query_auth: AuthQuery | None = None
        self.tcp_address: str = ""
        self.http_address: str = ""
        self.https_address: str = ""
        self.tcp_port: int = 0
        self.http_port: int = 0
        self.https_port: int = 0
        self._gate = Gate(self.log)
        self._connections: dict[Connection, None] = {}
        self._unflushed: deque[Connection] = deque()
        # True if the loop is to call ``_settle``.
        self._scheduled = False
        self._alarm: Any = None
        self._store: Store | None = None
        # True once the saved messages are loaded: a stop must save them again.
        self._loaded = False
        # True between a change of names and the start of writing nsqd.dat. One greenlet writes.
        self._unsaved = False
        self._saver: gevent.Greenlet | None = None
        self._tcp: StreamServer | None = None
        self._http: list[tuple[str, str, HTTPServer]] = []
        self._lookup: LookupPeers | None = None
        self._test_call: gevent.Greenlet | None = None
        self._statsd: Pusher | None = None
        self._stopped = Event()
        self._gc_threshold = gc.get_threshold()

    # -- start and stop --------------------------------------------------------------------------

    def start(self) -> None:
        """Load the saved messages, listen, and log the addresses. Then clients can connect."""
        try:
            self._start()
        except BaseException:  # The caller has no started server that it could stop.
            self._close_everything()
            raise

    def _start(self) -> None:
        # Modules that only some flags need are imported where they are used, here and in other
        # modules of this package. A start without these flags is shorter by a fifth.
        options = self.options
        options.check()
        # Messages are no garbage. With a million waiting messages and its default thresholds,
        # Python's collector would stop the server for half a second now and then.
        gc.set_threshold(10_000, 10, 1000)
        if options.tls_cert or options.tls_key or options.tls_root_ca_file:
            import ssl

            from gnsqsync.embedded.tls_context import make_context

            self.tls_context = make_context(options, ssl.SSLContext)
        if options.auth_http_address:
            from gnsqsync.embedded.auth import Authenticator

            asker = Authenticator(options, self.log, self.broker.now, in_thread)
            self.query_auth = asker.query
        if options.data_path:
            self._store = Store(options, self.log, self.broker.now)
            self._store.open()
            self.broker.open_queue = self._store.open_queue
        # The port comes before the folder: if the port is taken, the folder stays unchanged.
        listener = listen(options.tcp_address)
        self._tcp = StreamServer(listener, self._serve_client)
        self.tcp_address, self.tcp_port = address_text(listener), port_of(listener)
        self._listen_http()
        if self._store is not None:
            self._store.load(self.broker)
            self._loaded = True
            self._store.save_first_names(self.broker)
        self.broker.listeners.append(self._names_changed)
        self._settle_options()
        # nsqlookupds come before clients, so that the first publish finds the known channels.
        if options.lookupd_tcp_address:
            self._start_lookup(options.lookupd_tcp_address)
        self._tcp.start()
        self.log.info("TCP: listening on %s", self.tcp_address)
        for kind, address, server in self._http:
            server.start()
            self.log.info("%s: listening on %s", kind, address)
        self._call_itself()
        if self.options.statsd_address:
            self._statsd = Pusher(self.options, self._statsd_figures, self.log)
            self._statsd.start()

    def _settle_options(self) -> None:
        """Set the options that depend on bound ports, for nsqlookupd, statsd and GET /config."""
        options = self.options
        # The port of a unix socket is -1 here, and 0 for others.
        http_port = options.broadcast_http_port or max(0, self.http_port)
        self.options = options.replace(
            broadcast_tcp_port=options.broadcast_tcp_port or max(0, self.tcp_port),
            broadcast_http_port=http_port,
            statsd_prefix=expand_prefix(
                options.statsd_prefix, options.broadcast_address, http_port
            ),
        )

    def _start_lookup(self, addresses: tuple[str, ...], wait: float = _LOOKUP_WAIT) -> None:
        from gnsqsync.embedded.lookup_peer import LookupPeers
        from gnsqsync.embedded.lookupd import identity

        options, broker = self.options, self.broker
        lookup = self._lookup = LookupPeers(
            addresses,
            identity=identity(
                options.broadcast_address,
                socket.gethostname(),
                options.broadcast_tcp_port,
                options.broadcast_http_port,
            ),
            names=lambda: [(topic.name, list(topic.channels)) for topic in broker.topics.values()],
            log=self.log,
            max_body_size=options.max_body_size,
            connect_timeout=options.http_client_connect_timeout,
            request_timeout=options.http_client_request_timeout,
        )
        broker.listeners.append(lookup.names_changed)
        broker.known_channels = lookup.channels
        lookup.start(wait)

    def _call_itself(self) -> None:
        """Warn once if the addresses that nsqlookupd hands out do not lead here."""
        if self._lookup is None or self._test_call is not None:
            return
        from gnsqsync.embedded import reach

        options = self.options
        host = options.broadcast_address
        tcp, http = options.broadcast_tcp_port, options.broadcast_http_port
        if reach.is_certain(host, tcp, self.tcp_address) and (
            not http or reach.is_certain(host, http, self.http_address)
        ):
            return

        def call() -> None:
            token = secrets.token_hex(8)
            failures = reach.unreachable(
                host,
                tcp,
                http,
                token,
                lambda: any(one.settings.client_id == token for one in self.sessions()),
            )
            if failures:
                self.log.warning(
                    "nsqlookupd hands out addresses at which this nsqd cannot be reached: %s;"
                    " correct --broadcast-address and the ports, or the addresses it listens on",
                    ", ".join(failures),
                )

        self._test_call = gevent.spawn(call)

    def _listen_http(self) -> None:
        options = self.options
        routes = NsqdHandlers(self).routes
        if self.tls_context is not None and options.https_address:
            listener = listen(options.https_address)
            self.https_address, self.https_port = address_text(listener), port_of(listener)
            from gevent.ssl import SSLContext

            from gnsqsync.embedded.tls_context import make_context

            context = make_context(options, SSLContext)
            server = HTTPServer(listener, App(routes, self.log), self._gate, context)
            self._http.append(("HTTPS", self.https_address, server))
        if options.http_address:
            listener = listen(options.http_address)
            self.http_address, self.http_port = address_text(listener), port_of(listener)
            https_only = self.https_port if options.tls_required == "true" else None
            app = App(routes, self.log, https_port=https_only)
            self._http.append(("HTTP", self.http_address, HTTPServer(listener, app, self._gate)))

    def serve_forever(self) -> None:
        """Start, if not yet started, and block until another greenlet calls ``stop``."""
        if self._tcp is None:
            self.start()
        self._stopped.wait()

    def stop(self) -> None:
        """Stop cleanly: refuse clients, close connections without a frame, save the queues."""
        if self._stopped.is_set():
            return
        self._close_everything()
        self.log.info("bye")
        self._stopped.set()

    def _close_everything(self) -> None:
        gc.set_threshold(*self._gc_threshold)
        if self._lookup is not None:
            self._lookup.stop()
        if self._test_call is not None:
            self._test_call.kill()
        self.log.info("LOOKUP: closing")
        if self._statsd is not None:
            self._statsd.stop()
        self.broker.listeners.clear()
        if self._tcp is not None:
            self._tcp.close()
            remove_unix(self.tcp_address)
        for connection in list(self._connections):
            connection.disconnect()
        for _, address, server in self._http:
            server.stop()
            remove_unix(address)
        if self._alarm is not None:
            self._alarm.close()
        if self._saver is not None:
            self._saver.join()
        if self._store is not None:
            if self._loaded:
                # This is also needed after a failed start: loading may have moved messages from
                # their files to memory.
                self.log.info("NSQ: persisting topic/channel metadata")
                self._store.save(self.broker)
                self._loaded = False
            self._store.close()
        self._tell_what_is_lost()

    def _tell_what_is_lost(self) -> None:
        """Warn of messages that are lost with this process, except in ephemeral queues."""
        lost = self.broker.in_memory_only()
        if not lost:
            return
        number = sum(lost.values())
        most = sorted(lost, key=lambda name: -lost[name])
        self.log.warning(
            "%d message%s of %d queue%s %s lost, as %s: %s%s",
            number,
            "" if number == 1 else "s",
            len(lost),
            "" if len(lost) == 1 else "s",
            "is" if number == 1 else "are",
            "their files cannot be used" if self.options.data_path else "there is no --data-path",
            ", ".join(f"{name} ({lost[name]})" for name in most[:_MOST_NAMED]),
            "" if len(most) <= _MOST_NAMED else " and others",
        )

    # -- clients ---------------------------------------------------------------------------------

    def _serve_client(self, sock: Any, address: Any) -> None:
        self._gate.serve(lambda sock, address: Connection(self, sock, address).run(), sock, address)

    def joined(self, connection: Connection) -> None:
        """Add a connection that has sent the magic."""
        self._connections[connection] = None

    def left(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        self._connections.pop(connection, None)

    def sessions(self) -> Iterable[Session]:
        """Return the sessions of all connected clients, oldest first."""
        return [connection.session for connection in self._connections]

    # -- work: deliveries and flushes of one round of the loop are done together -----------------

    def flush_soon(self, connection: Connection) -> None:
        """Flush ``connection``, which has output or is over, in this round of the loop."""
        self._unflushed.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            gevent.get_hub().loop.run_callback(self._settle)

    def _settle(self) -> None:
        self._scheduled = False
        try:
            self.broker.schedule.settle()
            while self._unflushed:
                self._unflushed.popleft().flush()
        finally:
            # If one flush fails, the other connections are still flushed.
            if self._unflushed:
                self._schedule()

    def _set_alarm(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.close()
        delay = max(0.0, when - self.broker.now())
        self._alarm = gevent.get_hub().loop.timer(delay)
        self._alarm.start(self._on_alarm)

    def _on_alarm(self) -> None:
        self.broker.schedule.expire()
        when = self.broker.schedule.next_at()
        if when is not None:
            # This is also right if the timer was a little early and nothing was due.
            self._set_alarm(when)

    # -- names and lookupds ------------------------------------------------------------------------

    def _names_changed(self, event: str, topic: str, channel: str | None) -> None:
        if self._store is None or is_ephemeral(topic) or is_ephemeral(channel or ""):
            return
        self._save_soon()

    def _save_soon(self) -> gevent.Greenlet:
        """Have nsqd.dat written once for all changes of this round.

        Return the greenlet that writes. It ends when all changes are in the file.
        """
        self._unsaved = True
        if self._saver is None:
            self._saver = gevent.spawn(self._save_changes)
        return self._saver

    def _save_changes(self) -> None:
        assert self._store is not None, "there are no names to save without a folder"
        try:
            while self._unsaved:
                self._unsaved = False
                # A thread writes, because a disk may take seconds and clients need heartbeats.
                self._store.save_names(self.broker, in_thread)
        finally:
            self._saver = None

    def _write_failed(self, who: str, error: str) -> None:
        self.log.error("%s: failed to write message to backend - %s", who, error)

    def save_names(self) -> None:
        """Write the present names and paused flags to nsqd.dat before returning."""
        if self._store is not None:
            self._save_soon().join()

    def _statsd_figures(self) -> tuple[list[dict[str, Any]], dict[str, int] | None]:
        topics = gather(self.broker, (), include_clients=False)["topics"]
        return topics, memory_figures() if self.options.statsd_mem_stats else None

    def set_lookupd_addresses(self, addresses: tuple[str, ...] | None) -> None:
        """Use these nsqlookupds from now on (PUT /config/nsqlookupd_tcp_addresses).

        None means none, as an empty tuple does; only GET shows the difference.
        """
        self.options = self.options.replace(lookupd_tcp_address=addresses)
        if self._lookup is not None:
            self._lookup.set_addresses(addresses or ())
        elif addresses:
            self._start_lookup(addresses, wait=0.0)
            self._call_itself()
