"""Queue of bytes on their way to one nsqd, and the combining send that writes them.

Many threads append; the thread that gets the lock writes for all. Knows the order of publishes,
which is the order of their answers. Must not know received frames.

Surprise: ``flush`` and ``send`` may return before the caller's bytes have left. The thread that
holds the lock looks at the lists again after its write, and takes them along.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

from gnsqsync.connection.stream import Stream
from gnsqsync.errors import (
    ConnectionLost,
    NotSent,
    OutcomeUnknown,
    PublishError,
    Refused,
    ServerError,
)
from gnsqsync.policy import ownership
from gnsqsync.policy.latency import RdyLevel
from gnsqsync.runtime import Latch, Runtime
from gnsqsync.wire import commands

__all__ = ["PublishSlot", "SendQueue", "end_each"]

# Seconds for which the kernel's word holds that nsqd has not ended the connection. To ask is a
# system call of about 4 us, a tenth of a publish: once a millisecond, it costs 0.4 % of the time.
_ASK_SECONDS = 0.001
# Further seconds that a sender may keep the lock after it is suspected to have been killed.
_SURE_SECONDS = 1.0
# Seconds for which a thread tries the lock after an exception struck it in ``acquire``. A living
# holder needs microseconds.
_STRUCK_SECONDS = 0.2
# ``_seen`` when no holder of the lock is watched.
_NOT_SEEN = (-1, False, math.inf)
# Upper bound of unsent answers. An nsqd that has stopped reading also stops sending as soon as RDY
# messages are in flight, and RDY is never that high.
_MOST_WAITING = 100_000


class PublishSlot:
    """A PUB, DPUB or MPUB on its way: its bytes and its outcome.

    The outcome is set once: first ``error``, then ``done``; then ``latch`` is released. So a
    publisher that sets ``latch`` and finds no outcome may wait for it. A publisher that reads its
    answer itself needs no latch. ``succeed`` and ``fail`` may run a future's callbacks, which are
    the user's: only the reading thread calls them, and the publisher that takes its slot back.
    """

    __slots__ = ("abandoned", "data", "done", "error", "future", "latch", "messages", "on_end")

    def __init__(
        self,
        data: bytes,
        latch: Latch | None = None,
        future: Future[None] | None = None,
        messages: int = 1,
        on_end: Callable[[PublishSlot], None] | None = None,
    ) -> None:
        self.data: bytes = data
        self.messages: int = messages
        self.error: PublishError | None = None
        # True once the publisher gave up waiting. The slot keeps its place in the queue of answers.
        self.abandoned: bool = False
        self.done: bool = False
        self.latch: Latch | None = latch
        self.future: Future[None] | None = future
        # Called with the slot before its future ends; must be short.
        self.on_end: Callable[[PublishSlot], None] | None = on_end

    def succeed(self) -> None:
        self._end()
        if self.future is not None and self.future.set_running_or_notify_cancel():
            self.future.set_result(None)

    def fail(self, error: PublishError) -> None:
        self.error = error
        self._end()
        if self.future is not None and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def _end(self) -> None:
        self.done = True
        if self.latch is not None:
            self.latch.release()
        if self.on_end is not None:
            self.on_end(self)

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds. Return True if there is an outcome. Needs ``latch``."""
        if not self.done and self.latch is not None:
            self.latch.wait(max(0.0, timeout))
        return self.done


def end_each(ends: Iterable[Callable[[], None]]) -> None:
    """Call each of ``ends`` (``succeed`` or ``fail`` of a slot), whatever a callback raises.

    Futures swallow each Exception of a callback, and let SystemExit or gevent.Timeout through.
    The last error let through is raised after all calls.
    """
    raised: BaseException | None = None
    for end in ends:
        try:
            end()
        except BaseException as error:  # noqa: BLE001 - a user's callback; raised below
            raised = error
    if raised is not None:
        raise raised


