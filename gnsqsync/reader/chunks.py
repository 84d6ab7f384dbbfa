"""Queue of received messages whose handler has not begun, in chunks on their way to workers.

Knows the size of a chunk, the order of the queue, and how chunks go back to nsqd. Must not know a
handler.

A reading thread cuts messages into chunks by the pace of the handler, and workers take the chunks.
The timer queues the rest of a late chunk again (``relieve``).

Surprise: messages are taken from a worker without a lock. Worker and timer use one iterator, and
``list(left)`` empties it in one step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from operator import length_hint

from gnsqsync.connection.link import PASSING_WAIT
from gnsqsync.connection.subscribed import SubscribedConnection
from gnsqsync.message import Message
from gnsqsync.policy.ownership import lost_at
from gnsqsync.reader.lanes import Lanes
from gnsqsync.reader.timings import Late, Timings
from gnsqsync.runtime import Queue, Runtime

__all__ = ["Chunk", "Chunks"]

# Seconds of work in a chunk. Slow handlers then share messages one by one, and fast handlers get
# many at once.
_CHUNK_SECONDS = 0.001
# Upper bound of the messages in a chunk.
_CHUNK_MAX = 64
# Seconds after which the rest of a chunk is queued again: it was cut for faster messages.
_CHUNK_LATE = 2 * _CHUNK_SECONDS

# Seconds below which no msg_timeout lies, for a cheap first look.
_SOON = 0.05

Chunk = tuple[SubscribedConnection, list[Message]]
"""Messages of one connection."""


class Chunks:
    """Queue of chunks. A None in it tells the taker that the Reader stops.

    The queue has no bound. nsqd may deliver more than max_in_flight after its own timeouts, and the
    reading thread must never wait for a handler. The messages are also in the in-flight table,
    which has a bound.

    A worker takes a chunk with ``queue.get``, and calls ``begin`` and ``end_of`` around its work.
    The pull form takes with ``take_rest`` and ``queue.get``.
    """

    def __init__(
        self, queue: Queue, runtime: Runtime, *, cuts: bool, lanes: Lanes | None = None
    ) -> None:
        """``cuts``: False in the pull form, where one thread takes any number of messages."""
        self.queue: Queue = queue
        self.lanes: Lanes | None = lanes
        # True once the Reader stops.
        self.is_over: bool = False
        self.timings: Timings = Timings(runtime)
        self._now = runtime.now
        self._cuts = cuts
        # Rests of chunks of which the pull form took a part. They come before the queue.
        self._rests: deque[Chunk] = deque()
        # Work of each worker: its chunk, the messages not begun, and the time of its begin.
        self._at_work: dict[
            int, tuple[SubscribedConnection, list[Message], Iterator[Message], float]
        ] = {}
        # Seconds for a message, as some worker measured last. Workers overwrite each other freely.
        self._pace = _CHUNK_SECONDS

    def put(self, connection: SubscribedConnection, messages: list[Message]) -> None:
        """Queue messages of one connection, cut into chunks. Never blocks on a handler.

        By its reading thread. With lanes, only messages that may run now, each in its own chunk.
        """
        if self.lanes is None:
            self._put(connection, messages)
            return
        for message in self.lanes.admit(connection, messages):
            self._put(connection, [message])
        if not connection.delivers:
            # Every message may be parked; then no ``_put`` gave them back.
            self.give_back()

    def _put(self, connection: SubscribedConnection, messages: list[Message]) -> None:
        put = self.queue.put
        size = len(messages)
        if self._cuts:
            size = min(_CHUNK_MAX, max(1, int(_CHUNK_SECONDS / self._pace)))
        if len(messages) <= size:
            put((connection, messages))
        else:
            for start in range(0, len(messages), size):
                put((connection, messages[start : start + size]))
        if not connection.delivers:
            # The end came before the put, and may have given back the queue without these.
            self.give_back()

    # -- by a worker -----------------------------------------------------------------------------

    def begin(self, worker: int, chunk: Chunk) -> tuple[Iterator[Message], float]:
        """Return the messages of a chunk, of which ``relieve`` may take the rest, and the time."""
        connection, messages = chunk
        left, started = iter(messages), self._now()
        self._at_work[worker] = connection, messages, left, started
        return left, started

    def end_of(self, worker: int) -> float:
        """Note that the worker's chunk is done. Return the time."""
        now = self._now()
        connection, messages, _, started = self._at_work.pop(worker)
        if messages:  # relieve() may have taken all of them
            since = now - messages[0]._received_at
            if since > _SOON and since > connection.msg_timeout:
                self.timings.note_late(messages, started, now)
            pace = max(1e-7, (now - started) / len(messages))
            self._pace += (pace - self._pace) * 0.25
            self.timings.note(worker, messages, now - started)
        if self.lanes is not None:
            self._leave_lanes(messages)
        return now

    def late(self, message_id: str) -> Late | None:
        """Return the time of the handler whose answer nsqd refused, if it is known.

        For a handler that answered by itself and still runs, it is the time until now.
        """
        id = message_id.encode()
        found = self.timings.late(id)
        if found is None:
            for _, (started, _), begun in self.at_work():
                for message in begun:
                    if message._id == id:
                        waited = max(0.0, started - message._received_at)
                        return Late(self._now() - started, len(begun), waited)
        return found

    def forget(self, worker: int) -> None:
        """Forget a worker that ended, perhaps in the middle of a chunk."""
        self.timings.forget(worker)
        left = self._at_work.pop(worker, None)
        if left is not None and self.lanes is not None:
            self._leave_lanes(left[1])

    def _leave_lanes(self, messages: Iterable[Message]) -> None:
        """Queue the next messages of the lanes of messages that are done."""
        if self.lanes is not None:
            for message in messages:
                following = self.lanes.leave(message)
                if following is not None:
                    self._put(following[0], [following[1]])

    def at_work(self) -> list[tuple[int, tuple[float, int], list[Message]]]:
        """Return, for each worker with a chunk: its number; (the time of its begin, the number of
        messages not begun); and the messages begun. From any thread; takes no lock."""
        found = []
        for worker, (_, messages, left, started) in list(self._at_work.items()):
            waiting = length_hint(left)
            begun = messages[: max(0, len(messages) - waiting)]
            found.append((worker, (started, waiting), begun))
        return found

    def relieve(self) -> None:
        """Queue the rest of each late chunk again, for idle workers. By the timer.

        A chunk was cut by the pace of earlier messages, and its own may be slower. While the queue
        has chunks, no worker is idle.
        """
        now = self._now()
        for connection, messages, left, started in list(self._at_work.values()):
            if not self.queue.empty() or self.is_over:
                break
            if now - started > _CHUNK_LATE:
                # In one step: the worker then finds no further message in its iterator.
                rest = list(left)
                if rest:
                    del messages[-len(rest) :]
                    if messages:  # else its thread has not run since it took the chunk
                        self._pace = max(self._pace, (now - started) / len(messages))
                    self._put(connection, rest)

    def requeue_lost(self, connections: Iterable[SubscribedConnection]) -> None:
        """Requeue messages that wait nowhere and that no worker has. By the timer, now and then.

        A kill struck a worker between the queue and the handler. nsqd would deliver such a message
        again, but its slot in the in-flight table would stay taken.
        """
        if not self.queue.empty() or self._rests:
            return
        now = self._now()
        known = {m for _, messages, _, _ in list(self._at_work.values()) for m in messages}
        if self.lanes is not None:
            known |= self.lanes.parked()
        for connection in connections:
            for message in list(connection.in_flight.values()):
                is_waiting = not message._status and message not in known
                if is_waiting and now >= lost_at(message._received_at):
                    connection.requeue_quietly(message, 0)
                    self._leave_lanes([message])

    # -- by the pull form ------------------------------------------------------------------------

    def put_rest(self, connection: SubscribedConnection, messages: list[Message]) -> None:
        """Put the rest of a chunk before all others."""
        self._rests.append((connection, messages))

    def take_rest(self) -> Chunk | None:
        """Return a rest that ``put_rest`` left, or None."""
        try:
            return self._rests.popleft()
        except IndexError:
            return None

    # -- ends ------------------------------------------------------------------------------------

    def give_back(self) -> None:
        """Send REQ 0 for the queued messages of connections whose ``delivers`` is False.

        From any thread. Messages of a lost connection are only dropped: nsqd delivers them again.
        """
        given: dict[SubscribedConnection, None] = {}
        if self.lanes is not None:
            for connection, message in self.lanes.take_back():
                connection.hand_back(message)
                given[connection] = None
        # Taken out all at once, so that the loop does not meet chunks that it put back.
        for chunk in list(self._taken_out()):
            if chunk is None:
                self.queue.put(None)
                continue
            connection, messages = chunk
            if connection.delivers:
                self._put(connection, messages)
                continue
            for message in messages:
                connection.hand_back(message)
            self._leave_lanes(messages)
            given[connection] = None
        for connection in given:
            connection.send_queue.flush(PASSING_WAIT)

    def end(self, takers: int) -> None:
        """Tell ``takers`` takers, and at least one, that the Reader stops."""
        self.is_over = True
        for _ in range(max(1, takers)):
            self.queue.put(None)

    def _taken_out(self) -> Iterator[Chunk | None]:
        """Take out and yield each chunk, in order, until none is left."""
        while (rest := self.take_rest()) is not None:
            yield rest
        while True:
            try:
                chunk: Chunk | None = self.queue.get_nowait()
            except TimeoutError:
                return
            yield chunk
