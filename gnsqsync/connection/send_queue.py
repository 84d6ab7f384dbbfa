"""What waits to be written to one nsqd, and the combining send that writes it.

Many threads append; the one that gets the lock writes for all. Knows no socket errors and no frames
that come back, only the order of publishes, which is the order of their answers.
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

# How long (seconds) the kernel's word holds that nsqd has not ended the connection. To ask is a
# system call of about 4 us, a tenth of a publish: once a millisecond it is 0.4 % of the time.
_ASK_SECONDS = 0.001
# How much longer (seconds) a sender that seems to have been killed may have the lock.
_SURE_SECONDS = 1.0
# Seconds for which the lock is tried after an exception from outside. A holder that is alive needs
# microseconds.
_STRUCK_SECONDS = 0.2
_NOT_SEEN = (-1, False, math.inf)
# So many answers may wait for an nsqd that reads too slowly. One that reads nothing sends nothing
# more either once all that it may send is in flight, and RDY is never that high.
_MOST_WAITING = 100_000


class PublishSlot:
    """One PUB, DPUB or MPUB on its way: its bytes, and what became of it.

    Its outcome is set once: ``error``, then ``done``, then ``latch`` is released. So a publisher
    that sets ``latch`` and then finds no outcome may wait for it; one that reads its answer itself
    needs none. ``succeed`` and ``fail`` are for the reading thread, since they end a
    ``future``, whose callbacks are the user's, and for the publisher that takes the slot back.
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
        # Its publisher gave up waiting; it keeps its place in the queue of answers.
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
        """Whether there is an outcome within ``timeout`` seconds; ``latch`` must be there."""
        if not self.done and self.latch is not None:
            self.latch.wait(max(0.0, timeout))
        return self.done


