"""Publishes on one connection: sent, and their answers read by the publishers that wait for them.

Knows whose turn it is to send and to read. Must not know frames or redials.

A publisher that gets the turn writes the queue and reads answers until its own has come. The
reading thread only watches meanwhile, and reads again when no publisher does.

Surprise: ``publish`` may return without an outcome. Another thread then reads the answer, and the
caller waits for it with ``wait_aside``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from gnsqsync.connection.publish_queue import PublishQueue
from gnsqsync.connection.publish_replies import PublishReplies
from gnsqsync.connection.publish_slot import PublishSlot
from gnsqsync.connection.read_turn import LOOK_SECONDS, ReadTurn
from gnsqsync.connection.stream import Stream
from gnsqsync.errors import ConnectionLost, NSQError
from gnsqsync.runtime import Runtime
from gnsqsync.wire.frames import FrameDecoder, Reply

__all__ = ["Publishes"]

# Bytes of one receive: four hundred answers, and cheaper than a large buffer.
_RECV_SIZE = 4096
# Seconds before its deadline at which a caller stops reading and waits with a latch. The kernel
# ends a receive some milliseconds late, and a latch is exact.
_EXACT_SECONDS = 0.05
# An nsqd that answers within these seconds is near: on this machine, or in the next rack. One send
# for several publishes then costs less than a send for each, so a publish waits for others.
_NEAR_SECONDS = 0.0005
# Upper bound in seconds of the wait for other publishes.
_TOGETHER_SECONDS = 0.005


class Publishes:
    """Sender of the publishes of one connection, and reader of their answers.

    A publisher that holds the turn (ReadTurn) sends all queued publishes, and reads until its own
    outcome has come. It hands out the outcomes of other publishers on the way. The turn also guards
    the receiving side: the stream, ``_chunks``, and the PublishReplies with their decoder.
    """

    def __init__(
        self,
        stream: Stream,
        send_queue: PublishQueue,
        decoder: FrameDecoder,
        runtime: Runtime,
        *,
        nsqd_address: str,
        on_reply: Callable[[Reply], None],
        silence: float,
    ) -> None:
        """``on_reply`` takes each reply that is not OK.

        ``silence``: seconds without a frame after which nsqd counts as dead.
        """
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
        # Read here only: answered publishes whose futures the reading thread has yet to end.
        self._ended = replies.ended
        self._runtime = runtime
        self._now = runtime.now
        self._silence = silence
        self._turn = ReadTurn(runtime, nsqd_address)
        self._take_turn = self._turn.take
        self._release_turn = self._turn.release
        # Received chunks that were not decoded yet. A kill may strike as a receive returns, and
        # must not lose its bytes: the next thread that reads begins here.
        self._chunks: deque[bytes] = deque()
        # True once nsqd has answered within _NEAR_SECONDS.
        self._is_near = False
        # Sends the first publish of a turn. On greenlets, the others queue theirs before.
        self._send_first = self._send_together if runtime.gathers else self._send
        # True while a greenlet with the turn lets the others queue their publishes.
        self._gathering = False
        self._gather = runtime.gather
        self._rough_latch = runtime.rough_latch

    @property
    def last_frame_at(self) -> float:
        """Time at which bytes were last decoded."""
        return self.replies.last_frame_at

    # -- publishers --------------------------------------------------------------------------

    def publish(self, slot: PublishSlot, started: float, deadline: float) -> None:
        """Send and wait. ``slot.done`` then tells whether there is an outcome.

        Without an outcome, the time is over or another thread will read the answer. The caller goes
        on with ``wait_aside``.
        """
        has_left = False
        try:
            if self._take_turn(slot, deadline):
                self._read_for(slot, started, deadline, self._send_first)
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
                    # A kill struck before the turn was given on, for which other publishers wait.
                    self._release_turn(slot, self._pending, self._ended)
                    raise

    def submit(self, slot: PublishSlot, wait: float) -> bool:
        """Send a publish whose outcome the reading thread will tell.

        Return False if it was not sent, because the connection has ended; it then has no outcome.
        """
        taken = self._send_queue.submit(slot, wait)
        self.recall()
        return taken

    def wait_aside(self, slot: PublishSlot, seconds: float) -> bool:
        """Wait while the reading thread reads. Return True if an outcome came in ``seconds``."""
        slot.latch = self._runtime.latch()
        if self._send_queue.is_closed:
            self._send_queue.fail_unsent(slot)
        self.recall()
        return slot.wait(seconds)

    def recall(self) -> None:
        """Make the reading thread read, as soon as the publisher that reads has its outcome."""
        if self._turn.is_lent:
            self._turn.recall()

    def _flush(self, slot: PublishSlot, now: float) -> bool:
        return self._send_queue.flush()

    def _send_together(self, slot: PublishSlot, now: float) -> bool:
        """Send after all greenlets that are ready to publish now have queued their publishes."""
        self._gathering = True
        try:
            self._gather()
        finally:
            self._gathering = False
        return self._send(slot, self._now())

    def _read_for(
        self,
        slot: PublishSlot,
        started: float,
        deadline: float,
        send: Callable[[PublishSlot, float], bool],
    ) -> None:
        """Send, and read until ``slot`` has its outcome or the deadline passes. Holding the turn.

        No received byte is lost: a kill either leaves the chunk in ``_chunks`` or ends the
        connection.
        """
        send_queue, stream, chunks = self._send_queue, self._stream, self._chunks
        sound = True
        try:
            left = deadline - started - _EXACT_SECONDS
            if not send(slot, started):
                if send_queue.is_stuck:
                    return
                # Another thread is writing. It may stop before it reaches this publish: look soon.
                left = min(left, LOOK_SECONDS)
            if left < stream.read_timeout:
                if left <= 0:
                    return
                # Half of the time is set now, and the rest when the half is over. The half also
                # fits the next publisher, which then needs no system call to set its own.
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
                if not slot.done and not self._shorten(deadline):
                    return
        except (OSError, NSQError) as error:
            self._turn.fail(slot, error)
        except BaseException as error:
            # A kill may leave a chunk half decoded; then no thread can go on reading.
            if not sound:
                failure = ConnectionLost(f"reading was ended by {error!r}")
                if not send_queue.has_ended:
                    # Stop sending: no thread would read the answers.
                    send_queue.break_off(failure)
                self._turn.fail(slot, failure)
            raise

    def _shorten(self, deadline: float) -> bool:
        """Keep the read timeout within the deadline after a chunk. Return False if it has passed.

        Each receive waits for the whole read timeout. So a heartbeat, or the answer to another
        publish, would otherwise extend the wait of the publisher that reads.
        """
        left = deadline - _EXACT_SECONDS - self.replies.last_frame_at
        if left < self._stream.read_timeout:
            if left <= 0:
                return False
            self._stream.set_read_timeout(left / 2)
        return True

    def _follow(self, slot: PublishSlot, started: float, deadline: float) -> bool:
        """Wait for the outcome or the turn to read. Return True if the caller has the turn."""
        send_queue, turn = self._send_queue, self._turn
        left = deadline - started
        slot.latch = self._runtime.latch() if left < _EXACT_SECONDS else self._rough_latch()
        send_queue.slots.append(slot)
        if turn.owner is slot:
            return True  # the turn became free before the latch was set
        if not ((self._is_near or self._gathering) and turn.is_lent):
            send_queue.flush()
        if send_queue.is_closed:
            send_queue.fail_unsent(slot)
        elif not slot.latch.wait(max(0.0, min(left, _TOGETHER_SECONDS))):
            send_queue.flush()
            # Stop before the last part of the time, for which a rough latch is too late.
            left = deadline - self._now() - _EXACT_SECONDS
            slot.latch.wait(max(0.0, min(left, LOOK_SECONDS)))
        return turn.leave(slot)

    # -- the reading thread ------------------------------------------------------------------

    def read(self, early: list[Reply]) -> None:
        """Read, or watch the publishers that read. At the end of the connection, raise the reason.

        ``early``: replies that arrived with the last answer of the handshake.
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
        """Let publishers read, and return when the turn has come back."""
        self._turn.lend()
        returned = False
        while not returned:
            returned = self._turn.look()
            self.replies.end_futures()

    def _allow(self, left: float) -> None:
        """Set a new read timeout after the last has passed. TimeoutError if nsqd is silent."""
        silent = self._now() - self.replies.last_frame_at
        if silent >= self._silence:
            raise TimeoutError
        self._stream.set_read_timeout(min(left, self._silence - silent))
