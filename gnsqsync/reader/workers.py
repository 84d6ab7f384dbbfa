"""Workers: they take chunks of messages, call the handler and answer.

Knows handlers and answers; knows nothing of RDY, backoff states or sockets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from gnsqsync.connection.connection import PASSING_WAIT, Connection
from gnsqsync.message import ANSWERED, BEGUN, TIMED_OUT, Fate, Message, Requeue
from gnsqsync.options import handler_name
from gnsqsync.reader.chunks import Chunk, Chunks
from gnsqsync.runtime import Queue, Runtime, Task

__all__ = ["Outcomes", "Workers"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")

# About as much work as a chunk may hold, so that slow handlers share messages one by one and
# fast ones are handed many at once.
_CHUNK_SECONDS = 0.001
_CHUNK_MAX = 64
# A chunk that takes longer than this was cut for faster handlers than it has met.
_CHUNK_LATE = 2 * _CHUNK_SECONDS
# A worker that has more to do may leave FINs unsent this long.
_FLUSH_SECONDS = 0.001

# attempts is a 16 bit number, so no message is above this one.
_NO_LIMIT = 65536

# A chunk in a worker's hands, what it has not begun of it, and since when.
_AtWork = tuple[Connection, list[Message], Iterator[Message], float]


class Outcomes(Protocol):
    """What the workers report to, outside all locks."""

    @property
    def in_backoff(self) -> bool:
        """Whether verdicts on single messages matter now: the backoff is not at rest."""

    def on_chunk(
        self,
        connection: Connection,
        finished: int,
        failed: int,
        kept: int,
        neutral: int,
        seconds: float,
    ) -> None:
        """A chunk is done; before the flush.

        So many were handled, failed, failed for the last time and wait in nsqd, which is no news
        for the backoff, or say nothing about the handler.
        """

    def on_chunk_sent(self) -> None:
        """Its answers are on their way."""

    def give_up(
        self, connection: Connection, message: Message, error: BaseException | None
    ) -> Fate:
        """Answer a message whose last attempt ended in ``error``, or that came too often."""

    def on_settled(self) -> None:
        """A worker ended, as told or because a handler killed its thread."""


class Workers:
    """So many threads or greenlets that run the handler; none where there is no handler."""

    def __init__(
        self,
        runtime: Runtime,
        chunks: Chunks,
        handler: Callable[[Message], object] | None,
        *,
        concurrency: int,
        max_attempts: int,
        max_deliveries: int = 0,
        outcomes: Outcomes,
        report_all: bool = False,
        log_fields: Mapping[str, str] | None = None,
    ) -> None:
        self._runtime = runtime
        self._handler = handler
        self._concurrency = concurrency
        self._last_attempt = max_attempts or _NO_LIMIT
        self._last_delivery = max_deliveries or _NO_LIMIT
        self._outcomes = outcomes
        self._report_all = report_all
        self._log_fields = dict(log_fields or {})
        # For log lines: what consumes, and the function.
        self._name = "/".join(self._log_fields.values())
        self._handler_name = "" if handler is None else handler_name(handler)
        self._chunks = chunks
        self._queue: Queue = chunks.queue
        # In the order of their start, as keys: setting and popping one is atomic.
        self._tasks: dict[Task, None] = {}
        # One entry a worker that has not ended; appended before, removed at its end.
        self._working: list[int] = []
        self._at_work: dict[int, _AtWork] = {}
        # Seconds a message, as measured last by any worker: each value is as good as the other.
        self._pace = _CHUNK_SECONDS

    def start(self) -> None:
        if self._handler is not None:
            for number in range(self._concurrency):
                self._spawn(number)

    def _spawn(self, number: int) -> None:
        for ended in [task for task in list(self._tasks) if not task.alive]:
            self._tasks.pop(ended, None)
        self._working.append(number)
        try:
            task = self._runtime.spawn(f"nsq-work {number}", self._work, number)
        except BaseException:
            self._working.remove(number)
            raise
        self._tasks[task] = None

    @property
    def working(self) -> int:
        """How many workers have not ended."""
        return len(self._working)

    def put(self, connection: Connection, messages: list[Message]) -> None:
        """Cut messages of one connection into chunks. By its reading thread; never blocks."""
        put = self._chunks.put
        size = min(_CHUNK_MAX, max(1, int(_CHUNK_SECONDS / self._pace)))
        if len(messages) <= size:
            put(connection, messages)
            return
        for start in range(0, len(messages), size):
            put(connection, messages[start : start + size])

    # -- workers ---------------------------------------------------------------------------

    def _work(self, number: int) -> None:
        get, empty, now = self._queue.get, self._queue.empty, self._runtime.now
        at_work = self._at_work
        # Whose FINs wait for those of the next chunk, to share a send.
        unsent: Connection | None = None
        flushed_at = 0.0
        ended_as_told = False
        try:
            while True:
                chunk: Chunk | None = get() if unsent is None else self._next_or_send(unsent)
                if chunk is None:
                    ended_as_told = True
                    break
                connection, messages = chunk
                if unsent is not None and unsent is not connection:
                    unsent.send_queue.flush(PASSING_WAIT)
                    unsent = None
                started = now()
                left = iter(messages)
                at_work[number] = connection, messages, left, started
                all_finished = self._handle(connection, left, started)
                ended = now()
                del at_work[number]
                if messages:  # relieve() may have taken all
                    pace = max(1e-7, (ended - started) / len(messages))
                    self._pace += (pace - self._pace) * 0.25
                if all_finished and not empty() and ended - flushed_at < _FLUSH_SECONDS:
                    unsent = connection
                    continue
                flushed_at = ended
                unsent = None
                connection.send_queue.flush(PASSING_WAIT)
                self._outcomes.on_chunk_sent()
        finally:
            if unsent is not None:
                unsent.send_queue.flush(PASSING_WAIT)
            self._at_work.pop(number, None)
            try:
                if not ended_as_told and not self._chunks.is_over:
                    # A handler killed its thread or greenlet; the others rely on their number.
                    log.warning(
                        "%s: handler %s ended worker %d; another one takes its place",
                        self._name,
                        self._handler_name,
                        number,
                        extra=self._log_fields,
                    )
                    self._spawn(number)
            finally:
                try:
                    self._tell_handler()
                finally:
                    # A stop waits for that.
                    self._working.remove(number)
                    self._outcomes.on_settled()

    def _next_or_send(self, unsent: Connection) -> Chunk | None:
        """The next chunk; where another worker was quicker, after a send and a wait."""
        chunk: Chunk | None
        try:
            chunk = self._queue.get_nowait()
        except TimeoutError:
            unsent.send_queue.flush(PASSING_WAIT)
            self._outcomes.on_chunk_sent()
            chunk = self._queue.get()
        return chunk

    def _handle(
        self, connection: Connection, messages_left: Iterator[Message], started: float
    ) -> bool:
        """Run the handler on each message and note the answers. True when all got FIN."""
        handler = self._handler
        assert handler is not None
        in_flight = connection.in_flight
        take, note_fin = in_flight.pop, connection.send_queue.fins.append
        last_delivery = self._last_delivery
        limited = last_delivery != _NO_LIMIT
        finished = failed = kept = neutral = 0
        for message in messages_left:
            if not connection.hands_over:
                # Lost: it comes again by itself. Stopping: another consumer may have it now.
                connection.requeue_quietly(message, 0)
                continue
            if message._status:
                # It timed out while it waited, or was answered by the handler of its first copy.
                in_flight.forget(message)
                continue
            message._status = BEGUN
            try:
                if limited and message.attempts > last_delivery:
                    self._outcomes.give_up(connection, message, None)
                    neutral += 1
                    continue
                try:
                    handler(message)
                except (Exception, SystemExit) as error:  # noqa: BLE001 - all are answered
                    # SystemExit too: on greenlets it would end the process, on threads a worker.
                    if isinstance(error, Requeue) and not error.backoff:
                        connection.requeue_quietly(message, error.delay)
                        neutral += 1
                        continue
                    fate = self._answer_failure(connection, message, error)
                    if fate is Fate.KEPT:
                        kept += 1
                    elif fate is Fate.GONE:
                        # Its own answer was counted when it was given.
                        neutral += 1
                    else:
                        failed += 1
            except BaseException:
                # Out of a handler, which this ends, or out of what we called, as a log filter.
                connection.requeue_quietly(message, None)
                for message in messages_left:
                    connection.requeue_quietly(message, 0)
                connection.send_queue.flush(PASSING_WAIT)
                raise
            else:
                if message._status == BEGUN:
                    taken = take(message._id, None)
                    if taken is not message and not in_flight.take_copies(message, taken):
                        continue  # orphaned by a loss; nsqd delivers it again
                    message._status = ANSWERED
                    note_fin(message._id)
                    finished += 1
                elif message._status & TIMED_OUT:
                    in_flight.forget(message)
                # Otherwise detached, or answered by the handler itself.
        unfinished = failed or kept or neutral
        if unfinished or self._report_all or self._outcomes.in_backoff:
            seconds = self._runtime.now() - started
            self._outcomes.on_chunk(connection, finished, failed, kept, neutral, seconds)
        return not unfinished

    def _answer_failure(
        self, connection: Connection, message: Message, error: Exception | SystemExit
    ) -> Fate:
        """REQ for a message whose handler failed; after its last attempt it is given up."""
        if message.attempts >= self._last_attempt:
            fate = self._outcomes.give_up(connection, message, error)
        else:
            delay = error.delay if isinstance(error, Requeue) else None
            requeued = connection.requeue_quietly(message, delay)
            fate = Fate.REQUEUED if requeued else Fate.GONE
        if not isinstance(error, Requeue):
            if fate is Fate.REQUEUED:
                delay = connection.requeue_delay_for(message)
                self._log_failure(message, f"requeued, comes again in {delay:g} s")
            elif fate is Fate.GONE:
                self._log_failure(message, "it was answered before or is not ours any more")
        return fate

    def relieve(self) -> None:
        """Have what waits behind a slow message in a chunk done by workers that are idle.

        By the timer. A chunk was cut by the pace of the messages before it; it may hold slower
        ones. While something is queued nobody is idle.
        """
        now = self._runtime.now()
        for connection, messages, left, started in list(self._at_work.values()):
            if not self._queue.empty() or self._chunks.is_over:
                break
            if now - started > _CHUNK_LATE and connection.hands_over:
                # In one step: the worker that goes through it finds nothing more.
                rest = list(left)
                if rest:
                    del messages[-len(rest) :]
                    if messages:  # else its thread has not been scheduled since it took them
                        self._pace = max(self._pace, (now - started) / len(messages))
                    self.put(connection, rest)

    def _tell_handler(self) -> None:
        # A stop counts the worker as busy until this is over.
        worker_ended = getattr(self._handler, "worker_ended", None)
        if worker_ended is not None:
            try:
                worker_ended()
            except (Exception, SystemExit):
                log.exception(
                    "%s: worker_ended() of handler %s failed",
                    self._name,
                    self._handler_name,
                    extra=self._log_fields,
                )

    def _log_failure(self, message: Message, what_now: str) -> None:
        log.warning(
            "%s: handler %s failed on message %s (attempt %d) from %s; %s",
            self._name,
            self._handler_name,
            message.id,
            message.attempts,
            message.nsqd_address,
            what_now,
            exc_info=True,
            extra={
                **self._log_fields,
                "handler": self._handler_name,
                "message_id": message.id,
                "attempts": message.attempts,
                "nsqd": message.nsqd_address,
            },
        )

    # -- stopping ----------------------------------------------------------------------------

    def abandon(self) -> None:
        """In a forked child: copied greenlets end. None takes their place, or tells the handler."""
        self._chunks.is_over = True
        self._handler = None

    def stop(self) -> None:
        """Tell every worker to end after what it has in hand."""
        self._chunks.end(len(self._tasks))

    def join(self, deadline: float) -> int:
        """Wait for the workers until ``deadline``; how many still run."""
        tasks = [task for task in list(self._tasks) if not task.is_current]
        for task in tasks:
            task.join(max(0.0, deadline - self._runtime.now()))
        return sum(task.alive for task in tasks)
