"""The server side of one TCP V2 connection: bytes in, frames out, commands to the broker.

No I/O and no clock. Two callables from outside may block: an auth server's answer, and the
broker's ``known_channels``. Follows nsq-reference 1.4 to 1.18; the order of checks is 1.6.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable

from gnsqsync.embedded.auth import AuthFailure, Authorization, AuthQuery
from gnsqsync.embedded.bodies import MpubBody, signed_int
from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.channel import Channel, QueuedMessage, TooManyConsumers
from gnsqsync.embedded.identify import Fatal, Identification, Settings, negotiate
from gnsqsync.embedded.names import go_quote, valid_name
from gnsqsync.embedded.topic import Topic, TopicGone
from gnsqsync.embedded.web import to_json
from gnsqsync.wire.frames import FRAME_MESSAGE, encode_error, encode_response

__all__ = ["CLOSING", "INIT", "SUBSCRIBED", "Peer", "Session"]

# As /stats shows them (nsq-reference 1.7).
INIT, SUBSCRIBED, CLOSING = 0, 3, 4

# A line with its \n fits nsqd's read buffer, or the connection is closed.
_MAX_LINE = 16384
# A consumer gets no more messages while this many bytes have not left.
_MAX_BACKLOG = 1024 * 1024

_OK = encode_response(b"OK")
_HEARTBEAT = encode_response(b"_heartbeat_")
_MESSAGE_HEAD = struct.Struct(">iiqH16s")


class Peer:
    """Who is at the other end: the address, and once TLS is up what it told."""

    __slots__ = ("cipher", "common_name", "ip", "name", "tls_version")

    def __init__(self, ip: str = "", name: str = "") -> None:
        self.ip = ip
        self.name = name
        self.common_name = ""
        self.cipher = ""
        self.tls_version = ""


def parse_base10(digits: bytes) -> int | None:
    """nsqd's own number parser: digits only, nothing is 0, wraps at 2**64. None when refused."""
    if not digits:
        return 0
    if not digits.isdigit():
        return None
    value = 0
    # In pieces, because Python refuses to convert very long numbers.
    for start in range(0, len(digits), 1000):
        piece = digits[start : start + 1000]
        value = (value * 10 ** len(piece) + int(piece)) % 2**64
    return value


def _signed64(value: int) -> int:
    value %= 2**64
    return value - 2**64 if value >= 2**63 else value


def _insufficient(command: bytes, word: bytes = b"parameters") -> Fatal:
    return Fatal(b"E_INVALID", b"%s insufficient number of %s" % (command, word))


