"""Messages that were received and that nobody has begun, as reading threads hand them over.

Knows who waits and in which order; knows no handler and no answer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from gnsqsync.connection.connection import Connection
from gnsqsync.message import Message
from gnsqsync.runtime import Queue

__all__ = ["Chunk", "Chunks"]

Chunk = tuple[Connection, list[Message]]
"""Messages of one connection."""


class Chunks:
    """A queue of chunks. None in it tells one who takes them that the Reader stops.

    It has no bound of its own: nsqd may deliver more than max_in_flight after its own timeouts, and
    the reading thread must never wait for a handler. What is in it is in the table of messages in
    flight, which has one; ``drop`` takes out what is not any more.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue: Queue = queue
        self.is_over: bool = False
        # Ahead of the queue: the rest of a chunk that somebody took a part of.
        self._rests: deque[Chunk] = deque()

    def put(self, connection: Connection, messages: list[Message]) -> None:
        """By the reading thread of ``connection``; never blocks."""
        self.queue.put((connection, messages))

    def put_rest(self, connection: Connection, messages: list[Message]) -> None:
        """What is left of a chunk comes before all others."""
        self._rests.append((connection, messages))

    def take_rest(self) -> Chunk | None:
        """One that ``put_rest`` left, if there is one."""
        try:
            return self._rests.popleft()
        except IndexError:
            return None

    def end(self, takers: int) -> None:
        """Tell so many who take chunks, and at least one, that the Reader stops."""
        self.is_over = True
        for _ in range(max(1, takers)):
            self.queue.put(None)

    def drain(self) -> Iterator[tuple[Connection, Message]]:
        """Take out everything."""
        for chunk in self._taken_out():
            if chunk is not None:
                connection, messages = chunk
                for message in messages:
                    yield connection, message

    def take_back(self, connection: Connection) -> list[Message]:
        """Take out what is of one connection; the rest stays."""
        mine: list[Message] = []
        # All at once: what is put back is not to be met again.
        for chunk in list(self._taken_out()):
            if chunk is not None and chunk[0] is connection:
                mine += chunk[1]
            else:
                self.queue.put(chunk)
        return mine

    def drop(self, connection: Connection) -> None:
        """Let go of what is of a connection that is lost: it comes again by itself."""
        self.take_back(connection)

    def _taken_out(self) -> Iterator[Chunk | None]:
        """Each chunk, in their order, until none is left."""
        while (rest := self.take_rest()) is not None:
            yield rest
        while True:
            try:
                chunk: Chunk | None = self.queue.get_nowait()
            except TimeoutError:
                return
            yield chunk
