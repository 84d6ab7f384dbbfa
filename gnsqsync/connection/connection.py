"""Connection to one nsqd: its state, the in-flight table, answers, loss and close.

Decides nothing about RDY, backoff or redials and runs no user code: it tells its owner.

``open`` runs on the dialling thread, ``read`` on the reading thread. Any thread may answer a
message or close. Every end of the connection goes through ``lose``, on the reading thread.
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

# Seconds that a thread waits for room in the kernel's buffer when it flushes for others.
PASSING_WAIT = 1.0


class State(IntEnum):
    """State of a connection. It only moves forward, and may skip states."""

    DIALLING = 0
    OPEN = 1
    # CLS or our EOF was sent. The end of the connection is expected and not reported as a loss.
    CLOSING = 2
    # nsqd has answered CLS and sends no more messages.
    DRAINED = 3
    CLOSED = 4


class Owner(Protocol):
    """The object that a connection tells about its end."""

    def on_lost(self, connection: Connection, reason: Exception) -> None:
        """Called once, by the reading thread, after messages were orphaned and publishes failed."""


class Consumer(Protocol):
    """The object that a subscribed connection tells about messages."""

    def on_messages(self, connection: Connection, messages: list[Message]) -> None:
        """Take new messages, already in the in-flight table. By the reading thread; never block."""

    def on_drained(self, connection: Connection) -> None:
        """Note that nsqd answered CLS and sends no more messages. By the thread that reads."""

    def on_answer_failed(self, connection: Connection, message_id: str, error: ServerError) -> None:
        """Note that nsqd refused a FIN, REQ or TOUCH. By the thread that reads."""

    def on_answered(self, connection: Connection, message: Message, success: bool | None) -> None:
        """Note that a call on the message answered it. By the calling thread, outside all locks.

        ``success``: True for FIN, False for REQ with backoff, None for REQ without.
        """

    def on_handed_back(self, message: Message) -> None:
        """Note that a message goes back to nsqd unhandled. From any thread; must not block."""

    def on_failure(self, connection: Connection, message: Message) -> Fate | None:
        """Decide about a message before its REQ with backoff. By the calling thread, without locks.

        Return None to send the REQ. After the last attempt, return what became of the message.
        """

    def on_finished(self, count: int) -> None:
        """Note that one call finished ``count`` messages. By the calling thread, without locks."""

    def requeue_delay_for(self, message: Message) -> float:
        """Return the delay in seconds of a REQ for which the caller gave none."""


class Connection:
    """A connection to ``address``, for publishing (no topic) or subscribed to topic and channel.

    The in-flight table needs no lock. The thread that reads adds to ``in_flight``; the thread whose
    ``pop`` succeeds sends the answer, so two threads cannot both send FIN. Only the thread that
    reads writes ``received``, ``last_message_at`` and ``last_frame_at``.
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
        """``headers``: True if message bodies may be envelopes, which are then opened."""
        self.address = address
        self.nsqd_address: str = str(address)
        self.in_flight: InFlight = InFlight()
        self.received: int = 0
        self.last_message_at: float = 0.0
        self.last_frame_at: float = 0.0
        self.connected_at: float = 0.0
        self.answers_failed: int = 0
        # Count of messages that cannot be answered on this connection. Either nsqd refused their
        # FIN, REQ or TOUCH, or they are second copies, which get no answer of their own.
        self.unanswerable: int = 0
        # Seconds that nsqd took to answer SUB, beyond a round trip.
        self.sub_delay: float = 0.0
        self.state: State = State.DIALLING
        # True once CLS, close() or cut() has asked for the end, which is then not reported.
        self.end_was_asked: bool = False
        # False while queued messages must not reach a handler: in a pause, and after the end.
        self.delivers: bool = True
        # True from the moment at which no further message may reach a handler.
        self._delivery_ended: bool = False
        # True while a worker may read from this connection in place of the reading thread.
        self.worker_may_read: bool = False
        self.level: RdyLevel | None = RdyLevel(adaptive) if consumer is not None else None
        # Guards ``state`` and ``end_was_asked``.
        self._mutex = runtime.mutex()
        self._options = options
        self._runtime = runtime
        self._owner = owner
        self._consumer = consumer
        # Topic and channel of a subscribed connection; "" for one that publishes.
        self.topic: str = topic or ""
        self.channel: str = channel or ""
        self._headers = headers
        # True if nsqd deletes the channel when its last connection closes.
        self.is_ephemeral: bool = self.channel.endswith("#ephemeral")
        self._opening: Opening | None = None
        self._stream: Stream | None = None
        self._decoder = FrameDecoder(self, options.max_frame_size)
        self._early: list[Reply] = []
        # Answered detached messages that the user still holds, by id: nsqd may yet refuse the
        # answer. No lock: threads set and take single items only.
        self._answered_late: WeakValueDictionary[bytes, Message] = WeakValueDictionary()

    # Set by open(). Before it, no message can be answered and no publish sent.
    send_queue: SendQueue
    # Set on a connection that publishes, which also reads through it.
    publishes: Publishes
    # Set on a subscribed connection.
    messages: Messages
    negotiated: Negotiated

    @property
    def reached(self) -> bool:
        """True once the dial has succeeded, even before the handshake."""
        return self._stream is not None

    def _move(self, to: State) -> bool:
        """Move the state forward. Return False if the connection was there already, or further."""
        with self._mutex:
            if to <= self.state:
                return False
            self.end_was_asked = self.end_was_asked or to is State.CLOSING
            self.state = to
            return True

    def open(self, timeout: float | None = None) -> None:
        """Dial and do the whole handshake, within ``connect_timeout`` or ``timeout`` seconds.

        Raises the errors of Opening.run. The caller then starts ``read`` on the reading thread.
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
        # Checked after the assignment, so that a later close finds the opening and can cut it.
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
        # nsqd counts as dead after two silent heartbeats (docs/protocol/timeouts#heartbeats).
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
        # close() may have come during the dial, when there was no stream to shut down.
        if self.end_was_asked:
            stream.shutdown()

    # -- the reading thread ----------------------------------------------------------------

    def read(self) -> None:
        """Receive until the connection ends, then call ``lose``. Body of the reading thread."""
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
            # A kill, an interrupt, or a callback of a user's future: each ends the connection.
            reason = ConnectionLost(f"reading from {self.nsqd_address} ended: {repr_of(error)}")
            raise
        finally:
            broken = self.send_queue.broken
            try:
                if isinstance(reason, ServerError):
                    # The error belongs to the oldest command that still waits for an answer.
                    self.send_queue.refuse_oldest(self.nsqd_address, reason)
                elif broken is not None:
                    reason = ConnectionLost(f"sending to {self.nsqd_address} failed: {broken}")
            finally:
                # Called even if a callback of a future ends this thread.
                self.lose(reason)

    def seconds_unread(self, seconds: float) -> float | None:
        """Return the seconds of silence, or None unless ``read`` is overdue by ``seconds``.

        ``read`` ends the connection by itself after two silent heartbeats. Call it only after
        ``open``. Takes no lock.
        """
        last = self.publishes.replies if self._consumer is None else self
        since = self._runtime.now() - last.last_frame_at
        return since if since > 2 * self._options.heartbeat_interval + seconds else None

    def on_reply(self, reply: Reply) -> None:
        """Act on a reply that answers no publish. By the thread that reads."""
        kind, data = reply
        if kind == FRAME_RESPONSE:
            if data == _HEARTBEAT:
                self.send_queue.answer_heartbeat()
            elif data == _CLOSE_WAIT and self.end_was_asked:
                if self._move(State.DRAINED) and self._consumer is not None:
                    self._consumer.on_drained(self)
            else:
                why = (
                    "but no publish waits for an answer"
                    if data == _OK
                    else "which was not asked for"
                )
                raise ProtocolError(f"{self.nsqd_address} sent {data[:64]!r}, {why}")
            return
        error = server_error(data)
        if not error.fatal:
            # FIN, REQ and TOUCH are not in the queue of answers, so no publish gets this error.
            self._answer_failed(error)
            return
        # nsqd closes the connection after a fatal error and reads no later command
        # (docs/protocol/commands#unread-body), so all that was sent later is unread.
        self.send_queue.peer_stopped = True
        # Raised now: waiting for the EOF would only replace this reason by a vaguer one.
        if " failed to read " in error.detail:
            # nsqd received part of a publish, and the rest was later than two heartbeats
            # (docs/protocol/timeouts#heartbeats). The connection is at fault, not the message.
            raise ConnectionLost(f"{self.nsqd_address} waited too long for a publish: {error}")
        raise error

    def _answer_failed(self, error: ServerError) -> None:
        self.answers_failed += 1
        # "FIN 0123456789abcdef failed ID not in flight"
        message_id = [*error.detail.split(" "), "", ""][1]
        if isinstance(error, TouchFailed):
            for message in list(self.in_flight.values()):
                # A delivery in the same chunk is newer than the refused TOUCH, and stays in flight.
                if message.id == message_id and message._received_at < self.last_frame_at:
                    message._status |= TIMED_OUT
                    self.unanswerable += 1
                    # A queued message keeps its slot until a worker takes it, unhandled.
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
        """End the connection: the one path of every loss. Called once, by the reading thread.

        If no reading thread could start, the caller of ``open`` calls it.

        1. Take no more answers, and wake a sender that blocks.
        2. Close the socket, and tell each publish what is known of its outcome.
        3. Orphan the messages in flight: nsqd delivers them again after their timeout
           (docs/protocol/errors#closing).
        4. Tell the owner.
        """
        self._move(State.CLOSED)
        self.stop_delivering()
        stream = self._stream
        assert stream is not None
        stream.shutdown()
        try:
            if self._consumer is None:
                # A publisher may have read answers just before it met the end of the connection.
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
        """Count of messages that nsqd has confirmed."""
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

        ``status``: bits that the message gets at the same moment.
        """
        if not self.in_flight.take(message):
            return False
        if message._status & DETACHED:
            # Set before the answer is queued, because any flush may send it and nsqd may refuse it.
            self._answered_late[message._id] = message
        message._status |= status
        return True

    def finish(self, message: Message) -> bool:
        if not self.finish_quietly(message, ANSWERED | DONE):
            return False
        self._answered(message, True)
        return True

    def finish_quietly(self, message: Message, status: int = ANSWERED) -> bool:
        """Queue FIN without telling the owner. The caller flushes.

        ``status``: as in ``take``. Without DONE, the message counts as given up or discarded.
        """
        if not self.take(message, status):
            return False
        self.send_queue.fins.append(message._id)
        return True

    def finish_many(self, messages: Iterable[Message]) -> int:
        """Queue FIN for all messages that are in flight, write at once, and return their count."""
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
        """Queue REQ without telling the owner. The caller flushes."""
        if delay is None:
            delay = self.requeue_delay_for(message)
        if not self.take(message):
            return False
        # nsqd lowers a delay above its own limit, so a huge or infinite one is only cut to fit.
        delay_ms = round(min(delay, commands.MAX_DELAY_MS / 1000) * 1000)
        self.send_queue.commands.append(commands.req(message._id, delay_ms))
        return True

    def hand_back(self, message: Message) -> None:
        """Queue REQ 0 for a message that no handler has begun. The caller flushes."""
        if self.requeue_quietly(message, 0) and self._consumer is not None:
            self._consumer.on_handed_back(message)

    def requeue_delay_for(self, message: Message) -> float:
        """Return the delay in seconds of a REQ for which the caller gave none."""
        return 0.0 if self._consumer is None else self._consumer.requeue_delay_for(message)

    def touch(self, message: Message) -> bool:
        if message._status & (TIMED_OUT | ANSWERED) or not self.in_flight.holds(message):
            return False
        # nsqd keeps one deadline for the id, so the TOUCH extends every copy of the message.
        latest = self.in_flight.get(message._id, message)
        message._touched_at = latest._touched_at = self._runtime.now()
        self.send_queue.commands.append(commands.touch(message._id))
        self.send_queue.flush(PASSING_WAIT)
        return True

    def _answered(self, message: Message, success: bool | None) -> None:
        if self._consumer is not None:
            self._consumer.on_answered(self, message, success)
        # A worker flushes at the end of its chunk, and the sweep within 0.1 s. A detached message
        # has no worker, so it is flushed here.
        if message._status & DETACHED:
            self.send_queue.flush(PASSING_WAIT)

    # -- closing ---------------------------------------------------------------------------

    def stop_delivering(self) -> None:
        """Let no queued message reach a handler from now on, for good."""
        # Order matters: ``hold_back`` sets ``delivers`` and then reads ``_delivery_ended``.
        self._delivery_ended = True
        self.delivers = False

    def hold_back(self, held: bool) -> None:
        """Keep queued messages from handlers while ``held`` is true. Takes no lock."""
        self.delivers = not (held or self._delivery_ended)
        # Checked again: ``stop_delivering`` may have run between the two lines above.
        if self._delivery_ended:
            self.delivers = False

    def start_closing(self) -> None:
        """Send CLS: nsqd sends no new messages, and those in flight can still be answered."""
        if not self._move(State.CLOSING):
            return
        if self.level is not None:
            self.level.share = 0
        self.send_queue.commands.append(commands.CLS)
        self.send_queue.flush(PASSING_WAIT)

    def close(self) -> None:
        """Write what is queued and send EOF. nsqd reads all of it, then closes its side.

        The reading thread ends when nsqd has closed. Until then no queued command is lost. Call it
        from any thread but the reading one. An ``open`` on another thread ends at once.
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
        """Shut the socket down now. The reading thread then ends the connection."""
        self._move(State.CLOSING)
        if self._stream is not None:
            self._stream.shutdown()
        elif self._opening is not None:
            self._opening.cutter.cut()

    def abandon(self) -> None:
        """Close the descriptor in a forked child, without a word to the parent's nsqd."""
        # Without the mutex: another thread of the parent may have held it during the fork.
        self.state = State.CLOSED
        self.end_was_asked = True
        self.in_flight.clear()
        if self.connected_at:
            self.send_queue.abandon()
        elif self._stream is not None:
            self._stream.abandon()
