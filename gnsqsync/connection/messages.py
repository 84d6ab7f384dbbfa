"""What a subscribed connection receives: bytes to messages, into the in-flight table, and on.

Knows frames and the table; knows no handler, no queue and no RDY but the level that counts
messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from gnsqsync import envelope
from gnsqsync.connection.in_flight import InFlight
from gnsqsync.connection.read_turn import ReadTurn, TurnState
from gnsqsync.connection.send_queue import SendQueue
from gnsqsync.connection.stream import RECV_SIZE, Stream
from gnsqsync.errors import ConnectionLost, NSQError, ProtocolError
from gnsqsync.message import Message
from gnsqsync.policy.latency import RdyLevel
from gnsqsync.runtime import Runtime
from gnsqsync.wire.frames import FrameDecoder, Reply

__all__ = ["Messages"]

# For so long (seconds) a worker waits for its next message before the reading thread goes on. It
# begins to read when messages come closer together than that.
_WORKER_SECONDS = 0.05


class Receiving(Protocol):
    """What reading needs of the connection that it reads for."""

    nsqd_address: str
    level: RdyLevel | None
    in_flight: InFlight
    send_queue: SendQueue
    hands_over: bool
    # Whether the worker may read: it is the only one, so is the nsqd, and its share is 1.
    lends: bool
    # Written by the thread that reads.
    received: int
    last_message_at: float
    last_frame_at: float
    unanswerable: int

    @property
    def msg_timeout(self) -> float: ...
    def on_reply(self, reply: Reply) -> None: ...


class _Worker:
    """The Caller of the turn."""

    # It waits for messages and not for one answer; and not for the turn.
    done = False
    latch = None


class Messages:
    """Receives and decodes for one connection.

    All of it belongs to the thread that has the turn to read. That is the reading thread, or the
    only worker between two messages, while one message may be in flight and no more: then a message
    costs no switch of threads.
    """

    def __init__(
        self,
        connection: Receiving,
        stream: Stream,
        decoder: FrameDecoder,
        runtime: Runtime,
        deliver: Callable[[list[Message]], None],
        *,
        headers: bool,
        silence: float,
    ) -> None:
        """``deliver``: as ``on_messages`` of a Consumer. ``headers``: open envelopes.

        ``silence``: seconds without a frame that are death.
        """
        assert connection.level is not None
        self._connection = connection
        self._deliver = deliver
        self._headers = headers
        self._stream = stream
        self._is_clear = stream.is_clear
        self._receive = stream.receive
        # What was received and not taken in yet: see Publishes.
        self._chunks: deque[bytes] = deque()
        self._decoder = decoder
        self._feed = decoder.feed
        self._send_queue = connection.send_queue
        self._level = connection.level
        self._in_flight = connection.in_flight
        self._now = runtime.now
        self._silence = silence
        self._turn = ReadTurn(runtime, connection.nsqd_address)
        self._worker = _Worker()
        # Whether messages come so close together that a worker need not wait long for the next.
        self._is_brisk = False

    def read(self, early: list[Reply]) -> None:
        """Until the connection ends; that is raised.

        ``early``: replies that came with the last answer of the handshake.
        """
        chunks, send_queue = self._chunks, self._send_queue
        self._hand_on([], early, self._deliver)
        came = False
        while True:
            if send_queue.has_unsent:
                send_queue.flush()
            if came and self._is_brisk and self._connection.lends:
                self._stand_aside()
            if not chunks:
                self._receive(chunks, RECV_SIZE)
            came = self._take_in(chunks.popleft(), self._deliver)

    def _stand_aside(self) -> None:
        """While the worker reads; returns with the turn."""
        self._turn.lend()
        while not self._turn.look():
            pass
        self._stream.set_read_timeout(self._silence)

    def read_for_worker(self) -> list[Message]:
        """Receive the next messages in the place of the reading thread; by the worker.

        None when that thread reads. It goes on when no message comes for a while, or at the end of
        the connection.
        """
        turn, worker, connection = self._turn, self._worker, self._connection
        messages: list[Message] = []
        deadline = self._now() + _WORKER_SECONDS
        if turn.state is not TurnState.FREE or not (
            turn.take(worker, deadline) or turn.leave(worker)
        ):
            return messages
        chunks, sound = self._chunks, True
        try:
            if self._stream.read_timeout != _WORKER_SECONDS:
                self._stream.set_read_timeout(_WORKER_SECONDS)
            while not messages and connection.lends and connection.hands_over:
                if not chunks:
                    self._receive(chunks, RECV_SIZE)
                sound = False
                self._take_in(chunks.popleft(), messages.extend)
                sound = True
                if self._send_queue.commands:
                    self._send_queue.flush()
                if not messages and self._now() >= deadline:
                    break
        except TimeoutError:
            pass  # the reading thread waits for more
        except (OSError, NSQError) as error:
            turn.fail(worker, error)
        except BaseException as error:
            # From outside: half of what was received may be taken in, and no thread can go on.
            if not sound:
                turn.fail(worker, ConnectionLost(f"reading was ended by {error!r}"))
            raise
        finally:
            turn.release(worker, None, not messages)
        return messages

    def _take_in(self, data: bytes, deliver: Callable[[list[Message]], None]) -> bool:
        """What was received; whether messages came. Raises what ends the connection."""
        came = False
        for portion in (data,) if self._is_clear else self._stream.decode_received(data):
            if not portion:
                raise ConnectionLost(f"{self._connection.nsqd_address} closed the connection")
            messages, replies = self._decode(portion)
            self._hand_on(messages, replies, deliver)
            came = came or bool(messages)
        return came

    def _hand_on(
        self,
        messages: list[Message],
        replies: list[Reply],
        deliver: Callable[[list[Message]], None],
    ) -> None:
        """What the decoder gave, and then what broke it."""
        for reply in replies:
            self._connection.on_reply(reply)
        if messages:
            deliver(messages)
        # Before the next receive: bytes left from the handshake may be the last that come.
        if self._decoder.broken is not None:
            raise ProtocolError(f"{self._connection.nsqd_address}: {self._decoder.broken}")

    def _decode(self, data: bytes) -> tuple[list[Message], list[Reply]]:
        """What was received: messages to be handled, already in the table, and replies."""
        connection = self._connection
        moment = self._now()
        connection.last_frame_at = moment
        messages, replies = self._feed(data, moment)
        if not messages:
            return messages, replies
        if self._headers:
            for message in messages:
                if message.body.startswith(envelope.MAGIC):
                    opened = envelope.split(message.body)
                    if opened is not None:
                        message._headers, message.body = opened
        count = len(messages)
        self._is_brisk = moment - connection.last_message_at < _WORKER_SECONDS
        connection.last_message_at = moment
        self._level.note(moment, count, moment - messages[-1].timestamp * 1e-9)
        table = self._in_flight
        had = len(table)
        add = table.setdefault
        again: list[Message] = []
        for message in messages:
            if add(message._id, message) is not message:
                again.append(message)
        if again:
            messages = self._redelivered(messages, again, moment)
        # After the table: a message that is counted was in flight (Load).
        connection.received += count
        allowed = self._level.allowed
        if len(table) > allowed:
            table.check_ceiling(had, messages, allowed, connection.nsqd_address)
        return messages, replies

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