def end_each(ends: Iterable[Callable[[], None]]) -> None:
    """Call each, ``succeed`` or ``fail`` of a slot, whatever the callbacks of futures raise.

    Futures let through what is no Exception (SystemExit, gevent.Timeout): the last such one is
    raised when all are called.
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

    Lock-free lists, on purpose: any thread appends to ``commands``, ``fins`` and ``slots``
    (append is atomic); only the holder of ``_lock`` cuts the prefix that it copied, and the
    objects are never swapped. From ``slots`` each is taken by one ``popleft`` or ``remove``, so
    that a publish is either on its way or taken back. ``_lock`` guards the sending side: stream,
    compressor, ``rdy_sent``, ``_unsent``, and appending to ``pending``.

    RDY is a level, not a queued command: the sender compares what is wanted with what was sent
    last, so two racing decisions cannot arrive swapped and repeats vanish.
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
        self.commands: list[bytes] = []
        self.fins: list[bytes] = []
        self.slots: deque[PublishSlot] = deque()
        self.pending: deque[PublishSlot] = deque()
        self.rdy_sent: int = 0
        self.finished: int = 0
        self.requeued: int = 0
        self.broken: Exception | None = None
        # Set by the reading thread at a fatal error frame: nsqd reads nothing after the command
        # that caused it.
        self.peer_stopped = False
        self._stream = stream
        self._peer_has_ended = stream.peer_has_ended
        self._send_some = stream.send_some
        self._asked_at = -math.inf
        self._runtime = runtime
        self._now = runtime.now
        self._level = level
        self._in_flight = in_flight
        self._stall_timeout = stall_timeout
        self._lock = runtime.lock()
        # Encoded bytes that the kernel did not take yet, and since when it has taken none.
        self._unsent: memoryview | None = None
        self._stalled_since = 0.0
        # Whether the kernel's buffer was full at the last send. Publishes then stay in ``slots``
        # until there is room, where they can be taken back.
        self._is_full = False
        # How often the lock was taken.
        self._holds = 0
        # The holder that was seen last, by that number; whether it is suspected to be killed, and
        # when that is so, or is sure.
        self._seen = _NOT_SEEN
        self._is_deserted = False
        # The publishes in the batch of _unsent: at most the last one is torn (_torn_slot).
        self._batch: Sequence[PublishSlot] = ()
        # Released when no publish waits for an answer any more.
        self.drained: list[Latch] = []
        self.is_closed: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether nothing leaves any more."""
        return self.is_closed or self.broken is not None

    @property
    def is_stuck(self) -> bool:
        """Whether what is queued does not leave now: the kernel is full, or the end has come."""
        return self._unsent is not None or self.has_ended

    @property
    def has_unsent(self) -> bool:
        if self.commands or self.fins or self.slots or self._unsent is not None:
            return True
        level = self._level
        return level is not None and level.wanted(self._in_flight()) != self.rdy_sent

    def flush(self, wait: float = 0.0) -> bool:
        """Write what waits, or leave it to the thread that is writing: it looks again.

        True when all has left; False when another thread is writing, or the stream takes no more.

        ``wait``: how many seconds this caller has when the kernel's buffer is full, in all, also
        where others add to what waits; what is left then goes with the next flush. Whatever else
        breaks the send shuts the stream down, which wakes the reading thread; nothing is raised
        but what is no Exception.
        """
        lock = self._lock
        until = self._now() + wait if wait else 0.0
        while self.has_unsent:
            try:
                is_free = lock.acquire(False)
            except BaseException:  # a signal may strike when the lock is just taken
                self._find_holder()
                raise
            if not is_free:
                if self._sender_is_there():
                    return False
                continue
            try:
                self._holds += 1
                # Broken: what is in hand stays there, for _torn_slot to judge.
                if self.is_closed or self.broken is not None:
                    return False
                emptied = self._write(until)
            except BaseException as error:  # noqa: BLE001 - one from outside ends the connection
                return self._broken_by(error)
            finally:
                lock.release()
            if not emptied:
                return False
        return not lock.locked()

    def answer_heartbeat(self) -> None:
        """Queue a NOP, unless one waits already: it answers all that came before it leaves."""
        if commands.NOP not in self.commands:
            self.commands.append(commands.NOP)

    def _sender_is_there(self) -> bool:
        """Whether the lock is held still. The connection ends when its holder was killed."""
        now, holds = self._now(), self._holds
        # In one piece, as other threads look here at the same moment.
        seen_at, is_suspect, sure_at = self._seen
        if self._is_full:
            # It waits for room in the kernel's buffer, which may last.
            self._seen = _NOT_SEEN
        elif seen_at != holds:
            self._seen = (holds, False, now + ownership.GRACE_SECONDS)
        elif now >= sure_at and not self.has_ended:
            if not is_suspect:
                # Perhaps another one than was seen then, which is just about to count itself; or
                # one that waits, among hundreds of busy threads, to go on.
                patience = _SURE_SECONDS + self._runtime.longest_wait_to_run()
                self._seen = (holds, True, now + patience)
            else:
                self._desert()
        return True

    def send(self, slot: PublishSlot, now: float) -> bool:
        """Queue a publish and ``flush``; a shorter way where nothing else waits.

        ``now`` (seconds): of the clock, by a look that the caller has just taken.
        """
        lock = self._lock
        try:
            # Another thread may empty the queue at any moment: it is looked at once.
            if self.slots or self.commands or not lock.acquire(False):
                must_wait = True
            else:
                must_wait = False
        except BaseException:  # a signal may strike when the lock is just taken
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
                # Before the write, so that no answer can overtake its slot.
                self.pending.append(slot)
                self._batch = (slot,)
                if now - self._asked_at > _ASK_SECONDS:
                    self._check_end(now)
                if not self._send(slot.data, 0.0):
                    return False
        except BaseException as error:  # noqa: BLE001 - one from outside ends the connection
            return self._broken_by(error)
        finally:
            lock.release()
        return self.flush() if self.slots or self.commands else True

    def _find_holder(self) -> None:
        """End the connection if this thread has the lock, which an exception from outside hid.

        Another holder counts itself and gives the lock back soon, or waits for the kernel's buffer.
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
        """Send nothing any more: what comes now goes to another connection."""
        self.broken = reason
        self._stream.shutdown()

    def _broken_by(self, error: BaseException) -> bool:
        """Keep what ended a send for the reading thread: False, or raised if no Exception."""
        if not isinstance(error, Exception):
            # A killed greenlet or an interrupt may have torn a command in two, and nobody knows
            # whether the kernel has a batch that it was just given.
            if self._unsent is None:
                self._batch = ()
            self.broken = ConnectionLost(f"a send was ended by {error!r}")
            self._stream.shutdown()
            raise error
        self.broken = error
        if self._unsent is None:
            self._put_back()
        # Otherwise nsqd is gone. The reading thread sees that after what nsqd sent before: perhaps
        # the error that says why.
        if not isinstance(error, (BrokenPipeError, ConnectionResetError)):
            self._stream.shutdown()
        return False

    def _put_back(self) -> None:
        """No byte of the batch has left: it was not sent, also where a layer has encoded it."""
        for slot in reversed(self._batch):
            try:
                self.pending.remove(slot)
            except ValueError:
                continue  # answered, by a peer that cannot have read it
            self.slots.appendleft(slot)
        self._batch = ()

    def finish(self, wait: float) -> None:
        """Write what waits before a close, for which another thread's write must end first."""
        if self._lock.acquire(True, wait):
            self._lock.release()
        self.flush(wait)
        # What comes now was not sent, also where a layer hides how much of it left.
        self.is_closed = True

    def _write(self, until: float) -> bool:
        """One batch, holding ``_lock``. False when the kernel had not taken all of it by then."""
        if self._unsent is not None and not self._push(until):
            return False
        if self._level is None and not self.commands:
            return self._write_publishes(until)
        # FINs are cut first: a TOUCH that was appended before a FIN then stands before it.
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
                # Before the answers that make room, or nsqd fills the room at once.
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
                break  # taken back at the same moment
            # Before the write, so that no answer can overtake its slot.
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
                # What is left waits in ``slots`` for room, as long as there is time.
                return self._now() < until
        return self._push(until)

    def _keep_begun(self, sent: int) -> int:
        """Put back the publishes of the batch of whose bytes none was ``sent``.

        Returns the length of the others in bytes.
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
        """Continue with ``_unsent``, holding ``_lock``. False when the time was not enough."""
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
        """Whether the kernel takes bytes again, at ``until`` at the latest; holding ``_lock``."""
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
        """Before the bytes of publishes: BrokenPipeError when nsqd's EOF is here.

        The kernel takes them after that, too, and then nobody knows whether nsqd has read them.
        """
        self._asked_at = now
        if self._peer_has_ended():
            raise BrokenPipeError("nsqd has ended the connection")

    def submit(self, slot: PublishSlot, wait: float) -> bool:
        """Queue a publish and write it; its outcome arrives in the slot.

        False when it was not sent and has no outcome, because the connection has ended.
        """
        self.slots.append(slot)
        self.flush(wait)
        return not (self.has_ended and self.take_back(slot))

    def fail_unsent(self, slot: PublishSlot) -> None:
        """On a closed connection: the end of a publish that came too late for ``close``."""
        if self.take_back(slot):
            slot.fail(NotSent("the connection closed before the message was sent"))

    def wait_until_answered(self, deadline: float, passing_wait: float) -> None:
        """Until no publish waits for an answer, or the time ``deadline``, or a close."""
        while not self.is_closed and self._now() < deadline:
            self.flush(passing_wait)
            latch = self._runtime.latch()
            self.drained.append(latch)
            # Looked at after it: the last answer may just have come.
            if not self.pending and not self.slots:
                return
            latch.wait(max(0.0, deadline - self._now()))

    def tell_drained(self) -> None:
        """Nothing is pending: wake the threads that wait for that. They look for themselves."""
        while self.drained:
            self.drained.pop().release()

    def take_back(self, slot: PublishSlot) -> bool:
        """Remove a publish whose bytes were not begun; False when they were."""
        try:
            self.slots.remove(slot)
        except ValueError:
            return False
        return True

    def refuse_oldest(self, nsqd_address: str, error: ServerError) -> None:
        """nsqd said this to the oldest publish that it had not answered, if there is one."""
        if self.pending:
            slot = self.pending.popleft()
            slot.fail(Refused(f"{nsqd_address} refused the publish: {error}", error))

    def close(self, reason: Exception) -> None:
        """Close the stream and fail what has no answer. By the reading thread, once.

        The stream was shut down before, so a sender that blocks leaves and gives the lock back;
        one that was killed does not. What callbacks of futures raise is raised as by ``end_each``.
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
            # After that: a thread that saw a publish waiting may begin to wait only now.
            self.tell_drained()

    def _lost_slots(self, reason: Exception) -> Iterator[tuple[PublishSlot, PublishError]]:
        """Take out each publish that has no answer, with what is known of it."""
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
                break  # its publisher took it back at the same moment
            text = f"the connection closed before the message was sent: {reason}"
            yield slot, NotSent(text, [reason])

    def _torn_slot(self) -> PublishSlot | None:
        """The publish of whose bytes the kernel took some, and never the last one.

        nsqd stores a message only when it has read all of it, so this one was not sent. After a
        compressor or TLS the border is not known, and none is claimed.
        """
        if self._unsent is None or not self._batch or not self._stream.is_clear:
            return None
        return self._batch[-1]

    def abandon(self) -> None:
        """In a forked child: the lists belong to the parent's publishers; only close."""
        self.is_closed = True
        self._stream.abandon()
