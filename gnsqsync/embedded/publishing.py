"""PUB, MPUB and DPUB of one connection (docs/protocol/publishing#publish). No I/O.

Knows bodies and topics. The session knows which topics the client may publish to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gnsqsync.daemon.names import go_quote, valid_name
from gnsqsync.embedded.bodies import MpubBody
from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.command_stream import OK_FRAME, Command, CommandStream, insufficient
from gnsqsync.embedded.identify import Fatal
from gnsqsync.embedded.numbers import parse_base10, signed64, signed_int
from gnsqsync.embedded.queueing import DiskFailed
from gnsqsync.embedded.topic import Topic, TopicGone

__all__ = ["Publishing"]


class Publishing(CommandStream):
    """The publishing half of a Session. ``pub_counts``: published messages by topic, for /stats."""

    def __init__(
        self, broker: Broker, commands: dict[bytes, Command], on_output: Callable[[], None]
    ) -> None:
        super().__init__(commands, on_output)
        self._broker = broker
        self._options = broker.options
        self.pub_counts: Counter[str] = Counter()
        # The name and topic of the last publish, because the name needs no second check. No name
        # in a line contains \n.
        self._last_topic: tuple[bytes, Topic | None] = (b"\n", None)

    def _check_auth(self, command: bytes, topic: bytes, channel: bytes = b"") -> None:
        """Raise Fatal if the client has no right to the topic. Channel b"" means a publish."""
        raise NotImplementedError

    def _topic_name(self, command: bytes, params: list[bytes], needed: int) -> bytes:
        if len(params) < needed:
            raise insufficient(command)
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
        except (TopicGone, DiskFailed) as error:
            text = b"%s failed %s" % (command, str(error).encode())
            raise Fatal(b"E_%s_FAILED" % command, text) from None
        self.pub_counts[topic.name] += len(bodies)
        self._write(OK_FRAME)

    def _pub(self, params: list[bytes], data: bytes, offset: int) -> int:
        return self._store_one(b"PUB", self._topic_name(b"PUB", params, 2), data, offset, 0.0)

    def _dpub(self, params: list[bytes], data: bytes, offset: int) -> int:
        name = self._topic_name(b"DPUB", params, 3)
        millis = parse_base10(params[2])
        if millis is None:
            raise Fatal(b"E_INVALID", b"DPUB could not parse timeout " + params[2])
        delay = signed64(millis * 1_000_000) / 1e9
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

    def _mpub(self, params: list[bytes], data: bytes, offset: int) -> int:
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
        # nsqd reads the rest by the inner sizes and does not check the total again.
        body = MpubBody(self._options.max_msg_size, limit)
        self._missing = body.missing
        self._continue = lambda data, offset: self._read_mpub(topic, body, data, offset)
        return offset + 4

    def _read_mpub(self, topic: Topic, body: MpubBody, data: bytes, offset: int) -> int:
        before = offset
        offset = body.read(data, offset)
        if body.done:
            self._continue = None
            self._publish(b"MPUB", topic, body.bodies, 0.0)
            return offset
        self._missing = body.missing
        # After progress the caller goes on with the rest. Otherwise it waits for a whole piece.
        return offset if offset > before else -(offset + body.needs)
