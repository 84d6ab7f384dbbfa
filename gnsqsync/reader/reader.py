"""The Reader: what a user constructs to consume. Checks options and starts a RunningReader."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from gnsqsync.addresses import (
    Address,
    AddressLike,
    NsqdAddress,
    UrlLike,
    http_urls,
    parse_address,
    parse_addresses,
)
from gnsqsync.discovery.lookups import Lookups
from gnsqsync.errors import ClosedError, ConfigError
from gnsqsync.message import Message
from gnsqsync.middleware import Middleware, check_middleware, overriding
from gnsqsync.observer import Observer, each
from gnsqsync.options import (
    ConnectionOptionKeywords,
    ConnectionOptions,
    check_channel,
    check_duration,
    check_handler,
    check_int,
    check_topic,
    split_connection_options,
)
from gnsqsync.reader.channel_creation import ChannelMaker
from gnsqsync.reader.options import (
    BackoffStrategy,
    Latency,
    OnExpired,
    OnGivingUp,
    ReaderOptions,
    ReaderSetup,
)
from gnsqsync.reader.running_reader import RunningReader
from gnsqsync.reader.verdicts import BackoffOption, Exceptions
from gnsqsync.runtime import RuntimeLike, choose
from gnsqsync.runtime.event_loop import warn_that_start_blocks
from gnsqsync.stats import ReaderStats, StopResult

if TYPE_CHECKING:
    import requests

    from gnsqsync.policy.latency import Together
    from gnsqsync.reader.lanes import KeyOfLane
    from gnsqsync.runtime.timer import Timer

__all__ = ["Reader"]

Server = TypeVar("Server", Address, str)


class Reader:
    """Consumes a channel: calls ``handler`` with each message, on worker threads or greenlets.

    What the handler does decides what nsqd is told:

    * it returns: FIN;
    * it raises ``Requeue(delay, backoff)``: REQ;
    * it raises ``Reject(reason)``: the message is given up now; ``Discard(reason)``: FIN;
    * it raises anything else: REQ after attempts times ``requeue_delay``, and when such failures
      dominate, the reader backs off;
    * it calls ``message.detach()``: nothing yet; somebody answers later, from any thread.

    If the handler has a method ``worker_ended()``, each worker calls it at its end, on its own
    thread or greenlet. Without a handler, take messages with ``batches()`` or by iteration, and
    answer each.

    The constructor starts nothing.

    Args:
        topic: 1 to 64 of ``.a-zA-Z0-9_-``, and at the end optionally ``#ephemeral``.
        channel: As ``topic``.
        handler: Called with each message; a plain function and no coroutine. None for the pull
            form.
        nsqd_tcp_addresses: The nsqds to connect to, always: ``host:port`` (4150 without one),
            ``[ipv6]:port`` or ``unix:///path``; a str, with commas for several, or a list. These or
            the next are needed.
        lookupd_http_addresses: The nsqlookupds that say where the topic is: ``host:port`` (4161
            without one) or URLs; a str or a list. Path, query and user info of a URL are kept, and
            the path may end with ``/lookup``; an https one is verified with the ``tls_`` files of
            the connection options, if there are any.
        max_in_flight: Messages unanswered at a time over all nsqds, 0 or more; None: as
            ``concurrency``.
        concurrency: Workers, 1 or more.
        max_attempts: A message whose handler fails on this delivery or a later one is given up, 0
            to 65535; 0: never. One that no handler failed on is not, however often it came.
        max_deliveries: A message that was delivered more often is given up without the handler, 0
            to 65535; 0: never. Needs ``on_giving_up`` or ``dead_letter_topic``.
        requeue_delay: Seconds, 0 to 3600, times attempts, until a failed message comes again; and
            up to a tenth more by chance.
        max_requeue_delay: Seconds, 0 to 3600: the most that comes of that, but for the chance.
        max_backoff_duration: Seconds, 0 to 3600: the longest pause of the backoff; 0: no backoff;
            None: 25, or 128 with ``backoff="every_failure"``.
        backoff_multiplier: Seconds, 0.001 to 3600; the pause at level n is this times 2 to the n.
        backoff_strategy: ``'exponential'``, less up to a fifth by chance unless ``backoff`` is
            ``"every_failure"``; ``'full_jitter'``, a random part; or a function from level to
            seconds; where that raises, exponential. It must only compute, because it runs under the
            reader's lock.
        backoff_on_fin_failed: Whether a FIN that nsqd refuses counts as a failure: the work was
            done, but too late.
        lookupd_poll_interval: Seconds, 0.01 to 3600, between two questions to an nsqlookupd. While
            none lists anything, it is asked after 0.25 s, then up to each 3 s, for five minutes.
        lookupd_poll_jitter: Part of the interval, 0 to 1: each wait is moved by up to half of it,
            either way.
        lookupd_authorization: A bearer token that each nsqlookupd is sent; not together with user
            info in a URL.
        lookupd_session: A function that returns a new ``requests.Session``, for proxies, retries,
            other TLS or another way to authenticate. It is called once for each nsqlookupd, and by
            ``ensure_channel()``; the session is closed with its thread. Its settings count instead
            of the ``tls_`` files.
        low_rdy_idle_timeout: Seconds, 0.1 to 300, without a message until an nsqd lends its RDY.
            With more nsqds than ``max_in_flight``, an upper bound: an nsqd without a message loses
            its turn after 0.02 to 0.2 s.
        low_rdy_timeout: Seconds, 0.1 to 300, of a turn at most, with more nsqds than
            ``max_in_flight``. A turn mostly ends sooner, with the answer to its message.
        rdy_redistribute_interval: Seconds, 0.01 to 60, between two rounds of sharing RDY, if
            nothing else causes one.
        latency: ``'adaptive'`` keeps RDY just above what is in flight while messages trickle, so
            that nsqd sends each at once, and in a stream lets it send about each 2 ms.
            ``'throughput'`` always gives the full share.
        auto_touch: TOUCH what is in flight at half of its timeout, as long as nsqd grants it.
        on_giving_up: Called with a message before it is given up, and what its handler raised, or
            None; if it raises itself, the message is requeued. Or ``'discard'``: the message is
            finished.
        dead_letter_topic: Another topic, to which the bodies of given up messages are published
            before they are finished. With neither this nor ``on_giving_up`` they wait in nsqd and
            come again every ``max_requeue_delay``.
        retry_on: The exceptions after which a message is tried again; None: all that are in neither
            of the next two. With it, what is in none of the three is rejected. Of base class and
            subclass the nearer one decides.
        reject_on: The exceptions that mean ``Reject``.
        discard_on: The exceptions that mean ``Discard``.
        backoff: True: the reader pauses when failures of different messages are more than a third
            of what it did in the last minute, and 15 or more. ``"every_failure"``: each failure
            pauses it, as NSQ's guide for clients says. False: failures never slow it down, as with
            ``max_backoff_duration=0``. Or a function from the exception to True if it counts, with
            the rule of True; ``Requeue`` says so itself.
        time_limit: Seconds that the handler may run, 0.01 to 86400; then TimeLimitInterrupt is
            raised in it, and it has failed with TimeLimitExceeded. On threads that waits for the
            end of a call that blocks in C, on gevent until the handler waits. None: no limit.
        max_age: Seconds since its publish after which a message goes to ``on_expired`` and not to
            the handler, by the clocks of nsqd and this machine; None: never.
        on_expired: ``'dead_letter'``, ``'discard'``, or a function that takes the place of the
            handler for such a message. Needed with ``max_age``.
        rate_limit: Messages a second, 0.001 to 1,000,000, that this Reader takes at most; the
            others wait in nsqd, where other consumers can have them. None: no limit.
        rate_burst: How many may come at once after a quiet time, 1 or more; None: those of a
            second.
        lanes: Messages for which this function returns equal values are handled one after another,
            in the order in which they came to this process; others side by side. None is no lane.
            It is called on the reading thread, and must be quick.
        headers: Whether to open envelopes (docs/protocol/envelope), for ``message.headers``.
        shared: True if another handler of this process has the same topic and channel, and either
            may handle any message. Without it on both, a ReaderGroup and the commands of Django and
            Flask refuse the two.
        middleware: A list of Middlewares, the first one outermost.
        observer: An Observer, or a list of them.
        runtime: ``'threads'`` or ``'gevent'``; None: as the process is patched when it starts.
        options: A ConnectionOptions, or give its fields as keywords; not both.
        **connection_options: The fields of ConnectionOptions.

    Raises:
        ConfigError: A value is not allowed, or no address is given.

    Threads:
        Any thread may call; on gevent any greenlet of the OS thread that called ``start()``.
        ``stop()``, ``stats()`` and answers to messages come from any thread there, too.
    """

    def __init__(
        self,
        topic: str,
        channel: str,
        handler: Callable[[Message], object] | None = None,
        *,
        nsqd_tcp_addresses: AddressLike = (),
        lookupd_http_addresses: UrlLike = (),
        max_in_flight: int | None = None,
        concurrency: int = 1,
        max_attempts: int = 5,
        max_deliveries: int = 0,
        requeue_delay: float = 90.0,
        max_requeue_delay: float = 900.0,
        max_backoff_duration: float | None = None,
        backoff_multiplier: float = 1.0,
        backoff_strategy: BackoffStrategy = "exponential",
        backoff_on_fin_failed: bool = False,
        lookupd_poll_interval: float = 15.0,
        lookupd_poll_jitter: float = 0.3,
        lookupd_authorization: str | None = None,
        lookupd_session: Callable[[], requests.Session] | None = None,
        low_rdy_idle_timeout: float = 10.0,
        low_rdy_timeout: float = 30.0,
        rdy_redistribute_interval: float = 5.0,
        latency: Latency = "adaptive",
        auto_touch: bool = False,
        on_giving_up: OnGivingUp | None = None,
        dead_letter_topic: str | None = None,
        retry_on: Exceptions | None = None,
        reject_on: Exceptions = (),
        discard_on: Exceptions = (),
        backoff: BackoffOption = True,
        time_limit: float | None = None,
        max_age: float | None = None,
        on_expired: OnExpired | None = None,
        rate_limit: float | None = None,
        rate_burst: int | None = None,
        lanes: KeyOfLane | None = None,
        headers: bool = False,
        shared: bool = False,
        middleware: Middleware | Sequence[Middleware] = (),
        observer: Observer | Sequence[Observer] | None = None,
        runtime: RuntimeLike | None = None,
        options: ConnectionOptions | None = None,
        **connection_options: Unpack[ConnectionOptionKeywords],
    ) -> None:
        self.topic: str = check_topic(topic)
        self.channel: str = check_channel(channel)
        # First of the rest: a wrong name may be the reason for what else is wrong.
        options = split_connection_options(options, connection_options, Reader)
        if options.uses_tls:
            options.ssl_context()
        if handler is not None:
            check_handler("handler", handler)
        nsqds = parse_addresses(nsqd_tcp_addresses)
        lookupds = http_urls(lookupd_http_addresses)
        if not nsqds and not lookupds:
            raise ConfigError(
                "a Reader needs nsqd_tcp_addresses or lookupd_http_addresses, at least one address"
            )
        flow = ReaderOptions(
            max_in_flight=max_in_flight,
            concurrency=concurrency,
            max_attempts=max_attempts,
            max_deliveries=max_deliveries,
            requeue_delay=requeue_delay,
            max_requeue_delay=max_requeue_delay,
            max_backoff_duration=max_backoff_duration,
            backoff_multiplier=backoff_multiplier,
            backoff_strategy=backoff_strategy,
            backoff_on_fin_failed=backoff_on_fin_failed,
            low_rdy_idle_timeout=low_rdy_idle_timeout,
            low_rdy_timeout=low_rdy_timeout,
            rdy_redistribute_interval=rdy_redistribute_interval,
            latency=latency,
            auto_touch=auto_touch,
            on_giving_up=on_giving_up,
            dead_letter_topic=dead_letter_topic,
            retry_on=retry_on,
            reject_on=reject_on,
            discard_on=discard_on,
            backoff=backoff,
            time_limit=time_limit,
            max_age=max_age,
            on_expired=on_expired,
            rate_limit=rate_limit,
            rate_burst=rate_burst,
            lanes=lanes,
            headers=headers,
        )
        middlewares = check_middleware(middleware)
        if handler is None:
            self._check_pull_form(flow, middlewares)
        if dead_letter_topic == topic:
            raise ConfigError(
                f"dead_letter_topic is the Reader's own topic {topic!r}: what is given up would"
                " come again on all its channels, without an end; give another topic"
            )
        self._setup = ReaderSetup(
            topic=topic,
            channel=channel,
            handler=handler,
            nsqds=nsqds,
            lookups=Lookups(
                urls=lookupds,
                poll_interval=lookupd_poll_interval,
                poll_jitter=lookupd_poll_jitter,
                authorization=lookupd_authorization,
                new_session=lookupd_session,
                options=options,
            ),
            flow=flow,
            options=options,
            middleware=middlewares,
            shared=shared,
            observers=tuple(each(observer)),
            runtime=runtime,
        )
        # What is wanted now: keys of dicts, since setting and popping one is atomic.
        self._nsqds = dict.fromkeys(nsqds)
        self._lookupds = dict.fromkeys(lookupds)
        self._run: RunningReader | None = None
        self._stop_asked: float | None = None

    @staticmethod
    def _check_pull_form(flow: ReaderOptions, middlewares: Sequence[Middleware]) -> None:
        """ConfigError for what happens around a handler only."""
        defaults = ReaderOptions()
        for name in (
            "retry_on",
            "reject_on",
            "discard_on",
            "backoff",
            "time_limit",
            "max_age",
            "lanes",
        ):
            given = getattr(flow, name)
            # The rule of the backoff is also that of ``Message.requeue()``.
            if given not in (getattr(defaults, name), "every_failure"):
                raise ConfigError(f"{name} is for handlers; this Reader has none")
        if overriding(middlewares, "handle"):
            raise ConfigError("middleware runs around a handler; this Reader has none")

    # -- lifecycle -----------------------------------------------------------------------------

    def start(self, block: bool = True) -> StopResult | None:
        """Connect and consume; with ``block`` until ``stop()`` is called elsewhere.

        Args:
            block: Whether to wait for the end. Ctrl-C then stops the reader and is raised again.

        Returns:
            What was left at the end; None if it did not block.

        Raises:
            ClosedError: It was started before.
            NSQError: Every nsqd refuses us, and no retry will help; the error of one of them.
        """
        if block:
            warn_that_start_blocks()
        if self._run is not None:
            raise ClosedError("a Reader is started once; make a new one to consume again")
        setup = self._current_setup()
        run = RunningReader(setup)
        # dict.setdefault is atomic, so of two threads that start, one wins.
        first: object = self.__dict__.setdefault("_started", run)
        if first is not run:
            raise ClosedError("a Reader is started once; make a new one to consume again")
        self._run = run
        # One that came before that line has not reached the run.
        if self._stop_asked is not None:
            run.stop(self._stop_asked)
        try:
            run.start()
            # What was added or removed before the line that published the run, and after the copy.
            for address in self._nsqds.keys() ^ set(setup.nsqds):
                self._want_nsqd(run, address)
            for url in self._lookupds.keys() ^ set(setup.lookups.urls):
                self._want_lookupd(run, url)
            if not block:
                run.supervise_aside()
                return None
        except BaseException as error:  # a part of it runs
            run.end_failed_start(error)
            raise
        run.supervise_here()
        return run.join(None)

    def stop(self, timeout: float = 30.0) -> None:
        """Ask the reader to end; returns at once. From a signal handler or a handler, too.

        A second call can only shorten the time; ``stop(0)`` forces. Before ``start()`` it has that
        one end as soon as it begins.

        Args:
            timeout: Seconds that handlers at work have to finish. What none has begun is requeued.

        Raises:
            ConfigError: The timeout is negative or no number.
        """
        check_duration("timeout", timeout)
        self._stop_asked = timeout
        run = self._run
        if run is not None:
            run.stop(timeout)

    def join(self, timeout: float | None = None) -> StopResult | None:
        """Wait until the reader has stopped, and return what was left; None if it takes longer.

        Args:
            timeout: Seconds; None: for as long as it takes.

        Returns:
            What was left at the end, or None after ``timeout``.

        Raises:
            ClosedError: It was not started.
            NSQError: What made the reader stop by itself.
        """
        return self._running().join(timeout)

    def __enter__(self) -> Reader:
        if self._run is None:
            self.start(block=False)
        return self

    def __exit__(self, *raised: object) -> None:
        run = self._running()
        if self._setup.handler is None:
            # The thread that took messages is leaving: what it has not answered goes back.
            run.give_back_taken()
        self.stop()
        self.join()

    # -- which servers ---------------------------------------------------------------------------

    def add_nsqd(self, address: NsqdAddress) -> None:
        """Consume from this nsqd, too. From any thread, before or after ``start()``.

        Nothing happens when it is known already, or when this raises.

        Args:
            address: As one of ``nsqd_tcp_addresses``.

        Raises:
            ConfigError: The address is not valid, or on gevent this is another OS thread than that
                of ``start()``.
        """
        self._change(self._nsqds, parse_address(address), True, self._want_nsqd)

    def remove_nsqd(self, address: NsqdAddress) -> None:
        """Consume from this nsqd no more; returns at once. From any thread, as ``add_nsqd``.

        A connection gets CLS: handlers at work finish, what none has begun is requeued, then it
        closes. Redials end. While an nsqlookupd lists the nsqd, the next answer brings it back.

        Args:
            address: As one of ``nsqd_tcp_addresses``.

        Raises:
            ConfigError: As of ``add_nsqd``.
        """
        self._change(self._nsqds, parse_address(address), False, self._want_nsqd)

    def add_lookupd(self, url: str) -> None:
        """Ask this nsqlookupd, too, from now on. From any thread, before or after ``start()``.

        Args:
            url: As one of ``lookupd_http_addresses``.

        Raises:
            ConfigError: The URL is not valid, or on gevent this is another OS thread than that of
                ``start()``.
        """
        (lookupd,) = http_urls([url])
        # Whether user info, token and TLS files fit together.
        replace(self._setup.lookups, urls=(lookupd,))
        self._change(self._lookupds, lookupd, True, self._want_lookupd)

    def remove_lookupd(self, url: str) -> None:
        """Ask this nsqlookupd no more; what it listed counts no longer. As ``add_lookupd``.

        Connections live on. One that ends later is dialled again only if another one lists it.

        Args:
            url: As one of ``lookupd_http_addresses``.

        Raises:
            ConfigError: As of ``add_lookupd``.
        """
        (lookupd,) = http_urls([url])
        self._change(self._lookupds, lookupd, False, self._want_lookupd)

    def ensure_channel(self, timeout: float = 10.0) -> None:
        """Make topic and channel exist, so that no message is published before. Blocks.

        Before or after ``start()``, from any thread. It registers the channel at every nsqlookupd,
        where nsqds that get the topic later find it. It creates the channel at the nsqds that have
        the topic, over HTTP or else by a short SUB, and by a short SUB at the
        ``nsqd_tcp_addresses``, whose HTTP port is not known. One nsqlookupd out of several is
        enough.

        Args:
            timeout: Seconds for all of it, 0.001 or more.

        Raises:
            ConnectionLost: Something could not be reached; the text says what.
            ConfigError: The channel is ephemeral.
        """
        check_duration("timeout", timeout, 0.001)
        ChannelMaker(self._current_setup(), choose(self._setup.runtime), timeout).run()

    def _current_setup(self) -> ReaderSetup:
        lookups = replace(self._setup.lookups, urls=tuple(self._lookupds))
        return replace(self._setup, nsqds=tuple(self._nsqds), lookups=lookups)

    def _change(
        self,
        wanted: dict[Server, None],
        server: Server,
        add: bool,
        want: Callable[[RunningReader, Server], None],
    ) -> None:
        # Before the change: what is refused is not to come with the next one.
        if self._run is not None:
            self._running().runtime.check_thread()
        if add:
            wanted[server] = None
        else:
            wanted.pop(server, None)
        # It may have been started meanwhile.
        if self._run is not None:
            want(self._running(), server)

    def _want_nsqd(self, run: RunningReader, address: Address) -> None:
        if address in self._nsqds:
            run.subscription.add_nsqd(address)
        else:
            run.subscription.remove_nsqd(address)

    def _want_lookupd(self, run: RunningReader, url: str) -> None:
        if url in self._lookupds:
            run.add_lookupd(url)
        else:
            run.remove_lookupd(url)

    # -- flow ------------------------------------------------------------------------------------

    def pause(self) -> None:
        """RDY 0 everywhere at once; connections stay. What was delivered is still handled."""
        self._running().subscription.set_paused(True)

    def resume(self) -> None:
        """End a pause."""
        self._running().subscription.set_paused(False)

    def set_max_in_flight(self, count: int) -> None:
        """Change max_in_flight; 0 or more. 0 stops deliveries, as ``pause()`` does.

        Args:
            count: Messages unanswered at a time over all nsqds.

        Raises:
            ConfigError: The count is negative or no int.
            ClosedError: It was not started.
        """
        self._running().subscription.set_max_in_flight(check_int("max_in_flight", count, 0))

    @property
    def is_starved(self) -> bool:
        """Whether nsqd may be waiting for answers: 85 % of some connection's RDY is in flight."""
        return self._running().subscription.is_starved

    @property
    def is_in_backoff(self) -> bool:
        """Whether failures have slowed the reader down."""
        run = self._run
        return run is not None and run.subscription.pauses.backoff.level > 0

    def stats(self) -> ReaderStats:
        """Counters and connections at this moment. From any thread."""
        return self._running().stats()

    def _load(self) -> tuple[int, int, float]:
        """Return messages that came, those in flight, and the slowest round trip; for a group."""
        return self._running().subscription.load()

    def _lend(self, slots: int, *, one_message: bool) -> None:
        """Set the part of a group's limit; ``one_message``: until one has come."""
        self._running().subscription.lend(slots, one_message=one_message)

    def _wait_ended(self) -> None:
        """As ``join()``, on a thread of a group."""
        self._running().wait_ended()

    # -- the pull form ---------------------------------------------------------------------------

    def batches(
        self, max_messages: int, max_wait: float, max_idle: float | None = None
    ) -> Iterator[list[Message]]:
        """Lists of up to ``max_messages``, each collected for at most ``max_wait`` seconds.

        For a Reader without a handler; starts it if needed and ends after ``stop()``. A list may be
        empty. Answer each message. Until then, or until 5 s after nsqd has taken it back
        (``Message.deadline``), it counts as in flight.

        With several nsqds each may send its share of ``max_in_flight``. While one only has
        messages, a longer list waits for the others, ``max_idle`` or else ``max_wait``. Lists of at
        most ``max_in_flight`` divided by the nsqds do not wait.

        Args:
            max_messages: The length of a list, 1 to ``max_in_flight``.
            max_wait: Seconds from the first wait for a list to its end.
            max_idle: Seconds without a new message after which a list that has some ends, too;
                None: only ``max_wait`` counts.

        Returns:
            An iterator of lists.

        Raises:
            ConfigError: The Reader has a handler, or a value is not allowed.
        """
        check_int("max_messages", max_messages, 1)
        check_duration("max_wait", max_wait)
        if max_idle is not None:
            check_duration("max_idle", max_idle)
        if self._setup.handler is not None:
            raise ConfigError("this Reader has a handler; batches() is for one without")
        limit: float = self._setup.flow.initial_max_in_flight
        if self._run is not None:
            # It may have been lowered for a while. With max_idle a list need not be full to end,
            # and in a group the others may have it all now.
            waits = max_idle is None and self._setup.together is None
            limit = max(limit, self._run.subscription.max_in_flight) if waits else math.inf
        if max_messages > limit:
            raise ConfigError(
                f"max_messages is {max_messages}, but max_in_flight is {limit}: a list could never"
                " be full"
            )
        if self._run is None:
            self.start(block=False)
        return self._pull(max_messages, max_wait, math.inf if max_idle is None else max_idle)

    def _pull(self, max_messages: int, max_wait: float, max_idle: float) -> Iterator[list[Message]]:
        run = self._running()
        batches = run.batches
        # Of a Reader without a handler, as was checked.
        assert batches is not None
        while True:
            run.check_process()
            # Answers to the list before leave now, not when housekeeping comes round.
            run.flush()
            batch = batches.take(max_messages, max_wait, max_idle)
            if batch is None:
                return
            yield batch

    def finish(self, messages: Iterable[Message]) -> int:
        """FIN for all of them, in one write for each nsqd; returns for how many.

        Cheaper than ``finish()`` of each. From any thread.

        Args:
            messages: Any messages of this Reader.

        Returns:
            How many were finished. The rest were answered before, or timed out, or their connection
            is gone: those come again.
        """
        self._running()
        return sum(
            responder.finish_many(mine)
            for responder, mine in groupby(messages, attrgetter("_responder"))
        )

    def __iter__(self) -> Iterator[Message]:
        """Messages one by one, until ``stop()``; answer each. For a Reader without a handler."""
        for batch in self.batches(1, 3600.0):
            yield from batch

    # -- inside ----------------------------------------------------------------------------------

    def _prepare_for_group(
        self,
        together: Together,
        timer: Timer,
        max_in_flight: int | None,
        on_turn_used: Callable[[], None],
    ) -> None:
        """Join a group, before ``start()``; max_in_flight None leaves its own."""
        flow = self._setup.flow
        if max_in_flight is not None:
            flow = replace(flow, max_in_flight=max_in_flight)
        self._setup = replace(
            self._setup,
            flow=flow,
            together=together,
            timer=timer,
            on_turn_used=on_turn_used,
        )

    def _stuck(self, handler_limit: float | None) -> list[str]:
        """What of it hangs, a sentence each; a handler that runs longer than so many seconds, too.

        Takes no lock, and may be called by any OS thread. Nothing before the start and from the
        stop on, whose time is limited.
        """
        run = self._run
        if run is None or self._stop_asked is not None:
            return []
        return run.health.stuck(handler_limit)

    def _overdue(self, limit: float) -> list[str]:
        """A text for each handler that runs longer than ``limit`` (seconds). As ``_stuck``."""
        run = self._run
        if run is None or self._stop_asked is not None:
            return []
        return run.health.overdue(limit)

    def _not_ready(self) -> str | None:
        """Why it gets no messages; None where it is connected and was not asked to stop."""
        name, run = f"{self.topic}/{self.channel}", self._run
        if run is not None and run.has_ended:
            return f"{name} has stopped"
        if self._stop_asked is not None:
            return f"{name} is stopping"
        return f"{name} has not started" if run is None else run.health.not_connected()

    def _running(self) -> RunningReader:
        run = self._run
        if run is None:
            raise ClosedError("the Reader is not started")
        run.check_process()
        return run

    def __reduce__(self) -> Any:
        raise TypeError("a Reader cannot be pickled; make one where it runs")

    def __repr__(self) -> str:
        return f"<Reader {self.topic}/{self.channel}>"
