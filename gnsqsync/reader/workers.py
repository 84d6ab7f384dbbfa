"""Workers: threads or greenlets that take chunks of messages, call the handler and answer.

Knows handlers and answers. Must not know RDY, states of the backoff, or sockets.

``_work`` is the body of a worker, and ``_handle`` runs one chunk. ``Failures`` decides about an
exception. Surprise: the usual path is written out in ``_handle`` without calls, and appends the FIN
itself, because each message pays for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextvars import Context
from itertools import count

from gnsqsync.connection.link import PASSING_WAIT
from gnsqsync.connection.subscribed import SubscribedConnection
from gnsqsync.foreign import ends_worker
from gnsqsync.message import (
    ANSWERED,
    BEGUN,
    DETACHED,
    DONE,
    FAILED,
    TIMED_OUT,
    Message,
)
from gnsqsync.middleware import Handler, around_handler, overriding
from gnsqsync.options import check_ran
from gnsqsync.reader.chunks import Chunk, Chunks
from gnsqsync.reader.contexts import context_maker
from gnsqsync.reader.dead_letters import DeadLetters
from gnsqsync.reader.events import Events
from gnsqsync.reader.expiry import unless_expired
from gnsqsync.reader.failures import Failures, Tally
from gnsqsync.reader.options import ReaderSetup
from gnsqsync.reader.subscription import Subscription
from gnsqsync.reader.time_limit import limited
from gnsqsync.runtime import After, Runtime, Task

__all__ = ["Workers"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")

# Seconds that a busy worker may leave FINs unsent.
_FLUSH_SECONDS = 0.001

# Status bits of a message that a worker has finished.
_FINISHED = ANSWERED | DONE


def _no_handler(message: Message) -> object:
    raise AssertionError("no worker runs where there is no handler")


class Workers:
    """Threads or greenlets that run the handler, ``concurrency`` of them; none without one."""

    def __init__(
        self,
        runtime: Runtime,
        chunks: Chunks,
        subscription: Subscription,
        dead_letters: DeadLetters,
        events: Events,
        setup: ReaderSetup,
        after: After,
    ) -> None:
        self._runtime = runtime
        self._chunks = chunks
        self._subscription = subscription
        self._pauses = subscription.pauses
        self._backoff = subscription.pauses.backoff
        self._evidence = subscription.pauses.evidence
        self._failures = Failures(subscription.pauses, dead_letters, setup)
        self._events = events
        self._handler = setup.handler
        innermost = self._innermost(setup, after)
        has_middleware = bool(overriding(setup.middleware, "handle"))
        # The handler within its middlewares and limits.
        self._call = around_handler(setup.middleware, innermost) if has_middleware else innermost
        # True if no middleware surrounds the check of what the handler returned.
        self._checks_return = not has_middleware
        self._concurrency = setup.flow.concurrency
        # True if ``max_deliveries`` is set.
        self._has_limit = setup.flow.max_deliveries > 0
        # Errors of messages that ended their workers; see DeadLetters.
        self._killers = dead_letters.killers
        # Names in log lines.
        self._setup = setup
        self.handler_name: str = setup.handler_name
        self._numbers = count()
        # Threads by the number of the worker. No lock: setting and popping an item is atomic.
        self._tasks: dict[int, Task] = {}
        # Numbers of workers that only have to return.
        self._ended: set[int] = set()

    def _innermost(self, setup: ReaderSetup, after: After) -> Handler:
        """Return the handler with its lane check, time limit and age limit around it."""
        handler = setup.handler or _no_handler
        flow = setup.flow
        if self._chunks.lanes is not None:
            handler = self._chunks.lanes.checked(handler)
        if flow.time_limit is not None:
            handler = limited(handler, flow.time_limit, self._runtime, after)
        if flow.max_age is not None and flow.on_expired is not None:
            handler = unless_expired(handler, flow.max_age, flow.on_expired)
        return handler

    def start(self) -> None:
        if self._handler is not None:
            for _ in range(self._concurrency):
                self._spawn()

    def _spawn(self) -> None:
        for number, task in list(self._tasks.items()):
            if not task.alive:
                self._tasks.pop(number, None)
                self._ended.discard(number)
        number = next(self._numbers)
        self._tasks[number] = self._runtime.spawn(f"nsq-work {number}", self._work, number)

    def _spawn_again(self) -> bool:
        """Start a worker in place of one that ended. Return False if no thread starts."""
        try:
            self._spawn()
        except RuntimeError as error:
            # The process is short of threads. This error must not hide what ended the worker.
            log.warning(
                "%s: no thread for a worker: %s; it is tried again",
                self._setup.name,
                error,
                extra=self._setup.log_fields,
            )
            return False
        return True

    def replace_killed(self) -> None:
        """Start a worker for each that ended and could not start its own replacement.

        By the timer.
        """
        while self.working < self._concurrency and self._handler and not self._chunks.is_over:
            if not self._spawn_again():
                return

    @property
    def working(self) -> int:
        """Number of workers that have not ended."""
        tasks = list(self._tasks.items())
        return sum(task.alive and number not in self._ended for number, task in tasks)

    def stack_of(self, number: int) -> str:
        """Return the stack of a worker as text; "" after its end. From any thread."""
        task = self._tasks.get(number)
        return "" if task is None else task.stack()

    # -- workers ---------------------------------------------------------------------------

    def _work(self, number: int) -> None:
        chunks = self._chunks
        get, empty = chunks.queue.get, chunks.queue.empty
        # Connection whose FINs wait for those of the next chunk, to share a send.
        unsent: SubscribedConnection | None = None
        flushed_at = 0.0
        ended_as_told = False
        chunk: Chunk | None
        # Chunk that this worker has read from the connection itself.
        following: Chunk | None = None
        try:
            self._tell_handler_of_start()
            new_context = context_maker()
            while True:
                if following is not None:
                    chunk, following = following, None
                elif unsent is None:
                    chunk = get()
                else:
                    chunk = self._next_or_send(unsent)
                if chunk is None:
                    ended_as_told = True
                    break
                connection = chunk[0]
                if unsent is not None and unsent is not connection:
                    unsent.send_queue.flush(PASSING_WAIT)
                    unsent = None
                all_finished = self._handle(connection, new_context, *chunks.begin(number, chunk))
                ended = chunks.end_of(number)
                if all_finished and not empty() and ended - flushed_at < _FLUSH_SECONDS:
                    unsent = connection
                    continue
                flushed_at = ended
                unsent = None
                connection.send_queue.flush(PASSING_WAIT)
                self._subscription.answered()
                if connection.worker_may_read and empty():
                    following = self._subscription.read(connection)
        finally:
            if unsent is not None:
                unsent.send_queue.flush(PASSING_WAIT)
            chunks.forget(number)
            try:
                if not ended_as_told and not chunks.is_over:
                    # A handler ended its thread or greenlet, and the Reader needs all its workers.
                    log.warning(
                        "%s: handler %s ended worker %d; another one takes its place",
                        self._setup.name,
                        self.handler_name,
                        number,
                        extra=self._setup.log_fields,
                    )
                    self._spawn_again()
            finally:
                try:
                    self._tell_handler()
                finally:
                    # Set last, because a stop waits for it.
                    self._ended.add(number)
                    self._subscription.settled()

    def _next_or_send(self, unsent: SubscribedConnection) -> Chunk | None:
        """Return the next chunk. If another worker took it, flush and wait for the next."""
        try:
            chunk: Chunk | None = self._chunks.queue.get_nowait()
        except TimeoutError:
            unsent.send_queue.flush(PASSING_WAIT)
            self._subscription.answered()
            chunk = self._chunks.queue.get()
        return chunk

    def _handle(
        self,
        connection: SubscribedConnection,
        new_context: Callable[[], Context],
        messages_left: Iterator[Message],
        started: float,
    ) -> bool:
        """Run the handler on each message and note the answers. Return True if all got FIN.

        All code that runs for a message runs in a context of that message.
        """
        handler, checks_return = self._call, self._checks_return
        in_flight = connection.in_flight
        take, fins = in_flight.pop, connection.send_queue.fins
        failures = self._failures
        limited = self._has_limit or self._killers
        # Numbers of finished messages, and of those that the evidence has counted already.
        finished = counted = 0
        # Tallies of the messages that were not finished.
        others: list[Tally] = []
        for message in messages_left:
            if not connection.delivers:
                # A message of a lost connection comes again by itself. During a stop, another
                # consumer may take it now; in a pause, it comes again after that.
                connection.hand_back(message)
                continue
            if message._status:
                # The message timed out in the queue, or the handler of its first copy answered it.
                in_flight.forget(message)
                continue
            message._status = BEGUN
            try:
                context = new_context()
                if limited:
                    given_up: bool = context.run(failures.was_given_up, connection, message)
                    if given_up:
                        others.append(Tally.NEUTRAL)
                        continue
                try:
                    returned = context.run(handler, message)
                    if returned is not None and checks_return:
                        check_ran(returned, message)
                except BaseException as error:
                    # Any exception is a failure of this message, unless it ends the worker.
                    if ends_worker(error):
                        raise
                    message._status |= FAILED
                    # Successes before this failure weigh against it, so they are counted first.
                    self._evidence.successes += finished - counted
                    counted = finished
                    # In the context of the message, for log lines and hooks.
                    tally = context.run(failures.answer, connection, message, error)
                    if tally is Tally.FINISHED:
                        finished += 1
                    else:
                        others.append(tally)
            except BaseException as error:
                # The handler or code around it (a log filter, say) ended this worker.
                failures.note_deadly(message, error)
                self._give_back(connection, message, messages_left)
                raise
            else:
                if message._status == BEGUN:
                    id = message._id
                    taken = take(id, None)
                    if taken is not message and not in_flight.take_copies(message, taken):
                        # A loss took it out of the table. nsqd delivers it again.
                        message._status |= DONE
                        continue
                    message._status = _FINISHED
                    fins.append(id)
                    finished += 1
                elif message._status & TIMED_OUT:
                    if not message._status & DETACHED:
                        message._status |= DONE
                    in_flight.forget(message)
                # Otherwise it is detached, or the handler answered it itself.
        self._evidence.successes += finished - counted
        # Without any count there is no verdict: all were detached, or taken by a loss. Each failure
        # was judged when it happened.
        if self._backoff.level and (finished or (others and Tally.FAILED not in others)):
            self._pauses.judged(finished)
        if self._events.observes_batches:
            seconds = self._runtime.now() - started
            failed = len(others) - others.count(Tally.NEUTRAL)
            self._events.batch(connection, finished, failed, seconds)
        return not others

    def _give_back(
        self, connection: SubscribedConnection, message: Message, messages_left: Iterator[Message]
    ) -> None:
        """Requeue the message that ended this worker, and those of its chunk that wait."""
        message._status |= FAILED
        connection.requeue_quietly(message, None)
        for message in messages_left:
            connection.requeue_quietly(message, 0)
        connection.send_queue.flush(PASSING_WAIT)

    def _tell_handler_of_start(self) -> None:
        """Let a handler of an integration make what all messages of this worker share."""
        getattr(self._handler, "_worker_began", lambda: None)()

    def _tell_handler(self) -> None:
        # A stop counts the worker as busy until this is over.
        worker_ended = getattr(self._handler, "worker_ended", None)
        if worker_ended is not None:
            try:
                worker_ended()
            except BaseException as error:
                # The object is the user's, and may raise whatever a handler may raise.
                if ends_worker(error):
                    raise
                log.exception(
                    "%s: worker_ended() of handler %s failed",
                    self._setup.name,
                    self.handler_name,
                    extra=self._setup.log_fields,
                )

    # -- stopping ----------------------------------------------------------------------------

    def abandon(self) -> None:
        """End the work in a forked child: no worker replaces the copied greenlets, which end."""
        self._chunks.is_over = True
        self._handler = None

    def stop(self) -> None:
        """Tell every worker to end after what it has in hand."""
        self._chunks.end(len(self._tasks))

    def join(self, deadline: float) -> int:
        """Wait for the workers until ``deadline``. Return how many still run."""
        tasks = [task for task in list(self._tasks.values()) if not task.is_current]
        for task in tasks:
            task.join(max(0.0, deadline - self._runtime.now()))
        return sum(task.alive for task in tasks)
