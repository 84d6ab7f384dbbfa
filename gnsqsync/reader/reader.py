"""The Reader, which a user constructs to consume. It checks options; a RunningReader consumes.

Knows names, options and the servers that are wanted now. Must not know connections or messages.

Surprise: ``add_nsqd`` and the like work before, during and after ``start()``. They change a dict
first, and then tell the run, if there is one; ``start()`` compares the dict with what it copied.
"""

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
from gnsqsync.keywords import checks_names_in
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
    FLOW_OPTIONS,
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
from gnsqsync.stats import Health, ReaderStats, StopResult

if TYPE_CHECKING:
    import requests

    from gnsqsync.policy.latency import JointRate
    from gnsqsync.reader.lanes import KeyOfLane
    from gnsqsync.runtime.timer import Timer

__all__ = ["Reader"]

Server = TypeVar("Server", Address, str)


@checks_names_in("batches", "ensure_channel", "health", "join", "start", "stop")
class Reader:
    """Consumer of a channel: calls ``handler`` with each message, on worker threads or greenlets.

    The handler decides what nsqd is told:

    * it returns: FIN;
    * it raises ``Requeue(delay, backoff)``: REQ;
    * it raises ``Reject(reason)``: the message is given up now; ``Discard(reason)``: FIN;
    * it raises anything else: REQ after attempts times ``requeue_delay``; when such failures
      dominate, the reader backs off;
    * it calls ``message.detach()``: nothing yet; any thread may answer later.

    If the handler has a method ``worker_ended()``, each worker calls it at its end, on its own
    thread or greenlet. Without a handler, take messages with ``batches()`` or by iteration, and
    answer each. The constructor starts nothing.

    Args:
        topic: Name of the topic: 1 to 64 of ``.a-zA-Z0-9_-``, and optionally ``#ephemeral`` at the
            end.
        channel: Name of the channel, by the rules for ``topic``.
        handler: Called with each message; a plain function, not a coroutine. None means the pull
            form.
        nsqd_tcp_addresses: The nsqds that are always connected: ``host:port`` (4150 without a
            port), ``[ipv6]:port`` or ``unix:///path``; a str, with commas for several, or a list.
            Either these or ``lookupd_http_addresses`` are needed.
        lookupd_http_addresses: The nsqlookupds that say which nsqds have the topic: ``host:port``
            (4161 without a port) or URLs; a str or a list. Path, query and user info of a URL are
            kept, and the path may end with ``/lookup``. An https server is verified with the
            ``tls_`` files of the connection options, if there are any.
        max_in_flight: Upper bound of unanswered messages over all nsqds, 0 or more. None means
            ``concurrency``.
        concurrency: Number of workers, 1 or more.
        max_attempts: Number of deliveries, 0 to 65535. A message whose handler fails on this
            delivery or a later one is given up; 0 means never. Deliveries without a failure alone
            never give it up.
        max_deliveries: Number of deliveries, 0 to 65535. A message that was delivered more often is
            given up without a call of the handler; 0 means never. Needs ``on_giving_up`` or
            ``dead_letter_topic``.
        requeue_delay: Seconds, 0 to 3600, which are multiplied by attempts: the time until a failed
            message comes again. Chance adds up to a tenth.
        max_requeue_delay: Seconds, 0 to 3600: upper bound of that product, before the tenth.
        max_backoff_duration: Seconds, 0 to 3600, of the longest pause of the backoff; 0 means no
            backoff. None means 25, or 128 with ``backoff="every_failure"``.
        backoff_multiplier: Seconds, 0.001 to 3600. The pause at level n is this times 2 to the n.
        backoff_strategy: ``'exponential'``, less up to a fifth by chance unless ``backoff`` is
            ``"every_failure"``; ``'full_jitter'``, a random part; or a function from level to
            seconds. If the function raises, the pause is exponential. It must only compute, because
            it runs under the reader's lock.
        backoff_on_fin_failed: If True, a FIN that nsqd refuses counts as a failure: the work was
            done, but too late.
        lookupd_poll_interval: Seconds, 0.01 to 3600, between two questions to an nsqlookupd. While
            no nsqlookupd lists anything, it is asked after 0.25 s, then less often, up to each 3 s,
            for five minutes.
        lookupd_poll_jitter: Part of the interval, 0 to 1. Each wait is moved by up to half of it,
            to either side.
        lookupd_authorization: A bearer token for each nsqlookupd; not together with user info in a
            URL. None means no token.
        lookupd_session: A function that returns a new ``requests.Session``, for proxies, retries,
            other TLS or another way to authenticate. It is called once for each nsqlookupd, and by
            ``ensure_channel()``. The session is closed when its thread ends. Its settings replace
            the ``tls_`` files. None means a session with these files.
        low_rdy_idle_timeout: Seconds, 0.1 to 300, without a message after which an nsqd lends its
            RDY to others. With more nsqds than ``max_in_flight`` it is an upper bound: an nsqd
            without a message loses its turn after 0.02 to 0.25 s.
        low_rdy_timeout: Upper bound in seconds, 0.1 to 300, of a turn, with more nsqds than
            ``max_in_flight``. A turn usually ends sooner, with the answer to its message.
        rdy_redistribute_interval: Seconds, 0.01 to 60, between two rounds of sharing RDY, without
            another cause.
        latency: ``'adaptive'`` keeps RDY just above the messages in flight while messages trickle,
            so that nsqd sends each at once. In a stream it lets nsqd send about each 2 ms.
            ``'throughput'`` always gives the full share.
        auto_touch: If True, TOUCH messages at half of their timeout, while nsqd grants more time.
        on_giving_up: Called before a message is given up, with the message and the exception of its
            handler, or None. If it raises, the message is requeued. ``'discard'`` instead: the
            message is finished.
        dead_letter_topic: Another topic, to which the bodies of given up messages are published
            before they are finished. None: such messages wait in nsqd and come again every
            ``max_requeue_delay``, unless ``on_giving_up`` decides otherwise.
        retry_on: Exceptions after which a message is tried again. None means all that are in
            neither of the next two. If it is given, an exception in none of the three lists means
            ``Reject``. Of a base class and a subclass, the nearer one decides.
        reject_on: Exceptions that mean ``Reject``.
        discard_on: Exceptions that mean ``Discard``.
        backoff: True: the reader pauses when failures of different messages are more than a third
            of its outcomes in the last minute, and 15 or more, or eight in a row soon after a
            pause. ``"every_failure"``: each failure pauses it, as NSQ's guide for clients says.
            False: failures never slow it down, as with ``max_backoff_duration=0``. A function of
            the exception: True if it counts, with the rule of True. ``Requeue`` decides for itself.
        time_limit: Seconds that the handler may run, 0.01 to 86400. TimeLimitInterrupt is then
            raised in it, and the message fails with TimeLimitExceeded. On threads, the interrupt
            waits for the end of a call that blocks in C; on gevent, until the handler waits. None
            means no limit.
        max_age: Seconds, 0.001 or more, since its publish after which a message goes to
            ``on_expired`` in place of the handler, by the clocks of nsqd and this machine. None
            means never.
        on_expired: ``'dead_letter'``, ``'discard'``, or a function that takes the place of the
            handler for such a message. Needed with ``max_age``, and None without it.
        rate_limit: Upper bound of messages a second, 0.001 to 1,000,000, for this Reader. Further
            messages wait in nsqd, where other consumers can have them. None means no limit.
        rate_burst: Messages that may come at once after a quiet time, 1 or more. None means those
            of a second.
        lanes: A function of the message. Messages with equal results are handled one after another,
            in the order in which they came to this process; others side by side. A result of None
            is no lane. The function is called on the reading thread, and must be quick.
        headers: If True, open envelopes (docs/protocol/envelope), for ``message.headers``.
        shared: True if another handler of this process has the same topic and channel, and either
            may handle any message. Without it on both, a ReaderGroup and the commands of Django and
            Flask refuse the two.
        middleware: A list of Middlewares, the first one outermost.
        observer: An Observer, or a list of them. None means no observer.
        runtime: ``'threads'`` or ``'gevent'``; None: by what is patched when the reader starts.
        options: A ConnectionOptions, or give its fields as keywords; not both. None: the
            keywords count.
        **connection_options: The fields of ConnectionOptions.

    Raises:
        ConfigError: A value is not allowed, or no address is given.

    Threads:
        Any thread may call it. On gevent, any greenlet of the OS thread that called ``start()``;
        but ``stop()``, ``stats()`` and answers to messages may come from any thread there, too.
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
        # The arguments by name, before any of them is replaced.
        given = dict(locals())
        self.topic: str = check_topic(topic)
        self.channel: str = check_channel(channel)
        # Checked before the other options: a misspelt name may be the reason of another error.
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
        flow = ReaderOptions(**{name: given[name] for name in FLOW_OPTIONS})
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
        # Servers that are wanted now. Keys of dicts, since setting and popping one is atomic.
        self._nsqds = dict.fromkeys(nsqds)
        self._lookupds = dict.fromkeys(lookupds)
        self._run: RunningReader | None = None
        # Seconds of the last stop(); None before.
        self._stop_asked: float | None = None

    @staticmethod
    def _check_pull_form(flow: ReaderOptions, middlewares: Sequence[Middleware]) -> None:
        """Raise ConfigError for options that only work around a handler."""
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
            # "every_failure" is allowed: it applies to ``Message.requeue()``, too.
            if given not in (getattr(defaults, name), "every_failure"):
                raise ConfigError(f"{name} is for handlers; this Reader has none")
        if overriding(middlewares, "handle"):
            raise ConfigError("middleware runs around a handler; this Reader has none")

    # -- lifecycle -----------------------------------------------------------------------------

    def start(self, block: bool = True) -> StopResult | None:
        """Connect and consume. With ``block``, return after ``stop()`` was called elsewhere.

        Args:
            block: True to wait for the end. Ctrl-C then stops the reader and is raised again.

        Returns:
            What was left at the end, or None without ``block``.

        Raises:
            ClosedError: The reader was started before.
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
        # A stop that came before the assignment has not reached the run.
        if self._stop_asked is not None:
            run.stop(self._stop_asked)
        try:
            run.start()
            # Servers that were added or removed between the copy and the assignment of the run.
            for address in self._nsqds.keys() ^ set(setup.nsqds):
                self._want_nsqd(run, address)
            for url in self._lookupds.keys() ^ set(setup.lookups.urls):
                self._want_lookupd(run, url)
            if not block:
                run.supervise_aside()
                return None
        except BaseException as error:  # some of its parts run
            run.end_failed_start(error)
            raise
        run.supervise_here()
        return run.join(None)

    def stop(self, timeout: float = 30.0) -> None:
        """Ask the reader to end, and return at once.

        A second call can only shorten the time; ``stop(0)`` forces. A reader that is stopped before
        ``start()`` ends as soon as it begins.

        Args:
            timeout: Seconds in which handlers at work may finish. Other messages are requeued.

        Raises:
            ConfigError: The timeout is negative or not a number.

        Threads:
            Any thread may call it, and so may signal handlers and handlers of messages.
        """
        check_duration("timeout", timeout)
        self._stop_asked = timeout
        run = self._run
        if run is not None:
            run.stop(timeout)

    def join(self, timeout: float | None = None) -> StopResult | None:
        """Wait until the reader has stopped and return what was left, or None after ``timeout``.

        Args:
            timeout: Seconds; None means no limit.

        Returns:
            What was left at the end, or None after ``timeout``.

        Raises:
            ClosedError: The reader was not started.
            NSQError: The error that made the reader stop by itself.
        """
        return self._running().join(timeout)

    def __enter__(self) -> Reader:
        if self._run is None:
            self.start(block=False)
        return self

    def __exit__(self, *raised: object) -> None:
        run = self._running()
        if self._setup.handler is None:
            # The thread that took messages leaves, so its unanswered messages go back.
            run.give_back_taken()
        self.stop()
        self.join()

    # -- servers ---------------------------------------------------------------------------------

    def add_nsqd(self, address: NsqdAddress) -> None:
        """Consume from this nsqd, too, before or after ``start()``.

        Nothing changes if the nsqd is known already, or if an error is raised.

        Args:
            address: As one of ``nsqd_tcp_addresses``.

        Raises:
            ConfigError: The address is not valid, or on gevent this is not the OS thread of
                ``start()``.
        """
        self._change(self._nsqds, parse_address(address), True, self._want_nsqd)

    def remove_nsqd(self, address: NsqdAddress) -> None:
        """Stop consuming from this nsqd, and return at once.

        Its connection gets CLS and closes after handlers at work have finished; other messages are
        requeued. Redials end. While an nsqlookupd lists the nsqd, the next answer brings it back.

        Args:
            address: As one of ``nsqd_tcp_addresses``.

        Raises:
            ConfigError: As in ``add_nsqd``.
        """
        self._change(self._nsqds, parse_address(address), False, self._want_nsqd)

    def add_lookupd(self, url: str) -> None:
        """Ask this nsqlookupd, too, from now on, before or after ``start()``.

        Args:
            url: As one of ``lookupd_http_addresses``.

        Raises:
            ConfigError: The URL is not valid, or on gevent this is not the OS thread of
                ``start()``.
        """
        (lookupd,) = http_urls([url])
        # Raises ConfigError if user info, token and TLS files do not fit together.
        replace(self._setup.lookups, urls=(lookupd,))
        self._change(self._lookupds, lookupd, True, self._want_lookupd)

    def remove_lookupd(self, url: str) -> None:
        """Stop asking this nsqlookupd, and ignore what it listed.

        Connections live on. After its end, a connection is dialled again only if another nsqlookupd
        lists its nsqd.

        Args:
            url: As one of ``lookupd_http_addresses``.

        Raises:
            ConfigError: As in ``add_lookupd``.
        """
        (lookupd,) = http_urls([url])
        self._change(self._lookupds, lookupd, False, self._want_lookupd)

    def ensure_channel(self, timeout: float = 10.0) -> None:
        """Create the topic and channel now, so that messages published later are kept. Blocks.

        This is possible before and after ``start()``. The channel is registered at every
        nsqlookupd, for nsqds that get the topic later. The channel is created at the nsqds that
        have the topic, over HTTP or else by a short SUB. At the ``nsqd_tcp_addresses``, whose HTTP
        port is not known, it is created by a short SUB. One nsqlookupd out of several is enough.

        Args:
            timeout: Seconds for all of it, 0.001 or more.

        Raises:
            ConnectionLost: A server could not be reached; the text says which.
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
        # Checked before the change, so that a refused server does not come with the next one.
        if self._run is not None:
            self._running().runtime.check_thread()
        if add:
            wanted[server] = None
        else:
            wanted.pop(server, None)
        # The reader may have been started meanwhile.
        if self._run is not None:
            want(self._running(), server)

    def _want_nsqd(self, run: RunningReader, address: Address) -> None:
        if address in self._nsqds:
            run.subscription.add_nsqd(address)
        else:
            run.subscription.remove_nsqd(address)

    def _want_lookupd(self, run: RunningReader, url: str) -> None:
        if url in self._lookupds:
            run.add_lookupd(url, lambda: self._want_lookupd(run, url))
        else:
            run.remove_lookupd(url)

    # -- flow ------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Set RDY 0 everywhere at once. Connections stay; delivered messages are still handled.

        Raises:
            ClosedError: The reader was not started.
        """
        self._running().subscription.set_paused(True)

    def resume(self) -> None:
        """End a pause.

        Raises:
            ClosedError: The reader was not started.
        """
        self._running().subscription.set_paused(False)

    def set_max_in_flight(self, count: int) -> None:
        """Change max_in_flight; 0 or more. 0 stops deliveries, as ``pause()`` does.

        Args:
            count: Messages unanswered at a time over all nsqds.

        Raises:
            ConfigError: The count is negative or no int.
            ClosedError: The reader was not started.
        """
        self._running().subscription.set_max_in_flight(check_int("max_in_flight", count, 0))

    @property
    def is_starved(self) -> bool:
        """True if nsqd may wait for answers, as 85 % of some connection's RDY is in flight."""
        return self._running().subscription.is_starved

    @property
    def is_in_backoff(self) -> bool:
        """True while failures slow the reader down."""
        run = self._run
        return run is not None and run.subscription.pauses.backoff.level > 0

    def stats(self) -> ReaderStats:
        """Return the counters and connections of this moment.

        Raises:
            ClosedError: The reader was not started.
        """
        return self._running().stats()

    @property
    def time_limit(self) -> float | None:
        """Seconds after which a handler is interrupted, or None without a limit."""
        return self._setup.flow.time_limit

    def health(self, handler_limit: float | None = None) -> Health:
        """Return what hangs, and why no message can come.

        Before the start and after ``stop()``, whose time is limited, nothing hangs.

        Args:
            handler_limit: Seconds that a handler may run, 0 or more; None: for ever.

        Threads:
            Any thread may call it. It waits for no lock.
        """
        run, found = self._run, Health()
        if run is not None and self._stop_asked is None:
            found = run.look.health(handler_limit)
        if run is not None and run.has_ended:
            why = "has stopped"
        elif self._stop_asked is not None:
            why = "is stopping"
        elif run is None:
            why = "has not started"
        else:
            return found
        return replace(found, not_ready=(f"{self.topic}/{self.channel} {why}",))

    def _load(self) -> tuple[int, int, float]:
        """Return messages received, messages in flight, and the slowest round trip; for a group."""
        return self._running().subscription.load()

    def _lend(self, slots: int, *, one_message: bool) -> None:
        """Set the part of a group's limit. With ``one_message``, it ends when a message came."""
        self._running().subscription.lend(slots, one_message=one_message)

    def _wait_ended(self) -> None:
        """Wait for the end, on a thread of a group."""
        self._running().wait_ended()

    # -- the pull form ---------------------------------------------------------------------------

    def batches(
        self, max_messages: int, max_wait: float, max_idle: float | None = None
    ) -> Iterator[list[Message]]:
        """Return an iterator over lists of messages, each collected within ``max_wait`` seconds.

        For a Reader without a handler. It starts the Reader if needed, and ends after ``stop()``. A
        list may be empty. Answer each message. Until then, or until 5 s after nsqd has taken it
        back (``Message.deadline``), a message counts as in flight.

        With several nsqds, each may send its share of ``max_in_flight``. While only one has
        messages, a longer list waits for the others, for ``max_idle`` or else ``max_wait``. A list
        of at most ``max_in_flight`` divided by the number of nsqds does not wait.

        Args:
            max_messages: Upper bound of the length of a list, 1 to ``max_in_flight``.
            max_wait: Seconds from the first wait for a list to its end.
            max_idle: Seconds without a new message after which a list that is not empty ends, too.
                None means that only ``max_wait`` counts.

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
            # The limit may be lowered for a while. With max_idle, a list need not be full to end,
            # and in a group the other Readers may have the whole limit now.
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
        # There is none if the Reader has a handler, which was checked.
        assert batches is not None
        while True:
            run.check_process()
            # Send the answers to the previous list now, not at the next housekeeping.
            run.flush()
            batch = batches.take(max_messages, max_wait, max_idle)
            if batch is None:
                return
            yield batch

    def finish(self, messages: Iterable[Message]) -> int:
        """Finish all these messages, in one write for each nsqd. Return how many were finished.

        This costs less than ``finish()`` of each message.

        Args:
            messages: Any messages of this Reader.

        Returns:
            The number of finished messages. The others were answered before, or timed out, or lost
            their connection; nsqd delivers those again.

        Raises:
            ClosedError: The reader was not started.
        """
        self._running()
        return sum(
            responder.finish_many(mine)
            for responder, mine in groupby(messages, attrgetter("_responder"))
        )

    def __iter__(self) -> Iterator[Message]:
        """Iterate over messages until ``stop()``; answer each. For a Reader without a handler."""
        for batch in self.batches(1, 3600.0):
            yield from batch

    # -- for the rest of the package -------------------------------------------------------------

    def _prepare_for_group(
        self,
        together: JointRate,
        timer: Timer,
        max_in_flight: int | None,
        on_turn_used: Callable[[], None],
    ) -> None:
        """Join a group, before ``start()``. A max_in_flight of None keeps the Reader's own."""
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
