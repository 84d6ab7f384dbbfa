"""Publishes on one connection: sent, and their answers read by the publishers that wait for them.

Knows whose turn it is to send and to read. Knows no frame and no redial.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gnsqsync.connection.publish_replies import PublishReplies
from gnsqsync.connection.read_turn import LOOK_SECONDS, ReadTurn
from gnsqsync.connection.send_queue import PublishSlot, SendQueue
from gnsqsync.connection.stream import Stream
from gnsqsync.errors import ConnectionLost, NSQError
from gnsqsync.runtime import Runtime
from gnsqsync.wire.frames import FrameDecoder, Reply

__all__ = ["Publishes"]

# Answers are short: this is four hundred of them, and cheaper than a large buffer.
_RECV_SIZE = 4096
# The kernel ends a receive some milliseconds late. So the last of a caller's time is waited for
# with a latch, which is exact, while the reading thread reads.
_EXACT_SECONDS = 0.05
# An nsqd that has answered within this time is near: on this machine, or in the next rack. One send
# for several publishes then costs less than a send for each, so a publish waits for others; at most
# _TOGETHER_SECONDS.
_NEAR_SECONDS = 0.0005
_TOGETHER_SECONDS = 0.005
# On greenlets a publish lets others queue theirs before it sends. When none came so many times, the
# next one sends at once.
_COMPANY = 8


class Publishes:
    """Sends the publishes of one connection, and reads their answers.

    A publisher that has the turn to read (ReadTurn) sends what is queued, its own and others',
    and reads until it has its own outcome; the outcomes of others that it meets it hands out. The
    turn also guards the receiving side: stream, ``_chunks``, and the PublishReplies with their
    decoder.
    """

    def __init__(
        self,
        stream: Stream,
        send_queue: SendQueue,
        decoder: FrameDecoder,
        runtime: Runtime,
        *,
        nsqd_address: str,
        on_reply: Callable[[Reply], None],
        silence: float,
    ) -> None:
        """``on_reply`` takes what is no OK. ``silence``: seconds without a frame that are death."""
        replies = PublishReplies(
            stream, send_queue, decoder, runtime, nsqd_address=nsqd_address, on_reply=on_reply
        )
        self._stream = stream
        self._receive = stream.receive
        self._send_queue = send_queue
        self._send = send_queue.send
        self._pending = send_queue.pending
        self.replies: PublishReplies = replies
        self._take_in = replies.take_in
        # Only looked at here: answers that the reading thread has to tell.
        self._ended = replies.ended
        self._runtime = runtime
        self._now = runtime.now
        self._silence = silence
        self._turn = ReadTurn(runtime, nsqd_address)
        self._take_turn = self._turn.take
        self._release_turn = self._turn.release
        # What was received and not taken in yet. An exception from outside may strike as
        # the receive returns, and must not lose it: the next thread that reads begins here.
        self._chunks: deque[bytes] = deque()
        self._is_near = False
        # How many more publishes let others queue theirs before they are sent; and whether one
        # does so now.
        self._company = 0
        self._keep_company = _COMPANY if runtime.gathers else 0
        self._gathering = False
        self._gather = runtime.gather
        self._rough_latch = runtime.rough_latch

    # -- publishers --------------------------------------------------------------------------

    def publish(self, slot: PublishSlot, started: float, deadline: float) -> None:
        """Send it and wait; ``slot.done`` says whether there is an outcome.

        Without one the time is over, or the answer will come by another thread: the caller goes on
        with ``wait_aside``.
        """
        has_left = False
        try:
            if self._take_turn(slot, deadline):
                send = self._send_together if self._company else self._send
                self._read_for(slot, started, deadline, send)
            elif self._follow(slot, started, deadline):
                started = self._now()
                self._read_for(slot, started, deadline, self._flush)
            else:
                has_left = True
            if not self._is_near and slot.done:
                self._is_near = 0 < self.replies.last_frame_at - started <= _NEAR_SECONDS
        finally:
            if not has_left:
                try:
                    self._release_turn(slot, self._pending, self._ended)
                except BaseException:
                    # From outside, before the turn was given on: others would wait for it.
                    self._release_turn(slot, self._pending, self._ended)
                    raise

    def submit(self, slot: PublishSlot, wait: float) -> bool:
        """Send it; its outcome comes from the reading thread.

        False when it was not sent and has no outcome, because the connection has ended.
        """
        taken = self._send_queue.submit(slot, wait)
        self.recall()
        return taken

    def wait_aside(self, slot: PublishSlot, seconds: float) -> bool:
        """Whether there is an outcome within ``seconds``, while the reading thread reads."""
        slot.latch = self._runtime.latch()
        if self._send_queue.is_closed:
            self._send_queue.fail_unsent(slot)
        self.recall()
        return slot.wait(seconds)

    def recall(self) -> None:
        """Have the reading thread read, as soon as the publisher that reads has its outcome."""
        if self._turn.is_lent:
            self._turn.recall()

    def _flush(self, slot: PublishSlot, now: float) -> bool:
        return self._send_queue.flush()

    def _send_together(self, slot: PublishSlot, now: float) -> bool:
        """Send it with the publishes of all greenlets that are ready to publish now."""
        self._gathering = True
        try:
            self._gather()
        finally:
            self._gathering = False
        if not self._send_queue.slots:
            self._company -= 1
        return self._send(slot, self._now())

    def _read_for(
        self,
        slot: PublishSlot,
        started: float,
        deadline: float,
        send: Callable[[PublishSlot, float], bool],
    ) -> None:
        """Send, and read until ``slot`` has its outcome or the deadline passes. With the turn.

        Nothing received is lost: an exception from outside either finds it in ``_chunks`` or ends
        the connection.
        """
        send_queue, stream, chunks = self._send_queue, self._stream, self._chunks
        sound = True
        try:
            left = deadline - started - _EXACT_SECONDS
            if not send(slot, started):
                if send_queue.is_stuck:
                    return
                # Another thread is writing, and may leave before it has written ours.
                left = min(left, LOOK_SECONDS)
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
            self._turn.fail(slot, error)
        except BaseException as error:
            # From outside: half of what was received may be taken in, and no thread can go on.
            if not sound:
                failure = ConnectionLost(f"reading was ended by {error!r}")
                if not send_queue.has_ended:
                    # Nobody would read the answer to what is sent from now on.
                    send_queue.break_off(failure)
                self._turn.fail(slot, failure)
            raise

    def _follow(self, slot: PublishSlot, started: float, deadline: float) -> bool:
        """Wait for the outcome, or for the turn to read it: whether that is the caller's now."""
        send_queue, turn = self._send_queue, self._turn
        left = deadline - started
        slot.latch = self._runtime.latch() if left < _EXACT_SECONDS else self._rough_latch()
        self._company = self._keep_company
        send_queue.slots.append(slot)
        if turn.owner is slot:
            return True  # it became free before the latch was there
        if not ((self._is_near or self._gathering) and turn.is_lent):
            send_queue.flush()
        if send_queue.is_closed:
            send_queue.fail_unsent(slot)
        elif not slot.latch.wait(max(0.0, min(left, _TOGETHER_SECONDS))):
            send_queue.flush()
            # Not the last of the time, for which a rough one is too rough.
            left = deadline - self._now() - _EXACT_SECONDS
            slot.latch.wait(max(0.0, min(left, LOOK_SECONDS)))
        return turn.leave(slot)

    # -- the reading thread ------------------------------------------------------------------

    def read(self, early: list[Reply]) -> None:
        """Read, or watch the publishers that read, until the connection ends; that is raised.

        ``early``: replies that came with the last answer of the handshake.
        """
        send_queue, chunks, replies = self._send_queue, self._chunks, self.replies
        replies.take_replies(early)
        while True:
            if send_queue.has_unsent:
                send_queue.flush()
            if not chunks:
                try:
                    self._receive(chunks, _RECV_SIZE)
                except TimeoutError:
                    self._allow(self._silence)
                    continue
            answered = replies.take_in(chunks.popleft())
            replies.end_futures()
            if answered and (self._turn.has_waiting or not send_queue.pending):
                self._stand_aside()

    def _stand_aside(self) -> None:
        """While publishers read; returns with the turn."""
        self._turn.lend()
        returned = False
        while not returned:
            returned = self._turn.look()
            self.replies.end_futures()

    def _allow(self, left: float) -> None:
        """Set the read timeout anew after it has passed; TimeoutError when it is nsqd's silence."""
        silent = self._now() - self.replies.last_frame_at
        if silent >= self._silence:
            raise TimeoutError
        self._stream.set_read_timeout(min(left, self._silence - silent))
