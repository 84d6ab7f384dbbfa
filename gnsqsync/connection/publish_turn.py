"""Publishes on one connection, and who reads their answers: the reading right.

Knows whose turn it is, to send and to read; knows no frame, no deadline policy and no redial.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gnsqsync.connection.publish_replies import PublishReplies
from gnsqsync.connection.send_queue import PublishSlot, SendQueue
from gnsqsync.connection.stream import Stream
from gnsqsync.errors import ConnectionLost, NSQError
from gnsqsync.runtime import Runtime
from gnsqsync.wire.frames import Reply

__all__ = ["PublishTurn"]

# Answers are short: this is four hundred of them, and cheaper than a large buffer.
_RECV_SIZE = 4096
# How often the reading thread looks, while publishers read, whether they still do.
_LOOK_SECONDS = 0.1
# How long a publish waits for whoever reads to send it as well, before it is sent by itself.
_TURN_SECONDS = 0.005
# The kernel ends a receive some milliseconds late. So the last of a caller's time is waited for
# with a latch, which is exact, while the reading thread reads.
_EXACT_SECONDS = 0.05
# How much later than its deadline one that reads may give the right on.
_GRACE_SECONDS = 5.0
# About what a publish costs in all. While an exchange takes no longer than the publishes of all
# who wait, the processor is the limit, and they wait for their turn to be sent together. When it
# takes longer, the network is, and each is sent at once.
_EACH_SECONDS = 0.00002
# Greenlets that publish side by side: so many times one that finds the right free lets the others
# queue theirs first, in vain, before it sends at once again.
_COMPANY = 8


class PublishTurn:
    """Sends the publishes of one connection, and settles who reads the answers.

    One at a time has the right to read: who receives, and has the replies take that in. It is
    the reading thread's at first. When it has answered a publish it *lends* the right and looks
    at it every 0.1 s: from then on a publisher that finds it free sends what is queued, its own
    and others', reads until it has its own outcome, and hands it on to one that waits. When none
    came between two looks the reading thread takes it back. So a lone publisher pays for no other
    thread, and an idle connection has one that notices heartbeats and its end.

    ``_right`` is held while its owner receives, and is given to others held. It guards the
    receiving side: stream, ``_chunks``, and the PublishReplies with their decoder. It is only ever
    tried, so nothing waits for it. When reading fails it is kept for ever, and the reading thread
    ends the connection.
    """

    def __init__(
        self,
        stream: Stream,
        send_queue: SendQueue,
        answers: PublishReplies,
        runtime: Runtime,
        *,
        nsqd_address: str,
        silence: float,
        round_trip: float,
    ) -> None:
        """``silence``: seconds without a frame that are death.

        ``round_trip``: seconds that nsqd took to answer once.
        """
        self._nsqd_address = nsqd_address
        self._stream = stream
        self._receive = stream.receive
        self._send_queue = send_queue
        self._replies = answers
        self._take_in = answers.take_in
        # Only looked at here: answers that the reading thread has to tell.
        self._ended = answers.ended
        self._runtime = runtime
        self._now = runtime.now
        self._silence = silence
        self._right = runtime.baton()
        self._right.acquire(False)
        # Publishers that wait without the right. Who removes one settles whose move it is: the
        # one that hands the right on by popitem(), the publisher itself when it stops waiting.
        self._waiting: dict[PublishSlot, bool] = {}
        # What was received and not taken in yet. An exception that comes out of nowhere as the
        # receive returns must not lose it: the next one that reads begins here.
        self._chunks: deque[bytes] = deque()
        self._failure: BaseException | None = None
        # Whether the reading thread stands aside, and whether it wants the right back.
        self._lent = False
        self._wanted = False
        self._called = runtime.event()
        # Whether a publisher read since the reading thread looked.
        self._used = False
        # When who has the right should have given it on; 0 from then until the next one writes it.
        self._until = 0.0
        # The shortest exchange lately, in seconds; about how many wait at a time; and whether
        # these two make it cheaper to wait for one's turn to be sent.
        self._shortest = round_trip
        self._crowd = 0
        self._near = True
        # How many more publishes gather others before they are sent, while none come; and whether
        # one does so now.
        self._company = 0
        self._keep_company = _COMPANY if runtime.gathers else 0
        self._gathering = False
        self._gather = runtime.gather
        self._rough_latch = runtime.rough_latch

    # -- publishers --------------------------------------------------------------------------

    def publish(self, slot: PublishSlot, started: float, deadline: float) -> None:
        """Send it and wait; ``slot.done`` says whether there is an outcome.

        Without one the time is over, or this is none that can be waited for by reading: the
        caller goes on with ``wait_aside``.
        """
        if self._right.acquire(False):
            send = self._send_together if self._company else self._send_queue.send
            self._lead(slot, started, deadline, send)
        else:
            self._follow(slot, started, deadline)

    def submit(self, slot: PublishSlot, wait: float) -> bool:
        """Send it; its outcome comes from the reading thread.

        False when it was not sent and has no outcome, because the connection has ended.
        """
        taken = self._send_queue.submit(slot, wait)
        if self._lent:
            self.recall()
        return taken

    def wait_aside(self, slot: PublishSlot, seconds: float) -> bool:
        """Whether there is an outcome within ``seconds``, while the reading thread reads."""
        slot.latch = self._runtime.latch()
        if self._send_queue.is_closed:
            self._send_queue.fail_unsent(slot)
        if self._lent:
            self.recall()
        return slot.wait(seconds)

    def _flush(self, slot: PublishSlot) -> bool:
        return self._send_queue.flush()

    def _send_together(self, slot: PublishSlot) -> bool:
        """Send it with the publishes of all who are ready to publish now."""
        send_queue = self._send_queue
        send_queue.slots.append(slot)
        self._gathering = True
        try:
            self._gather()
        except BaseException:
            send_queue.take_back(slot)
            raise
        finally:
            self._gathering = False
        if len(send_queue.slots) <= 1:
            self._company -= 1
        return send_queue.flush()

    def _lead(
        self,
        slot: PublishSlot,
        started: float,
        deadline: float,
        send: Callable[[PublishSlot], bool],
    ) -> None:
        """Send, and read until ``slot`` has its outcome or the deadline passes. With the right.

        Whatever ends the caller's wait, the right is handed on. Nothing received is lost: an
        exception from outside either finds it in ``_chunks`` or ends the connection.
        """
        send_queue, stream, chunks = self._send_queue, self._stream, self._chunks
        sound = True
        try:
            self._until = deadline
            self._used = True
            left = deadline - started - _EXACT_SECONDS
            if not send(slot):
                if send_queue.is_stuck:
                    return
                # Another thread is writing, and may leave before it has written ours.
                left = min(left, _LOOK_SECONDS)
            if left < stream.read_timeout:
                if left <= 0:
                    return
                # Half, so that the next one, whose time is hardly ever quite the same, need not
                # set it again; when it is over the rest is set.
                stream.set_read_timeout(left / 2)
            while not slot.done:
                if not chunks:
                    try:
                        self._receive(chunks, _RECV_SIZE)
                    except TimeoutError:
                        left = deadline - _EXACT_SECONDS - self._now()
                        if left <= 0 or send_queue.has_unsent:
                            return
                        self._allow(left)
                        continue
                sound = False
                self._take_in(chunks.popleft())
                sound = True
                if send_queue.commands:
                    send_queue.flush()
        except (OSError, NSQError) as error:
            self._failure = error
        except BaseException as error:
            if not sound:
                # Half of what was received may be taken in; nobody can go on from there.
                self._failure = ConnectionLost(f"reading was ended by {error!r}")
            raise
        finally:
            if (
                self._failure is None
                and not send_queue.pending
                and not (self._waiting or self._wanted or self._ended)
            ):
                self._until = 0.0
                self._right.release()
                # One may have begun to wait after the look and before the release.
                if self._waiting and self._right.acquire(False):
                    self._give_up_right(started)
            else:
                self._give_up_right(started)

    def _give_up_right(self, started: float) -> None:
        try:
            if self._failure is not None:
                self.recall()
            else:
                self._hand_on(started)
        except BaseException as error:
            # Thrown in from outside, perhaps before the right was given to anybody.
            self._failure = ConnectionLost(f"reading was ended by {error!r}")
            self.recall()
            raise

    def _follow(self, slot: PublishSlot, started: float, deadline: float) -> None:
        """Wait for the outcome, or for the right to read it."""
        send_queue, waiting = self._send_queue, self._waiting
        left = deadline - started
        slot.latch = self._runtime.latch() if left < _EXACT_SECONDS else self._rough_latch()
        promoted = False
        self._company = self._keep_company
        send_queue.slots.append(slot)
        waiting[slot] = True
        try:
            if not (self._lent and (self._near or self._gathering)):
                send_queue.flush()
            if self._right.acquire(False):
                # Its owner may have looked before this one was there.
                promoted = True
            elif send_queue.is_closed:
                send_queue.fail_unsent(slot)
            elif not slot.latch.wait(max(0.0, min(left, _TURN_SECONDS))):
                send_queue.flush()
                # Not the last of the time, for which a rough one is too rough.
                left = deadline - self._now() - _EXACT_SECONDS
                slot.latch.wait(max(0.0, min(left, _LOOK_SECONDS)))
        except BaseException:
            if self._leave(slot) or promoted:
                self._give_up_right(0.0)
            raise
        if self._leave(slot) or promoted:
            now = self._now()
            self._lead(slot, now, deadline, self._flush)

    def _leave(self, slot: PublishSlot) -> bool:
        """Stop waiting. Whether the right has been given to this one."""
        return not self._waiting.pop(slot, False) and not slot.done

    def _hand_on(self, started: float = 0.0) -> None:
        """Give the right to one that waits, or back; by whoever has it.

        ``started``: when its publish began, where that has its answer now.
        """
        right, waiting, send_queue = self._right, self._waiting, self._send_queue
        while True:
            if self._wanted or self._ended:
                right.release()
                self.recall()
                return
            while waiting:
                try:
                    # The newest: what it reads for itself is behind the answers of all others.
                    slot, _ = waiting.popitem()
                except KeyError:
                    break  # it stopped waiting at the same moment
                if not slot.done:
                    self._until = 0.0
                    if started:
                        self._note(self._replies.last_frame_at - started)
                    assert slot.latch is not None
                    slot.latch.release()
                    return
            right.release()
            if send_queue.pending:
                # Futures, or publishes whose caller is gone: nobody reads those answers.
                self.recall()
            # One may have begun to wait after the look and before the release.
            if not waiting or not right.acquire(False):
                return

    def _note(self, seconds: float) -> None:
        # Most of what makes one longer is not the network; so the shortest, which may grow.
        self._shortest = min(max(0.0, seconds), self._shortest * 1.05 + 1e-6)
        self._crowd = max(len(self._waiting), self._crowd - 1)
        self._near = self._shortest <= _EACH_SECONDS * (self._crowd + 1)

    # -- the reading thread ------------------------------------------------------------------

    def read(self, early: list[Reply]) -> None:
        """Read, or look after those who do, until the connection ends; that is raised.

        ``early``: replies that came with the last answer of the handshake.
        """
        send_queue, chunks, answers = self._send_queue, self._chunks, self._replies
        answers.take_replies(early)
        while True:
            if send_queue.has_unsent:
                send_queue.flush()
            if not chunks:
                try:
                    self._receive(chunks, _RECV_SIZE)
                except TimeoutError:
                    self._allow(self._silence)
                    continue
            answered = answers.take_in(chunks.popleft())
            answers.end_futures()
            if answered and (self._waiting or not send_queue.pending):
                self._lend()

    def recall(self) -> None:
        """Have the reading thread read, as soon as whoever reads now has its outcome."""
        self._wanted = True
        self._called.set()

    def _lend(self) -> None:
        """Stand aside while publishers read; returns with the right."""
        called = self._called
        late = False
        # A call from before is answered: this thread has been reading.
        self._wanted = False
        self._used = True
        self._lent = True
        self._hand_on()
        while True:
            called.wait(_LOOK_SECONDS)
            called.clear()
            self._replies.end_futures()
            if self._failure is not None:
                raise self._failure
            if self._used and not self._wanted:
                self._used = False
                continue
            # In this order: who gives the right back before the try sees that it is wanted, or
            # the try succeeds. And publishers flush by themselves from now on.
            self._lent = False
            self._wanted = True
            if self._right.acquire(False):
                self._wanted = False
                return
            overdue = self._now() - self._until > _GRACE_SECONDS
            if overdue and late:
                # Somebody was killed between two instructions, with the right in its hands.
                raise ConnectionLost(f"who read from {self._nsqd_address} was killed")
            late = overdue

    def _allow(self, left: float) -> None:
        """Set the read timeout anew after it has passed; TimeoutError when it is nsqd's silence."""
        silent = self._now() - self._replies.last_frame_at
        if silent >= self._silence:
            raise TimeoutError
        self._stream.set_read_timeout(min(left, self._silence - silent))