class Session:
    """One client. Feed it with ``receive``; it fills ``take_output`` and calls ``on_output``.

    ``closed``: the connection is over; write what is in the output, then close. ``upgrades``: the
    layers to switch on, in order, after the output so far is written; ``layer_ready`` after each.
    ``commands`` counts whole commands (the read deadline starts anew with each).
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
        options = broker.options
        self._broker = broker
        self._options = options
        self._has_tls = has_tls
        self._query_auth = query_auth
        self._on_output = on_output
        self._on_identified = on_identified
        self.peer = peer
        self.connected_at = broker.wall_ns()
        self.state = INIT
        self.settings = Settings(
            client_id=peer.ip,
            hostname=peer.ip,
            msg_timeout=options.msg_timeout,
            output_buffer_timeout=options.output_buffer_timeout,
        )
        # Fixed by the first IDENTIFY (the quirk in nsq-reference 1.8).
        self.heartbeat_period = self.settings.heartbeat_interval
        self.delivery_timeout = options.msg_timeout
        self.sample_rate = 0
        self._identified = False

        self.tls = self.snappy = self.deflate = False
        self.upgrades: list[tuple[str, int]] = []
        self.closed = False
        self.commands = 0
        self.channel: Channel | None = None
        self.authorization: Authorization | None = None
        self._secret = b""

        self.ready_count = 0
        self.in_flight = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.pub_counts: Counter[str] = Counter()

        self._output: list[bytes] = []
        self._output_size = 0
        # Bytes that the output was cut from but that the socket has not taken; set by the owner.
        self.unsent = 0
        # The beginning of an incomplete command, as it arrived; joined when it can be whole.
        self._parts: list[bytes] = []
        self._have = 0
        self._need = 0
        self._missing: Fatal | None = None
        self._mpub: tuple[Topic, MpubBody] | None = None
        # The last topic published to; its name needs no second check. A line holds no \n.
        self._last_topic: tuple[bytes, Topic | None] = (b"\n", None)
        self._commands: dict[bytes, Callable[[list[bytes], bytes, int], int]] = {
            b"FIN": self._fin,
            b"PUB": self._pub,
            b"RDY": self._rdy,
            b"REQ": self._req,
            b"NOP": self._nop,
            b"TOUCH": self._touch,
            b"MPUB": self._mpub_line,
            b"DPUB": self._dpub,
            b"SUB": self._sub,
            b"CLS": self._cls,
            b"IDENTIFY": self._identify,
            b"AUTH": self._authenticate,
        }

    # -- bytes in and out ------------------------------------------------------------------------

    @property
    def msg_timeout(self) -> float:
        """What TOUCH adds (seconds): of the latest IDENTIFY."""
        return self.settings.msg_timeout

    @property
    def backlog(self) -> int:
        """Bytes that have not left."""
        return self._output_size + self.unsent

    @property
    def is_backlogged(self) -> bool:
        """Whether the peer reads too slowly to be served further."""
        return self._output_size + self.unsent >= _MAX_BACKLOG

    def take_output(self) -> bytes:
        """What is to be written now; it is forgotten here."""
        data = b"".join(self._output)
        self._output.clear()
        self._output_size = 0
        return data

    def _write(self, frame: bytes) -> None:
        if not self._output:
            self._on_output()
        self._output.append(frame)
        self._output_size += len(frame)

    def heartbeat(self) -> None:
        """Write a heartbeat; called every ``heartbeat_period`` seconds."""
        if not self.closed and not self.upgrades:
            self._write(_HEARTBEAT)

    def receive(self, data: bytes) -> None:
        """Execute every command that ``data`` completes. Stops at an upgrade or when closed."""
        if self._parts:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self._parts = []
        end = len(data)
        offset = 0
        commands = self._commands
        try:
            while offset < end and not self.closed:
                if self._mpub is not None:
                    stop = self._read_mpub(data, offset)
                else:
                    newline = data.find(b"\n", offset, offset + _MAX_LINE)
                    if newline < 0:
                        if end - offset >= _MAX_LINE:
                            self.close()
                            return
                        self._need = 0
                        self._missing = None
                        break
                    line = data[offset:newline]
                    if line.endswith(b"\r"):
                        line = line[:-1]
                    params = line.split(b" ")
                    command = commands.get(params[0], self._unknown)
                    if self._options.tls_required != "false":
                        self._check_tls(params[0])
                    stop = command(params, data, newline + 1)
                if stop < 0:  # incomplete; -stop is where it would end
                    self._need = -stop - offset
                    break
                offset = stop
                if self._mpub is None:
                    self.commands += 1
                if self.upgrades:
                    return  # nsqd drops what it has read ahead at an upgrade
        except Fatal as error:
            self._fail(error)
            return
        if offset < end and not self.closed:
            self._parts.append(data[offset:])
            self._have = end - offset

    def input_ended(self) -> None:
        """EOF, or the read deadline passed: nsqd reports it only inside a body."""
        if not self.closed:
            if (self._parts or self._mpub is not None) and self._missing is not None:
                self._fail(self._missing)
            self.close()

    def layer_ready(self, kind: str) -> None:
        """``upgrades[0]`` is in place: answer OK through it."""
        self.upgrades.pop(0)
        if kind == "tls":
            self.tls = True
        elif kind == "snappy":
            self.snappy = True
        else:
            self.deflate = True
        self._write(_OK)

    def upgrade_failed(self, reason: str) -> None:
        """A TLS handshake failed; the answer goes out in clear."""
        self.upgrades.clear()
        text = b"IDENTIFY failed " + reason.encode("utf-8", "replace")
        self._fail(Fatal(b"E_IDENTIFY_FAILED", text))

    def close(self) -> None:
        """The connection is over: leave the channel. Idempotent."""
        self.closed = True
        self._parts = []
        self._mpub = None
        channel, self.channel = self.channel, None
        if channel is not None:
            channel.remove_consumer(self)

    def channel_closed(self) -> None:
        """Called by the channel: the connection ends without a frame."""
        self.channel = None
        self.closed = True
        self._output.clear()
        self._output_size = 0
        self._on_output()

    def _fail(self, error: Fatal) -> None:
        self._write(encode_error(error.frame))
        self.close()

    def _incomplete(self, stop: int, code: bytes, text: bytes) -> int:
        self._missing = Fatal(code, text)
        return -stop

    # -- checks common to several commands -------------------------------------------------------

    def _check_tls(self, command: bytes) -> None:
        if not self.tls and command != b"IDENTIFY":
            text = b"cannot %s in current state (TLS required)" % command
            raise Fatal(b"E_INVALID", text)

    def _check_state(self, command: bytes, *allowed: int) -> None:
        if self.state not in allowed:
            raise Fatal(b"E_INVALID", b"cannot %s in current state" % command)

    def _unknown(self, params: list[bytes], data: bytes, offset: int) -> int:
        raise Fatal(b"E_INVALID", b"invalid command " + params[0])

    def _check_auth(self, command: bytes, topic: bytes, channel: bytes = b"") -> None:
        """May block: rights that ran out are asked for anew (nsq-reference 1.11)."""
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
        assert self._query_auth is not None
        try:
            return self._query_auth(self.peer.ip, self.tls, self.peer.common_name, self._secret)
        except AuthFailure:
            # The reason is in the log; clients that are not trusted do not get it.
            raise Fatal(b"E_AUTH_FAILED", b"AUTH failed") from None

    def _body(
        self, command: bytes, data: bytes, offset: int, max_size: int
    ) -> tuple[int, int] | int:
        """Where the body of IDENTIFY or AUTH lies, or a negative number when incomplete."""
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
        self._on_identified()
        if not asked.feature_negotiation:
            self._write(_OK)
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
            raise _insufficient(b"SUB")
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
        self._write(_OK)
        return offset

    def room(self) -> int:
        """How many messages this consumer takes now (nsq-reference 1.13)."""
        if self.state != SUBSCRIBED or self.closed or self.is_backlogged:
            return 0
        return max(0, self.ready_count - self.in_flight)

    def deliver(self, messages: list[QueuedMessage]) -> None:
        """Message frames into the output."""
        if not self._output:
            self._on_output()
        pack = _MESSAGE_HEAD.pack
        append = self._output.append
        for message in messages:
            body = message.body
            size = 30 + len(body)
            append(pack(size, FRAME_MESSAGE, message.timestamp, message.attempts, message.id))
            append(body)
            self._output_size += 4 + size
        self.message_count += len(messages)

    def _rdy(self, params: list[bytes], data: bytes, offset: int) -> int:
        if self.state == CLOSING:
            return offset
        self._check_state(b"RDY", SUBSCRIBED)
        count = 1
        if len(params) > 1:
            parsed = parse_base10(params[1])
            if parsed is None:
                raise Fatal(b"E_INVALID", b"RDY could not parse count " + params[1])
            count = _signed64(parsed)
        limit = self._options.max_rdy_count
        if not 0 <= count <= limit:
            raise Fatal(b"E_INVALID", b"RDY count %d out of range 0-%d" % (count, limit))
        self.ready_count = count
        self.wake_channel()
        return offset

    def wake_channel(self) -> None:
        """This consumer may have room again."""
        if self.channel is not None and self.channel.queue:
            self._broker.wake(self.channel)

    def _message_id(self, command: bytes, params: list[bytes], needed: int) -> bytes:
        if self.state != SUBSCRIBED and self.state != CLOSING:
            raise Fatal(b"E_INVALID", b"cannot %s in current state" % command)
        if len(params) < needed:
            raise _insufficient(command, b"params")
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
        # Go multiplies in 64 bits, so a huge number may come out negative and act as 0.
        delay = max(0, _signed64(millis * 1_000_000)) / 1e9
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

    # -- publishing --------------------------------------------------------------------------------

    def _topic_name(self, command: bytes, params: list[bytes], needed: int) -> bytes:
        if len(params) < needed:
            raise _insufficient(command)
        name = params[1]
        if name != self._last_topic[0] and not valid_name(name):
            text = b"%s topic name %s is not valid" % (command, go_quote(name))
            if command == b"MPUB":  # nsqd doubles the code here
                text = b"E_BAD_TOPIC " + text
            raise Fatal(b"E_BAD_TOPIC", text)
        return name

    def _topic(self, name: bytes) -> Topic:
        last_name, topic = self._last_topic
        if name != last_name or topic is None or topic.deleted:
            topic = self._broker.topic(name.decode())
            self._last_topic = (name, topic)
        return topic

    def _publish(self, command: bytes, topic: Topic, bodies: list[bytes], delay: float) -> None:
        try:
            topic.publish(bodies, delay)
        except TopicGone as error:
            text = b"%s failed %s" % (command, str(error).encode())
            raise Fatal(b"E_%s_FAILED" % command, text) from None
        self.pub_counts[topic.name] += len(bodies)
        self._write(_OK)

    def _pub(self, params: list[bytes], data: bytes, offset: int) -> int:
        return self._store_one(b"PUB", self._topic_name(b"PUB", params, 2), data, offset, 0.0)

    def _dpub(self, params: list[bytes], data: bytes, offset: int) -> int:
        name = self._topic_name(b"DPUB", params, 3)
        millis = parse_base10(params[2])
        if millis is None:
            raise Fatal(b"E_INVALID", b"DPUB could not parse timeout " + params[2])
        delay = _signed64(millis * 1_000_000) / 1e9
        limit = self._options.max_req_timeout
        if not 0 <= delay <= limit:
            text = b"DPUB timeout %d out of range 0-%d" % (millis, round(limit * 1000))
            raise Fatal(b"E_INVALID", text)
        return self._store_one(b"DPUB", name, data, offset, delay)

    def _store_one(
        self, command: bytes, name: bytes, data: bytes, offset: int, delay: float
    ) -> int:
        if len(data) - offset < 4:
            return self._incomplete(
                offset + 4, b"E_BAD_MESSAGE", command + b" failed to read message body size"
            )
        size = signed_int(data, offset)
        if size <= 0:
            text = b"%s invalid message body size %d" % (command, size)
            raise Fatal(b"E_BAD_MESSAGE", text)
        max_size = self._options.max_msg_size
        if size > max_size:
            text = b"%s message too big %d > %d" % (command, size, max_size)
            raise Fatal(b"E_BAD_MESSAGE", text)
        stop = offset + 4 + size
        if stop > len(data):
            return self._incomplete(
                stop, b"E_BAD_MESSAGE", command + b" failed to read message body"
            )
        body = data[offset + 4 : stop]
        self._check_auth(command, name)
        self._publish(command, self._topic(name), [body], delay)
        return stop

    def _mpub_line(self, params: list[bytes], data: bytes, offset: int) -> int:
        name = self._topic_name(b"MPUB", params, 2)
        self._check_auth(b"MPUB", name)
        topic = self._topic(name)
        if len(data) - offset < 4:
            return self._incomplete(offset + 4, b"E_BAD_BODY", b"MPUB failed to read body size")
        size = signed_int(data, offset)
        if size <= 0:
            raise Fatal(b"E_BAD_BODY", b"MPUB invalid body size %d" % size)
        limit = self._options.max_body_size
        if size > limit:
            raise Fatal(b"E_BAD_BODY", b"MPUB body too big %d > %d" % (size, limit))
        # From here on nsqd goes by the inner sizes and does not look at the total again.
        body = MpubBody(self._options.max_msg_size, limit)
        self._mpub = (topic, body)
        self._missing = body.missing
        return offset + 4

    def _read_mpub(self, data: bytes, offset: int) -> int:
        assert self._mpub is not None
        topic, body = self._mpub
        before = offset
        offset = body.read(data, offset)
        if body.done:
            self._mpub = None
            self._publish(b"MPUB", topic, body.bodies, 0.0)
            return offset
        self._missing = body.missing
        # Progress was made: come again with the rest; else wait for a whole piece.
        return offset if offset > before else -(offset + body.needs)