class SendQueue:
    """The outgoing side of a connection.

    The lists need no lock: any thread appends to ``commands``, ``fins`` and ``slots``, and append
    is atomic. Only the holder of ``_lock`` cuts off the prefix that it copied, and the list objects
    are never replaced. Each slot leaves ``slots`` by one ``popleft`` or ``remove``, so a publish is
    either on its way or taken back. ``_lock`` guards the sending side: stream, compressor,
    ``rdy_sent``, ``_unsent``, and appends to ``pending``.

    RDY is a level, not a queued command. The sender compares the wanted RDY with the last one
    sent, so two racing decisions cannot arrive in the wrong order, and repeats vanish.
    """

    def __init__(
        self,
        stream: Stream,
        runtime: Runtime,
        *,
        level: RdyLevel | None,
        in_flight: Callable[[], int],
        stall_timeout: float,
    ) -> None:
        # Commands to be written, without FIN and publishes.
        self.commands: list[bytes] = []
        # Ids of messages to FIN, written as one piece after the commands.
        self.fins: list[bytes] = []
        # Publishes that were not begun, and publishes on their way, which wait for an answer.
        self.slots: deque[PublishSlot] = deque()
        self.pending: deque[PublishSlot] = deque()
        # Last RDY written.
        self.rdy_sent: int = 0
        # Counts of FIN and REQ written.
        self.finished: int = 0
        self.requeued: int = 0
        # Error that ended the sending. Nothing is written after it.
        self.broken: Exception | None = None
        # True once a fatal error frame came: nsqd reads nothing after the command that caused it.
        self.peer_stopped = False
        self._stream = stream
        self._peer_has_ended = stream.peer_has_ended
        self._send_some = stream.send_some
        # Time at which the kernel was last asked for nsqd's EOF.
        self._asked_at = -math.inf
        self._runtime = runtime
        self._now = runtime.now
        self._level = level
        self._in_flight = in_flight
        self._stall_timeout = stall_timeout
        self._lock = runtime.lock()
        # Encoded bytes that the kernel did not take yet, and the time when it last took some.
        self._unsent: memoryview | None = None
        self._stalled_since = 0.0
        # True if the kernel's buffer was full at the last send. Publishes then stay in ``slots``
        # until there is room, because from there they can be taken back.
        self._is_full = False
        # Number of times that the lock was taken.
        self._holds = 0
        # The watched holder: its number in ``_holds``, whether it is suspected to have been killed,
        # and the time at which the suspicion begins or is certain.
        # True once the holder of the lock counts as killed; ``close`` then does not wait for it.
        self._seen = _NOT_SEEN
        self._is_deserted = False
        # Publishes in ``_unsent``: at most the last one is torn (``_torn_slot``).
        self._batch: Sequence[PublishSlot] = ()
        # Latches to be released when no publish waits for an answer.
        self.drained: list[Latch] = []
        # True once nothing may be written because of a close.
        self.is_closed: bool = False

    @property
    def has_ended(self) -> bool:
        """True once no more bytes leave: closed or broken."""
        return self.is_closed or self.broken is not None

    @property
    def is_stuck(self) -> bool:
        """True if queued bytes cannot leave now: the kernel's buffer is full, or the end came."""
        return self._unsent is not None or self.has_ended

    @property
    def has_unsent(self) -> bool:
        if self.commands or self.fins or self.slots or self._unsent is not None:
            return True
        level = self._level
        return level is not None and level.wanted(self._in_flight()) != self.rdy_sent

    def flush(self, wait: float = 0.0) -> bool:
        """Write all queued bytes. Return True if nothing is left.

        Return False if another thread is writing, which then looks at the queue again, or if the
        stream takes no more.

        ``wait``: seconds in all that this call may wait while the kernel's buffer is full. The next
        flush writes the rest. Any other failure of the send shuts the stream down, which wakes the
        reading thread. Only a kill or an interrupt (no Exception) is raised here.
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
                # After a break, ``_unsent`` and ``_batch`` stay: ``_torn_slot`` needs them.
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

    def send(self, slot: PublishSlot, now: float) -> bool:
        """Queue a publish and ``flush``, on a shorter path if nothing else is queued.

        ``now``: time in seconds that the caller has just read from the clock.
        """
        lock = self._lock
        try:
            # Another thread may empty the queue at any moment: it is looked at once.
            if self.slots or self.commands or not lock.acquire(False):
                must_wait = True
            else:
                must_wait = False
        except BaseException:  # a signal may strike just after the lock was taken
            self._find_holder()
            raise
        if must_wait:
            self.slots.append(slot)
            return self.flush()
        try:
            self._holds += 1
            if self.is_closed or self.broken is not None:
                self.slots.append(slot)
                return False
            if self._is_full:
                self.slots.append(slot)
            else:
                # Appended before the write, so that no answer can overtake its slot.
                self.pending.append(slot)
                self._batch = (slot,)
                if now - self._asked_at > _ASK_SECONDS:
                    self._check_end(now)
                if not self._send(slot.data, 0.0):
                    return False
        except BaseException as error:  # noqa: BLE001 - a kill ends the connection, too
            return self._broken_by(error)
        finally:
            lock.release()
        return self.flush() if self.slots or self.commands else True

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

    def break_off(self, reason: Exception) -> None:
        """Send nothing more and shut the stream down. New publishes go to another connection."""
        self.broken = reason
        self._stream.shutdown()

    def _broken_by(self, error: BaseException) -> bool:
        """Keep the error of a send for the reading thread. Return False, or raise a kill."""
        if not isinstance(error, Exception):
            # A kill or an interrupt may have torn a command in two. A batch may have reached the
            # kernel or not, so its publishes are not put back.
            if self._unsent is None:
                self._batch = ()
            self.broken = ConnectionLost(f"a send was ended by {error!r}")
            self._stream.shutdown()
            raise error
        self.broken = error
        if self._unsent is None:
            self._put_back()
        # After a broken pipe the stream stays open: nsqd's last frames may say why it has gone.
        if not isinstance(error, (BrokenPipeError, ConnectionResetError)):
            self._stream.shutdown()
        return False

    def _put_back(self) -> None:
        """Put the batch back into ``slots``: no byte of it left, even if a layer encoded it."""
        for slot in reversed(self._batch):
            try:
                self.pending.remove(slot)
            except ValueError:
                continue  # already answered, by an nsqd that cannot have read the publish
            self.slots.appendleft(slot)
        self._batch = ()

    def finish(self, wait: float) -> None:
        """Write what is queued before a close, after another thread's write has ended."""
        if self._lock.acquire(True, wait):
            self._lock.release()
        self.flush(wait)
        # A publish from now on counts as not sent, even if a layer hides how much of it left.
        self.is_closed = True

    def _write(self, until: float) -> bool:
        """Write one batch, holding ``_lock``. Return False if the kernel was not in time."""
        if self._unsent is not None and not self._push(until):
            return False
        if self._level is None and not self.commands:
            return self._write_publishes(until)
        # FINs are copied first, so that a TOUCH appended before a FIN is also written before it.
        ids = self.fins[:]
        del self.fins[: len(ids)]
        parts = self.commands[:]
        del self.commands[: len(parts)]
        level = self._level
        if level is not None:
            if parts:
                self.requeued += sum(part.startswith(b"REQ ") for part in parts)
            wanted = level.wanted(self._in_flight())
            if wanted < self.rdy_sent:
                # A lower RDY goes before the answers, or nsqd fills the room that they make.
                parts.insert(0, commands.rdy(wanted))
                self.rdy_sent = wanted
            if ids:
                parts.append(b"FIN " + b"\nFIN ".join(ids) + b"\n")
                self.finished += len(ids)
            if wanted > self.rdy_sent:
                parts.append(commands.rdy(wanted))
                self.rdy_sent = wanted
        if parts:
            return self._send(parts[0] if len(parts) == 1 else b"".join(parts), until)
        return True

    def _write_publishes(self, until: float) -> bool:
        if self.slots and self._is_full and not self._has_room(until):
            return False
        slots, pending = self.slots, self.pending
        batch: list[PublishSlot] = []
        for _ in range(len(slots)):
            try:
                slot = slots.popleft()
            except IndexError:
                break  # its publisher took the slot back at this moment
            # Appended before the write, so that no answer can overtake its slot.
            pending.append(slot)
            batch.append(slot)
        if not batch:
            return True
        self._batch = batch
        now = self._now()
        if now - self._asked_at > _ASK_SECONDS:
            self._check_end(now)
        one = len(batch) == 1
        return self._send(batch[0].data if one else b"".join([s.data for s in batch]), until)

    def _send(self, data: bytes, until: float) -> bool:
        if not self._stream.is_clear:
            data = self._stream.encode(data)
        sent = self._send_some(data)
        if sent == len(data):
            self._batch = ()
            return True
        self._unsent = memoryview(data)[sent:]
        self._is_full = True
        self._stalled_since = self._now()
        if self._batch and self._stream.is_clear:
            self._unsent = self._unsent[: self._keep_begun(sent) - sent] or None
            if self._unsent is None:
                # The rest waits in ``slots`` for room in the kernel's buffer.
                return self._now() < until
        return self._push(until)

    def _keep_begun(self, sent: int) -> int:
        """Put back each publish of the batch of which no byte was among the ``sent`` bytes.

        Return the length in bytes of the publishes that were begun.
        """
        batch = self._batch
        length = 0
        for count, slot in enumerate(batch):
            if length >= sent:
                self._batch = batch[count:]
                self._put_back()
                self._batch = batch[:count]
                break
            length += len(slot.data)
        return length

    def _push(self, until: float) -> bool:
        """Write ``_unsent`` on, holding ``_lock``. Return False if the time was not enough."""
        while self._unsent is not None:
            now = self._now()
            if self._batch and now - self._asked_at > _ASK_SECONDS:
                self._check_end(now)
            sent = self._send_some(self._unsent)
            if sent:
                self._stalled_since = now
                self._unsent = self._unsent[sent:] or None
                continue
            self._check_stall(now)
            waiting = len(self.commands) + len(self.fins)
            if waiting > _MOST_WAITING:
                raise ConnectionLost(f"nsqd sends and does not read: {waiting} answers wait")
            if now >= until:
                return False
            self._stream.wait_writable(min(until - now, self._stall_timeout))
        self._batch = ()
        return True

    def _has_room(self, until: float) -> bool:
        """Wait for room in the kernel's buffer, to ``until`` at most. Holding ``_lock``."""
        while not self._stream.wait_writable(
            max(0.0, min(until - self._now(), self._stall_timeout))
        ):
            now = self._now()
            self._check_stall(now)
            if now >= until:
                return False
        self._is_full = False
        return True

    def _check_stall(self, now: float) -> None:
        if now - self._stalled_since > self._stall_timeout:
            raise ConnectionLost(f"nsqd took no byte for {self._stall_timeout:g} s")

    def _check_end(self, now: float) -> None:
        """Raise BrokenPipeError if nsqd's EOF has come. Called before bytes of publishes leave.

        After the EOF the kernel still takes bytes, but nobody can know if nsqd read them.
        """
        self._asked_at = now
        if self._peer_has_ended():
            raise BrokenPipeError("nsqd has ended the connection")

    def submit(self, slot: PublishSlot, wait: float) -> bool:
        """Queue a publish and write it; its outcome arrives in the slot.

        Return False if it was not sent, because the connection has ended; it then has no outcome.
        """
        self.slots.append(slot)
        self.flush(wait)
        return not (self.has_ended and self.take_back(slot))

    def fail_unsent(self, slot: PublishSlot) -> None:
        """Fail a publish that came to a closed connection too late for ``close`` to see it."""
        if self.take_back(slot):
            slot.fail(NotSent("the connection closed before the message was sent"))

    def wait_until_answered(self, deadline: float, passing_wait: float) -> None:
        """Wait until no publish waits for an answer, the time ``deadline``, or a close."""
        while not self.is_closed and self._now() < deadline:
            self.flush(passing_wait)
            latch = self._runtime.latch()
            self.drained.append(latch)
            # Checked after the latch was added: the last answer may just have come.
            if not self.pending and not self.slots:
                return
            latch.wait(max(0.0, deadline - self._now()))

    def tell_drained(self) -> None:
        """Wake the threads that wait until nothing is pending. Each of them looks again."""
        while self.drained:
            self.drained.pop().release()

    def take_back(self, slot: PublishSlot) -> bool:
        """Remove a publish that was not begun. Return False if it was begun."""
        try:
            self.slots.remove(slot)
        except ValueError:
            return False
        return True

    def refuse_oldest(self, nsqd_address: str, error: ServerError) -> None:
        """Fail the oldest unanswered publish, if there is one, with an error that nsqd sent."""
        if self.pending:
            slot = self.pending.popleft()
            slot.fail(Refused(f"{nsqd_address} refused the publish: {error}", error))

    def close(self, reason: Exception) -> None:
        """Close the stream and fail all unanswered publishes. Called once, by the reading thread.

        The stream was shut down before, so a blocked sender returns and gives the lock back; only a
        killed sender does not. Raises as ``end_each`` what callbacks of futures raise.
        """
        locked = not self._is_deserted and self._lock.acquire(True, ownership.GRACE_SECONDS)
        try:
            self.is_closed = True
            self._stream.close()
        finally:
            if locked:
                self._lock.release()
        try:
            end_each(partial(slot.fail, error) for slot, error in self._lost_slots(reason))
        finally:
            # Called last: a thread that saw a waiting publish may begin to wait only now.
            self.tell_drained()

    def _lost_slots(self, reason: Exception) -> Iterator[tuple[PublishSlot, PublishError]]:
        """Remove each unanswered publish, and yield it with the error that tells its fate."""
        torn = self._torn_slot()
        while self.pending:
            slot = self.pending.popleft()
            if self.peer_stopped:
                text = f"nsqd ended the connection before it read this: {reason}"
                yield slot, NotSent(text, [reason])
            elif slot is torn:
                text = f"the connection closed while the message was sent: {reason}"
                yield slot, NotSent(text, [reason])
            else:
                text = f"the connection closed before nsqd answered the publish: {reason}"
                yield slot, OutcomeUnknown(text)
        while self.slots:
            try:
                slot = self.slots.popleft()
            except IndexError:
                break  # its publisher took the slot back at this moment
            text = f"the connection closed before the message was sent: {reason}"
            yield slot, NotSent(text, [reason])

    def _torn_slot(self) -> PublishSlot | None:
        """Return the publish that the kernel took only in part, or None.

        nsqd stores a message only when it has read all of it, so a torn one was not sent. Behind a
        compressor or TLS the border between publishes is unknown, and no torn one is claimed.
        """
        if self._unsent is None or not self._batch or not self._stream.is_clear:
            return None
        return self._batch[-1]

    def abandon(self) -> None:
        """Close the stream in a forked child. The lists belong to the parent's publishers."""
        self.is_closed = True
        self._stream.abandon()
