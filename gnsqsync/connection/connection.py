"""One connection to one nsqd: the reading loop, the in-flight table, loss and close.

Decides nothing about RDY, backoff or redials and runs no user code: it tells its owner.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from enum import IntEnum
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from gnsqsync.addresses import Address
from gnsqsync.connection.in_flight import InFlight
from gnsqsync.connection.messages import Messages
from gnsqsync.connection.opening import Opening
from gnsqsync.connection.publishes import Publishes
from gnsqsync.connection.send_queue import SendQueue
from gnsqsync.connection.stream import Stream
from gnsqsync.errors import (
    ClosedError,
    ConnectionLost,
    NSQError,
    ProtocolError,
    ServerError,
    TouchFailed,
    server_error,
)
from gnsqsync.foreign import repr_of
from gnsqsync.message import ANSWERED, BEGUN, DETACHED, DONE, TIMED_OUT, Fate, Message
from gnsqsync.options import ConnectionOptions
from gnsqsync.policy.latency import RdyLevel
from gnsqsync.runtime import Runtime
from gnsqsync.wire import commands
from gnsqsync.wire.frames import FRAME_RESPONSE, FrameDecoder, Reply
from gnsqsync.wire.handshake import Negotiated

__all__ = ["PASSING_WAIT", "Connection", "Consumer", "Owner", "State"]

log: logging.Logger = logging.getLogger("gnsqsync.connection")

_OK = b"OK"
_HEARTBEAT = b"_heartbeat_"
_CLOSE_WAIT = b"CLOSE_WAIT"

# How long a thread that only passes by waits for room in the kernel's buffer.
PASSING_WAIT = 1.0


class State(IntEnum):
    """Where a connection is in its life. It only goes forward, and may leave states out."""

    DIALLING = 0
    OPEN = 1
    # CLS was sent, or the end of our side; its end is no news.
    CLOSING = 2
    # nsqd has answered CLS: no message comes any more.
    DRAINED = 3
    CLOSED = 4


class Owner(Protocol):
    """Whom a connection tells about its end."""

    def on_lost(self, connection: Connection, reason: Exception) -> None:
        """It is gone, once; messages are orphaned, publishes failed. By the reading thread."""


class Consumer(Protocol):
    """Whom a subscribed connection tells about messages."""

    def on_messages(self, connection: Connection, messages: list[Message]) -> None:
        """New ones, already in the in-flight table. By the reading thread: must not block."""

    def on_quiet(self, connection: Connection) -> None:
        """nsqd has answered CLS: no more messages. By the thread that reads."""

    def on_answer_failed(self, connection: Connection, message_id: str, error: ServerError) -> None:
        """nsqd refused a FIN, REQ or TOUCH: not ours any more. By the thread that reads."""

    def on_answered(self, connection: Connection, message: Message, success: bool | None) -> None:
        """A message was answered by a call on it; by the calling thread, outside all locks.

        ``success``: True for FIN, False for REQ with backoff, None for REQ without.
        """

    def on_handed_back(self, message: Message) -> None:
        """A message goes back to nsqd unhandled. From any thread; must not block."""

    def on_failure(self, connection: Connection, message: Message) -> Fate | None:
        """A REQ with backoff is about to be sent; by the calling thread, outside all locks.

        None: send it. Else it was the last attempt, and this is what became of the message.
        """

    def on_finished(self, count: int) -> None:
        """So many were finished by one call; by the calling thread, outside all locks."""

    def requeue_delay_for(self, message: Message) -> float:
        """Seconds of a REQ without a delay of its own."""


class Connection:
    """A connection to ``address``, for publishing (no topic) or subscribed to topic and channel.

    Lock-free on purpose: the thread that reads adds to ``in_flight``; the thread that succeeds with
    ``pop`` answers, so two threads cannot both send FIN, and ``len`` is the in-flight count.
    ``received``, ``last_message_at`` and ``last_frame_at`` are written by the thread that reads.
    """

    def __init__(
        self,
        address: Address,
        options: ConnectionOptions,
        runtime: Runtime,
        owner: Owner,
        *,
        topic: str | None = None,
        channel: str | None = None,
        consumer: Consumer | None = None,
        adaptive: bool = True,
        headers: bool = False,
    ) -> None:
        """``headers``: whether messages come in envelopes, which are opened."""
        self.address = address
        self.nsqd_address: str = str(address)
        self.in_flight: InFlight = InFlight()
        self.received: int = 0
        self.last_message_at: float = 0.0
        self.last_frame_at: float = 0.0
        self.connected_at: float = 0.0
        self.answers_failed: int = 0
        # Messages that nsqd let nobody answer here: FIN or REQ refused, or TOUCH, and then no FIN;
        # and doubles of messages in flight, which get no answer of their own.
        self.unanswerable: int = 0
        # How much later (seconds) SUB was answered than IDENTIFY.
        self.sub_delay: float = 0.0
        self.state: State = State.DIALLING
        # Whether its end was asked for, which then is no news.
        self.end_was_asked: bool = False
        # False while queued messages must not reach a handler: in a pause, and at the end.
        self.hands_over: bool = True
        # True from the moment when none will reach a handler any more.
        self._is_past: bool = False
        # Whether a worker may read from it, in the place of the reading thread.
        self.lends: bool = False
        self.level: RdyLevel | None = RdyLevel(adaptive) if consumer is not None else None
        # Guards the change of state.
        self._mutex = runtime.mutex()
        self._options = options
        self._runtime = runtime
        self._owner = owner
        self._consumer = consumer
        # "" where it publishes.
        self.topic: str = topic or ""
        self.channel: str = channel or ""
        self._headers = headers
        # Whether nsqd deletes the channel with its last connection.
        self.is_ephemeral: bool = self.channel.endswith("#ephemeral")
        self._opening: Opening | None = None
        self._stream: Stream | None = None
        self._decoder = FrameDecoder(self, options.max_frame_size)
        self._early: list[Reply] = []
        # Detached messages that were answered and that somebody still holds, by id: nsqd may
        # refuse the answer. Only ever single items are set and taken.
        self._answered_late: WeakValueDictionary[bytes, Message] = WeakValueDictionary()

    # Filled by open(); before it there is nothing to answer and nothing to publish.
    send_queue: SendQueue
    # Of a connection that publishes: it then reads, too.
    publishes: Publishes
    # Of one that is subscribed.
    messages: Messages
    negotiated: Negotiated

    @property
    def reached(self) -> bool:
        """True once the dial has got a connection, before the handshake."""
        return self._stream is not None

    def _move(self, to: State) -> bool:
        """Whether the connection was not there yet, nor further."""
        with self._mutex:
            if to <= self.state:
                return False
            self.end_was_asked = self.end_was_asked or to is State.CLOSING
            self.state = to
            return True

    def open(self, timeout: float | None = None) -> None:
        """Dial and do the whole handshake, within ``connect_timeout`` or ``timeout`` seconds.

        Raises as Opening.run. The caller then starts ``read`` on the reading thread.
        """
        opening = Opening(
            self.address,
            self._options,
            self._runtime,
            self._decoder,
            topic=self.topic or None,
            channel=self.channel or None,
        )
        self._opening = opening
        # After the assignment: a close that comes later finds something to cut.
        if self.end_was_asked:
            raise ClosedError(f"closed before {self.nsqd_address} was dialled")
        limit = self._options.connect_timeout
        self.negotiated = opening.run(self._use, limit if timeout is None else min(limit, timeout))
        self._early.extend(opening.replies)
        if self.level is not None:
            self.level.set_round_trip(opening.round_trip)
            self.sub_delay = opening.last_took - opening.round_trip
        stream = self._stream
        assert stream is not None
        heartbeat = self._options.heartbeat_interval
        # Two silent heartbeats are death (docs/protocol/timeouts#heartbeats).
        stream.set_read_timeout(2 * heartbeat)
        self.send_queue = SendQueue(
            stream,
            self._runtime,
            level=self.level,
            in_flight=self.in_flight.__len__,
            stall_timeout=heartbeat,
        )
        if self._consumer is None:
            self.publishes = Publishes(
                stream,
                self.send_queue,
                self._decoder,
                self._runtime,
                nsqd_address=self.nsqd_address,
                on_reply=self.on_reply,
                silence=2 * heartbeat,
            )
        else:
            consumer = self._consumer
            self.messages = Messages(
                self,
                stream,
                self._decoder,
                self._runtime,
                partial(consumer.on_messages, self),
                headers=self._headers,
                silence=2 * heartbeat,
            )
        self.connected_at = self.last_frame_at = self.last_message_at = self._runtime.now()
        self._move(State.OPEN)
        if self.negotiated.auth_ignored:
            log.warning(
                "%s does not ask for AUTH; the auth_secret was not sent",
                self.nsqd_address,
                extra={"nsqd": self.nsqd_address},
            )

    def _use(self, stream: Stream) -> None:
        self._stream = stream
        # close() may have come while the dial was under way, when there was nothing to shut.
        if self.end_was_asked:
            stream.shutdown()

    # -- the reading thread ----------------------------------------------------------------

    def read(self) -> None:
        """Receive until the end, then lose the connection. The body of the reading thread."""
        reason: Exception = ConnectionLost(f"{self.nsqd_address} closed the connection")
        try:
            if self._consumer is None:
                self.publishes.read(self._early)
            else:
                self.messages.read(self._early)
        except TimeoutError:
            silence = 2 * self._options.heartbeat_interval
            reason = ConnectionLost(f"{self.nsqd_address} was silent for {silence:g} s")
        except OSError as error:
            reason = ConnectionLost(f"connection to {self.nsqd_address} failed: {error}")
        except NSQError as error:
            reason = error
        except BaseException as error:
            # From outside, or by a callback of a user's future: it ends the connection.
            reason = ConnectionLost(f"reading from {self.nsqd_address} ended: {repr_of(error)}")
            raise
        finally:
            broken = self.send_queue.broken
            try:
                if isinstance(reason, ServerError):
                    # Of all that waits for an answer, this is the oldest one's.
                    self.send_queue.refuse_oldest(self.nsqd_address, reason)
                elif broken is not None:
                    reason = ConnectionLost(f"sending to {self.nsqd_address} failed: {broken}")
            finally:
                # Also where a callback of a future ends this thread.
                self.lose(reason)

    def not_read(self, seconds: float) -> float | None:
        """For how long nothing was received, if ``read`` would have ended so many seconds ago.

        Once it is open. Takes no lock.
        """
        last = self.publishes.replies if self._consumer is None else self
        since = self._runtime.now() - last.last_frame_at
        return since if since > 2 * self._options.heartbeat_interval + seconds else None

    def on_reply(self, reply: Reply) -> None:
        """A reply that answers no publish. By the thread that reads."""
        kind, data = reply
        if kind == FRAME_RESPONSE:
            if data == _HEARTBEAT:
                self.send_queue.answer_heartbeat()
            elif data == _CLOSE_WAIT and self.end_was_asked:
                if self._move(State.DRAINED) and self._consumer is not None:
                    self._consumer.on_quiet(self)
            else:
                why = "but no publish waits for an answer" if data == _OK else "which nobody asked"
                raise ProtocolError(f"{self.nsqd_address} sent {data[:64]!r}, {why}")
            return
        error = server_error(data)
        if not error.fatal:
            # Never a publish's answer: FIN, REQ and TOUCH have no place in the queue of answers.
            self._answer_failed(error)
            return
        # After a fatal error nsqd reads no more commands and closes the connection
        # (docs/protocol/commands#unread-body). So it did not read what was sent later.
        self.send_queue.peer_stopped = True
        # Not waiting for the EOF, which would tell less.
        if " failed to read " in error.detail:
            # Part of a publish came in the time of two heartbeats
            # (docs/protocol/timeouts#heartbeats). Whatever the code says, it is not the message
            # that is wrong.
            raise ConnectionLost(f"{self.nsqd_address} waited too long for a publish: {error}")
        raise error

    def _answer_failed(self, error: ServerError) -> None:
        self.answers_failed += 1
        # "FIN 0123456789abcdef failed ID not in flight"
        message_id = [*error.detail.split(" "), "", ""][1]
        if isinstance(error, TouchFailed):
            for message in list(self.in_flight.values()):
                # What came together with it was sent after it: nsqd delivers the message again.
                if message.id == message_id and message._received_at < self.last_frame_at:
                    message._status |= TIMED_OUT
                    self.unanswerable += 1
                    # What waits for its turn keeps its place until then; it is not handled.
                    if message._status & BEGUN:
                        self.in_flight.forget(message)
        else:
            self.unanswerable += 1
            answered = self._answered_late.pop(message_id.encode(), None)
            if answered is not None:
                answered._status |= TIMED_OUT
        if self._consumer is not None:
            self._consumer.on_answer_failed(self, message_id, error)

    def lose(self, reason: Exception) -> None:
        """The one path of every loss; by the reading thread, once, or where none could start.

        1. no more answers are taken, and a sender that blocks is woken;
        2. the socket closes; publishes learn what is known of them;
        3. what is in flight is orphaned: it comes again after its timeout
           (docs/protocol/errors#closing);
        4. the owner forgets the connection.
        """
        self._move(State.CLOSED)
        self.hand_over_no_more()
        stream = self._stream
        assert stream is not None
        stream.shutdown()
        try:
            if self._consumer is None:
                # A publisher may have read their answers just before it met the end.
                self.publishes.replies.end_futures()
        finally:
            try:
                self.send_queue.close(reason)
            finally:
                self.in_flight.clear()
                self._owner.on_lost(self, reason)

    # -- answers, from any thread ----------------------------------------------------------

    @property
    def published(self) -> int:
        """Messages that nsqd has confirmed."""
        publishes = self.connected_at and self._consumer is None
        return self.publishes.replies.published if publishes else 0

    @property
    def msg_timeout(self) -> float:
        return self.negotiated.msg_timeout

    @property
    def max_msg_timeout(self) -> float:
        return self.negotiated.max_msg_timeout

    @property
    def is_closed(self) -> bool:
        return self.state is State.CLOSED

    def is_in_flight(self, message: Message) -> bool:
        return self.in_flight.holds(message)

    def take(self, message: Message, status: int = ANSWERED) -> bool:
        """Take the message out of the in-flight table. The thread that succeeds answers it.

        ``status``: the bits that the message then gets, in one step.
        """
        if not self.in_flight.take(message):
            return False
        if message._status & DETACHED:
            # Before the answer is queued: any flush may send it, and nsqd refuse it.
            self._answered_late[message._id] = message
        message._status |= status
        return True

    def finish(self, message: Message) -> bool:
        if not self.finish_quietly(message, ANSWERED | DONE):
            return False
        self._answered(message, True)
        return True

    def finish_quietly(self, message: Message, status: int = ANSWERED) -> bool:
        """Queue FIN, tell the owner nothing, and leave the flush to the caller.

        ``status``: as ``take`` has it. Without DONE the message is given up or discarded.
        """
        if not self.take(message, status):
            return False
        self.send_queue.fins.append(message._id)
        return True

    def finish_many(self, messages: Iterable[Message]) -> int:
        """FIN for those that are in flight, written at once; how many."""
        fins = self.send_queue.fins
        count = 0
        for message in messages:
            if self.take(message, ANSWERED | DONE):
                fins.append(message._id)
                count += 1
        if count and self._consumer is not None:
            self._consumer.on_finished(count)
        self.send_queue.flush(PASSING_WAIT)
        return count

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> bool:
        fate: Fate | None = None
        if backoff and self._consumer is not None:
            fate = self._consumer.on_failure(self, message)
        if fate is Fate.GONE or (fate is None and not self.requeue_quietly(message, delay)):
            return False
        self._answered(message, False if backoff and fate is not Fate.KEPT else None)
        return True

    def requeue_quietly(self, message: Message, delay: float | None) -> bool:
        """REQ that tells the owner nothing and leaves the flush to the caller."""
        if delay is None:
            delay = self.requeue_delay_for(message)
        if not self.take(message):
            return False
        # nsqd lowers what is above its own limit; infinity must not end a worker here.
        delay_ms = round(min(delay, commands.MAX_DELAY_MS / 1000) * 1000)
        self.send_queue.commands.append(commands.req(message._id, delay_ms))
        return True

    def hand_back(self, message: Message) -> None:
        """REQ 0 for a message that no handler has begun; the caller flushes."""
        if self.requeue_quietly(message, 0) and self._consumer is not None:
            self._consumer.on_handed_back(message)

    def requeue_delay_for(self, message: Message) -> float:
        """Seconds until it comes again, where the call that requeues it gives none."""
        return 0.0 if self._consumer is None else self._consumer.requeue_delay_for(message)

    def touch(self, message: Message) -> bool:
        if message._status & (TIMED_OUT | ANSWERED) or not self.in_flight.holds(message):
            return False
        # Of all its copies: nsqd has one, under this id.
        latest = self.in_flight.get(message._id, message)
        message._touched_at = latest._touched_at = self._runtime.now()
        self.send_queue.commands.append(commands.touch(message._id))
        self.send_queue.flush(PASSING_WAIT)
        return True

    def _answered(self, message: Message, success: bool | None) -> None:
        if self._consumer is not None:
            self._consumer.on_answered(self, message, success)
        # A worker flushes at the end of its chunk, the sweep within 0.1 s; a detached message
        # has no worker.
        if message._status & DETACHED:
            self.send_queue.flush(PASSING_WAIT)

    # -- closing ---------------------------------------------------------------------------

    def hand_over_no_more(self) -> None:
        """Let no queued message reach a handler from now on."""
        # In this order: ``hold_back`` looks at the first once it has set the second.
        self._is_past = True
        self.hands_over = False

    def hold_back(self, held: bool) -> None:
        """Let no queued message reach a handler while ``held``. Takes no lock."""
        self.hands_over = not (held or self._is_past)
        # The end may have come between the look and the change.
        if self._is_past:
            self.hands_over = False

    def start_closing(self) -> None:
        """Send CLS: no new messages, while those in flight can still be answered."""
        if not self._move(State.CLOSING):
            return
        if self.level is not None:
            self.level.share = 0
        self.send_queue.commands.append(commands.CLS)
        self.send_queue.flush(PASSING_WAIT)

    def close(self) -> None:
        """Write what waits and send EOF; nsqd closes when it has worked that off.

        The reading thread then ends, and until then nothing of ours is lost on the way. From
        any thread but the reading one; an ``open`` that runs elsewhere ends at once.
        """
        self._move(State.CLOSING)
        stream = self._stream
        if self.connected_at and not self.is_closed and stream is not None:
            self.send_queue.finish(PASSING_WAIT)
            stream.end_sending()
            if self._consumer is None:
                self.publishes.recall()
        else:
            self.cut()

    def cut(self) -> None:
        """End the connection now, answered or not. The reading thread does the rest."""
        self._move(State.CLOSING)
        if self._stream is not None:
            self._stream.shutdown()
        elif self._opening is not None:
            self._opening.cutter.cut()

    def abandon(self) -> None:
        """In a forked child: close the descriptor, say nothing to the parent's nsqd."""
        # Without the mutex, which another thread of the parent may have held.
        self.state = State.CLOSED
        self.end_was_asked = True
        self.in_flight.clear()
        if self.connected_at:
            self.send_queue.abandon()
        elif self._stream is not None:
            self._stream.abandon()
