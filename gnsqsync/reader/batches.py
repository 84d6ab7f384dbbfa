"""The pull form: the user's thread takes batches of messages, where there is no handler.

Knows chunks and how long to wait for them; knows nothing of RDY or backoff.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from gnsqsync.connection.connection import PASSING_WAIT, Connection
from gnsqsync.message import BEGUN, Fate, Message
from gnsqsync.reader.chunks import Chunk, Chunks
from gnsqsync.runtime import Runtime, TimedQueue

__all__ = ["Batches"]

GiveUp = Callable[[Connection, Message, BaseException | None], Fate]


class Batches:
    """What ``Reader.batches()`` and iteration take from. From any number of threads."""

    def __init__(
        self,
        runtime: Runtime,
        chunks: Chunks,
        queue: TimedQueue,
        max_deliveries: int,
        give_up: GiveUp,
    ) -> None:
        """``queue``: that of ``chunks``, which can be waited for with a limit."""
        self._now = runtime.now
        self._chunks = chunks
        self._queue = queue
        self._last_delivery = max_deliveries or math.inf
        self._give_up = give_up

    def take(
        self, max_messages: int, max_wait: float, max_idle: float = math.inf
    ) -> list[Message] | None:
        """Up to ``max_messages`` within ``max_wait`` seconds, or None at the end.

        With some in hand it waits ``max_idle`` seconds at most for the next ones. Messages whose
        connection was lost meanwhile are left out: they come again.
        """
        taken: list[Chunk] = []
        try:
            return self._collect(taken, max_messages, max_wait, max_idle)
        except BaseException:
            # As a gevent.Timeout, or Ctrl-C: nobody else knows of them.
            for connection, messages in taken:
                for message in messages:
                    connection.requeue_quietly(message, 0)
                connection.send_queue.flush(PASSING_WAIT)
            raise

    def _collect(
        self, taken: list[Chunk], max_messages: int, max_wait: float, max_idle: float
    ) -> list[Message] | None:
        """As ``take``; ``taken`` gets whatever leaves the queue."""
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
                    # Stopping; what was queued before has been given back. Others may wait, too.
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

    def _wanted(self, connection: Connection, messages: list[Message]) -> list[Message]:
        """Those that the user gets, marked as begun; the others are answered or let go of."""
        wanted = []
        for message in messages:
            if not connection.hands_over:
                # The message comes again by itself, or goes back at a stop or in a pause.
                connection.hand_back(message)
            elif message._status:
                connection.in_flight.forget(message)
            elif message.attempts > self._last_delivery:
                self._give_up(connection, message, None)
            else:
                message._status = BEGUN
                wanted.append(message)
        return wanted
