"""The socket of one client: reads for the session, writes its output, upgrades, closes.

Knows sockets, layers and deadlines. The only part of the protocol it knows is the magic.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

import gevent
from gevent import socket
from gevent.event import Event

from gnsqsync.daemon.golog import Log
from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.session import Peer, Session
from gnsqsync.embedded.upgrades import EMPTY_FLUSH, writes
from gnsqsync.errors import NegotiationFailed, ProtocolError
from gnsqsync.wire.codec import DeflateLayer, Layer, SnappyLayer
from gnsqsync.wire.frames import encode_error

if TYPE_CHECKING:
    import ssl

    from gnsqsync.embedded.auth import AuthQuery
    from gnsqsync.wire.tls import TlsLayer

__all__ = ["Connection"]

_MAGIC = b"  V2"
_RECV_SIZE = 65536
# Seconds in which a client must send the magic. nsqd waits forever, and runs out of descriptors.
_MAGIC_TIMEOUT = 60.0
_TLS_HANDSHAKE_TIMEOUT = 5.0
# Seconds in which the client's bytes are read and dropped after a fatal error. Otherwise the kernel
# would answer them with a reset before the client has read the error frame.
_DRAIN_TIME = 0.5
# Seconds for which a client that does not read may delay the end of its connection.
_LAST_WRITE_TIME = 5.0


class _Nsqd(Protocol):
    broker: Broker
    log: Log
    tls_context: ssl.SSLContext | None
    query_auth: AuthQuery | None

    def flush_soon(self, connection: Connection) -> None: ...
    def joined(self, connection: Connection) -> None: ...
    def left(self, connection: Connection) -> None: ...


class _PeerGone(Exception):
    """The client closed the connection, or does not read."""


class _TooSlow(Exception):
    """The kernel took no bytes for a whole heartbeat interval."""


class Connection:
    """A client's connection. One greenlet calls ``run``; any greenlet may call ``flush``.

    ``flush`` never blocks. While the kernel takes all bytes, the reading greenlet is the only one.
    When the kernel's buffer is full, a second greenlet writes the rest.
    """

    def __init__(self, nsqd: _Nsqd, sock: Any, address: Any) -> None:
        self._nsqd = nsqd
        self._sock = sock
        sock.setblocking(False)
        self._readable: Any = gevent.get_hub().loop.io(sock.fileno(), 1)
        if sock.family == socket.AF_UNIX:
            self._peer = Peer("", "@")
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            host, port = address[:2]
            self._peer = Peer(host, f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        self.session: Session = Session(
            nsqd.broker,
            self._peer,
            has_tls=nsqd.tls_context is not None,
            query_auth=nsqd.query_auth,
            on_output=lambda: nsqd.flush_soon(self),
            on_identified=self._restart_heartbeat,
        )
        self._layers: list[Layer] = []
        # Encoded output that the kernel has not taken. Each piece is a write of its own.
        self._unsent: deque[memoryview] = deque()
        # The second greenlet, while the kernel's buffer is full.
        self._writer: gevent.Greenlet | None = None
        # Set when the second greenlet has ended.
        self._written = Event()
        # True after an error of the socket: nothing is sent any more.
        self._broken = False
        # True after a missed write deadline: messages and heartbeats are dropped.
        self._mute = False
        # True while the reading greenlet waits for bytes.
        self._receiving = False
        self._heartbeat: Any = None
        self._heartbeat_period = 0.0

    # -- the reading greenlet --------------------------------------------------------------------

    def run(self) -> None:
        """Serve the client until the client or the session ends the connection. Never raises."""
        log, name = self._nsqd.log, self._peer.name
        try:
            rest = self._read_magic()
            if rest is not None:
                self._nsqd.joined(self)
                self._restart_heartbeat()
                self._serve(rest)
        except (OSError, ProtocolError, _PeerGone) as error:
            log.debug("client(%s) - %s", name, error)
        finally:
            self._stop_heartbeat()
            self.session.close()
            self._nsqd.left(self)
            self._end()

    def _read_magic(self) -> bytes | None:
        """Return the bytes after the magic, or None if the magic is wrong."""
        data = b""
        now = self._nsqd.broker.now
        deadline = now() + _MAGIC_TIMEOUT
        while len(data) < len(_MAGIC):
            part = self._recv(deadline - now())
            if not part:
                return None
            data += part
        if data[:4] == _MAGIC:
            return data[4:]
        self._nsqd.log.error("client(%s) bad protocol magic '%s'", self._peer.name, data[:4])
        self._send(encode_error(b"E_BAD_PROTOCOL"))
        return None

    def _serve(self, data: bytes) -> None:
        session = self.session
        now = self._nsqd.broker.now
        line_began = now()
        commands = -1
        while True:
            if data:
                session.receive(data)
                if session.upgrades:
                    data = self._upgrade()
                    if data:
                        continue
            if session.closed:
                return
            if session.is_backlogged:
                # Too much output waits for the client, so nothing is read before it is written.
                self.flush()
                self._wait_until_written()
            if session.commands != commands:
                commands = session.commands
                line_began = now()
            interval = session.settings.heartbeat_interval
            timeout = max(0.0, line_began + 2 * interval - now()) if interval else None
            data = self._receive(timeout)

    def _receive(self, timeout: float | None) -> bytes:
        """Return decoded bytes, perhaps none. Tell the session at EOF."""
        if self._layers and self._layers[-1].pending:
            gevent.sleep(0)  # Let other connections go on.
            return self._layers[-1].decode(b"")
        try:
            data = self._recv(timeout)
        except TimeoutError:
            self.session.input_ended()
            return b""
        for layer in self._layers:
            data = layer.decode(data)
            if layer.eof and not data:
                self.session.input_ended()
                break
        return data

    def _recv(self, timeout: float | None) -> bytes:
        """Return raw bytes. At EOF tell the session and return b"". TimeoutError.

        Wait for the event loop even if bytes are there. So connections take turns, and the output
        of all connections is flushed together.
        """
        if timeout is not None and timeout <= 0:
            raise TimeoutError
        self._receiving = True
        timer = None
        if timeout is not None:
            timer = gevent.Timeout.start_new(timeout, TimeoutError("no command in time"))
        try:
            while True:
                gevent.get_hub().wait(self._readable)
                try:
                    data: bytes = self._sock.recv(_RECV_SIZE)
                    break
                except BlockingIOError:
                    # The socket was not readable after all.
                    continue
        finally:
            self._receiving = False
            if timer is not None:
                timer.close()
        if not data:
            self.session.input_ended()
        return data

    # -- upgrades --------------------------------------------------------------------------------

    def _upgrade(self) -> bytes:
        """Add the layers that IDENTIFY agreed on. Return the bytes that they have decoded."""
        session = self.session
        surplus = b""
        while session.upgrades:
            self.flush()
            self._wait_until_written()
            kind, level = session.upgrades[0]
            layer: Layer
            if kind == "tls":
                tls = self._tls_handshake()
                if tls is None:
                    return b""
                layer = tls
            elif kind == "snappy":
                layer = SnappyLayer()
            else:
                layer = DeflateLayer(level)
            self._layers.append(layer)
            surplus = layer.decode(surplus)
            session.layer_ready(kind)
        return surplus

    def _tls_handshake(self) -> TlsLayer | None:
        context = self._nsqd.tls_context
        assert context is not None
        # A server without a certificate does not need this import.
        from gnsqsync.wire.tls import TlsLayer

        tls = TlsLayer(context, server_side=True, peer=self._peer.name)
        now = self._nsqd.broker.now
        deadline = now() + _TLS_HANDSHAKE_TIMEOUT
        first = b""
        try:
            while not tls.done:
                data = self._recv(deadline - now())
                if not data:
                    return None
                if len(first) < 5:
                    first += data
                    if len(first) < 5:
                        continue
                    data = first
                    if not _looks_like_tls(first):
                        # The text is Go's. No alert is sent: the client would not understand it.
                        raise _NotTls("tls: first record does not look like a TLS handshake")
                self._send(tls.handshake(data))
        except TimeoutError:
            self.session.upgrade_failed(f"read tcp {self._peer.name}: i/o timeout")
            return None
        except _NotTls as error:
            self.session.upgrade_failed(str(error))
            return None
        except NegotiationFailed as error:
            self._send(tls.close())
            self.session.upgrade_failed(f"tls: {error}")
            return None
        self._peer.common_name = tls.peer_common_name
        from gnsqsync.embedded.tls_context import cipher_name

        self._peer.cipher = cipher_name(context, tls.cipher)
        self._peer.tls_version = tls.version or ""
        return tls

    # -- writing ---------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write the session's output. A second greenlet writes what the kernel does not take."""
        if self._broken:
            self.session.take_output()
            return
        if self._mute:
            if self.session.take_output():
                self._break(_PeerGone("does not read answers"))
            self._wake_reader_at_end()
            return
        if self._writer is not None:
            return
        was_backlogged = self.session.is_backlogged
        try:
            self._encode_output()
            self._send_some()
        except (OSError, ProtocolError) as error:
            self._break(error)
            return
        if self._unsent:
            self._written.clear()
            self._writer = gevent.spawn(self._write_rest)
            return
        self.session.owes_answer = False
        if was_backlogged:
            self.session.wake_channel()
        self._wake_reader_at_end()

    def _wake_reader_at_end(self) -> None:
        if self.session.closed and self._receiving:
            self._shutdown(socket.SHUT_RD)

    def _encode_output(self) -> None:
        session = self.session
        data = session.take_output()
        pieces = [data] if data else []
        for layer in reversed(self._layers):
            pieces = [write for piece in pieces for write in writes(layer, piece)]
            if session.owes_flush:
                # DEFLATE is the innermost layer, so the first layer here is DEFLATE.
                session.owes_flush = False
                pieces += EMPTY_FLUSH
        self._unsent.extend(map(memoryview, pieces))

    def _send_some(self) -> None:
        """Send of ``_unsent`` what the kernel takes without waiting."""
        unsent = self._unsent
        while unsent:
            try:
                sent = self._sock.send(unsent[0])
            except BlockingIOError:
                break
            if sent == len(unsent[0]):
                unsent.popleft()
            else:
                unsent[0] = unsent[0][sent:]
        self.session.unsent = sum(map(len, unsent))

    def _write_rest(self) -> None:
        session = self.session
        try:
            while self._unsent:
                interval = session.settings.heartbeat_interval
                # This is nsqd's write deadline (docs/protocol/timeouts#heartbeats).
                socket.wait_write(self._sock.fileno(), interval or None, _TooSlow())
                self._send_some()
                if not self._unsent:
                    self._encode_output()
                    self._send_some()
            session.owes_answer = False
        except _TooSlow:
            self._fall_silent()
        except (OSError, ProtocolError) as error:
            self._break(error)
        finally:
            self._writer = None
            self._written.set()
        session.wake_channel()
        self._wake_reader_at_end()

    def _fall_silent(self) -> None:
        """Stop sending messages and heartbeats, but keep the connection, as nsqd does.

        The connection ends with the next answer, or when no command comes in time.
        """
        if self.session.owes_answer:
            self._break(_PeerGone("does not read answers"))
            return
        self._mute = True
        self._stop_heartbeat()
        self._unsent.clear()
        self.session.take_output()
        # The session now looks backlogged for good, so its channel delivers no more messages.
        self.session.unsent = sys.maxsize

    def _wait_until_written(self) -> None:
        if self._writer is not None:
            self._written.wait()
        if self._broken:
            raise _PeerGone("does not take what it is sent")

    def _send(self, data: bytes) -> None:
        """Send a few KB that are not the session's. They fit into the kernel's empty buffer."""
        self._sock.send(data)

    # -- the end ---------------------------------------------------------------------------------

    def disconnect(self) -> None:
        """Close the connection without a frame. Called by the server."""
        self.session.close()
        self._shutdown(socket.SHUT_RDWR)

    def _break(self, error: Exception) -> None:
        self._nsqd.log.debug("client(%s) - %s", self._peer.name, error)
        self._broken = True
        self._unsent.clear()
        self.session.unsent = 0
        self.session.close()
        self._shutdown(socket.SHUT_RDWR)

    def _shutdown(self, how: int) -> None:
        try:
            self._sock.shutdown(how)
        except OSError:
            # The peer has closed already.
            pass

    def _end(self) -> None:
        """Let the last frame arrive, then close."""
        self.flush()
        if self._writer is not None and not self._written.wait(_LAST_WRITE_TIME):
            self._writer.kill()
        self._shutdown(socket.SHUT_WR)
        deadline = self._nsqd.broker.now() + _DRAIN_TIME
        try:
            while self._recv(deadline - self._nsqd.broker.now()):
                pass
        except OSError:
            # After a timeout or a reset the peer will not read any more.
            pass
        self._readable.close()
        self._sock.close()

    # -- heartbeats ------------------------------------------------------------------------------

    def _restart_heartbeat(self) -> None:
        period = self.session.heartbeat_period
        if period == self._heartbeat_period:
            return
        self._stop_heartbeat()
        self._heartbeat_period = period
        if period:
            self._heartbeat = gevent.get_hub().loop.timer(period, repeat=period)
            self._heartbeat.start(self.session.heartbeat)

    def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.close()
            self._heartbeat = None


class _NotTls(Exception):
    """The client sent something else in place of a TLS handshake."""


def _looks_like_tls(data: bytes) -> bool:
    return data[0] in (0x15, 0x16) and data[1] < 0x10
