"""The Writer, which a user constructs to publish. It checks and encodes; the Publisher sends.

Knows options, topics, bodies and processes. Must not know connections or outcomes.

Surprise: ``_begin`` makes a Publisher for each process, and two threads may make one at the same
time. ``dict.setdefault`` lets one win, and nothing is started before that.
"""

from __future__ import annotations

import math
import os
import time
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Unpack

from gnsqsync.addresses import AddressLike, UrlLike, http_urls, parse_addresses
from gnsqsync.discovery.lookups import Lookups
from gnsqsync.errors import ClosedError, ConfigError, PublishError
from gnsqsync.keywords import checks_names_in
from gnsqsync.middleware import Middleware, Publication, check_middleware
from gnsqsync.observer import Observer
from gnsqsync.options import (
    ConnectionOptionKeywords,
    ConnectionOptions,
    check_body,
    check_duration,
    check_int,
    check_topic,
    split_connection_options,
)
from gnsqsync.policy.outage import REFUSED, Outage
from gnsqsync.policy.writer_nodes import Policy
from gnsqsync.runtime import Runtime, RuntimeLike, choose
from gnsqsync.runtime.at_exit import at_exit, not_at_exit
from gnsqsync.runtime.event_loop import running_loop_finder
from gnsqsync.stats import Health, WriterStats
from gnsqsync.wire import commands
from gnsqsync.writer.around import Around
from gnsqsync.writer.copies import CopyingPublisher
from gnsqsync.writer.encoder import Encoder
from gnsqsync.writer.events import Events
from gnsqsync.writer.publisher import Publisher

if TYPE_CHECKING:
    import requests

__all__ = ["Writer"]

# Seconds that publishes under way have at the end of the interpreter.
_EXIT_SECONDS = 2.0
# Statistics of a process that has not published yet.
_NO_STATS = WriterStats(connections=(), published=0, refused=0, not_sent=0, outcome_unknown=0)


