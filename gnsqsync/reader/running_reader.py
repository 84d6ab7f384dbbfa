"""Parts of a started Reader: made, started, and stopped in the right order.

No message passes through it. Checks no option.

Surprise: ``stop()`` only puts the granted seconds into a queue. The supervising thread does the
stop, so that a signal handler may call ``stop()`` at any moment.
"""

from __future__ import annotations

import logging
import math
import os
import random
from collections.abc import Callable

from gnsqsync.discovery.polling import Discovery
from gnsqsync.discovery.questions import nsqds_of
from gnsqsync.discovery.shared_poll import NoThread
from gnsqsync.errors import ClosedError
from gnsqsync.reader.advice import advise
from gnsqsync.reader.batches import Batches
from gnsqsync.reader.chunks import Chunks
from gnsqsync.reader.counters import stats_of
from gnsqsync.reader.dead_letters import DeadLetters
from gnsqsync.reader.events import Events
from gnsqsync.reader.health import Look
from gnsqsync.reader.housekeeping import Housekeeping
from gnsqsync.reader.lanes import Lanes
from gnsqsync.reader.options import ReaderSetup
from gnsqsync.reader.subscription import Subscription
from gnsqsync.reader.workers import Workers
from gnsqsync.runtime import Runtime, Task, choose
from gnsqsync.runtime.at_exit import at_exit, not_at_exit
from gnsqsync.runtime.loggers import keep_enabled
from gnsqsync.runtime.timer import Timer
from gnsqsync.stats import ReaderStats, StopResult, counted

