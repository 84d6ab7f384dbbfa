"""nsqlookupd's side of the TCP protocol V1 (docs/protocol/nsqlookupd#v1), bytes in and bytes out.

The time comes as an argument (unix seconds); no socket, no HTTP.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

from gnsqsync.daemon.flags import NSQ_VERSION
from gnsqsync.daemon.gojson import read_object
from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.names import valid_name
from gnsqsync.embedded.registrations import Peer, RegistrationDB

MAGIC = b"  V1"
# Bytes. The Go nsqlookupd has no limits. These limits keep a client that speaks another protocol
# from filling the memory.
_MAX_LINE = 16384
_MAX_BODY = 1024 * 1024
_SIZE = struct.Struct(">i")
# The blanks that Go's strings.TrimSpace removes.
_BLANKS = " \t\n\v\f\r\x85\xa0"


class _Fatal(Exception):
    """An error answer after which the connection is closed; the text is the whole answer."""


class LookupSession:
    """The server side of one V1 connection, bytes in and bytes out.

    ``feed`` takes bytes and returns the answers. If ``closed`` is True after it, close the
    connection. Call ``end`` once when the connection is gone. ``identity`` is the answer to
    IDENTIFY.
    """

    def __init__(
        self, db: RegistrationDB, remote_address: str, identity: Mapping[str, Any], log: Log
    ) -> None:
        self.closed: bool = False
        self._db = db
        self._remote = remote_address
        self._identity = identity
        self._log = log
        self._buffer = bytearray()
        self._peer: Peer | None = None
        self._in_body = False
        self._magic_seen = False

    def feed(self, data: bytes, now: float) -> bytes:
        """Return the answers to the commands that ``data`` completes. ``now``: unix seconds."""
        self._buffer += data
        answers = []
        while not self.closed:
            try:
                answer = self._next(now)
            except _Fatal as error:
                self._log.error("[%s] - %s", self._remote, error)
                self.closed = True
                answer = str(error).encode("utf-8", "surrogateescape")
            if answer is None:
                break
            answers.append(_SIZE.pack(len(answer)) + answer)
        return b"".join(answers)

    def eof(self) -> bytes:
        """Return the answer to an incomplete command, or b"", because the peer sends no more."""
        if self.closed or not self._in_body:
            return b""
        self.closed = True
        part = "body size" if len(self._buffer) < _SIZE.size else "body"
        answer = f"E_BAD_BODY IDENTIFY failed to read {part}".encode()
        return _SIZE.pack(len(answer)) + answer

    def end(self) -> None:
        """Remove the producer from all registrations, because its connection is gone."""
        self.closed = True
        if self._peer is not None:
            for topic, channel in self._db.remove_peer(self._peer):
                self._log_change("UNREGISTER", topic, channel)
            self._peer = None

    def _next(self, now: float) -> bytes | None:
        """Return the next answer, or None if more bytes are needed."""
        if not self._magic_seen:
            if len(self._buffer) < len(MAGIC):
                return None
            if self._take(len(MAGIC)) != MAGIC:
                raise _Fatal("E_BAD_PROTOCOL")
            self._magic_seen = True
        if not self._in_body:
            end = self._buffer.find(b"\n", 0, _MAX_LINE + 1)
            if end < 0:
                self.closed = len(self._buffer) > _MAX_LINE
                return None
            line = self._take(end + 1)[:-1]
            # Go splits at single blanks, too, and so keeps empty parameters.
            words = line.decode("utf-8", "surrogateescape").strip(_BLANKS).split(" ")
            if words[0] != "IDENTIFY":
                return self._command(words[0], words[1:], now)
            if self._peer is not None:
                raise _Fatal("E_INVALID cannot IDENTIFY again")
            self._in_body = True
        body = self._body()
        if body is None:
            return None
        self._in_body = False
        return self._identify(body, now)

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    def _body(self) -> bytes | None:
        if len(self._buffer) < _SIZE.size:
            return None
        (size,) = _SIZE.unpack_from(self._buffer)
        if not 0 <= size <= _MAX_BODY:
            # The Go nsqlookupd crashes here when the size is negative.
            raise _Fatal("E_BAD_BODY IDENTIFY failed to read body")
        if len(self._buffer) < _SIZE.size + size:
            return None
        return self._take(_SIZE.size + size)[_SIZE.size :]

    def _command(self, command: str, parameters: list[str], now: float) -> bytes:
        if command == "PING":
            if self._peer is not None:
                self._log.debug("CLIENT(%s): pinged", self._remote)
                self._peer.last_update = now
        elif command == "REGISTER":
            peer = self._identified()
            topic, channel = _topic_and_channel(command, parameters)
            self._db.register(peer, topic, channel)
            self._log_change(command, topic, channel)
        elif command == "UNREGISTER":
            peer = self._identified()
            topic, channel = _topic_and_channel(command, parameters)
            if channel:
                removed = self._db.unregister_channel(peer, topic, channel)
            else:
                removed = self._db.unregister_topic(peer, topic)
            if removed:
                self._log_change(command, topic, channel)
        else:
            raise _Fatal(f"E_INVALID invalid command {command}")
        return b"OK"

    def _identified(self) -> Peer:
        if self._peer is None:
            raise _Fatal("E_INVALID client must IDENTIFY")
        return self._peer

    def _identify(self, body: bytes, now: float) -> bytes:
        try:
            values = read_object(body, _FIELDS)
        except ValueError:
            raise _Fatal("E_BAD_BODY IDENTIFY failed to decode JSON body") from None
        if not (
            values["broadcast_address"]
            and values["tcp_port"]
            and values["http_port"]
            and values["version"]
        ):
            raise _Fatal("E_BAD_BODY IDENTIFY missing fields")
        values["remote_address"] = self._remote
        peer = Peer(id=self._remote, last_update=now, **values)
        self._peer = peer
        self._db.add_peer(peer)
        self._log.info(
            "CLIENT(%s): IDENTIFY Address:%s TCP:%d HTTP:%d Version:%s",
            self._remote,
            peer.broadcast_address,
            peer.tcp_port,
            peer.http_port,
            peer.version,
        )
        return json.dumps(self._identity, separators=(",", ":"), sort_keys=True).encode()

    def _log_change(self, what: str, topic: str, channel: str) -> None:
        category = "channel" if channel else "topic"
        text = "DB: client(%s) %s category:%s key:%s subkey:%s"
        self._log.info(text, self._remote, what, category, topic, channel)


def _topic_and_channel(command: str, parameters: list[str]) -> tuple[str, str]:
    if not parameters:
        raise _Fatal(f"E_INVALID {command} insufficient number of params")
    topic = parameters[0]
    channel = parameters[1] if len(parameters) > 1 else ""
    if not _valid(topic):
        raise _Fatal(f"E_BAD_TOPIC {command} topic name '{topic}' is not valid")
    if channel and not _valid(channel):
        raise _Fatal(f"E_BAD_CHANNEL {command} channel name '{channel}' is not valid")
    return topic, channel


def _valid(name: str) -> bool:
    return valid_name(name.encode("utf-8", "surrogateescape"))


_FIELDS: dict[str, type] = {
    "hostname": str,
    "broadcast_address": str,
    "tcp_port": int,
    "http_port": int,
    "version": str,
    # The type is checked, but the connection's address replaces the value.
    "remote_address": str,
}


def identity(
    broadcast_address: str, hostname: str, tcp_port: int, http_port: int
) -> dict[str, Any]:
    """Return nsqlookupd's description of itself, the answer to IDENTIFY."""
    return {
        "broadcast_address": broadcast_address,
        "hostname": hostname,
        "http_port": http_port,
        "tcp_port": tcp_port,
        "version": NSQ_VERSION,
    }
