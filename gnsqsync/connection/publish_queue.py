"""Queue of publishes on their way to one nsqd, and of those that wait for its answer.

Knows the order of publishes, which is the order of their answers, and what a lost connection means
for each. Must not know received frames.

A publish moves from ``slots`` to ``pending`` before its bytes are written, so that no answer can
overtake it.

Surprise: the publish may move back. If the kernel's buffer is full, publishes of which no byte has
left return to ``slots``.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial

from gnsqsync.connection.publish_slot import PublishSlot, end_each
from gnsqsync.connection.send_queue import SendQueue
from gnsqsync.connection.stream import Stream
from gnsqsync.errors import NotSent, OutcomeUnknown, PublishError, Refused, ServerError
from gnsqsync.runtime import Latch, Runtime

__all__ = ["PublishQueue"]

# Seconds for which the kernel's word holds that nsqd has not ended the connection. To ask is a
# system call of about 4 us, a tenth of a publish: once a millisecond, it costs 0.4 % of the time.
_ASK_SECONDS = 0.001


class PublishQueue(SendQueue):
    """The outgoing side of a connection that publishes.

    Any thread appends to ``slots``. Each slot leaves it by one ``popleft`` or ``remove``, so a
    publish is either on its way or taken back. ``_lock`` also guards appends to ``pending``.
    """

    def __init__(self, stream: Stream, runtime: Runtime, *, stall_timeout: float) -> None:
        super().__init__(stream, runtime, stall_timeout=stall_timeout)
        # Publishes of which no byte has left. While the kernel's buffer is full, they stay here,
        # where their publishers can take them back.
        self.slots: deque[PublishSlot] = deque()
        # Publishes on their way, which wait for an answer, the oldest first.
        self.pending: deque[PublishSlot] = deque()
        # True once a fatal error frame came: nsqd reads nothing after the command that caused it.
        self.peer_stopped = False
        # Latches to be released when no publish waits for an answer.
        self.drained: list[Latch] = []
        self._peer_has_ended = stream.peer_has_ended
        # Time at which the kernel was last asked for nsqd's EOF.
        self._asked_at = -math.inf
        # Publishes in ``_unsent``: at most the last one is torn (``_torn_slot``).
        self._batch: Sequence[PublishSlot] = ()

    @property
    def has_unsent(self) -> bool:
        if self.commands or self.slots:
            return True
        return self._unsent is not None

    # -- publishers --------------------------------------------------------------------------------

    def send(self, slot: PublishSlot, now: float) -> bool:
        """Queue a publish and ``flush``, on a shorter path if nothing else is queued.

        ``now``: time in seconds that the caller has just read from the clock.
        """
        lock = self._lock
        try:
            # A single look, because another thread may empty the queue at any moment.
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
                self._batch = ()
        except BaseException as error:  # noqa: BLE001 - a kill ends the connection, too
            return self._broken_by(error)
        finally:
            lock.release()
        return self.flush() if self.slots or self.commands else True

    def submit(self, slot: PublishSlot, wait: float) -> bool:
        """Queue a publish and write it; its outcome arrives in the slot.

        Return False if it was not sent, because the connection has ended; it then has no outcome.
        """
        self.slots.append(slot)
        self.flush(wait)
        return not (self.has_ended and self.take_back(slot))

    def take_back(self, slot: PublishSlot) -> bool:
        """Remove a publish that was not begun. Return False if it was begun."""
        try:
            self.slots.remove(slot)
        except ValueError:
            return False
        return True

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

    # -- sending, holding the lock -----------------------------------------------------------------

    def _write(self, until: float) -> bool:
        if self._unsent is not None and not self._push(until):
            return False
        if self.commands:
            parts = self.commands[:]
            del self.commands[: len(parts)]
            return self._send(b"".join(parts), until)
        if self.slots and self._is_full and not self._has_room(until):
            return False
        slots, pending = self.slots, self.pending
        batch: list[PublishSlot] = []
        for _ in range(len(slots)):
            try:
                slot = slots.popleft()
            except IndexError:
                break  # the publisher took the slot back at this moment
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
        if not self._send(batch[0].data if one else b"".join([s.data for s in batch]), until):
            return False
        self._batch = ()
        return True

    def _send_rest(self, rest: memoryview, sent: int, until: float) -> bool:
        if self._batch and self._stream.is_clear:
            self._unsent = rest[: self._keep_begun(sent) - sent] or None
            if self._unsent is None:
                # The rest waits in ``slots`` for room in the kernel's buffer.
                return self._now() < until
        return self._push(until)

    def _push(self, until: float) -> bool:
        if not super()._push(until):
            return False
        self._batch = ()
        return True

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

    def _put_back(self) -> None:
        """Put the batch back into ``slots``: no byte of it left, even if a layer encoded it."""
        for slot in reversed(self._batch):
            try:
                self.pending.remove(slot)
            except ValueError:
                continue  # already answered, by an nsqd that cannot have read the publish
            self.slots.appendleft(slot)
        self._batch = ()

    def _broken_by(self, error: BaseException) -> bool:
        try:
            return super()._broken_by(error)
        finally:
            # After a partial write, ``_batch`` stays: ``_torn_slot`` needs it.
            if self._unsent is None:
                # After a kill, the kernel may have the whole batch, so it is not put back.
                if isinstance(error, Exception):
                    self._put_back()
                self._batch = ()

    def _has_room(self, until: float) -> bool:
        """Wait for room in the kernel's buffer, to ``until`` at most."""
        while not self._stream.wait_writable(
            max(0.0, min(until - self._now(), self._stall_timeout))
        ):
            now = self._now()
            self._check_stall(now)
            if now >= until:
                return False
        self._is_full = False
        return True

    def _send_on(self, rest: memoryview, now: float) -> int:
        if self._batch and now - self._asked_at > _ASK_SECONDS:
            self._check_end(now)
        return super()._send_on(rest, now)

    def _check_end(self, now: float) -> None:
        """Raise BrokenPipeError if nsqd's EOF has come. Called before bytes of publishes leave.

        After the EOF the kernel still takes bytes, but nobody can know if nsqd read them.
        """
        self._asked_at = now
        if self._peer_has_ended():
            raise BrokenPipeError("nsqd has ended the connection")

    # -- the end -----------------------------------------------------------------------------------

    def refuse_oldest(self, nsqd_address: str, error: ServerError) -> None:
        """Fail the oldest unanswered publish, if there is one, with an error that nsqd sent."""
        if self.pending:
            slot = self.pending.popleft()
            slot.fail(Refused(f"{nsqd_address} refused the publish: {error}", error))

    def close(self, reason: Exception) -> None:
        """Close the stream and fail all unanswered publishes. Called once, by the reading thread.

        Raises as ``end_each`` what callbacks of futures raise.
        """
        self.close_stream()
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
                break  # the publisher took the slot back at this moment
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
