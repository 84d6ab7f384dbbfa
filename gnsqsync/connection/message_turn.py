"""What a subscribed connection receives, and who receives it: its reading thread, or a worker.

Knows frames and turns; knows no handler, no queue and no RDY but the level that counts messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from gnsqsync.connection.in_flight import InFlight
from gnsqsync.connection.send_queue import SendQueue
from gnsqsync.connection.stream import RECV_SIZE, Stream
from gnsqsync.errors import ConnectionLost, NSQError, ProtocolError
from gnsqsync.message import Message
from gnsqsync.policy.latency import RdyLevel
from gnsqsync.runtime import Runtime
from gnsqsync.wire.frames import FrameDecoder, Reply

__all__ = ["MessageTurn"]

# So many messages came one by one, each so soon after the one before, when a worker may read.
_LEND_AFTER = 32
_NEAR_SECONDS = 0.005
# How long a worker waits for the next message before the reading thread does.
_TURN_SECONDS = 0.01
# How often the reading thread looks, while a worker reads, whether it still does. A handler that
# runs longer than one or two looks has the reading thread reading beside it.
_LOOK_SECONDS = 0.05
# How long a worker may sit on the right without a receive; then it was killed with it.
_GRACE_SECONDS = 5.0


class Receiving(Protocol):
    """What a turn needs of the connection that it reads for."""

    nsqd_address: str
    closing: bool
    level: RdyLevel | None
    in_flight: InFlight
    send_queue: SendQueue
    # Written by whoever reads.
    received: int
    last_message_at: float
    last_frame_at: float
    unanswerable: int

    @property
    def msg_timeout(self) -> float: ...
    def on_reply(self, reply: Reply) -> None: ...


class MessageTurn:
    """Receives and decodes for one connection.

    One at a time has the right to read. It is the reading thread's, which hands messages over
    and never runs a handler. While messages come one by one and quickly to a lone worker, each
    would cost a hop to that worker, so with one of them it lends the right: having answered it,
    the worker reads the next message itself (``read_one``), and so on. The right lies free while
    the handler runs. The reading thread looks every 0.05 s, and takes the right back when a
    handler runs that long, at once when more came than one message, and when it is recalled, as
    by a worker that goes on otherwise.

    ``_right`` guards the receiving side: stream, decoder, level, ``_chunks``, ``_left`` and the
    fields of the connection that are the reading side's. It is only ever tried. A worker that
    meets an error keeps it for ever, and the reading thread ends the connection.
    """

    def __init__(
        self,
        connection: Receiving,
        stream: Stream,
        decoder: FrameDecoder,
        runtime: Runtime,
        *,
        silence: float,
        deliver: Callable[[list[Message], MessageTurn | None], None],
        may_lend: Callable[[], bool],
        on_read: Callable[[], None],
    ) -> None:
        """``silence``: seconds without a frame that are death.

        ``deliver``, ``may_lend``, ``on_read``: as ``on_messages``, ``may_read`` and ``on_read`` of
        a Consumer.
        """
        assert connection.level is not None
        self._connection = connection
        self._hand_over = deliver
        self._may_be_lent = may_lend
        self._on_read = on_read
        self._stream = stream
        self._receive = stream.receive
        self._decoder = decoder
        self._feed = decoder.feed
        self._send_queue = connection.send_queue
        self._level = connection.level
        self._in_flight = connection.in_flight
        self._now = runtime.now
        self._silence = silence
        self._right = runtime.baton()
        self._right.acquire(False)
        # Received and not decoded: what a worker was killed over, or the end that it met.
        self._chunks: deque[bytes] = deque()
        # Decoded by a worker, for the reading thread to deliver.
        self._left: tuple[list[Message], list[Reply]] | None = None
        self._failure: BaseException | None = None
        self._called = runtime.event()
        # Whether the reading thread has the right or wants it.
        self._wanted = True
        # Receives of workers, ever.
        self._turns = 0
        # Messages in a row that came one by one and quickly.
        self._row = 0

    # -- the reading thread ------------------------------------------------------------------

    def read(self, early: list[Reply]) -> None:
        """Until the end of the stream; what breaks the connection is raised.

        ``early``: replies that came with the last answer of the handshake.
        """
        self._deliver([], early)
        recv, chunks, send_queue, decoder = (
            self._stream.recv,
            self._chunks,
            self._send_queue,
            self._decoder,
        )
        while True:
            # First, for what the handshake left behind: it may be the last that comes.
            if decoder.broken is not None:
                raise ProtocolError(f"{self._connection.nsqd_address}: {decoder.broken}")
            if send_queue.has_unsent:
                send_queue.flush()
            data = chunks.popleft() if chunks else recv()
            if not data:
                return
            before = self._connection.last_message_at
            messages, replies = self._take_in(data)
            if len(messages) == 1 and not replies and self._may_lend(before):
                self._lend(messages)
            else:
                self._deliver(messages, replies)

    def _take_in(self, data: bytes) -> tuple[list[Message], list[Reply]]:
        connection = self._connection
        connection.last_frame_at = moment = self._now()
        messages, replies = self._feed(data, moment)
        if messages:
            connection.received += len(messages)
            connection.last_message_at = moment
            self._level.note(moment, len(messages))
            table = self._in_flight
            had = len(table)
            add = table.setdefault
            again: list[Message] = []
            for message in messages:
                if add(message._id, message) is not message:
                    again.append(message)
            if again:
                messages = self._take_in_again(messages, again, moment)
            allowed = self._level.allowed
            if len(table) > allowed:
                table.check_ceiling(had, messages, allowed, connection.nsqd_address)
        return messages, replies

    def _take_in_again(
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

    def _deliver(self, messages: list[Message], replies: list[Reply]) -> None:
        if len(messages) > 1:
            self._row = 0
        for reply in replies:
            self._connection.on_reply(reply)
        if messages:
            self._hand_over(messages, None)

    def _may_lend(self, before: float) -> bool:
        """Whether a worker may read from now on; ``before``: when the last message came."""
        if self._connection.last_message_at - before > _NEAR_SECONDS:
            self._row = 0
            return False
        self._row += 1
        # Layers may hold back what they have decoded; and there the hop is not what costs.
        if self._row < _LEND_AFTER or not self._stream.is_clear:
            return False
        # A call from before is answered: this thread has been reading. One that comes behind
        # these looks is not lost.
        self._wanted = False
        self._called.clear()
        if not self._connection.closing and self._may_be_lent():
            return True
        self._wanted = True
        self._row = 0
        return False

    def _lend(self, messages: list[Message]) -> None:
        """Hand the message over together with the right; returns with the right."""
        self._row = 0
        self._stream.set_read_timeout(_TURN_SECONDS)
        self._right.release()
        self._hand_over(messages, self)
        self._stand_aside()
        self._stream.set_read_timeout(self._silence)
        left, self._left = self._left, None
        if left is not None:
            self._deliver(*left)

    def _stand_aside(self) -> None:
        called, right = self._called, self._right
        seen = self._turns
        since = self._now()
        while True:
            called.wait(_LOOK_SECONDS)
            called.clear()
            if self._failure is not None:
                raise self._failure
            if seen != self._turns:
                seen, since = self._turns, self._now()
                if not self._wanted:
                    continue
            # In this order: who releases the right before the try sees that it is wanted, or
            # the try succeeds.
            self._wanted = True
            if right.acquire(False):
                return
            if self._now() - since > _GRACE_SECONDS:
                # Somebody was killed between two instructions, with the right in its hands.
                address = self._connection.nsqd_address
                raise ConnectionLost(f"the worker that read from {address} was killed")

    def recall(self) -> None:
        """Have the reading thread read, as soon as a worker lets go. From any thread."""
        self._wanted = True
        self._called.set()

    # -- a worker ----------------------------------------------------------------------------

    def read_one(self) -> list[Message] | None:
        """The next message, alone in its list, which has to be answered before the next call.

        None when the turn is over: then the reading thread reads. By the worker whose turn it is.
        """
        chunks = self._chunks
        if self._wanted or not self._right.acquire(False):
            # Taken back: the handler was slow. Or wanted, and free for who wants it.
            self._called.set()
            return None
        sound = True
        kept = False
        try:
            while not self._wanted and self._decoder.broken is None:
                if not chunks:
                    try:
                        self._receive(chunks, RECV_SIZE)
                    except TimeoutError:
                        break
                self._turns += 1
                if not chunks[0]:
                    break
                sound = False
                messages, replies = self._take_in(chunks.popleft())
                if replies or len(messages) > 1:
                    # What replies lead to is the reading thread's; and many messages are cheaper
                    # to hand over than to read one by one.
                    self._left = messages, replies
                    sound = True
                    break
                if messages:
                    self._on_read()
                    kept = True
                    return messages
                sound = True
        except (OSError, NSQError) as error:
            self._failure = error
        except BaseException as error:
            if not sound:
                # Half of what was received may be taken in; nobody can go on from there.
                self._failure = ConnectionLost(f"reading was ended by {error!r}")
            raise
        finally:
            self._let_go(kept)
        return None

    def _let_go(self, kept: bool) -> None:
        if self._failure is None:
            if not kept:
                self._wanted = True
            self._right.release()
        else:
            self._wanted = True
        if self._wanted:
            self._called.set()
