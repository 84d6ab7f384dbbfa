"""The Reader: what a user constructs to consume a channel. Lifecycle and glue.

Holds no byte and no arithmetic; the parts it joins are Subscription, Dispatch, Discovery, Timer.
"""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from gnsqsync.config import (
    ConnectionOptions,
    check_channel,
    check_duration,
    check_int,
    check_topic,
    http_urls,
    parse_addresses,
    split_connection_options,
)
from gnsqsync.discovery import Discovery
from gnsqsync.dispatch import Dispatch
from gnsqsync.errors import ClosedError, ConfigError
from gnsqsync.giving_up import GivingUp
from gnsqsync.lifecycle import at_exit, not_at_exit
from gnsqsync.message import Message
from gnsqsync.net.connection import Connection
from gnsqsync.observer import Observer
from gnsqsync.reader_options import ReaderOptions
from gnsqsync.runtime import Runtime, Task, choose
from gnsqsync.stats import ReaderStats, StopResult
from gnsqsync.subscription import Subscription
from gnsqsync.timer import Timer

__all__ = ["Reader"]

log = logging.getLogger("gnsqsync.reader")

# What close() and the end of the interpreter grant threads that only have to notice.
_JOIN_SECONDS = 5.0
# For threads that have nothing left to do but to see it.
_NOTICE_SECONDS = 0.5
# What a handler at work is granted after Ctrl-C.
_INTERRUPT_SECONDS = 30.0


