"""nsqd's side of nsqlookupd's protocol V1 (docs/protocol/nsqlookupd#what-nsqd-sends): one greenlet
per nsqlookupd.

Knows how to register names and to ask for channels. The functions below tell it the topics. nsqd
uses it so::

    peers = LookupPeers(
        options.lookupd_tcp_address,
        identity=lookupd.identity(broadcast_address, hostname, tcp_port, http_port),
        names=lambda: [(t.name, list(t.channels)) for t in broker.topics.values()],
        log=log,
    )
    broker.listeners.append(peers.names_changed)      # queues commands, never blocks
    broker.known_channels = peers.channels            # blocks the greenlet that creates a topic
    peers.start(wait=1.0)                             # before the "listening on" lines
    peers.set_addresses(addresses)                    # PUT /config/nsqlookupd_tcp_addresses
    peers.stop()
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

import gevent
from gevent import socket
from gevent.event import Event
from gevent.queue import Empty, Queue

from gnsqsync.daemon.gojson import read_object
from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.names import valid_name
from gnsqsync.embedded.lookupd import MAGIC

PING_INTERVAL = 15.0
_DIAL_TIMEOUT = 1.0
_IO_TIMEOUT = 1.0
# Upper bound of a list of a topic's channels, in bytes.
_MAX_CHANNELS = 8 * 1024 * 1024
_SIZE = struct.Struct(">i")
# Fields of the answer to IDENTIFY and their types. Only the two of the HTTP API are used.
_INFO = {"tcp_port": int, "http_port": int, "version": str, "broadcast_address": str}


class Names(Protocol):
    """A function that returns every topic with the names of its channels."""

    def __call__(self) -> Iterable[tuple[str, Iterable[str]]]: ...


class _Lost(Exception):
    """The nsqlookupd cannot be reached, or broke the protocol; the connection is closed."""


class _Peer:
    """An nsqlookupd. Methods other than ``put`` run in its own greenlet."""

    def __init__(
        self, address: str, identity: Mapping[str, Any], names: Names, log: Log, max_body_size: int
    ) -> None:
        self.address = address
        # Host and port of its HTTP API, known after the first IDENTIFY.
        self.http_address: tuple[str, int] | None = None
        self.settled = Event()
        self._identity = json.dumps(identity, separators=(",", ":"), sort_keys=True).encode()
        self._names = names
        self._log = log
        self._max_body_size = max_body_size
        self._commands: Any = Queue()
        self._socket: Any = None

    def put(self, command: str) -> None:
        """Queue a command line. Never blocks."""
        self._commands.put(command)

    def run(self) -> None:
        """Connect, then send the queued commands and a PING every 15 s, until killed."""
        try:
            self._execute(None)
            self.settled.set()
            next_ping = time.monotonic() + PING_INTERVAL
            while True:
                try:
                    command = self._commands.get(timeout=max(0.0, next_ping - time.monotonic()))
                    self._log.info("LOOKUPD(%s): %s", self.address, command)
                except Empty:
                    command = "PING"
                    next_ping += PING_INTERVAL
                    self._log.debug("LOOKUPD(%s): sending heartbeat", self.address)
                self._execute(command)
        finally:
            self._close()

    def _execute(self, command: str | None) -> None:
        """Send one command and read its answer. Connect first if there is no connection."""
        try:
            if self._socket is None:
                self._connect()
            if command is not None:
                self._call(f"{command}\n".encode())
        except (OSError, _Lost) as error:
            self._log.error("LOOKUPD(%s): %s - %s", self.address, command or "connect", error)
            self._close()
            # The next connection begins with all names, so the queued commands are obsolete.
            while not self._commands.empty():
                self._commands.get()

    def _connect(self) -> None:
        self._log.info("LOOKUP connecting to %s", self.address)
        host, _, port = self.address.rpartition(":")
        if not host or not port.isascii() or not port.isdigit():
            raise _Lost(f"dial tcp: address {self.address}: missing host or port")
        if int(port) > 65535:
            # The resolver would take the port modulo 65536.
            raise _Lost(f"dial tcp: address {port}: invalid port")
        where = (host.strip("[]"), int(port))
        self._socket = socket.create_connection(where, timeout=_DIAL_TIMEOUT)
        self._socket.settimeout(_IO_TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        body = _SIZE.pack(len(self._identity)) + self._identity
        self._learn(self._call(MAGIC + b"IDENTIFY\n" + body))
        for topic, channels in list(self._names()):
            for line in [f"{topic} {channel}" for channel in channels] or [topic]:
                self._log.info("LOOKUPD(%s): REGISTER %s", self.address, line)
                self._call(f"REGISTER {line}\n".encode())

    def _learn(self, answer: bytes) -> None:
        """Take the HTTP address from the answer to IDENTIFY."""
        try:
            info = read_object(answer, _INFO)
        except ValueError:
            raise _Lost(f"parsing response - {answer[:200].decode('utf-8', 'replace')}") from None
        host, port = info["broadcast_address"], info["http_port"]
        if host and 0 < port < 65536:
            self.http_address = (host, port)
        else:
            self._log.error("LOOKUPD(%s): no broadcast address", self.address)

    def _call(self, data: bytes) -> bytes:
        self._socket.sendall(data)
        (size,) = _SIZE.unpack(self._receive(_SIZE.size))
        if not 0 <= size <= self._max_body_size:
            limit = self._max_body_size
            raise _Lost(f"response body size ({size}) is greater than limit ({limit})")
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        parts = []
        while size > 0:
            part = self._socket.recv(size)
            if not part:
                raise _Lost("EOF")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class LookupPeers:
    """The nsqlookupds at ``addresses`` (host:port), which are told this nsqd's names.

    ``identity``: body of IDENTIFY. ``names``: see Names. ``max_body_size``: upper bound of an
    answer, in bytes. The timeouts (seconds) are for the query of /channels. Call each method in the
    thread that runs nsqd, in the order that the module's docstring shows.
    """

    def __init__(
        self,
        addresses: Iterable[str],
        *,
        identity: Mapping[str, Any],
        names: Names,
        log: Log,
        max_body_size: int = 5 * 1024 * 1024,
        connect_timeout: float = 2.0,
        request_timeout: float = 5.0,
    ) -> None:
        self._addresses = tuple(dict.fromkeys(addresses))
        self._make: Callable[[str], _Peer] = lambda address: _Peer(
            address, identity, names, log, max_body_size
        )
        self._log = log
        self._connect_timeout = connect_timeout
        self._request_timeout = request_timeout
        self._peers: dict[str, tuple[_Peer, gevent.Greenlet]] = {}
        self._started = False

    def start(self, wait: float = 0.0) -> None:
        """Connect to all. Wait up to ``wait`` seconds until each has all names, or has failed.

        A client that publishes after that finds its channels (docs/protocol/publishing#channels).
        """
        self._started = True
        self.set_addresses(self._addresses)
        gevent.wait([peer.settled for peer, _ in self._peers.values()], timeout=wait)

    def stop(self) -> None:
        """Close the connections without a further command, as nsqd does."""
        self._started = False
        gevent.killall([greenlet for _, greenlet in self._peers.values()])
        self._peers.clear()

    def set_addresses(self, addresses: Iterable[str]) -> None:
        """Connect to new addresses and disconnect from addresses that are not listed any more."""
        self._addresses = tuple(dict.fromkeys(addresses))
        if not self._started:
            return
        for address in [known for known in self._peers if known not in self._addresses]:
            self._log.info("LOOKUP(%s): removing peer", address)
            _, greenlet = self._peers.pop(address)
            greenlet.kill()
        for address in self._addresses:
            if address not in self._peers:
                self._log.info("LOOKUP(%s): adding peer", address)
                peer = self._make(address)
                self._peers[address] = (peer, gevent.spawn(peer.run))

    def names_changed(self, event: str, topic: str, channel: str | None) -> None:
        """Register or unregister a name. ``event`` ends with "created" or "deleted"."""
        command = "UNREGISTER" if event.endswith("deleted") else "REGISTER"
        line = f"{command} {topic} {channel}" if channel else f"{command} {topic}"
        for peer, _ in self._peers.values():
            peer.put(line)

    def channels(self, topic: str) -> list[str]:
        """Return the channels that the nsqlookupds list for the topic, without duplicates.

        This blocks the calling greenlet for up to ``request_timeout`` seconds. An nsqlookupd that
        does not answer is left out.
        """
        asked = [
            gevent.spawn(self._ask, peer.address, peer.http_address, topic)
            for peer, _ in self._peers.values()
            if peer.http_address is not None
        ]
        gevent.joinall(asked)
        return list(dict.fromkeys(name for greenlet in asked for name in greenlet.value or ()))

    def _ask(self, address: str, http_address: tuple[str, int], topic: str) -> list[str]:
        try:
            with gevent.Timeout(self._request_timeout, TimeoutError("timed out")):
                return self._get_channels(http_address, topic)
        except (OSError, ValueError, RecursionError) as error:
            text = "LOOKUPD(%s): failed to query for channels to pre-create for topic %s - %s"
            self._log.warning(text, address, topic, error)
            return []

    def _get_channels(self, http_address: tuple[str, int], topic: str) -> list[str]:
        # Nothing is patched in this process, so the stdlib's HTTP gets a socket of gevent. The
        # import is here because most starts ask no nsqlookupd.
        from http.client import HTTPConnection, HTTPException

        connection = HTTPConnection(*http_address)
        try:
            connection.sock = socket.create_connection(http_address, timeout=self._connect_timeout)
            connection.sock.settimeout(self._request_timeout)
            path = f"/channels?topic={quote(topic, safe='')}"
            connection.request("GET", path, headers={"Accept": "application/vnd.nsq; version=1.0"})
            answer = connection.getresponse()
            body = answer.read(_MAX_CHANNELS + 1)
            if len(body) > _MAX_CHANNELS:
                raise ValueError("the answer does not end")
            if answer.status != 200:
                raise ValueError(f"got response {answer.status} {body[:200]!r}")
            found = json.loads(body)
            channels = found.get("channels") if isinstance(found, dict) else None
            if not isinstance(channels, list):
                raise ValueError(f"no list of channels in {body[:200]!r}")
            return [name for name in channels if isinstance(name, str) and _is_valid(name)]
        except HTTPException as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()


def _is_valid(name: str) -> bool:
    # A lone surrogate from a \u escape cannot be encoded. It becomes "?", which is invalid, too.
    return valid_name(name.encode("utf-8", "replace"))