__all__ = ["RunningReader"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")

# Seconds that close() and the end of the interpreter wait for threads that only have to notice.
_JOIN_SECONDS = 5.0
# Seconds that an nsqd without messages of ours has to answer CLS.
_CLOSE_WAIT_SECONDS = 2.0
# Seconds that idle workers have to notice the stop.
_NOTICE_SECONDS = 0.5
# Seconds between two wake-ups of a thread that waits for a stop; see _next_word.
_WAKE_SECONDS = 1.0
# Seconds after which a thread for an nsqlookupd is started that could not be started before.
_AGAIN_SECONDS = 1.0
# Seconds that a handler at work has at the end of the interpreter.
_EXIT_SECONDS = 0.5
# Seconds that a handler at work has after Ctrl-C.
_INTERRUPT_SECONDS = 30.0


class RunningReader:
    """A started Reader: its parts, its threads, and their stop.

    ``_control`` receives the seconds that a stop grants, and None when something settled. It is a
    queue because a signal handler may call ``stop()``, and must not take a lock that the thread
    under it may hold.
    """

    def __init__(self, setup: ReaderSetup) -> None:
        runtime = choose(setup.runtime)
        self.runtime: Runtime = runtime
        self._setup = setup
        self._pid = os.getpid()
        self._control = runtime.timed_queue()
        # Set when the Reader has ended, by a stop or an error.
        self._ended = runtime.event()
        # True at the end of the interpreter, with which running handlers die.
        self._handlers_die = False
        self._result: StopResult | None = None
        # First error that ended the Reader; join() raises it.
        self._error: BaseException | None = None
        self._supervisor: Task | None = None
        self._events = Events(setup)
        rng = random.Random()
        flow = setup.flow
        # False in a group, whose timer serves all its Readers.
        self._owns_timer = setup.timer is None
        self._timer = setup.timer or Timer(runtime, f"nsq-timer {setup.name}")
        self._dead_letters = DeadLetters(setup, runtime)
        # The pull form waits with a limit, the workers without.
        timed = runtime.timed_queue() if setup.handler is None else None
        lanes = Lanes(flow.lanes, runtime) if flow.lanes is not None else None
        chunks = Chunks(timed or runtime.queue(), runtime, cuts=timed is None, lanes=lanes)
        self._timings = chunks.timings
        self.batches: Batches | None = None
        if timed is not None:
            self.batches = Batches(
                runtime, chunks, timed, flow.max_deliveries, self._dead_letters.settle
            )
        self.subscription: Subscription = Subscription(
            setup,
            runtime,
            timer=self._timer,
            chunks=chunks,
            dead_letters=self._dead_letters,
            events=self._events,
            rng=rng,
            on_hopeless=self._fail,
            on_settled=lambda: self._control.put(None),
            ask=lambda: self._discovery.hurry(0.0),
        )
        self.workers: Workers = Workers(
            runtime,
            chunks,
            self.subscription,
            self._dead_letters,
            self._events,
            setup,
            self._timer.after,
        )
        self._housekeeping = Housekeeping(
            self.subscription.connections,
            flow,
            runtime,
            self._timer,
            chunks,
            self.workers,
            # With a handler, a message counts until the handler returns.
            self.subscription.on_overdue if setup.handler is None else None,
        )
        self.subscription.wake = self._housekeeping.wake
        self._discovery = Discovery(
            nsqds_of(setup.topic),
            setup.lookups,
            self.subscription.on_discovered,
            self._lookup_changed,
            runtime,
        )
        self.look: Look = Look(
            setup.name,
            runtime,
            self._timer,
            self.subscription,
            self._discovery,
            chunks,
            self._dead_letters,
            self.workers,
        )

    def start(self) -> None:
        keep_enabled()
        if not self._setup.is_advised:
            advise([self._setup])
        self.runtime.on_fork(self._after_fork)
        at_exit(self.end_now)
        if self._owns_timer:
            self._timer.start()
        self.workers.start()
        self.subscription.start()
        self._discovery.start()

    def supervise_aside(self) -> None:
        """Wait for the stop on a new thread."""
        self._supervisor = self.runtime.spawn(f"nsq-reader {self._setup.name}", self._stand_by)

    def _stand_by(self) -> None:
        try:
            self._supervise(look_every=None)
        except BaseException as error:
            # Otherwise join() would wait for ever.
            self._error = self._error or error
            self._ended.set()
            raise

    def supervise_here(self) -> None:
        """Wait for the stop on the caller's thread. Ctrl-C there stops, a second one forces.

        After a third one, it waits for nothing more.
        """
        try:
            self._supervise()
        except BaseException:  # Ctrl-C, or a signal handler that raises
            self.stop(_INTERRUPT_SECONDS)
            try:
                self._supervise()
            except BaseException:  # the second one
                self.stop(0.0)
                try:
                    self._supervise()
                except BaseException as error:  # the third one
                    self._leave(error)
                    raise
                raise
            raise

    def _leave(self, error: BaseException) -> None:
        """Close the connections and wake all waiters, because ``error`` ended the stop itself."""
        self._error = self._error or error
        try:
            self._discovery.stop()
            self._stop_timer(0.0)
            self.subscription.close()
        finally:
            self._ended.set()

    def end_failed_start(self, error: BaseException) -> None:
        """End the started parts after a failed start. join() raises the error."""
        self._fail(error)
        self._supervise()

    def stop(self, timeout: float) -> None:
        self._control.put(timeout)

    def _fail(self, error: BaseException) -> None:
        """End the Reader by an error. start() or join() raises the first error."""
        self._error = self._error or error
        self.stop(0.0)

    @property
    def has_ended(self) -> bool:
        return self._ended.is_set()

    def wait_ended(self) -> None:
        """Wait for the end, on a thread that runs no signal handlers. It never wakes before."""
        self._ended.wait()

    def join(self, timeout: float | None) -> StopResult | None:
        deadline = self.runtime.now() + (math.inf if timeout is None else timeout)
        while not self._ended.wait(min(deadline - self.runtime.now(), _WAKE_SECONDS)):
            if self.runtime.now() >= deadline:
                return None
        if self._supervisor is not None:
            self._supervisor.join(_JOIN_SECONDS)
        if self._error is not None:
            raise self._error
        return self._result

    def end_now(self) -> None:
        """End at the end of the interpreter, with every handler that still runs."""
        if self._pid == os.getpid() and not self._ended.is_set():
            self._handlers_die = True
            self.stop(_EXIT_SECONDS)
            self._ended.wait(_JOIN_SECONDS)

    # -- stopping --------------------------------------------------------------------------------

    def _supervise(self, look_every: float | None = _WAKE_SECONDS) -> None:
        """Wait for the stop, then do it. ``look_every``: None on a thread of our own.

        1. End discovery and dials.
        2. Send RDY 0 and CLS on each connection.
        3. Send REQ 0, without backoff, for messages that no handler has begun.
        4. Let handlers finish while the reading threads answer heartbeats.
        5. Close the connections when nothing is in flight and nsqd has answered CLS, or when the
           time is over.
        6. Join every thread.
        7. Make the result, which says what was left.
        """
        granted: float | None = None
        while granted is None:
            granted = self._next_word(look_every)
        deadline = self.runtime.now() + granted
        self._discovery.stop()
        self.subscription.start_closing()
        self.workers.stop()
        deadline = self._wait_drained(deadline)
        if self._handlers_die:
            self._give_back(detached=True)
        # Joined even when the time is over, because idle workers still have to notice.
        running = self.workers.join(max(deadline, self.runtime.now() + _NOTICE_SECONDS))
        left = self.subscription.in_flight
        self.subscription.close()
        self.subscription.join()
        self._discovery.join(_JOIN_SECONDS)
        self._stop_timer(_JOIN_SECONDS)
        self._dead_letters.close()
        not_at_exit(self.end_now)
        self._events.leaves()
        self._result = StopResult(unanswered=left, workers_running=running)
        if self._result.clean:
            log.info("%s stopped", self._setup.name, extra=self._setup.log_fields)
        else:
            log.warning(
                "%s stopped with %s unanswered and %s at work",
                self._setup.name,
                counted(left, "message"),
                counted(running, "handler"),
                extra=self._setup.log_fields,
            )
        self._ended.set()

    def _stop_timer(self, timeout: float) -> None:
        if self._owns_timer:
            self._timer.stop(timeout)

    def give_back_taken(self) -> None:
        """Send REQ 0 for messages that the pull form took, unless answered or detached."""
        # RDY 0 first, or nsqd would deliver the messages here again at once.
        self.subscription.set_paused(True)
        self._give_back(detached=False)

    def _give_back(self, *, detached: bool) -> None:
        """Queue REQ 0 for messages that will not be answered. Closing the connections sends it."""
        for connection in self.subscription.connections():
            for message in list(connection.in_flight.values()):
                if detached or not message.is_detached:
                    connection.requeue_quietly(message, 0)

    def _wait_drained(self, deadline: float) -> float:
        """Wait until nothing is in flight and no worker is busy. Return the deadline, or a new one.

        Also waits until nsqd has answered CLS, because a message sent before that would wait for
        its timeout in nsqd. An nsqd that hangs delays the stop only for _CLOSE_WAIT_SECONDS.
        """
        answer_by: float | None = None
        while self.workers.working or not self.subscription.is_drained:
            now = self.runtime.now()
            left = deadline - now
            if not self.workers.working and not self.subscription.in_flight:
                answer_by = answer_by or now + _CLOSE_WAIT_SECONDS
                left = min(left, answer_by - now)
            if left <= 0:
                break
            granted = self._next_word(left)
            if granted is not None:
                deadline = min(deadline, self.runtime.now() + granted)
        return deadline

    def _next_word(self, seconds: float | None) -> float | None:
        """Return the seconds that a stop grants, or None when something settled or time is over.

        With ``seconds``, it wakes at least once a second. When a signal comes just as the main
        thread goes to sleep, Python runs the handler only at the next wake-up. And a worker that
        was killed at its end does not report it.
        """
        try:
            limit = None if seconds is None else min(seconds, _WAKE_SECONDS)
            granted: float | None = self._control.get(limit)
        except TimeoutError:
            return None
        return granted

    # -- servers ---------------------------------------------------------------------------------

    def add_lookupd(self, url: str, again: Callable[[], None]) -> None:
        """Ask this nsqlookupd. If no thread can be started, the timer calls ``again``."""
        self.subscription.discovers = True
        try:
            self._discovery.add(url)
        except NoThread as error:
            # The next try may find a thread, as the next dial of an nsqd may.
            log.warning(
                "%s: no thread asks an nsqlookupd: %s; it is tried again each second",
                self._setup.name,
                error,
                extra=self._setup.log_fields,
            )
            self._timer.after(_AGAIN_SECONDS, again)

    def remove_lookupd(self, url: str) -> None:
        self._discovery.remove(url)
        self.subscription.discovers = self._discovery.has_any

    def _lookup_changed(self, url: str, error: Exception | None) -> None:
        if error is None:
            self._events.notify("lookup_recovered", url)
        else:
            self._events.notify("lookup_failed", url, error)

    def flush(self) -> None:
        for connection in self.subscription.connections():
            connection.send_queue.flush(1.0)
        self.subscription.answered()

    # -- processes and state ---------------------------------------------------------------------

    def check_process(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError("this Reader was started before the fork; make one in the child")

    def _after_fork(self) -> None:
        # Greenlets are copied into the child and end there. No worker must replace them.
        self.workers.abandon()
        self.subscription.abandon()

    def stats(self) -> ReaderStats:
        subscription = self.subscription
        totals = subscription.totals()
        now = self.runtime.now()
        connections = tuple(stats_of(c, now) for c in subscription.connections())
        begin, end, handler = self._timings.histograms()
        return ReaderStats(
            topic=self._setup.topic,
            channel=self._setup.channel,
            connections=connections,
            received=totals["received"],
            finished=totals["finished"],
            requeued=totals["requeued"],
            gave_up=self._dead_letters.count,
            discarded=self._dead_letters.discarded,
            answers_failed=totals["answers_failed"],
            in_flight=sum(c.in_flight for c in connections),
            max_in_flight=subscription.max_in_flight,
            is_paused=subscription.allocator.paused,
            is_in_backoff=subscription.pauses.backoff.level > 0,
            backoff_level=subscription.pauses.backoff.level,
            age_at_begin=begin,
            age_at_end=end,
            handler_seconds=handler,
        )
