"""Replies on a connection that publishes: bytes to replies, and each OK to its publish.

Knows the order of the answers. Must not know the turn to read or a time limit.

``take_in`` decodes a chunk, and ``_answer`` ends one publish for each OK.

Surprise: an OK names no publish. nsqd answers in order, so it belongs to the oldest unanswered
publish. A publish that nobody waits for therefore keeps its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator

from gnsqsync.connection.publish_queue import PublishQueue
from gnsqsync.connection.publish_slot import PublishSlot, end_each
from gnsqsync.connection.stream import Stream
from gnsqsync.errors import ConnectionLost, ProtocolError
from gnsqsync.runtime import Runtime
from gnsqsync.wire.frames import FRAME_RESPONSE, FrameDecoder, Reply

__all__ = ["PublishReplies"]

# Data of the response to a publish.
_OK = b"OK"


class PublishReplies:
    """Decoder of received bytes. It gives each OK to the oldest unanswered publish.

    The turn to read (ReadTurn) guards all fields, and the left end of ``PublishQueue.pending``.
    Only ``end_futures`` belongs to the reading thread, because it runs the user's callbacks.
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
    ) -> None:
        """``on_reply`` takes each reply that is not OK."""
        # Count of messages that nsqd has confirmed.
        self.published: int = 0
        self.last_frame_at: float = runtime.now()
        # Answered publishes whose future the reading thread has yet to end.
        self.ended: deque[PublishSlot] = deque()
        self._nsqd_address = nsqd_address
        self._stream = stream
        self._clear = stream.is_clear
        self._pending = send_queue.pending
        self._drained = send_queue.drained
        self._tell_drained = send_queue.tell_drained
        self._decoder = decoder
        self._now = runtime.now
        self._on_reply = on_reply

    def take_in(self, data: bytes) -> int:
        """Decode one chunk. Return how many waiting publishers it answered.

        Raises what ended the connection: its EOF, a broken protocol, or an error of ``on_reply``.
        """
        self.last_frame_at = self._now()
        if self._clear:
            count = self._decoder.count_oks(data)
            return self._answer(count) if count else self._take_in_clear(data)
        return sum(map(self._take_in_clear, self._stream.decode_received(data)))

    def _take_in_clear(self, data: bytes) -> int:
        count = self._decoder.count_oks(data)
        if count:
            return self._answer(count)
        if not data:
            raise ConnectionLost(f"{self._nsqd_address} closed the connection")
        messages, replies = self._decoder.feed(data)
        if messages:
            raise ProtocolError(f"{self._nsqd_address} sent a message without SUB")
        return self.take_replies(replies)

    def take_replies(self, replies: Iterable[Reply]) -> int:
        """Take decoded replies, then raise what broke the decoder. Returns as ``take_in``."""
        answered = 0
        for reply in replies:
            kind, data = reply
            if kind == FRAME_RESPONSE and data == _OK:
                answered += self._answer(1)
            else:
                self._on_reply(reply)
        if self._decoder.broken is not None:
            raise ProtocolError(f"{self._nsqd_address}: {self._decoder.broken}")
        return answered

    def _answer(self, count: int) -> int:
        """Give ``count`` OKs to the oldest publishes. Return how many had no future."""
        pending = self._pending
        waited_for = 0
        while count:
            count -= 1
            try:
                slot = pending.popleft()
            except IndexError:
                raise ProtocolError(
                    f"{self._nsqd_address} sent b'OK', but no publish waits for an answer"
                ) from None
            self.published += slot.messages
            if slot.future is not None:
                self.ended.append(slot)
                continue
            waited_for += 1
            slot.done = True
            if slot.latch is not None:
                slot.latch.release()
        if self._drained and not pending:
            self._tell_drained()
        return waited_for

    def end_futures(self) -> None:
        """End the futures of ``publish_async``. By the reading thread; raises as ``end_each``."""
        if self.ended:
            end_each(self._successes())

    def _successes(self) -> Iterator[Callable[[], None]]:
        while self.ended:
            yield self.ended.popleft().succeed
