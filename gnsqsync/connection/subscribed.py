"""Connection to one nsqd, subscribed to a channel: in-flight table, answers and CLS.

Decides nothing about RDY, backoff or redials and runs no user code: it tells its consumer.
Any thread may answer a message.

``messages`` receives into ``in_flight``. A call on a message takes it out, appends the answer to
``send_queue``, and tells the consumer.

Surprise: most answers are not written at once. A worker flushes at the end of its chunk, and the
Reader's timer within 0.1 s.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Protocol
from weakref import WeakValueDictionary

from gnsqsync.addresses import Address
from gnsqsync.connection.answer_queue import AnswerQueue
from gnsqsync.connection.in_flight import InFlight
from gnsqsync.connection.link import PASSING_WAIT, Link, State
from gnsqsync.connection.messages import Messages
from gnsqsync.connection.opening import Opening
from gnsqsync.connection.stream import Stream
from gnsqsync.errors import ServerError, TouchFailed
from gnsqsync.message import ANSWERED, BEGUN, DETACHED, DONE, TIMED_OUT, Fate, Message
from gnsqsync.options import ConnectionOptions
from gnsqsync.policy.latency import RdyLevel
from gnsqsync.runtime import Runtime
from gnsqsync.wire import commands

__all__ = ["Consumer", "SubscribedConnection"]

# Data of the response to CLS: nsqd sends no more messages.
_CLOSE_WAIT = b"CLOSE_WAIT"


class Consumer(Protocol):
    """The object that a subscribed connection tells about messages and about its end."""

    def on_lost(self, connection: SubscribedConnection, reason: Exception) -> None:
        """Called once, by the reading thread, after the messages in flight were orphaned."""

    def on_messages(self, connection: SubscribedConnection, messages: list[Message]) -> None:
        """Take new messages, already in the in-flight table. By the reading thread; never block."""

    def on_drained(self, connection: SubscribedConnection) -> None:
        """Note that nsqd answered CLS and sends no more messages. By the thread that reads."""

    def on_answer_failed(
        self, connection: SubscribedConnection, message_id: str, error: ServerError
    ) -> None:
        """Note that nsqd refused a FIN, REQ or TOUCH. By the thread that reads."""

    def on_answered(
        self, connection: SubscribedConnection, message: Message, success: bool | None
    ) -> None:
        """Note that a call on the message answered it. By the calling thread, outside all locks.

        ``success``: True for FIN, False for REQ with backoff, None for REQ without.
        """

    def on_handed_back(self, message: Message) -> None:
        """Note that a message goes back to nsqd unhandled. From any thread; must not block."""

    def on_failure(self, connection: SubscribedConnection, message: Message) -> Fate | None:
        """Decide about a message before its REQ with backoff. By the calling thread, without locks.

        Return None to send the REQ. After the last attempt, return what became of the message.
        """

    def on_finished(self, count: int) -> None:
        """Note that one call finished ``count`` messages. By the calling thread, without locks."""

    def requeue_delay_for(self, message: Message) -> float:
        """Return the delay in seconds of a REQ for which the caller gave none."""


class SubscribedConnection(Link):
    """A connection to ``address``, subscribed to topic and channel.

    The in-flight table needs no lock. The thread that reads adds to ``in_flight``; the thread whose
    ``pop`` succeeds sends the answer, so two threads cannot both send FIN. Only the thread that
    reads writes ``received`` and ``last_message_at``.
    """

    def __init__(
        self,
        address: Address,
        options: ConnectionOptions,
        runtime: Runtime,
        consumer: Consumer,
        *,
        topic: str,
        channel: str,
        adaptive: bool = True,
        headers: bool = False,
    ) -> None:
        """``headers``: True if message bodies may be envelopes, which are then opened."""
        super().__init__(address, options, runtime, self)
        self.topic: str = topic
        self.channel: str = channel
        # True if nsqd deletes the channel when its last connection closes.
        self.is_ephemeral: bool = channel.endswith("#ephemeral")
        self.level: RdyLevel = RdyLevel(adaptive)
        self.in_flight: InFlight = InFlight()
        self.received: int = 0
        self.last_message_at: float = 0.0
        self.answers_failed: int = 0
        # Count of messages that cannot be answered on this connection. Either nsqd refused their
        # FIN, REQ or TOUCH, or they are second copies, which get no answer of their own.
        self.unanswerable: int = 0
        # Seconds that nsqd took to answer SUB, beyond a round trip.
        self.sub_delay: float = 0.0
        # False while queued messages must not reach a handler: in a pause, and after the end.
        self.delivers: bool = True
        # True from the moment at which no further message may reach a handler.
        self._delivery_ended: bool = False
        # True while a worker may read from this connection in place of the reading thread.
        self.worker_may_read: bool = False
        self._consumer = consumer
        self._headers = headers
        # Answered detached messages that the user still holds, by id: nsqd may yet refuse the
        # answer. No lock: threads set and take single items only.
        self._answered_late: WeakValueDictionary[bytes, Message] = WeakValueDictionary()

    # Set by open(). Before it, no message can be answered.
    send_queue: AnswerQueue
    messages: Messages

    # -- the steps of a Link -----------------------------------------------------------------------

    def _new_opening(self) -> Opening:
        return Opening(
            self.address,
            self._options,
            self._runtime,
            self._decoder,
            topic=self.topic,
            channel=self.channel,
        )

    def _set_up(self, stream: Stream, opening: Opening) -> Messages:
        self.level.set_round_trip(opening.round_trip)
        self.sub_delay = opening.last_took - opening.round_trip
        self.last_message_at = self._runtime.now()
        self.send_queue = AnswerQueue(
            stream,
            self._runtime,
            level=self.level,
            in_flight=self.in_flight.__len__,
            stall_timeout=self._options.heartbeat_interval,
        )
        self.messages = Messages(
            self,
            stream,
            self._decoder,
            self._runtime,
            partial(self._consumer.on_messages, self),
            headers=self._headers,
            silence=self._silence,
        )
        return self.messages

    def _on_response(self, data: bytes) -> None:
        if data != _CLOSE_WAIT or not self.end_was_asked:
            super()._on_response(data)
        elif self._move(State.DRAINED):
            self._consumer.on_drained(self)

    def _on_error(self, error: ServerError) -> None:
        super()._on_error(error)
        self.answers_failed += 1
        # "FIN 0123456789abcdef failed ID not in flight"
        message_id = [*error.detail.split(" "), "", ""][1]
        if isinstance(error, TouchFailed):
            for message in list(self.in_flight.values()):
                # A delivery in the same chunk is newer than the refused TOUCH, and stays in flight.
                if message.id == message_id and message._received_at < self.messages.last_frame_at:
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
        self._consumer.on_answer_failed(self, message_id, error)

    def _take_no_more(self) -> None:
        self.stop_delivering()
        super()._take_no_more()

    def _close_queue(self, reason: Exception) -> None:
        self.send_queue.close_stream()

    def _tell_lost(self, reason: Exception) -> None:
        self.in_flight.clear()
        self._consumer.on_lost(self, reason)

    # -- answers, from any thread ------------------------------------------------------------------

    @property
    def msg_timeout(self) -> float:
        return self.negotiated.msg_timeout

    @property
    def max_msg_timeout(self) -> float:
        return self.negotiated.max_msg_timeout

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
        """Queue FIN without telling the consumer. The caller flushes.

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
        if count:
            self._consumer.on_finished(count)
        self.send_queue.flush(PASSING_WAIT)
        return count

    def requeue(self, message: Message, delay: float | None, backoff: bool) -> bool:
        fate: Fate | None = None
        if backoff:
            fate = self._consumer.on_failure(self, message)
        if fate is Fate.GONE or (fate is None and not self.requeue_quietly(message, delay)):
            return False
        self._answered(message, False if backoff and fate is not Fate.KEPT else None)
        return True

    def requeue_quietly(self, message: Message, delay: float | None) -> bool:
        """Queue REQ without telling the consumer. The caller flushes."""
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
        if self.requeue_quietly(message, 0):
            self._consumer.on_handed_back(message)

    def requeue_delay_for(self, message: Message) -> float:
        """Return the delay in seconds of a REQ for which the caller gave none."""
        return self._consumer.requeue_delay_for(message)

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
        self._consumer.on_answered(self, message, success)
        # A worker flushes at the end of its chunk, and the sweep within 0.1 s. A detached message
        # has no worker, so it is flushed here.
        if message._status & DETACHED:
            self.send_queue.flush(PASSING_WAIT)

    # -- closing -----------------------------------------------------------------------------------

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
        self.level.share = 0
        self.send_queue.commands.append(commands.CLS)
        self.send_queue.flush(PASSING_WAIT)

    def abandon(self) -> None:
        super().abandon()
        self.in_flight.clear()
