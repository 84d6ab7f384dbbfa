"""The server side of one TCP V2 connection: bytes in, frames out, commands to the broker.

No I/O and no clock. Two callables may block: the query of an auth server, and the broker's
``known_channels``. The rules are in docs/protocol/commands, and the order of the checks in
docs/protocol/commands#order-of-checks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from gnsqsync.daemon.names import go_quote, valid_name
from gnsqsync.daemon.web import to_json
from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.channel import Channel, TooManyConsumers
from gnsqsync.embedded.command_stream import OK_FRAME, Command, insufficient
from gnsqsync.embedded.identify import Fatal, Identification, Settings, negotiate
from gnsqsync.embedded.numbers import parse_base10, signed64, signed_int
from gnsqsync.embedded.publishing import Publishing
from gnsqsync.embedded.queueing import QueuedMessage
from gnsqsync.wire.frames import FRAME_MESSAGE, encode_error, encode_response

if TYPE_CHECKING:
    from gnsqsync.embedded.auth import Authorization, AuthQuery

__all__ = ["CLOSING", "INIT", "SUBSCRIBED", "Peer", "Session"]

# Numbers of the states in /stats (docs/protocol/commands#connection-states).
INIT, SUBSCRIBED, CLOSING = 0, 3, 4

_HEARTBEAT = encode_response(b"_heartbeat_")
_MESSAGE_HEAD = struct.Struct(">iiqH16s")


class Peer:
    """A client's address, and the results of its TLS handshake."""

    __slots__ = ("cipher", "common_name", "ip", "name", "tls_version")

    def __init__(self, ip: str = "", name: str = "") -> None:
        self.ip: str = ip
        self.name: str = name
        self.common_name: str = ""
        self.cipher: str = ""
        self.tls_version: str = ""


