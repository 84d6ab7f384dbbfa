"""Link to one nsqd: the base of both kinds of connections, which says how each begins and ends.

Knows the socket with its layers, the state, heartbeats and the end. Must not know a message or a
publish: ``SubscribedConnection`` and ``PublishingConnection`` fill the steps that differ.

``open`` runs on the dialling thread, ``read`` on the reading thread. Any thread may close. Every
end of the connection goes through ``lose``, on the reading thread.

Surprise: ``close`` and ``cut`` only ask for the end. The socket is closed by the reading thread,
once its receive has returned.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from enum import IntEnum
from typing import Protocol

from gnsqsync.addresses import Address
from gnsqsync.connection.opening import Opening
from gnsqsync.connection.send_queue import SendQueue
from gnsqsync.connection.stream import Stream
from gnsqsync.errors import (
    ClosedError,
    ConnectionLost,
    NSQError,
    ProtocolError,
    ServerError,
    server_error,
)
from gnsqsync.foreign import repr_of
from gnsqsync.message import Responder
from gnsqsync.options import ConnectionOptions
from gnsqsync.runtime import Runtime
from gnsqsync.wire.frames import FRAME_RESPONSE, FrameDecoder, Reply
from gnsqsync.wire.handshake import Negotiated

__all__ = ["PASSING_WAIT", "Link", "State"]

log: logging.Logger = logging.getLogger("gnsqsync.connection")

# Data of the response to a publish.
_OK = b"OK"
# Data of the response by which nsqd asks for a NOP.
_HEARTBEAT = b"_heartbeat_"

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


class Receiver(Protocol):
    """The receiving side of a connection."""

    @property
    def last_frame_at(self) -> float:
        """Time at which bytes were last decoded."""

    def read(self, early: list[Reply]) -> None:
        """Read until the connection ends, then raise the reason.

        ``early``: replies that arrived with the last answer of the handshake.
        """


class Link(ABC):
    """A connection to ``address``, without its use."""

    def __init__(
        self,
        address: Address,
        options: ConnectionOptions,
        runtime: Runtime,
        responder: Responder | None,
    ) -> None:
        """``responder`` goes into each message, as in FrameDecoder."""
        self.address = address
        self.nsqd_address: str = str(address)
        self.connected_at: float = 0.0
        # Only ``_move`` and ``abandon`` change it.
        self.state: State = State.DIALLING
        # True once CLS, close() or cut() has asked for the end, which is then not reported.
        self.end_was_asked: bool = False
        # Guards ``state`` and ``end_was_asked``.
        self._mutex = runtime.mutex()
        self._options = options
        self._runtime = runtime
        # nsqd counts as dead after two silent heartbeats (docs/protocol/timeouts#heartbeats).
        self._silence = 2 * options.heartbeat_interval
        self._opening: Opening | None = None
        self._stream: Stream | None = None
        self._decoder = FrameDecoder(responder, options.max_frame_size)
        self._early: list[Reply] = []

    # Set by open(). Before it, nothing can be sent.
    send_queue: SendQueue
    negotiated: Negotiated
    _receiver: Receiver

    # -- the steps of each kind of connection ------------------------------------------------------

    @abstractmethod
    def _new_opening(self) -> Opening:
        """Return the attempt to open this connection."""

    @abstractmethod
    def _set_up(self, stream: Stream, opening: Opening) -> Receiver:
        """Make both sides of the opened connection: ``send_queue``, and what receives."""

    def _on_response(self, data: bytes) -> None:
        """Act on a response that is no heartbeat. By the thread that reads."""
        why = "but no publish waits for an answer" if data == _OK else "which was not asked for"
        raise ProtocolError(f"{self.nsqd_address} sent {data[:64]!r}, {why}")

    def _on_error(self, error: ServerError) -> None:
        """Act on an error frame, and raise what ends the connection. By the thread that reads."""
        # nsqd closes the connection after a fatal error. Raised now: waiting for the EOF would only
        # replace this reason by a vaguer one.
        if error.fatal:
            raise error

    def _take_no_more(self) -> None:
        """Do step 1 of ``lose``."""
        self._move(State.CLOSED)
        stream = self._stream
        assert stream is not None
        stream.shutdown()

    @abstractmethod
    def _close_queue(self, reason: Exception) -> None:
        """Do step 2 of ``lose``."""

    @abstractmethod
    def _tell_lost(self, reason: Exception) -> None:
        """Do steps 3 and 4 of ``lose``."""

    # -- the dial ----------------------------------------------------------------------------------

    @property
    def reached(self) -> bool:
        """True once the dial has succeeded, even before the handshake."""
        return self._stream is not None

    @property
    def is_closed(self) -> bool:
        return self.state is State.CLOSED

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
        opening = self._opening = self._new_opening()
        # Checked after the assignment, so that a later close finds the opening and can cut it.
        if self.end_was_asked:
            raise ClosedError(f"closed before {self.nsqd_address} was dialled")
        limit = self._options.connect_timeout
        self.negotiated = opening.run(self._use, limit if timeout is None else min(limit, timeout))
        self._early.extend(opening.replies)
        stream = self._stream
        assert stream is not None
        stream.set_read_timeout(self._silence)
        self._receiver = self._set_up(stream, opening)
        self.connected_at = self._runtime.now()
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

    # -- the reading thread ------------------------------------------------------------------------

    def read(self) -> None:
        """Receive until the connection ends, then call ``lose``. Body of the reading thread."""
        reason: Exception = ConnectionLost(f"{self.nsqd_address} closed the connection")
        try:
            self._receiver.read(self._early)
        except TimeoutError:
            reason = ConnectionLost(f"{self.nsqd_address} was silent for {self._silence:g} s")
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
            if broken is not None and not isinstance(reason, ServerError):
                reason = ConnectionLost(f"sending to {self.nsqd_address} failed: {broken}")
            self.lose(reason)

    def seconds_unread(self, seconds: float) -> float | None:
        """Return the seconds of silence, or None unless ``read`` is overdue by ``seconds``.

        ``read`` ends the connection by itself after two silent heartbeats. Call it only after
        ``open``. Takes no lock.
        """
        since = self._runtime.now() - self._receiver.last_frame_at
        return since if since > self._silence + seconds else None

    def on_reply(self, reply: Reply) -> None:
        """Act on a reply that answers no publish. By the thread that reads."""
        kind, data = reply
        if kind == FRAME_RESPONSE:
            if data == _HEARTBEAT:
                self.send_queue.answer_heartbeat()
            else:
                self._on_response(data)
        else:
            self._on_error(server_error(data))

    def lose(self, reason: Exception) -> None:
        """End the connection: the one path of every loss. Called once, by the reading thread.

        If no reading thread could start, the caller of ``open`` calls it.

        1. Take no more answers, and wake a sender that blocks.
        2. Close the socket, and tell each publish what is known of its outcome.
        3. Orphan the messages in flight: nsqd delivers them again after their timeout
           (docs/protocol/errors#closing).
        4. Tell the owner.
        """
        self._take_no_more()
        try:
            self._close_queue(reason)
        finally:
            # Called even if a callback of a future ends this thread.
            self._tell_lost(reason)

    # -- closing -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is queued and send EOF. nsqd reads all of it, then closes its side.

        The reading thread ends when nsqd has closed. Until then no queued command is lost. Call it
        from any thread but the reading one. An ``open`` on another thread ends at once.
        """
        self._move(State.CLOSING)
        stream = self._stream
        if self.connected_at and not self.is_closed and stream is not None:
            self._end_sending(stream)
        else:
            self.cut()

    def _end_sending(self, stream: Stream) -> None:
        self.send_queue.finish(PASSING_WAIT)
        stream.end_sending()

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
        if self.connected_at:
            self.send_queue.abandon()
        elif self._stream is not None:
            self._stream.abandon()
