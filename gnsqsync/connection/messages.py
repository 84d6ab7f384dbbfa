"""What a subscribed connection receives: bytes to messages, into the in-flight table, and on.

Knows frames and the table; knows no handler, no queue and no RDY but the level that counts
messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gnsqsync import envelope
from gnsqsync.connection.in_flight import InFlight
from gnsqsync.connection.send_queue import SendQueue
from gnsqsync.connection.stream import Stream
from gnsqsync.errors import ProtocolError
from gnsqsync.message import Message
from gnsqsync.policy.latency import RdyLevel
from gnsqsync.runtime import Runtime
from gnsqsync.wire.frames import FrameDecoder, Reply

__all__ = ["Messages"]


class Receiving(Protocol):
    """What reading needs of the connection that it reads for."""

    nsqd_address: str
    level: RdyLevel | None
    in_flight: InFlight
    send_queue: SendQueue
    # Written by the reading thread.
    received: int
    last_message_at: float
    last_frame_at: float
    unanswerable: int

    @property
    def msg_timeout(self) -> float: ...
    def on_reply(self, reply: Reply) -> None: ...


class Messages:
    """Receives and decodes for one connection. All of it is the reading thread's."""

    def __init__(
        self,
        connection: Receiving,
        stream: Stream,
        decoder: FrameDecoder,
        runtime: Runtime,
        deliver: Callable[[list[Message]], None],
        *,
        headers: bool,
    ) -> None:
        """``deliver``: as ``on_messages`` of a Consumer. ``headers``: open envelopes."""
        assert connection.level is not None
        self._connection = connection
        self._deliver = deliver
        self._headers = headers
        self._recv = stream.recv
        self._decoder = decoder
        self._send_queue = connection.send_queue
        self._level = connection.level
        self._in_flight = connection.in_flight
        self._now = runtime.now

    def read(self, early: list[Reply]) -> None:
        """Until the end of the stream; what breaks the connection is raised.

        ``early``: replies that came with the last answer of the handshake.
        """
        connection, send_queue, decoder = self._connection, self._send_queue, self._decoder
        recv, feed, now = self._recv, self._decoder.feed, self._now
        messages: list[Message] = []
        replies = early
        while True:
            for reply in replies:
                connection.on_reply(reply)
            if messages:
                self._deliver(messages)
            # Before the next receive: bytes left from the handshake may be the last that come.
            if decoder.broken is not None:
                raise ProtocolError(f"{connection.nsqd_address}: {decoder.broken}")
            if send_queue.has_unsent:
                send_queue.flush()
            data = recv()
            if not data:
                return
            connection.last_frame_at = moment = now()
            messages, replies = feed(data, moment)
            if messages:
                messages = self._take_in(messages, moment)

    def _take_in(self, messages: list[Message], moment: float) -> list[Message]:
        """Enter them in the in-flight table. Returns what is to be handled."""
        connection = self._connection
        if self._headers:
            for message in messages:
                if message.body.startswith(envelope.MAGIC):
                    opened = envelope.split(message.body)
                    if opened is not None:
                        message._headers, message.body = opened
        connection.received += len(messages)
        connection.last_message_at = moment
        self._level.note(moment, len(messages), moment - messages[-1].timestamp * 1e-9)
        table = self._in_flight
        had = len(table)
        add = table.setdefault
        again: list[Message] = []
        for message in messages:
            if add(message._id, message) is not message:
                again.append(message)
        wanted = self._redelivered(messages, again, moment) if again else messages
        allowed = self._level.allowed
        if len(table) > allowed:
            table.check_ceiling(had, wanted, allowed, connection.nsqd_address)
        return wanted

    def _redelivered(
        self, messages: list[Message], again: list[Message], moment: float
    ) -> list[Message]:
        """``again``: those of ``messages`` whose ids are there. Returns what is to be handled."""
        connection = self._connection
        # What came later than that cannot have timed out, however long it was under way.
        waiting_from = moment - connection.msg_timeout / 2
        dropped = set()
        for message in again:
            is_new, is_double = self._in_flight.redelivered(message, waiting_from)
            if not is_new:
                dropped.add(message)
            connection.unanswerable += is_double
        return [message for message in messages if message not in dropped]