@checks_names_in("close", "connect", "health", "ping")
class Writer:
    """Publishes to one or several nsqds. One Writer for each process is enough.

    The constructor does not connect; the first publish does. After a fork the child connects
    anew by itself. A Writer that is forgotten without ``close()`` closes its connections as soon as
    no caller waits for an answer.

    Args:
        nsqd_tcp_addresses: As in Reader. None means ``127.0.0.1:4150``, or no address if
            nsqlookupds are given.
        lookupd_http_addresses: As in Reader. Every nsqd that they list takes publishes, from the
            first publish on.
        lookupd_poll_interval: Seconds; as in Reader.
        lookupd_poll_jitter: Part of the interval, 0 to 1; as in Reader.
        lookupd_authorization: As in Reader.
        lookupd_session: As in Reader.
        policy: ``'round_robin'``: the nsqds that are up take turns. ``'failover'``: the first nsqd
            of the list that is up, and an earlier one again when it is back. Nsqds that nsqlookupds
            list come after the given ones, sorted.
        publish_timeout: Seconds, 0.001 or more. One deadline for choosing an nsqd, dialling,
            writing and the OK.
        retry_unknown: If True, publish again when a connection ends before nsqd has answered, as
            long as the deadline allows. nsqd may then store the message twice.
        outage: ``'fail'``: while no nsqd can be reached, publishes raise NotSent at once. An
            outage begins after a second of nothing but refusals, after one ``publish_timeout`` of
            silence, or at once if a new try cannot help (a wrong port, a refused secret). Each nsqd
            is then dialled in the background until one is back. ``'wait'``: publishes wait for the
            end of the outage until their timeout.
        copies: Number of different nsqds that must say OK, 1 or more. With more than 1, each
            message is delivered as often, unless an inbox or a KeyWindow drops the twins by key.
        copies_min: Number of OKs with which a publish still succeeds, with a warning in the log,
            if no more nsqds can be reached in time. With fewer it raises TooFewCopies. None means
            ``copies``.
        max_msg_size: Bytes of a body, 1 or more; equal to nsqd's ``--max-msg-size``. A larger body
            is refused here, because nsqd would close the connection.
        max_body_size: Bytes of an MPUB, 9 or more; equal to nsqd's ``--max-body-size``.
        max_defer: Seconds, 0 or more; equal to nsqd's ``--max-req-timeout``.
        headers: If True, each body goes into an envelope (docs/protocol/envelope), which Readers
            with ``headers=True`` open. The envelope counts for ``max_msg_size``.
        middleware: A list of Middlewares, the first one outermost.
        observer: An Observer, or a list of them. None means no observer.
        runtime: As in Reader.
        options: As in Reader.
        **connection_options: The fields of ConnectionOptions.

    Raises:
        ConfigError: A value is not allowed.

    Threads:
        Any thread may use it. On gevent, any greenlet of the OS thread that published first.
    """

    # Stack frames from a warning in publish() to the line that called it.
    _frames_to_caller: ClassVar[int] = 4

    def __init__(
        self,
        nsqd_tcp_addresses: AddressLike | None = None,
        *,
        lookupd_http_addresses: UrlLike = (),
        lookupd_poll_interval: float = 15.0,
        lookupd_poll_jitter: float = 0.3,
        lookupd_authorization: str | None = None,
        lookupd_session: Callable[[], requests.Session] | None = None,
        policy: Policy = "round_robin",
        publish_timeout: float = 5.0,
        retry_unknown: bool = False,
        outage: Literal["fail", "wait"] = "fail",
        copies: int = 1,
        copies_min: int | None = None,
        max_msg_size: int = 1048576,
        max_body_size: int = 5242880,
        max_defer: float = 3600.0,
        headers: bool = False,
        middleware: Middleware | Sequence[Middleware] = (),
        observer: Observer | Sequence[Observer] | None = None,
        runtime: RuntimeLike | None = None,
        options: ConnectionOptions | None = None,
        **connection_options: Unpack[ConnectionOptionKeywords],
    ) -> None:
        # Checked first: a misspelt option may be the reason of another error.
        self._options = split_connection_options(options, connection_options, Writer)
        urls = http_urls(lookupd_http_addresses)
        if nsqd_tcp_addresses is None:
            nsqd_tcp_addresses = () if urls else ("127.0.0.1:4150",)
        self._addresses = parse_addresses(nsqd_tcp_addresses)
        if not self._addresses and not urls:
            raise ConfigError(
                "a Writer needs nsqd_tcp_addresses or lookupd_http_addresses, at least one address"
            )
        if policy not in ("round_robin", "failover"):
            raise ConfigError(f"policy is {policy!r}; it must be 'round_robin' or 'failover'")
        self._policy = policy
        self._publish_timeout = check_duration("publish_timeout", publish_timeout, 0.001)
        if not isinstance(retry_unknown, bool):
            raise ConfigError(f"retry_unknown is {retry_unknown!r}; it must be True or False")
        self._retry_unknown = retry_unknown
        if outage not in ("fail", "wait"):
            raise ConfigError(f"outage is {outage!r}; it must be 'fail' or 'wait'")
        self._outage = outage
        self._copies = check_int("copies", copies, 1)
        if copies > len(self._addresses) and not urls:
            raise ConfigError(
                f"copies is {copies}, and nsqd_tcp_addresses has {len(self._addresses)}; give at"
                " least as many, or lookupd_http_addresses"
            )
        if copies_min is not None:
            check_int("copies_min", copies_min, 1, copies)
        self._copies_min = copies if copies_min is None else copies_min
        self._max_msg_size = check_int("max_msg_size", max_msg_size, 1, unit=" bytes")
        self._max_body_size = check_int("max_body_size", max_body_size, 9, unit=" bytes")
        self._max_defer = check_duration("max_defer", max_defer)
        if not isinstance(headers, bool):
            raise ConfigError(f"headers is {headers!r}; it must be True or False")
        self._has_headers = headers
        self._around = Around(check_middleware(middleware), headers)
        # True if a publish needs neither headers nor middleware.
        self._is_plain = self._around.is_plain
        self._events = Events(observer)
        if self._options.uses_tls:
            self._options.ssl_context()
        self._lookups = Lookups(
            urls=urls,
            poll_interval=lookupd_poll_interval,
            poll_jitter=lookupd_poll_jitter,
            authorization=lookupd_authorization,
            new_session=lookupd_session,
            options=self._options,
        )
        self._runtime_choice = runtime
        # True after close().
        self._closed = False
        # Returns the event loop that runs on this thread; None once there is nothing to warn of.
        self._running_loop: Callable[[], object] | None = None
        # Publishers by process id: a forked child finds none of its own and makes one.
        self._by_process: dict[int, Publisher] = {}

    # -- publishing ------------------------------------------------------------------------------

    def publish(
        self,
        topic: str,
        body: bytes | str,
        *,
        defer: float | None = None,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish one message and return when nsqd has said OK.

        Args:
            topic: Name of the topic, which nsqd creates if need be.
            body: bytes, or a str, which is sent as UTF-8; not empty.
            defer: Seconds until nsqd delivers it, 0 to ``max_defer``; None: at once.
            timeout: Seconds; None: ``publish_timeout``.
            headers: Names and values for ``message.headers``, of a Writer with ``headers=True``. A
                message without a ``key`` gets one (docs/protocol/envelope#envelope-key).

        Raises:
            ConfigError: A value is not allowed, or on gevent this is not the OS thread of the first
                publish. Nothing was sent.
            NotSent: No nsqd got it. Other nsqds are tried while there is time; in an outage the
                error comes at once.
            Refused: nsqd answered with an error.
            OutcomeUnknown: It was sent, no answer came, and ``retry_unknown`` did not help.
            TooFewCopies: At least one nsqd has it, but fewer than ``copies_min``.
            ClosedError: The Writer is closed.
        """
        if self._is_plain and headers is None:
            self._publish(topic, body, defer, timeout)
            return

        def send(publication: Publication, bodies: list[bytes]) -> None:
            self._publish(publication.topic, bodies[0], publication.defer, timeout)

        self._around.run(topic, [body], headers, defer, self._max_msg_size, send)

    def _publish(
        self, topic: str, body: bytes | str, defer: float | None, timeout: float | None
    ) -> None:
        # A plain publish is checked here, without a call.
        if (
            defer is None
            and type(topic) is str
            and type(body) is bytes
            and 0 < len(body) <= self._max_msg_size
        ):
            data = commands.pub(topic, body)
        else:
            data = self._encode(topic, body, defer)
        seconds = self._publish_timeout if timeout is None else self._timeout(timeout)
        publisher = self._by_process.get(os.getpid())
        if publisher is None or self._closed:
            publisher = self._publisher()
        elif publisher.check_thread is not None:
            publisher.check_thread()
        if self._running_loop is not None:
            self._warn_in_event_loop("publish")
        began = time.monotonic()
        try:
            publisher.publish(data, 1, seconds, began)
        except PublishError as error:
            self._events.publish_failed(topic, 1, began, error)
            raise
        if self._events.observers:
            self._events.published(topic, 1, began)

    def publish_many(
        self,
        topic: str,
        bodies: Iterable[bytes | str],
        *,
        timeout: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish messages with MPUB, as few as ``max_body_size`` allows, one after the other.

        nsqd stores each MPUB whole or not at all, except after E_MPUB_FAILED (a full disk), when it
        may have stored a part. Several MPUBs together are not all or nothing.

        Args:
            topic: Name of the topic, which nsqd creates if need be.
            bodies: The messages, as in ``publish()``; one or more.
            timeout: Seconds for all of them; None: ``publish_timeout``.
            headers: As in ``publish()``, for each of the messages, but without a ``key``: each
                message gets a key of its own.

        Raises:
            PublishError: As in ``publish()``. Its ``acknowledged`` is the number of messages, from
                the first on, that nsqd has confirmed.
            ConfigError: A value is not allowed. Nothing was sent.
            ClosedError: The Writer is closed. It has ``acknowledged``, too.
        """
        if isinstance(bodies, (bytes, str)):
            raise ConfigError("bodies is one bytes or str; give a list of them, or use publish()")
        several = list(bodies)
        if self._is_plain and headers is None:
            self._publish_many(topic, several, timeout)
            return

        def send(publication: Publication, bodies: list[bytes]) -> None:
            if publication.defer is not None:
                raise ConfigError("publish_many() cannot defer; a middleware has set defer")
            self._publish_many(publication.topic, bodies, timeout)

        self._around.run(topic, several, headers, None, self._max_msg_size, send)

    def _publish_many(
        self, topic: str, bodies: Sequence[bytes | str], timeout: float | None
    ) -> None:
        if type(topic) is not str:
            check_topic(topic)
        commands.pub_head(topic)
        checked = _checked(bodies, self._max_msg_size)
        chunks = _chunks(checked, self._max_body_size)
        publisher = self._publisher()
        if self._running_loop is not None:
            self._warn_in_event_loop("publish_many")
        seconds = self._timeout(timeout)
        began = time.monotonic()
        try:
            publisher.publish_all(topic, chunks, seconds)
        except PublishError as error:
            self._events.publish_failed(topic, len(checked), began, error)
            raise
        if self._events.observers:
            self._events.published(topic, len(checked), began)

    def publish_async(
        self,
        topic: str,
        body: bytes | str,
        *,
        defer: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Future[None]:
        """Publish without waiting for nsqd. The Future ends with None or a PublishError.

        Blocks, up to ``publish_timeout``, while there is no connection, and while 16 MiB or 10,000
        of these publishes wait for their outcome. A message that has left is not sent again, even
        with ``retry_unknown``. The one exception: nsqd refused the credentials of an older
        connection, and so did not take the message.

        Args:
            topic: Name of the topic, which nsqd creates if need be.
            body: As in ``publish()``.
            defer: Seconds; as in ``publish()``.
            headers: As in ``publish()``.

        Returns:
            A Future. Its callbacks run on the reading thread, so they must be short and not
            publish.

        Raises:
            NSQError: As in ``publish()``, until the message has left.
        """
        if self._is_plain and headers is None:
            return self._publish_async(topic, body, defer)

        def send(publication: Publication, bodies: list[bytes]) -> Future[None]:
            return self._publish_async(publication.topic, bodies[0], publication.defer)

        future = self._around.run(topic, [body], headers, defer, self._max_msg_size, send)
        if future is None:
            raise TypeError("a middleware returned None for publish_async(); return its Future")
        return future

    def _publish_async(self, topic: str, body: bytes | str, defer: float | None) -> Future[None]:
        data = self._encode(topic, body, defer)
        publisher = self._publisher()
        began = time.monotonic()
        try:
            future = publisher.publish_async(data, 1, self._publish_timeout, self)
        except PublishError as error:
            self._events.publish_failed(topic, 1, began, error)
            raise
        self._events.await_outcome(future, topic, began)
        return future

    @property
    def encoder(self) -> Encoder:
        """Return the rules for a message, for code that stores messages to publish them later."""
        return Encoder(
            self._around, self._max_msg_size, self._encode, self._publish, self._publish_many
        )

    def _encode(self, topic: str, body: bytes | str, defer: float | None) -> bytes:
        if type(topic) is not str:
            check_topic(topic)
        data = check_body(body, self._max_msg_size)
        if defer is None:
            return commands.pub(topic, data)
        check_duration("defer", defer, 0, self._max_defer, extra=" (max_defer)", finite=True)
        return commands.dpub(topic, round(defer * 1000), data)

    def _timeout(self, timeout: float | None) -> float:
        return self._publish_timeout if timeout is None else check_duration("timeout", timeout)

    # -- lifecycle -------------------------------------------------------------------------------

    def connect(self, timeout: float | None = None) -> None:
        """Connect to every nsqd now, side by side.

        Args:
            timeout: Seconds; None: ``publish_timeout``.

        Raises:
            NotSent: No nsqd was reached.
            ClosedError: The Writer is closed.
        """
        self._publisher().pool.connect(self._timeout(timeout))

    def ping(self, timeout: float | None = None) -> None:
        """Connect if need be, and send a NOP.

        nsqd does not answer a NOP, so this does not detect a peer that vanished silently. That is
        noticed after two heartbeat intervals, as always.

        Args:
            timeout: Seconds; None: ``publish_timeout``.

        Raises:
            NotSent: No nsqd was reached.
            ClosedError: The Writer is closed.
        """
        self._publisher().pool.ping(self._timeout(timeout))

    @property
    def is_connected(self) -> bool:
        """True if at least one connection is up at this moment."""
        publisher = self._by_process.get(os.getpid())
        return publisher is not None and publisher.pool.table.is_connected

    def stats(self) -> WriterStats:
        """Return the counters and connections of this process at this moment.

        Raises:
            ClosedError: The Writer is closed.

        Threads:
            Any thread may call it, on gevent, too: it starts nothing.
        """
        publisher = self._by_process.get(os.getpid())
        self._check_open()
        return publisher.stats() if publisher is not None else _NO_STATS

    def health(self, name: str = "the Writer") -> Health:
        """Return what hangs in this process.

        Before the first publish and after ``close()``, whose time is limited, nothing hangs. It is
        not ready after ``close()``.

        Args:
            name: Name of the Writer in the sentences.

        Threads:
            Any thread may call it. It waits for no lock.
        """
        publisher = self._by_process.get(os.getpid())
        if self._closed:
            return Health(not_ready=(f"{name} is closed",))
        return Health(() if publisher is None else tuple(publisher.pool.stuck(name)))

    def add_observer(self, observer: Observer) -> None:
        """Call this Observer, too, from now on. A copy of the Writer does not have it.

        Args:
            observer: The Observer to add.
        """
        self._events.watch(observer)

    def close(self, timeout: float | None = None) -> None:
        """Wait for publishes under way, close every connection, end every thread. Repeatable.

        Args:
            timeout: Seconds for those publishes; None means ``publish_timeout``. A publish without
                an answer by then raises OutcomeUnknown in its caller.
        """
        seconds = self._timeout(timeout)
        self._closed = True
        publisher = self._by_process.get(os.getpid())
        if publisher is not None:
            publisher.close(seconds)
            not_at_exit(self._close_at_exit)

    def _close_at_exit(self) -> None:
        self.close(_EXIT_SECONDS)

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _publisher(self) -> Publisher:
        publisher = self._by_process.get(os.getpid())
        if publisher is None:
            publisher = self._begin()
        if self._closed:
            self._check_open()
        if publisher.check_thread is not None:
            publisher.check_thread()
        return publisher

    def _warn_in_event_loop(self, method: str) -> None:
        """Warn once (RuntimeWarning) if an asyncio event loop runs on this thread."""
        running_loop = self._running_loop
        if running_loop is not None and running_loop() is not None:
            self._running_loop = None
            warnings.warn(
                f"Writer.{method}() blocks the event loop until nsqd has answered; in async code:"
                f" await asyncio.to_thread(writer.{method}, ...),"
                " or await asyncio.wrap_future(writer.publish_async(...))",
                RuntimeWarning,
                stacklevel=self._frames_to_caller,
            )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the Writer is closed; make a new one to publish again")

    def _begin(self) -> Publisher:
        """Make this process's Publisher. If two threads race, dict.setdefault lets one win."""
        self._check_open()
        runtime = choose(self._runtime_choice)
        mine = self._new_publisher(runtime)
        publisher = self._by_process.setdefault(mine.pool.pid, mine)
        if publisher is mine:
            self._running_loop = running_loop_finder()
            # uWSGI forks without Python's hooks, so the parent's Publisher may still be here.
            self._after_fork()
            runtime.on_fork(self._after_fork)
            at_exit(self._close_at_exit)
            weakref.finalize(self, mine.pool.let_go).atexit = False
            self._start(mine)
        return publisher

    def _new_publisher(self, runtime: Runtime) -> Publisher:
        options: dict[str, Any] = {
            "lookups": self._lookups,
            "outage": self._new_outage(),
            "events": self._events,
            "retry_unknown": self._retry_unknown,
        }
        if self._copies > 1:
            kind: type[Publisher] = CopyingPublisher
            options.update(wanted=self._copies, least=self._copies_min)
        else:
            kind = Publisher
        return kind(self._addresses, self._policy, self._options, runtime, **options)

    def _new_outage(self) -> Outage:
        if self._outage == "wait":
            return Outage(math.inf, math.inf)
        return Outage(REFUSED, self._publish_timeout)

    def _start(self, mine: Publisher) -> None:
        try:
            mine.pool.start()
        except BaseException:
            # Even after a kill, the next publish must begin anew.
            self._by_process.pop(mine.pool.pid, None)
            mine.pool.let_go()
            raise
        if self._closed:
            # Another thread closed it, perhaps before there was a Publisher to close.
            mine.close(0.0)

    def _after_fork(self) -> None:
        for pid in [pid for pid in self._by_process if pid != os.getpid()]:
            self._by_process.pop(pid).pool.abandon()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        # Copy the configuration only: connections belong to this process.
        state["_by_process"] = {}
        state["_running_loop"] = None
        state["_events"] = self._events.copy()
        return state

    def __repr__(self) -> str:
        where = [str(address) for address in self._addresses]
        where += [f"what {url} lists" for url in self._lookups.shown]
        return f"<Writer to {', '.join(where)}>"


def _checked(bodies: Sequence[Any], limit: int) -> list[bytes]:
    """Return the bodies of an MPUB as bytes. ConfigError if one of them may not be sent."""
    if not bodies:
        raise ConfigError("bodies is empty; nsqd accepts an MPUB of one message or more")
    # Quick check of all bodies by a few calls in C.
    if set(map(type, bodies)) == {bytes}:
        sizes = list(map(len, bodies))
        if min(sizes) and max(sizes) <= limit:
            return [*bodies]
    return [check_body(body, limit, f"bodies[{i}]") for i, body in enumerate(bodies)]


def _chunks(bodies: list[bytes], most: int) -> list[list[bytes]]:
    """Split bodies by nsqd's limits on an MPUB: ``most`` bytes, and its count of messages
    (docs/protocol/publishing#publish).
    """
    # Each body has at least one byte, so an MPUB within the bytes is within the count, too.
    if 4 + 4 * len(bodies) + sum(map(len, bodies)) <= most:
        return [bodies]
    count_max = (most - 4) // 5
    chunks: list[list[bytes]] = []
    chunk: list[bytes] = []
    size = 4
    for index, body in enumerate(bodies):
        if len(body) + 8 > most:
            raise ConfigError(
                f"bodies[{index}] has {len(body)} bytes; in an MPUB max_body_size allows {most - 8}"
            )
        if chunk and (size + 4 + len(body) > most or len(chunk) == count_max):
            chunks.append(chunk)
            chunk, size = [], 4
        chunk.append(body)
        size += 4 + len(body)
    chunks.append(chunk)
    return chunks
