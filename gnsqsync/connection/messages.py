"""Receiving side of a subscribed connection: bytes to messages, into the table, and on.

Knows frames and the in-flight table. Must not know a handler, a queue, or RDY beyond the level
that counts messages.

The reading thread runs ``read``. While ``worker_may_read`` is true it stands aside, and the only
worker receives in its place (``read_for_worker``); the ReadTurn hands the turn between the two.

Surprise: a message that arrives need not reach a handler. If an older copy of it still waits in the
queue, the new delivery only updates that copy.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from gnsqsync import envelope
from gnsqsync.connection.answer_queue import AnswerQueue
from gnsqsync.connection.in_flight import InFlight
from gnsqsync.connection.read_turn import ReadTurn, TurnState
from gnsqsync.connection.stream import RECV_SIZE, Stream
from gnsqsync.errors import ConnectionLost, NSQError, ProtocolError
from gnsqsync.message import Message
from gnsqsync.policy.latency import RdyLevel
from gnsqsync.runtime import Runtime
from gnsqsync.wire.frames import FrameDecoder, Reply

__all__ = ["Messages"]

# Seconds after which a worker that reads the socket gives the turn back. A worker reads only while
# messages arrive faster than that.
_WORKER_SECONDS = 0.05


class Receiving(Protocol):
    """The attributes of a connection that its receiving side uses."""

    nsqd_address: str
    level: RdyLevel
    in_flight: InFlight
    send_queue: AnswerQueue
    # False while queued messages must not reach a handler.
    delivers: bool
    # True while the worker may read: one worker, one nsqd, and the RDY share is 1.
    worker_may_read: bool
    # The thread that reads writes the next three.
    received: int
    last_message_at: float
    unanswerable: int

    @property
    def msg_timeout(self) -> float: ...
    def on_reply(self, reply: Reply) -> None: ...


class _Worker:
    """Caller of the ReadTurn that stands for the one worker."""

    # A worker waits for messages, not for one answer, so it is never done and never woken.
    done = False
    latch = None


class Messages:
    """Receiver and decoder of one connection.

    Every field belongs to the thread that holds the turn to read. That is the reading thread, or
    the only worker between two messages, while RDY allows one message in flight. A message then
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
        """``deliver``: ``on_messages`` of a Consumer. ``headers``: open envelopes.

        ``silence``: seconds without a frame after which nsqd counts as dead.
        """
        self._connection = connection
        self._deliver = deliver
        self._headers = headers
        self._stream = stream
        self._is_clear = stream.is_clear
        self._receive = stream.receive
        # Received chunks that were not decoded yet; Publishes says why they are kept.
        self._chunks: deque[bytes] = deque()
        self._decoder = decoder
        self._feed = decoder.feed
        self._send_queue = connection.send_queue
        self._level = connection.level
        self._in_flight = connection.in_flight
        self._now = runtime.now
        # Time at which bytes were last decoded.
        self.last_frame_at: float = runtime.now()
        self._silence = silence
        self._turn = ReadTurn(runtime, connection.nsqd_address)
        self._worker = _Worker()
        # True while messages arrive within _WORKER_SECONDS of each other.
        self._is_brisk = False

    def read(self, early: list[Reply]) -> None:
        """Read until the connection ends, then raise the reason.

        ``early``: replies that arrived with the last answer of the handshake.
        """
        chunks, send_queue = self._chunks, self._send_queue
        self._hand_on([], early, self._deliver)
        came = False
        while True:
            if send_queue.has_unsent:
                send_queue.flush()
            if came and self._is_brisk and self._connection.worker_may_read:
                self._stand_aside()
            if not chunks:
                self._receive(chunks, RECV_SIZE)
            came = self._take_in(chunks.popleft(), self._deliver)

    def _stand_aside(self) -> None:
        """Let the worker read, and return when the turn has come back."""
        self._turn.lend()
        if not self._connection.worker_may_read:
            # The permission ended just before: its recall met a turn that was not lent.
            self._turn.recall()
        while not self._turn.look():
            pass
        self._stream.set_read_timeout(self._silence)

    def recall(self) -> None:
        """Let the reading thread read again, as soon as the worker has released the turn."""
        self._turn.recall()

    def read_for_worker(self) -> list[Message]:
        """Receive the next messages in place of the reading thread. Called by the worker.

        Return an empty list if the reading thread has the turn. That thread reads again when no
        message comes for _WORKER_SECONDS, or at the end of the connection.
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
            while not messages and connection.worker_may_read and connection.delivers:
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
            pass  # the reading thread takes the turn back and waits for more
        except (OSError, NSQError) as error:
            turn.fail(worker, error)
        except BaseException as error:
            # A kill may leave a chunk half decoded; then no thread can go on reading.
            if not sound:
                turn.fail(worker, ConnectionLost(f"reading was ended by {error!r}"))
            raise
        finally:
            turn.release(worker, None, not messages)
        return messages

    def _take_in(self, data: bytes, deliver: Callable[[list[Message]], None]) -> bool:
        """Decode and pass on one chunk. Return True if messages came. Raise what ended the read."""
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
        """Pass on what the decoder returned, then raise what broke the decoder."""
        for reply in replies:
            self._connection.on_reply(reply)
        if messages:
            deliver(messages)
        # Raised before the next receive: bytes left from the handshake may be the last that come.
        if self._decoder.broken is not None:
            raise ProtocolError(f"{self._connection.nsqd_address}: {self._decoder.broken}")

    def _decode(self, data: bytes) -> tuple[list[Message], list[Reply]]:
        """Decode bytes. Return the messages to handle, already in the table, and the replies."""
        connection = self._connection
        moment = self._now()
        self.last_frame_at = moment
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
        # Counted after they are in the table, so that Load never counts a message not in flight.
        connection.received += count
        allowed = self._level.allowed
        if len(table) > allowed:
            table.check_ceiling(had, messages, allowed, connection.nsqd_address)
        return messages, replies

    def _redelivered(
        self, messages: list[Message], again: list[Message], moment: float
    ) -> list[Message]:
        """Return the ``messages`` to handle. The ids of those in ``again`` were in the table."""
        connection = self._connection
        # A copy received after this cannot have timed out, even after a long way here.
        waiting_from = moment - connection.msg_timeout / 2
        dropped = set()
        for message in again:
            is_new, is_double = self._in_flight.redelivered(message, waiting_from)
            if not is_new:
                dropped.add(message)
            connection.unanswerable += is_double
        return [message for message in messages if message not in dropped]