class Reader:
    """Consumes a channel: calls ``handler`` with each message, on worker threads or greenlets.

    ``handler(message)``: returns: FIN. Raises ``Requeue(delay, backoff)``: REQ. Any other
    exception: REQ after attempts times ``requeue_delay``, and the reader backs off. After
    ``message.detach()`` the handler answers later, from any thread. Without a handler, take
    messages with ``batches()`` or by iteration, and answer each.

    ``nsqd_tcp_addresses``: nsqds to connect to, always. ``lookupd_http_addresses``: nsqlookupds
    that say where the topic is. One of them is needed; a str or a list.
    ``max_in_flight``: messages unanswered at a time over all nsqds; None is ``concurrency``.
    ``concurrency``: workers. ``max_attempts``: deliveries before a message is given up, 0 never.
    ``requeue_delay``, ``max_requeue_delay``: seconds. ``max_backoff_duration``: seconds, 0 is
    off; ``backoff_multiplier``: seconds; the pause of level n is that times 2 to the n;
    ``backoff_strategy``: "exponential", "full_jitter" or a function from level to seconds, which
    must only compute: it runs under the reader's lock.
    ``lookupd_poll_interval``: seconds, each moved by ``lookupd_poll_jitter`` (0 to 1).
    ``low_rdy_idle_timeout``, ``low_rdy_timeout``: with more nsqds than max_in_flight, how many
    seconds one holds its turn idle, or at all. ``rdy_redistribute_interval``: seconds.
    ``latency``: "adaptive" keeps RDY just above what is in flight while messages trickle, so
    that nsqd sends each at once; "throughput" always gives the full share.
    ``auto_touch``: TOUCH messages in flight until nsqd's max_msg_timeout.
    ``on_giving_up(message)``: called before a message is given up; if it raises, REQ.
    ``dead_letter_topic``: where given up messages are published before they are finished.
    ``observer``: an Observer. ``runtime``: None, "threads" or "gevent".
    ``options``: ConnectionOptions, or give its fields as keywords.

    The constructor starts nothing and raises ConfigError for any value that is not allowed.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        handler: Callable[[Message], object] | None = None,
        *,
        nsqd_tcp_addresses: object = (),
        lookupd_http_addresses: object = (),
        max_in_flight: int | None = None,
        concurrency: int = 1,
        max_attempts: int = 5,
        requeue_delay: float = 90.0,
        max_requeue_delay: float = 900.0,
        max_backoff_duration: float = 128.0,
        backoff_multiplier: float = 1.0,
        backoff_strategy: str | Callable[[int], float] = "exponential",
        lookupd_poll_interval: float = 60.0,
        lookupd_poll_jitter: float = 0.3,
        low_rdy_idle_timeout: float = 10.0,
        low_rdy_timeout: float = 30.0,
        rdy_redistribute_interval: float = 5.0,
        latency: str = "adaptive",
        auto_touch: bool = False,
        on_giving_up: Callable[[Message], object] | None = None,
        dead_letter_topic: str | None = None,
        observer: Observer | None = None,
        runtime: str | Runtime | None = None,
        options: ConnectionOptions | None = None,
        **connection_options: Any,
    ) -> None:
        self.topic = check_topic(topic)
        self.channel = check_channel(channel)
        if handler is not None and not callable(handler):
            raise ConfigError(f"handler is {handler!r}; it must be a callable that takes a message")
        self._handler = handler
        self._direct = parse_addresses(nsqd_tcp_addresses)
        self._lookupds = http_urls(lookupd_http_addresses)
        if not self._direct and not self._lookupds:
            raise ConfigError(
                "a Reader needs nsqd_tcp_addresses or lookupd_http_addresses, at least one address"
            )
        self._flow = ReaderOptions(
            max_in_flight=max_in_flight,
            concurrency=concurrency,
            max_attempts=max_attempts,
            requeue_delay=requeue_delay,
            max_requeue_delay=max_requeue_delay,
            max_backoff_duration=max_backoff_duration,
            backoff_multiplier=backoff_multiplier,
            backoff_strategy=backoff_strategy,
            lookupd_poll_interval=lookupd_poll_interval,
            lookupd_poll_jitter=lookupd_poll_jitter,
            low_rdy_idle_timeout=low_rdy_idle_timeout,
            low_rdy_timeout=low_rdy_timeout,
            rdy_redistribute_interval=rdy_redistribute_interval,
            latency=latency,
            auto_touch=auto_touch,
            on_giving_up=on_giving_up,
            dead_letter_topic=dead_letter_topic,
        )
        self._options = split_connection_options(options, connection_options, Reader)
        if self._options.uses_tls:
            self._options.ssl_context()
        self._observer = observer if observer is not None else Observer()
        self._runtime_choice = runtime
        self._run: _Run | None = None

    # -- lifecycle -----------------------------------------------------------------------------

    def start(self, block: bool = True) -> StopResult | None:
        """Connect and consume; with ``block`` until ``stop()`` is called elsewhere.

        Returns the StopResult when it blocked. Raises ClosedError when it was started before,
        and the NSQError of an nsqd when every one refuses us for good. Ctrl-C stops the reader
        and is raised again.
        """
        if self._run is not None:
            raise ClosedError("a Reader is started once; make a new one to consume again")
        run = _Run(self)
        # dict.setdefault is atomic, so of two threads that start, one wins.
        first: object = self.__dict__.setdefault("_started", run)
        if first is not run:
            raise ClosedError("a Reader is started once; make a new one to consume again")
        self._run = run
        run.start()
        if block:
            run.supervise_here()
            return run.join(None)
        run.supervise_aside()
        return None

    def stop(self, timeout: float = 30.0) -> None:
        """Ask the reader to end; returns at once. From a signal handler or a handler, too.

        Handlers at work have ``timeout`` seconds to finish; what none has begun is requeued. A
        second call can only shorten the time; ``stop(0)`` forces.
        """
        check_duration("timeout", timeout)
        run = self._run
        if run is not None:
            run.stop(timeout)

    def join(self, timeout: float | None = None) -> StopResult | None:
        """Wait until the reader has stopped, and return what was left; None if it takes longer.

        ``timeout``: seconds. Raises what made the reader stop by itself.
        """
        run = self._running()
        return run.join(timeout)

    def __enter__(self) -> Reader:
        if self._run is None:
            self.start(block=False)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        run = self._running()
        if self._handler is None:
            # The thread that took messages is leaving: what it has not answered goes back.
            run.give_back_taken()
        self.stop()
        self.join()

    # -- flow ------------------------------------------------------------------------------------

    def pause(self) -> None:
        """RDY 0 everywhere at once; connections stay. What was delivered is still handled."""
        self._running().subscription.pause()

    def resume(self) -> None:
        """End a pause."""
        self._running().subscription.resume()

    def set_max_in_flight(self, count: int) -> None:
        """Change max_in_flight; 0 or more. 0 stops deliveries, as ``pause()`` does."""
        self._running().subscription.set_max_in_flight(check_int("max_in_flight", count, 0))

    @property
    def is_starved(self) -> bool:
        """Whether nsqd may be waiting for answers: 85 % of some connection's RDY is in flight."""
        return self._running().subscription.is_starved

    @property
    def is_in_backoff(self) -> bool:
        """Whether failures have slowed the reader down."""
        run = self._run
        return run is not None and run.subscription.in_backoff

    def stats(self) -> ReaderStats:
        """Counters and connections at this moment. From any thread."""
        return self._running().stats()

    # -- the pull form ---------------------------------------------------------------------------

    def batches(self, max_messages: int, max_wait: float) -> Iterator[list[Message]]:
        """Lists of up to ``max_messages``, each collected for at most ``max_wait`` seconds.

        For a Reader without a handler; starts it if needed and ends after ``stop()``. A list
        may be empty. Each message has to be answered; until then it counts as in flight, so
        ``max_messages`` must not be above ``max_in_flight`` (ConfigError).
        """
        check_int("max_messages", max_messages, 1)
        check_duration("max_wait", max_wait)
        if self._handler is not None:
            raise ConfigError("this Reader has a handler; batches() is for one without")
        if self._run is None:
            if max_messages > self._flow.initial_max_in_flight:
                raise ConfigError(
                    f"max_messages is {max_messages}, but max_in_flight is"
                    f" {self._flow.initial_max_in_flight}: a list could never be full"
                )
            self.start(block=False)
        return self._pull(max_messages, max_wait)

    def _pull(self, max_messages: int, max_wait: float) -> Iterator[list[Message]]:
        run = self._running()
        while True:
            # Answers to the list before leave now, not when the sweep comes round.
            run.flush()
            batch = run.dispatch.pull(max_messages, max_wait)
            if batch is None:
                return
            yield batch

    def __iter__(self) -> Iterator[Message]:
        """Messages one by one, until ``stop()``; answer each. For a Reader without a handler."""
        for batch in self.batches(1, 3600.0):
            yield from batch

    # -- inside ----------------------------------------------------------------------------------

    def _running(self) -> _Run:
        run = self._run
        if run is None:
            raise ClosedError("the Reader is not started")
        run.check_process()
        return run

    def __reduce__(self) -> Any:
        raise TypeError("a Reader cannot be pickled; make one where it runs")

    def __repr__(self) -> str:
        return f"<Reader {self.topic}/{self.channel}>"