class Session(Publishing):
    """A client. ``on_identified`` is called when the heartbeat interval may have changed.

    The owner calls ``layer_ready`` after it has added each layer of ``upgrades``.
    """

    def __init__(
        self,
        broker: Broker,
        peer: Peer,
        *,
        has_tls: bool = False,
        query_auth: AuthQuery | None = None,
        on_output: Callable[[], None] = lambda: None,
        on_identified: Callable[[], None] = lambda: None,
    ) -> None:
        commands: dict[bytes, Command] = {
            b"FIN": self._fin,
            b"PUB": self._pub,
            b"RDY": self._rdy,
            b"REQ": self._req,
            b"NOP": self._nop,
            b"TOUCH": self._touch,
            b"MPUB": self._mpub,
            b"DPUB": self._dpub,
            b"SUB": self._sub,
            b"CLS": self._cls,
            b"IDENTIFY": self._identify,
            b"AUTH": self._authenticate,
        }
        super().__init__(broker, commands, on_output)
        options = broker.options
        self._has_tls = has_tls
        self._tls_required = options.tls_required != "false"
        self._query_auth = query_auth
        self._on_identified = on_identified
        self.peer = peer
        self.connected_at: int = broker.wall_ns()
        self.state: int = INIT
        self.settings: Settings = Settings(
            client_id=peer.ip,
            hostname=peer.ip,
            msg_timeout=options.msg_timeout,
            output_buffer_timeout=options.output_buffer_timeout,
        )
        # The first IDENTIFY fixes these values (docs/protocol/handshake#identify-twice).
        self.heartbeat_period: float = self.settings.heartbeat_interval
        self.delivery_timeout: float = options.msg_timeout
        self.sample_rate: int = 0
        self._has_flush_timer = True
        self._identified = False

        self.tls: bool = False
        self.snappy: bool = False
        self.deflate: bool = False
        # True if the owner must write an empty flush of DEFLATE, as nsqd does. The owner clears it.
        self.owes_flush: bool = False
        self.channel: Channel | None = None
        self.authorization: Authorization | None = None
        self._secret = b""

        self.ready_count: int = 0
        self.in_flight = 0
        self.message_count: int = 0
        self.finish_count = 0
        self.requeue_count = 0

    # -- called by the owner -----------------------------------------------------------------------

    @property
    def msg_timeout(self) -> float:
        """Seconds that TOUCH adds, from the latest IDENTIFY."""
        return self.settings.msg_timeout

    def heartbeat(self) -> None:
        """Write a heartbeat. The owner calls this every ``heartbeat_period`` seconds."""
        if not self.closed and not self.upgrades:
            self._append(_HEARTBEAT)
            self.pump_turned()

    def pump_turned(self) -> None:
        """Flush the held messages if the connection takes no more of them. nsqd flushes then, too
        (docs/protocol/flow#output-buffer)."""
        channel = self.channel
        if channel is not None and self.ready_count > self.in_flight and not channel.paused:
            return
        if self._held or self.deflate:
            self._held = 0
            self.owes_flush = self.deflate
            self._on_output()

    def layer_ready(self, kind: str) -> None:
        """Answer OK through the layer ``upgrades[0]``, which the owner has added."""
        self.upgrades.pop(0)
        if kind == "tls":
            self.tls = True
        elif kind == "snappy":
            self.snappy = True
        else:
            self.deflate = True
        self._write(OK_FRAME)

    def upgrade_failed(self, reason: str) -> None:
        """End the connection after a failed TLS handshake, with an error in clear text."""
        self.upgrades.clear()
        text = b"IDENTIFY failed " + reason.encode("utf-8", "replace")
        self._fail(Fatal(b"E_IDENTIFY_FAILED", text))

    def close(self) -> None:
        """End the connection and leave the channel. Idempotent."""
        super().close()
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.remove_consumer(self)

    def channel_closed(self) -> None:
        """End the connection without a frame, because the channel was deleted."""
        self.channel = None
        self.closed = True
        self._drop_output()
        self._on_output()

    # -- checks common to several commands -------------------------------------------------------

    def _check_line(self, params: list[bytes]) -> None:
        if self._tls_required and not self.tls and params[0] != b"IDENTIFY":
            text = b"cannot %s in current state (TLS required)" % params[0]
            raise Fatal(b"E_INVALID", text)

    def _check_state(self, command: bytes, *allowed: int) -> None:
        if self.state not in allowed:
            raise Fatal(b"E_INVALID", b"cannot %s in current state" % command)

    def _check_auth(self, command: bytes, topic: bytes, channel: bytes = b"") -> None:
        """Check the client's rights. If they have expired, ask again, which may block
        (docs/protocol/handshake#auth)."""
        if self._query_auth is None:
            return
        authorization = self.authorization
        if authorization is None or not authorization.permissions:
            raise Fatal(b"E_AUTH_FIRST", b"AUTH required before " + command)
        if authorization.expires_at <= self._broker.now():
            authorization = self.authorization = self._ask_auth()
        if not authorization.allows(topic.decode(), channel.decode()):
            names = (command, go_quote(topic), go_quote(channel))
            raise Fatal(b"E_UNAUTHORIZED", b"AUTH failed for %s on %s %s" % names)

    def _ask_auth(self) -> Authorization:
        from gnsqsync.embedded.auth import AuthFailure

        assert self._query_auth is not None
        try:
            return self._query_auth(self.peer.ip, self.tls, self.peer.common_name, self._secret)
        except AuthFailure:
            # The log has the reason. A client that is not trusted does not get it.
            raise Fatal(b"E_AUTH_FAILED", b"AUTH failed") from None

    def _body(
        self, command: bytes, data: bytes, offset: int, max_size: int
    ) -> tuple[int, int] | int:
        """Return begin and end of the body of IDENTIFY or AUTH, or a Command's negative result."""
        if len(data) - offset < 4:
            return self._incomplete(
                offset + 4, b"E_BAD_BODY", command + b" failed to read body size"
            )
        size = signed_int(data, offset)
        if size > max_size:
            raise Fatal(b"E_BAD_BODY", b"%s body too big %d > %d" % (command, size, max_size))
        if size <= 0:
            raise Fatal(b"E_BAD_BODY", b"%s invalid body size %d" % (command, size))
        stop = offset + 4 + size
        if stop > len(data):
            return self._incomplete(stop, b"E_BAD_BODY", command + b" failed to read body")
        return offset + 4, stop

    # -- IDENTIFY, AUTH ---------------------------------------------------------------------------

    def _identify(self, params: list[bytes], data: bytes, offset: int) -> int:
        self._check_state(b"IDENTIFY", INIT)
        found = self._body(b"IDENTIFY", data, offset, self._options.max_body_size)
        if isinstance(found, int):
            return found
        start, stop = found
        asked = Identification.decode(data[start:stop])
        self.settings.apply(asked, self._options)
        if not self._identified:
            self._identified = True
            self.heartbeat_period = self.settings.heartbeat_interval
            self.delivery_timeout = self.settings.msg_timeout
            self.sample_rate = self.settings.sample_rate
            self._has_flush_timer = self.settings.output_buffer_timeout > 0
        self._on_identified()
        if not asked.feature_negotiation:
            self._write(OK_FRAME)
            return stop
        answer = negotiate(asked, self.settings, self._options, has_tls=self._has_tls)
        self._write(encode_response(to_json(answer)))
        if answer["tls_v1"]:
            self.upgrades.append(("tls", 0))
        if answer["snappy"]:
            self.upgrades.append(("snappy", 0))
        if answer["deflate"]:
            self.upgrades.append(("deflate", answer["deflate_level"]))
        return stop

    def _authenticate(self, params: list[bytes], data: bytes, offset: int) -> int:
        self._check_state(b"AUTH", INIT)
        if len(params) != 1:
            raise Fatal(b"E_INVALID", b"AUTH invalid number of parameters")
        found = self._body(b"AUTH", data, offset, self._options.max_body_size)
        if isinstance(found, int):
            return found
        start, stop = found
        if self.authorization is not None and self.authorization.permissions:
            raise Fatal(b"E_INVALID", b"AUTH already set")
        if self._query_auth is None:
            raise Fatal(b"E_AUTH_DISABLED", b"AUTH disabled")
        self._secret = data[start:stop]
        authorization = self.authorization = self._ask_auth()
        if not authorization.permissions:
            raise Fatal(b"E_UNAUTHORIZED", b"AUTH no authorizations found")
        answer = {
            "identity": authorization.identity,
            "identity_url": authorization.identity_url,
            "permission_count": len(authorization.permissions),
        }
        self._write(encode_response(to_json(answer)))
        return stop

    # -- consuming ---------------------------------------------------------------------------------

    def _sub(self, params: list[bytes], data: bytes, offset: int) -> int:
        self._check_state(b"SUB", INIT)
        if self.settings.heartbeat_interval <= 0:
            raise Fatal(b"E_INVALID", b"cannot SUB with heartbeats disabled")
        if len(params) < 3:
            raise insufficient(b"SUB")
        topic_name, channel_name = params[1], params[2]
        if not valid_name(topic_name):
            text = b"SUB topic name %s is not valid" % go_quote(topic_name)
            raise Fatal(b"E_BAD_TOPIC", text)
        if not valid_name(channel_name):
            text = b"SUB channel name %s is not valid" % go_quote(channel_name)
            raise Fatal(b"E_BAD_CHANNEL", text)
        self._check_auth(b"SUB", topic_name, channel_name)
        topic = self._broker.topic(topic_name.decode())
        if topic.deleted:
            raise Fatal(b"E_SUB_FAILED", b"SUB failed exiting")
        channel = topic.channel(channel_name.decode())
        try:
            channel.add_consumer(self)
        except TooManyConsumers:
            limit = self._options.max_channel_consumers
            text = b"SUB failed consumers for %s:%s exceeds limit of %d"
            raise Fatal(b"E_SUB_FAILED", text % (topic_name, channel_name, limit)) from None
        self.channel = channel
        self.state = SUBSCRIBED
        self._write(OK_FRAME)
        self.pump_turned()
        return offset

    def room(self) -> int:
        """Return the number of messages this consumer takes now (docs/protocol/flow#rdy)."""
        if self.state != SUBSCRIBED or self.closed or self.is_backlogged:
            return 0
        return max(0, self.ready_count - self.in_flight)

    def deliver(self, messages: list[QueuedMessage]) -> None:
        """Append message frames to the output."""
        was_quiet = self._output_size == self._held
        pack = _MESSAGE_HEAD.pack
        append = self._output.append
        for message in messages:
            body = message.body
            size = 30 + len(body)
            append(pack(size, FRAME_MESSAGE, message.timestamp, message.attempts, message.id))
            append(body)
            self._output_size += 4 + size
        self.message_count += len(messages)
        if not self._has_flush_timer and self.in_flight < self.ready_count:
            self._hold(messages)
        else:
            self._held = 0
        if was_quiet and self._output_size > self._held:
            self._on_output()

    def _hold(self, messages: list[QueuedMessage]) -> None:
        """Count the bytes of the output that stay in nsqd's buffer, which sends when it is full."""
        size, held = self.settings.output_buffer_size, self._held
        for message in messages:
            # nsqd writes the head of a frame, then the message.
            for part in (8, 26 + len(message.body)):
                while part > size - held:
                    # A part that is larger than the empty buffer is sent directly.
                    part = part - (size - held) if held else 0
                    held = 0
                held += part
        self._held = held

    def _rdy(self, params: list[bytes], data: bytes, offset: int) -> int:
        if self.state == CLOSING:
            return offset
        self._check_state(b"RDY", SUBSCRIBED)
        count = 1
        if len(params) > 1:
            parsed = parse_base10(params[1])
            if parsed is None:
                raise Fatal(b"E_INVALID", b"RDY could not parse count " + params[1])
            count = signed64(parsed)
        limit = self._options.max_rdy_count
        if not 0 <= count <= limit:
            raise Fatal(b"E_INVALID", b"RDY count %d out of range 0-%d" % (count, limit))
        if count != self.ready_count:
            self.ready_count = count
            self.pump_turned()
        self.wake_channel()
        return offset

    def wake_channel(self) -> None:
        """Wake the channel, because this consumer may have room again."""
        channel = self.channel
        if channel is not None and (channel.queue or channel.unread is not None):
            self._broker.schedule.wake(channel)

    def _message_id(self, command: bytes, params: list[bytes], needed: int) -> bytes:
        if self.state != SUBSCRIBED and self.state != CLOSING:
            raise Fatal(b"E_INVALID", b"cannot %s in current state" % command)
        if len(params) < needed:
            raise insufficient(command, b"params")
        id = params[1]
        if len(id) != 16:
            raise Fatal(b"E_INVALID", b"invalid message ID")
        return id

    def _answered(self, command: bytes, id: bytes, reason: bytes | None) -> None:
        if reason is not None:
            self._write(
                encode_error(b"E_%s_FAILED %s %s failed %s" % (command, command, id, reason))
            )

    def _fin(self, params: list[bytes], data: bytes, offset: int) -> int:
        id = self._message_id(b"FIN", params, 2)
        assert self.channel is not None
        reason = self.channel.finish(id, self)
        if reason is not None:
            self._answered(b"FIN", id, reason)
        return offset

    def _req(self, params: list[bytes], data: bytes, offset: int) -> int:
        id = self._message_id(b"REQ", params, 3)
        millis = parse_base10(params[2])
        if millis is None:
            raise Fatal(b"E_INVALID", b"REQ could not parse timeout " + params[2])
        # Go multiplies in 64 bits, so a huge number may become negative, and then acts as 0.
        delay = max(0, signed64(millis * 1_000_000)) / 1e9
        assert self.channel is not None
        reason = self.channel.requeue(id, self, min(delay, self._options.max_req_timeout))
        self._answered(b"REQ", id, reason)
        return offset

    def _touch(self, params: list[bytes], data: bytes, offset: int) -> int:
        id = self._message_id(b"TOUCH", params, 2)
        assert self.channel is not None
        self._answered(b"TOUCH", id, self.channel.touch(id, self))
        return offset

    def _cls(self, params: list[bytes], data: bytes, offset: int) -> int:
        self._check_state(b"CLS", SUBSCRIBED)
        self.ready_count = 0
        self.state = CLOSING
        self._write(encode_response(b"CLOSE_WAIT"))
        return offset

    def _nop(self, params: list[bytes], data: bytes, offset: int) -> int:
        return offset
