"""Pull form of a Reader without a handler: the user's thread takes batches of messages.

Knows chunks and how long to wait for them. Must not know RDY or backoff.

``take`` takes chunks from the queue until the batch is full or its time is over, and puts the rest
of the last chunk back in front.

Surprise: no worker answers for the user. A message that the user takes and forgets keeps its slot
until nsqd's timeout.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gnsqsync.connection.link import PASSING_WAIT
from gnsqsync.connection.subscribed import SubscribedConnection
from gnsqsync.message import BEGUN, Fate, Message
from gnsqsync.reader.chunks import Chunk, Chunks
from gnsqsync.runtime import Runtime, TimedQueue

__all__ = ["Batches"]

GiveUp = Callable[[SubscribedConnection, Message, BaseException | None], Fate]


class Batches:
    """Source of ``Reader.batches()`` and of iteration. Any number of threads may take."""

    def __init__(
        self,
        runtime: Runtime,
        chunks: Chunks,
        queue: TimedQueue,
        max_deliveries: int,
        give_up: GiveUp,
    ) -> None:
        """``queue``: the queue of ``chunks``, which allows a wait with a limit."""
        self._now = runtime.now
        self._chunks = chunks
        self._queue = queue
        self._last_delivery = max_deliveries or math.inf
        self._give_up = give_up

    def take(
        self, max_messages: int, max_wait: float, max_idle: float = math.inf
    ) -> list[Message] | None:
        """Return up to ``max_messages`` within ``max_wait`` seconds, or None at the end.

        With some in hand, it waits at most ``max_idle`` seconds for the next ones. Messages of a
        connection that was lost meanwhile are left out, because nsqd delivers them again.
        """
        taken: list[Chunk] = []
        try:
            return self._collect(taken, max_messages, max_wait, max_idle)
        except BaseException:
            # A gevent.Timeout or Ctrl-C, say. The caller never got these messages.
            for connection, messages in taken:
                for message in messages:
                    connection.requeue_quietly(message, 0)
                connection.send_queue.flush(PASSING_WAIT)
            raise

    def _collect(
        self, taken: list[Chunk], max_messages: int, max_wait: float, max_idle: float
    ) -> list[Message] | None:
        """Do the work of ``take``. Every chunk that leaves the queue is added to ``taken``."""
        chunks, queue = self._chunks, self._queue
        deadline = self._now() + max_wait
        batch: list[Message] = []
        while len(batch) < max_messages:
            chunk = chunks.take_rest()
            if chunk is None:
                if chunks.is_over:
                    break
                left = max(0.0, deadline - self._now())
                try:
                    chunk = queue.get(min(left, max_idle) if batch else left)
                except TimeoutError:
                    return batch
                if chunk is None:
                    # The Reader stops. Queued messages were given back. Other threads may wait,
                    # too.
                    queue.put(None)
                    continue
            connection, messages = chunk
            room = max_messages - len(batch)
            if len(messages) > room:
                chunks.put_rest(connection, messages[room:])
                messages = messages[:room]
            taken.append((connection, messages))
            batch += self._wanted(connection, messages)
        return batch if batch or not chunks.is_over else None

    def _wanted(self, connection: SubscribedConnection, messages: list[Message]) -> list[Message]:
        """Return the messages for the user, marked as begun. Answer or drop the others."""
        wanted = []
        for message in messages:
            if not connection.delivers:
                # nsqd delivers it again, at once or after a stop or a pause.
                connection.hand_back(message)
            elif message._status:
                connection.in_flight.forget(message)
            elif message.attempts > self._last_delivery:
                self._give_up(connection, message, None)
            else:
                message._status = BEGUN
                wanted.append(message)
        return wanted