_STOP, _SETTLED = "stop", "settled"


class _Run:
    """One started Reader: its threads, and the one who stops them.

    ``_control`` is a queue because ``stop()`` may be called by a signal handler, which must not
    take a lock that its own thread may hold.
    """

    def __init__(self, reader: Reader) -> None:
        self.runtime = runtime = choose(reader._runtime_choice)
        self._reader = reader
        self._pid = os.getpid()
        self._control = runtime.queue()
        self._ended = runtime.event()
        self._stopping = False
        self._result: StopResult | None = None
        self._error: BaseException | None = None
        self._supervisor: Task | None = None
        self._observes_batches = type(reader._observer).batch is not Observer.batch
        rng = random.Random()
        flow = reader._flow
        name = f"{reader.topic}/{reader.channel}"
        self._timer = Timer(runtime, f"nsq-timer {name}")
        self._giving_up = GivingUp(reader._flow, reader._options, runtime, reader._observer)
        self.dispatch = Dispatch(
            runtime,
            reader._handler,
            concurrency=flow.concurrency,
            max_attempts=flow.max_attempts,
            outcomes=self,
            report_all=self._observes_batches,
        )
        self.subscription = Subscription(
            reader.topic,
            reader.channel,
            flow,
            reader._options,
            direct=reader._direct,
            discovers=bool(reader._lookupds),
            runtime=runtime,
            timer=self._timer,
            receiver=self,
            observer=reader._observer,
            on_hopeless=self._fail,
            rng=rng,
        )
        self._discovery = Discovery(
            reader.topic,
            reader._lookupds,
            self.subscription.on_discovered,
            runtime,
            interval=flow.lookupd_poll_interval,
            jitter=flow.lookupd_poll_jitter,
            rng=rng,
        )

    def start(self) -> None:
        flow = self._reader._flow
        in_flight = flow.initial_max_in_flight
        if in_flight <= 1 or in_flight < flow.concurrency:
            log.info(
                "%r: max_in_flight is %d for %d workers; raise it when messages are small and many",
                self._reader,
                in_flight,
                flow.concurrency,
            )
        self.runtime.on_fork(self._after_fork)
        at_exit(self.end_now)
        self._timer.start()
        self.dispatch.start()
        self.subscription.start()
        self._discovery.start()

    def supervise_aside(self) -> None:
        """A thread of our own waits for the stop."""
        name = f"nsq-reader {self._reader.topic}/{self._reader.channel}"
        self._supervisor = self.runtime.spawn(name, self._supervise)

    def supervise_here(self) -> None:
        """The caller's thread waits for the stop; Ctrl-C there is one, a second one forces."""
        try:
            self._supervise()
        except BaseException:
            self.stop(_INTERRUPT_SECONDS)
            try:
                self._supervise()
            except BaseException:
                self.stop(0.0)
                self._supervise()
                raise
            raise

    def stop(self, timeout: float) -> None:
        self._control.put((_STOP, timeout))

    def _fail(self, error: BaseException) -> None:
        """Every nsqd refuses us for good: end, and let start() or join() raise it."""
        self._error = error
        self.stop(0.0)

    def join(self, timeout: float | None) -> StopResult | None:
        if not self._ended.wait(timeout):
            return None
        if self._supervisor is not None:
            self._supervisor.join(_JOIN_SECONDS)
        if self._error is not None:
            raise self._error
        return self._result

    def end_now(self) -> None:
        """For the end of the interpreter: stop without waiting for handlers."""
        if self._pid == os.getpid() and not self._ended.is_set():
            self.stop(0.0)
            self._ended.wait(_JOIN_SECONDS)

    # -- stopping --------------------------------------------------------------------------------

    def _supervise(self) -> None:
        """Wait for the stop, then drive it.

        1. discovery and redials end;
        2. RDY 0 and CLS on each connection;
        3. what no handler has begun goes back: REQ 0, without backoff;
        4. handlers finish while the reading threads keep the heartbeats alive;
        5. when nothing is in flight and nsqd has answered CLS, or the time is over, the
           connections close;
        6. every thread is joined;
        7. the result says what was left.
        """
        kind, timeout = self._control.get()
        while kind != _STOP:
            kind, timeout = self._control.get()
        deadline = self.runtime.now() + timeout
        self._stopping = True
        self._discovery.stop()
        self.subscription.stop_dialling()
        for connection in self.subscription.connections():
            connection.hands_over = False
        self.subscription.start_closing()
        self._give_back()
        self.dispatch.stop()
        deadline = self._wait_drained(deadline)
        left = self.subscription.in_flight
        # Also when the time is over: idle workers still have to notice.
        running = self.dispatch.join(max(deadline, self.runtime.now() + _NOTICE_SECONDS))
        self.subscription.close()
        last = self.runtime.now() + _JOIN_SECONDS
        self.subscription.join(last)
        self._discovery.join(max(0.0, last - self.runtime.now()))
        self._timer.stop(_JOIN_SECONDS)
        self._giving_up.close()
        not_at_exit(self.end_now)
        self._result = StopResult(unanswered=left, workers_running=running)
        if self._result.clean:
            log.info("%r stopped", self._reader)
        else:
            log.warning("%r stopped with %s", self._reader, self._result)
        self._ended.set()

    def _give_back(self) -> None:
        touched = set()
        for connection, message in self.dispatch.drain():
            if connection.requeue_quietly(message, 0):
                touched.add(connection)
        for connection in touched:
            connection.outbox.flush(1.0)

    def give_back_taken(self) -> None:
        """REQ 0 for what the pull form handed out and nobody answered or detached."""
        # Or nsqd would deliver it here again at once.
        self.subscription.pause()
        for connection in self.subscription.connections():
            for message in list(connection.in_flight):
                if not message.is_detached:
                    connection.requeue_quietly(message, 0)

    def _wait_drained(self, deadline: float) -> float:
        """Until nothing is in flight and no worker is busy, or the deadline; which may shrink.

        Also until nsqd has answered CLS: a message that it had sent before would otherwise
        wait there for its timeout.
        """
        while self.dispatch.working or not self.subscription.is_drained:
            left = deadline - self.runtime.now()
            if left <= 0:
                break
            try:
                kind, timeout = self._control.get(left)
            except TimeoutError:
                break
            if kind == _STOP:
                deadline = min(deadline, self.runtime.now() + timeout)
        return deadline

    def on_settled(self) -> None:
        """Something may have ended that the stop waits for."""
        if self._stopping:
            self._control.put((_SETTLED, 0.0))

    # -- what the parts tell ---------------------------------------------------------------------

    @property
    def in_backoff(self) -> bool:
        return self.subscription.in_backoff

    def on_messages(self, connection: Connection, messages: list[Message]) -> None:
        if self._stopping:
            # They crossed with our CLS.
            connection.hands_over = False
            for message in messages:
                connection.requeue_quietly(message, 0)
        else:
            self.dispatch.put(connection, messages)

    def on_chunk(
        self, connection: Connection, finished: int, failed: int, neutral: int, seconds: float
    ) -> None:
        if failed or self.subscription.in_backoff:
            self.subscription.note(finished, failed)
        if self._observes_batches:
            address = connection.nsqd_address
            self.subscription.notify("batch", address, finished, failed, seconds)

    def on_chunk_sent(self) -> None:
        self.subscription.replan()
        self.on_settled()

    def give_up(self, message: Message) -> bool:
        return self._giving_up.settle(message)

    def flush(self) -> None:
        for connection in self.subscription.connections():
            connection.outbox.flush(1.0)
        self.subscription.replan()

    # -- processes and looking -------------------------------------------------------------------

    def check_process(self) -> None:
        if self._pid != os.getpid():
            raise ClosedError("this Reader was started before the fork; make one in the child")

    def _after_fork(self) -> None:
        self.subscription.abandon()

    def stats(self) -> ReaderStats:
        subscription = self.subscription
        totals = subscription.totals()
        connections = subscription.connection_stats()
        return ReaderStats(
            topic=self._reader.topic,
            channel=self._reader.channel,
            connections=connections,
            received=totals.received,
            finished=totals.finished,
            requeued=totals.requeued,
            gave_up=self._giving_up.count,
            answers_failed=totals.answers_failed,
            in_flight=sum(c.in_flight for c in connections),
            max_in_flight=subscription.max_in_flight,
            is_paused=subscription.paused,
            is_in_backoff=subscription.in_backoff,
            backoff_level=subscription.backoff_level,
        )
