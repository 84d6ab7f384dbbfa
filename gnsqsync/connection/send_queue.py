"""Queue of bytes on their way to one nsqd, and the combining send that writes them.

Many threads append; the thread that gets the lock writes for all. Knows the lock, the bytes that
the kernel did not take, and the end of a send. Must not know a publish, an answer or RDY: the
queues of the two kinds of connections (``PublishQueue``, ``AnswerQueue``) say what is written.

Surprise: ``flush`` may return before the caller's bytes have left. The thread that holds the lock
looks at the lists again after its write, and takes them along.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

from gnsqsync.connection.stream import Stream
from gnsqsync.errors import ConnectionLost
from gnsqsync.policy import ownership
from gnsqsync.runtime import Runtime
from gnsqsync.wire import commands

__all__ = ["SendQueue"]

# Further seconds that a sender may keep the lock after it is suspected to have been killed.
_SURE_SECONDS = 1.0
# Seconds for which a thread tries the lock after an exception struck it in ``acquire``. A living
# holder needs microseconds.
_STRUCK_SECONDS = 0.2
# Value of ``_seen`` while no holder of the lock is watched.
_NOT_SEEN = (-1, False, math.inf)


class SendQueue(ABC):
    """The outgoing side of a connection.

    The lists need no lock: any thread appends to ``commands``, and append is atomic. Only the
    holder of ``_lock`` cuts off the prefix that it copied, and the list objects are never replaced.
    ``_lock`` guards the sending side: stream, compressor and ``_unsent``.
    """

    def __init__(self, stream: Stream, runtime: Runtime, *, stall_timeout: float) -> None:
        # Commands to be written, without FIN and publishes.
        self.commands: list[bytes] = []
        # Error that ended the sending. Nothing is written after it.
        self.broken: Exception | None = None
        # True once nothing may be written because of a close.
        self.is_closed: bool = False
        self._stream = stream
        self._send_some = stream.send_some
        self._runtime = runtime
        self._now = runtime.now
        self._stall_timeout = stall_timeout
        self._lock = runtime.lock()
        # Encoded bytes that the kernel did not take yet, and the time when it last took some.
        self._unsent: memoryview | None = None
        self._stalled_since = 0.0
        # True if the kernel's buffer was full at the last send.
        self._is_full = False
        # Number of times that the lock was taken.
        self._holds = 0
        # The watched holder: its number in ``_holds``, True if it is suspected to have been killed,
        # and the time at which the suspicion begins or becomes certain.
        self._seen = _NOT_SEEN
        # True once the holder of the lock counts as killed; ``close`` then does not wait for it.
        self._is_deserted = False

    # -- the parts of each kind of queue -----------------------------------------------------------

    @property
    @abstractmethod
    def has_unsent(self) -> bool:
        """True while something has to be written."""

    @abstractmethod
    def _write(self, until: float) -> bool:
        """Write one batch, holding ``_lock``. Return False if the kernel was not in time."""

    def _check_stall(self, now: float) -> None:
        """Raise ConnectionLost if nsqd has not read for too long. Holding ``_lock``."""
        if now - self._stalled_since > self._stall_timeout:
            raise ConnectionLost(f"nsqd took no byte for {self._stall_timeout:g} s")

    # -- any thread --------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """True once no more bytes leave: closed or broken."""
        return self.is_closed or self.broken is not None

    @property
    def is_stuck(self) -> bool:
        """True if queued bytes cannot leave now: the kernel's buffer is full, or the end came."""
        return self._unsent is not None or self.has_ended

    def flush(self, wait: float = 0.0) -> bool:
        """Write all queued bytes. Return True if nothing is left.

        Return False if another thread is writing, which then looks at the queue again, or if the
        stream takes no more.

        ``wait``: seconds in all that this call may wait while the kernel's buffer is full. The next
        flush writes the rest. The error of a failed send is kept in ``broken`` for the reading
        thread. Only a kill or an interrupt (no Exception) is raised here.
        """
        lock = self._lock
        until = self._now() + wait if wait else 0.0
        while self.has_unsent:
            try:
                is_free = lock.acquire(False)
            except BaseException:  # a signal may strike just after the lock was taken
                self._find_holder()
                raise
            if not is_free:
                if self._sender_is_there():
                    return False
                continue
            try:
                self._holds += 1
                # After a break, ``_unsent`` stays: it tells which publish was torn.
                if self.is_closed or self.broken is not None:
                    return False
                emptied = self._write(until)
            except BaseException as error:  # noqa: BLE001 - a kill ends the connection, too
                return self._broken_by(error)
            finally:
                lock.release()
            if not emptied:
                return False
        return not lock.locked()

    def answer_heartbeat(self) -> None:
        """Queue a NOP unless one is queued: a single NOP answers all heartbeats before it."""
        if commands.NOP not in self.commands:
            self.commands.append(commands.NOP)

    def break_off(self, reason: Exception) -> None:
        """Send nothing more and shut the stream down. New publishes go to another connection."""
        self.broken = reason
        self._stream.shutdown()

    # -- the lock ----------------------------------------------------------------------------------

    def _sender_is_there(self) -> bool:
        """Watch the holder of the lock. End the connection if it was killed. Return True."""
        now, holds = self._now(), self._holds
        # Read as one tuple, because other threads look here at the same moment.
        seen_at, is_suspect, sure_at = self._seen
        if self._is_full:
            # The holder waits for room in the kernel's buffer, which may take long.
            self._seen = _NOT_SEEN
        elif seen_at != holds:
            self._seen = (holds, False, now + ownership.GRACE_SECONDS)
        elif now >= sure_at and not self.has_ended:
            if not is_suspect:
                # Perhaps a new holder that has not counted itself yet, or one that waits for
                # the processor among hundreds of busy threads.
                patience = _SURE_SECONDS + self._runtime.longest_wait_to_run()
                self._seen = (holds, True, now + patience)
            else:
                self._desert()
        return True

    def _find_holder(self) -> None:
        """End the connection if this thread holds the lock without knowing it.

        An exception that struck in ``acquire`` hides whether the lock was taken. Any other holder
        counts itself and gives the lock back soon, or waits for the kernel's buffer.
        """
        holds = self._holds
        if self._lock.acquire(True, _STRUCK_SECONDS + self._runtime.longest_wait_to_run()):
            self._lock.release()
            self.flush()
        elif self._holds == holds and not self._is_full and not self.has_ended:
            self._desert()

    def _desert(self) -> None:
        self._is_deserted = True
        self.break_off(ConnectionLost("a sender was killed before its send"))

    # -- sending, holding the lock -----------------------------------------------------------------

    def _send(self, data: bytes, until: float) -> bool:
        if not self._stream.is_clear:
            data = self._stream.encode(data)
        sent = self._send_some(data)
        if sent == len(data):
            return True
        self._unsent = rest = memoryview(data)[sent:]
        self._is_full = True
        self._stalled_since = self._now()
        return self._send_rest(rest, sent, until)

    def _send_rest(self, rest: memoryview, sent: int, until: float) -> bool:
        """Write ``rest``; ``sent`` bytes have left. Return False if the time was not enough."""
        return self._push(until)

    def _send_on(self, rest: memoryview, now: float) -> int:
        """Pass more of ``_unsent`` to the kernel. Return how many bytes it took."""
        return self._send_some(rest)

    def _push(self, until: float) -> bool:
        """Write ``_unsent`` on. Return False if the time was not enough."""
        while self._unsent is not None:
            now = self._now()
            sent = self._send_on(self._unsent, now)
            if sent:
                self._stalled_since = now
                self._unsent = self._unsent[sent:] or None
                continue
            self._check_stall(now)
            if now >= until:
                return False
            self._stream.wait_writable(min(until - now, self._stall_timeout))
        return True

    def _broken_by(self, error: BaseException) -> bool:
        """Keep the error of a send for the reading thread. Return False, or raise a kill."""
        if not isinstance(error, Exception):
            # A kill or an interrupt may have torn a command in two.
            self.broken = ConnectionLost(f"a send was ended by {error!r}")
            self._stream.shutdown()
            raise error
        self.broken = error
        # After a broken pipe the stream stays open: nsqd's last frames may say why it has gone.
        if not isinstance(error, (BrokenPipeError, ConnectionResetError)):
            self._stream.shutdown()
        return False

    # -- the end -----------------------------------------------------------------------------------

    def finish(self, wait: float) -> None:
        """Write what is queued before a close, after another thread's write has ended."""
        if self._lock.acquire(True, wait):
            self._lock.release()
        self.flush(wait)
        # Nothing that is queued from now on is sent.
        self.is_closed = True

    def close_stream(self) -> None:
        """Close the stream. Called once, by the reading thread.

        The stream was shut down before, so a blocked sender returns and gives the lock back; only a
        killed sender does not.
        """
        locked = not self._is_deserted and self._lock.acquire(True, ownership.GRACE_SECONDS)
        try:
            self.is_closed = True
            self._stream.close()
        finally:
            if locked:
                self._lock.release()

    def abandon(self) -> None:
        """Close the stream in a forked child. The lists belong to threads of the parent."""
        self.is_closed = True
        self._stream.abandon()
