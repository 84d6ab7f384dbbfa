"""The Writer: what a user constructs to publish. Checks and encodes; the Publisher sends."""

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
from gnsqsync.policy.bench import Policy
from gnsqsync.policy.outage import REFUSED, Outage
from gnsqsync.runtime import Runtime, RuntimeLike, choose
from gnsqsync.runtime.at_exit import at_exit, not_at_exit
from gnsqsync.runtime.event_loop import running_loop_finder
from gnsqsync.stats import WriterStats
from gnsqsync.wire import commands
from gnsqsync.writer.around import Around
from gnsqsync.writer.copies import CopyingPublisher
from gnsqsync.writer.encoder import Encoder
from gnsqsync.writer.events import Events
from gnsqsync.writer.publisher import Publisher

if TYPE_CHECKING:
    import requests

__all__ = ["Writer"]

# Seconds for publishes under way at the end of the interpreter.
_EXIT_SECONDS = 2.0
# Of a process that has not published yet.
_NO_STATS = WriterStats(connections=(), published=0, refused=0, not_sent=0, outcome_unknown=0)


class Writer:
    """Publishes to one or several nsqds. One per process is enough: any thread may use it.

    The constructor connects nothing; the first publish does. After a fork the child connects anew
    by itself. A Writer that is forgotten without ``close()`` lets go of its connections when nobody
    waits for an answer.

    Args:
        nsqd_tcp_addresses: As of the Reader; None: ``127.0.0.1:4150``, or none if there are
            nsqlookupds.
        lookupd_http_addresses: As of the Reader: every nsqd that they list takes publishes, from
            the first publish on.
        lookupd_poll_interval: As of the Reader.
        lookupd_poll_jitter: As of the Reader.
        lookupd_authorization: As of the Reader.
        lookupd_session: As of the Reader.
        policy: ``'round_robin'``: the nsqds that are up take turns. ``'failover'``: the first of
            the list that is up, and back to it when it is up again. What nsqlookupds list comes
            after what is given, sorted.
        publish_timeout: Seconds, 0.001 or more: one deadline over choosing, dialling, writing and
            the OK.
        retry_unknown: Publish again, elsewhere or on a new connection, when a connection ended
            before nsqd answered, as long as the deadline allows; nsqd may then have it twice.
        outage: ``'fail'``: while no nsqd can be reached, publishes raise NotSent at once. That
            begins after a second of nothing but refusals, after one ``publish_timeout`` of silence,
            or at once where a new try does not help (a wrong port, a refused secret). Each nsqd is
            then dialled in the background until one is back. ``'wait'``: publishes wait until their
            timeout.
        copies: How many different nsqds must have said OK, 1 or more. With more than 1 each message
            comes as often, unless an inbox or a KeyWindow drops the twins by its key.
        copies_min: With how many a publish goes on, and says so in the log, when no more can be
            reached in time; None: ``copies``. Else it raises TooFewCopies.
        max_msg_size: Bytes of a body, 1 or more; as nsqd's ``--max-msg-size``. A larger body is
            refused here, since nsqd would close the connection.
        max_body_size: Bytes of an MPUB, 9 or more; as nsqd's ``--max-body-size``.
        max_defer: Seconds, 0 or more; as nsqd's ``--max-req-timeout``.
        headers: Whether each body goes into an envelope (docs/protocol/envelope), which Readers
            with ``headers=True`` open. It counts for ``max_msg_size``.
        middleware: A list of Middlewares, the first one outermost.
        observer: An Observer, or a list of them.
        runtime: As of the Reader.
        options: As of the Reader.
        **connection_options: The fields of ConnectionOptions.

    Raises:
        ConfigError: A value is not allowed.

    Threads:
        Any thread may use it. On gevent any greenlet of the OS thread that published first.
    """

    # From a warning in publish() to the line that called it.
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
        # First: a wrong name may be the reason for what else is wrong.
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
        # Whether a publish goes through that.
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
        self._closed = False
        # Tells the event loop that runs on this thread; None where there is nothing to warn of.
        self._running_loop: Callable[[], object] | None = None
        # By process id: a child finds nothing here and makes its own.
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
        """Publish one message; returns when nsqd has said OK.

        Args:
            topic: The topic; nsqd creates it.
            body: bytes, or a str, which is sent as UTF-8; not empty.
            defer: Seconds, 0 to ``max_defer``, until it is delivered; None: at once.
            timeout: Seconds, instead of ``publish_timeout``.
            headers: For ``message.headers``: names and values; of a Writer with ``headers=True``. A
                message without a ``key`` gets one (docs/protocol/envelope#envelope-key).

        Raises:
            ConfigError: A value is not allowed, or on gevent this is another OS thread than that of
                the first publish; nothing was sent.
            NotSent: No nsqd got it. Others are tried while there is time; in an outage it is raised
                at once.
            Refused: nsqd answered with an error.
            OutcomeUnknown: It left and no answer came, and ``retry_unknown`` did not help.
            TooFewCopies: Fewer than ``copies_min`` nsqds have it, and at least one.
            ClosedError: After ``close()``.
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
        # What is plainly right costs no call.
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

        Each MPUB is all or nothing. The one exception is E_MPUB_FAILED (a full disk): nsqd may then
        have a part. Several MPUBs together are not all or nothing.

        Args:
            topic: The topic; nsqd creates it.
            bodies: The messages, as of ``publish()``; one or more.
            timeout: Seconds for all of them, instead of ``publish_timeout``.
            headers: As of ``publish()``, for each of the messages; without a ``key``, which each
                gets for itself.

        Raises:
            PublishError: As of ``publish()``. Its ``acknowledged`` says how many of the messages,
                from the first on, nsqd has confirmed.
            ConfigError: A value is not allowed; nothing was sent.
            ClosedError: After ``close()``; with ``acknowledged``.
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
        checked = self._check_bodies(bodies)
        chunks = self._chunks(checked)
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
        """Publish without waiting for nsqd; the Future ends with None or a PublishError.

        Blocks, up to ``publish_timeout``, as long as there is no connection, and while 16 MiB or
        10,000 of these publishes wait for their outcome. Once the message is on its way it is not
        sent again, ``retry_unknown`` or not. The one exception: nsqd refused the credentials of an
        older connection, and so did not take the message.

        Args:
            topic: The topic; nsqd creates it.
            body: As of ``publish()``.
            defer: As of ``publish()``.
            headers: As of ``publish()``.

        Returns:
            A Future. Its callbacks run on the reading thread: they must be short, and not publish.

        Raises:
            NSQError: As of ``publish()``, until the message is on its way.
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
        """The rules for a message, for code that stores messages and publishes them later."""
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

    def _check_bodies(self, bodies: Sequence[Any]) -> list[bytes]:
        if not bodies:
            raise ConfigError("bodies is empty; nsqd accepts an MPUB of one message or more")
        limit = self._max_msg_size
        # Plainly right is what a few calls in C say of all together.
        if set(map(type, bodies)) == {bytes}:
            sizes = list(map(len, bodies))
            if min(sizes) and max(sizes) <= limit:
                return [*bodies]
        return [check_body(body, limit, f"bodies[{i}]") for i, body in enumerate(bodies)]

    def _chunks(self, bodies: list[bytes]) -> list[list[bytes]]:
        """Split by nsqd's limits: the bytes of an MPUB body, and its count
        (docs/protocol/publishing#publish)."""
        # A body has a byte or more, so what fits in bytes fits in number, too.
        if 4 + 4 * len(bodies) + sum(map(len, bodies)) <= self._max_body_size:
            return [bodies]
        count_max = (self._max_body_size - 4) // 5
        chunks: list[list[bytes]] = []
        chunk: list[bytes] = []
        size = 4
        for index, body in enumerate(bodies):
            if len(body) + 8 > self._max_body_size:
                raise ConfigError(
                    f"bodies[{index}] has {len(body)} bytes; in an MPUB max_body_size allows"
                    f" {self._max_body_size - 8}"
                )
            if chunk and (size + 4 + len(body) > self._max_body_size or len(chunk) == count_max):
                chunks.append(chunk)
                chunk, size = [], 4
            chunk.append(body)
            size += 4 + len(body)
        chunks.append(chunk)
        return chunks

    def _timeout(self, timeout: float | None) -> float:
        return self._publish_timeout if timeout is None else check_duration("timeout", timeout)

    # -- lifecycle -------------------------------------------------------------------------------

    def connect(self, timeout: float | None = None) -> None:
        """Connect to every nsqd now, side by side. NotSent when none is reached in time.

        Args:
            timeout: Seconds, instead of ``publish_timeout``.

        Raises:
            NotSent: No nsqd was reached.
            ClosedError: After ``close()``.
        """
        self._publisher().pool.connect(self._timeout(timeout))

    def ping(self, timeout: float | None = None) -> None:
        """Connect if need be and send a NOP; raises NotSent when no nsqd can be reached.

        nsqd does not answer a NOP: a peer that vanished without a word is noticed after two
        heartbeat intervals, here as anywhere.

        Args:
            timeout: Seconds, instead of ``publish_timeout``.

        Raises:
            NotSent: No nsqd was reached.
            ClosedError: After ``close()``.
        """
        self._publisher().pool.ping(self._timeout(timeout))

    @property
    def is_connected(self) -> bool:
        """Whether at least one connection is up at this moment."""
        publisher = self._by_process.get(os.getpid())
        return publisher is not None and publisher.pool.is_connected

    def stats(self) -> WriterStats:
        """Counters and connections of this process at this moment. ClosedError after ``close()``.

        Any thread may ask, on gevent too: it begins nothing.

        Returns:
            The numbers of this moment.

        Raises:
            ClosedError: After ``close()``.
        """
        publisher = self._by_process.get(os.getpid())
        self._check_open()
        return publisher.stats() if publisher is not None else _NO_STATS

    def close(self, timeout: float | None = None) -> None:
        """Wait for publishes under way, close every connection, end every thread. Repeatable.

        Args:
            timeout: Seconds for those publishes, ``publish_timeout`` if None. What is unanswered
                then fails with OutcomeUnknown where it was called.
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
        """RuntimeWarning, once, where an asyncio event loop runs on this thread."""
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
        """The first use in this process. Two threads may race; dict.setdefault lets one win."""
        self._check_open()
        runtime = choose(self._runtime_choice)
        mine = self._new_publisher(runtime)
        publisher = self._by_process.setdefault(mine.pool.pid, mine)
        if publisher is mine:
            self._running_loop = running_loop_finder()
            # uWSGI forks without running Python's hooks, so look for the parent's here as well.
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
            # Also after one from outside the next publish begins anew.
            self._by_process.pop(mine.pool.pid, None)
            mine.pool.let_go()
            raise
        if self._closed:
            # By another thread, and perhaps before there was anything to close.
            mine.close(0.0)

    def _watch(self, observer: Observer) -> None:
        """For gnsqsync.prometheus: tell this one, too, from now on."""
        self._events.watch(observer)

    def _stuck(self, name: str) -> list[str]:
        """A sentence for each thread of it that hangs; ``name`` says whose.

        Takes no lock, and may be called by any OS thread. Nothing before the first publish in this
        process and from ``close()`` on, whose time is limited.
        """
        publisher = self._by_process.get(os.getpid())
        return [] if publisher is None or self._closed else publisher.pool.stuck(name)

    def _after_fork(self) -> None:
        for pid in [pid for pid in self._by_process if pid != os.getpid()]:
            self._by_process.pop(pid).pool.abandon()

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        # Configuration only: connections belong to this process.
        state["_by_process"] = {}
        state["_running_loop"] = None
        state["_events"] = self._events.copy()
        return state

    def __repr__(self) -> str:
        where = [str(address) for address in self._addresses]
        where += [f"what {url} lists" for url in self._lookups.shown]
        return f"<Writer to {', '.join(where)}>"
