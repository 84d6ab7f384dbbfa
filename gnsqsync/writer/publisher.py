"""The publishes of one Writer in one process: sent, waited for, told what became of them.

Knows outcomes and deadlines; its NsqdPool says which nsqd takes a publish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future

from gnsqsync.addresses import Address
from gnsqsync.connection.connection import Connection
from gnsqsync.connection.send_queue import PublishSlot
from gnsqsync.discovery.lookups import Lookups
from gnsqsync.errors import (
    ClosedError,
    MpubFailed,
    NotSent,
    OutcomeUnknown,
    PublishError,
    Refused,
)
from gnsqsync.options import ConnectionOptions
from gnsqsync.policy.bench import Policy
from gnsqsync.policy.outage import Outage
from gnsqsync.runtime import Runtime
from gnsqsync.stats import WriterConnectionStats, WriterStats
from gnsqsync.wire import commands
from gnsqsync.writer.async_window import BACKLOG_BYTES, BACKLOG_PUBLISHES, AsyncWindow
from gnsqsync.writer.events import Events
from gnsqsync.writer.nsqd_pool import NsqdPool, within

__all__ = ["Publisher"]

# A connection is closed when so many publishes gave up waiting on it and have no answer yet.
_ABANDONED_MAX = 100
# Seconds between two looks of a waiting publish whether its bytes are still unsent.
_LOOK_SECONDS = 0.1
# For an MPUB whose time others have used up: what can be sent at once still is.
_LEAST_SECONDS = 0.001


def _no_answer(connection: Connection, timeout: float) -> str:
    return f"{connection.nsqd_address} did not answer the publish {within(timeout)}"


def _oldest(connection: Connection) -> PublishSlot | None:
    """The publish that is to be answered next."""
    try:
        return connection.send_queue.pending[0]
    except IndexError:
        return None


class Publisher:
    """Publishes through NsqdPool; any number of threads share them. ``_lock`` guards the counts."""

    def __init__(
        self,
        addresses: Sequence[Address],
        policy: Policy,
        options: ConnectionOptions,
        runtime: Runtime,
        *,
        lookups: Lookups,
        outage: Outage,
        events: Events,
        retry_unknown: bool = False,
    ) -> None:
        # Raises ConfigError on an OS thread that may not publish here. None: any may.
        self.check_thread: Callable[[], None] | None = (
            runtime.check_thread if runtime.has_home_thread else None
        )
        self.pool: NsqdPool = NsqdPool(addresses, policy, options, runtime, lookups, outage, events)
        self._retry_unknown = retry_unknown
        self._window = AsyncWindow(runtime)
        self._now = runtime.now
        self._lock = runtime.lock()
        self._refused = self._not_sent = self._unknown = 0

    # -- publishing ------------------------------------------------------------------------------

    def publish_all(self, topic: str, chunks: list[list[bytes]], timeout: float) -> None:
        """Publish each chunk of bodies as one MPUB, one after the other, all within ``timeout``.

        Raises as ``publish()``; the error says how many messages nsqd has confirmed.
        """
        deadline = self._now() + timeout
        acknowledged = 0
        for chunk in chunks:
            data = commands.mpub(topic, chunk)
            started = self._now()
            try:
                latest = max(deadline, started + _LEAST_SECONDS)
                self.publish(data, len(chunk), timeout, started, latest)
            except (PublishError, ClosedError) as error:
                error.acknowledged = acknowledged
                raise
            acknowledged += len(chunk)

    def publish(
        self,
        data: bytes,
        messages: int,
        timeout: float,
        started: float,
        deadline: float | None = None,
    ) -> None:
        """Send one PUB, DPUB or MPUB and wait for its OK, all within ``timeout`` seconds.

        ``started``: now. ``deadline``: where others came before it within that time. Raises
        NotSent, Refused or OutcomeUnknown; see Writer.publish.
        """
        pool = self.pool
        if deadline is None:
            deadline = started + timeout
        causes: list[BaseException] = []
        try:
            while True:
                ready = pool.ready
                if len(ready) == 1:
                    connection = ready[0]
                else:
                    connection = pool.pick(deadline, timeout, causes)
                    if not ready and self._now() >= deadline:
                        # Nobody would wait for the answer.
                        text = f"no time was left for {connection.nsqd_address}, {within(timeout)}"
                        raise NotSent(text, causes)
                slot = PublishSlot(data, None, None, messages)
                connection.publishes.publish(slot, started, deadline)
                if not slot.done:
                    self._wait_longer(connection, slot, started, deadline, timeout)
                error = slot.error
                if error is None:
                    if pool.in_doubt:
                        pool.prove(connection)
                    return
                # At the deadline it would leave, and nobody would wait for the answer.
                started = self._now()
                if started >= deadline or not self._may_try_again(connection, error):
                    raise error
                pool.pass_over(connection)
                causes.append(error)
        except (PublishError, ClosedError) as error:
            raise self._verdict(error, causes)  # noqa: B904 - mostly it is the same error

    def _wait_longer(
        self,
        connection: Connection,
        slot: PublishSlot,
        started: float,
        deadline: float,
        timeout: float,
    ) -> None:
        """Wait for an outcome; raises when the time is over before."""
        while (left := deadline - self._now()) > 0:
            if connection.send_queue.has_unsent:
                # The kernel is full, and the thread that was writing our bytes has stopped. This
                # one writes for others, too, and so only for a while: its own answer may come.
                connection.send_queue.flush(min(left, _LOOK_SECONDS))
            left = deadline - self._now()
            if connection.publishes.wait_aside(slot, min(left, _LOOK_SECONDS)):
                return
        self._give_up(connection, slot, started, timeout)

    def _verdict(
        self, error: PublishError | ClosedError, causes: list[BaseException]
    ) -> PublishError | ClosedError:
        """Count and return what to raise. An unknown outcome stays unknown after later attempts."""
        unknown = next((c for c in causes if isinstance(c, OutcomeUnknown)), None)
        if unknown is not None and not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown(f"{unknown}; sending it again failed: {error}")
        if isinstance(error, PublishError):
            self._count(error)
        return error

    def publish_async(
        self,
        data: bytes,
        messages: int,
        timeout: float,
        keep: object = None,
        used: set[Address] | None = None,
    ) -> Future[None]:
        """Send it and return; ``timeout`` seconds are for finding a connection only.

        ``keep`` is referred to until there is an outcome. It goes to none of the addresses in
        ``used``, and the one that it goes to is added.
        """
        future: Future[None] = Future()
        started = self._now()
        deadline = started + timeout
        connection: Connection

        def ended(slot: PublishSlot, keep: object = keep) -> None:
            self._window.leave(len(slot.data))
            if slot.error is not None:
                self._count(slot.error)
            self._prove(connection, slot)

        slot = PublishSlot(data, None, future, messages=messages, on_end=ended)
        try:
            if not self._window.enter(len(data), started):
                self._wait_for_room(len(data), started, timeout)
            while True:
                try:
                    connection = self.pool.pick(deadline, timeout, [], used or ())
                except BaseException:  # also one from outside: no slot gives the room back
                    self._window.leave(len(data))
                    raise
                if connection.publishes.submit(slot, max(0.0, deadline - self._now())):
                    if used is not None:
                        used.add(connection.address)
                    return future
                self.pool.pass_over(connection)
        except PublishError as error:
            self._count(error)
            raise

    def _wait_for_room(self, size: int, started: float, timeout: float) -> None:
        """Until there is room for a publish of ``size`` bytes; NotSent when there is none in time.

        A connection that answers nothing meanwhile is suspect.
        """
        if self.pool.outage_seconds:
            self.pool.pick(started + timeout, timeout, [])
        oldest = [(c, _oldest(c)) for c in self.pool.connections()]
        if self._window.enter(size, started + timeout):
            return
        for connection, slot in oldest:
            if slot is not None and slot is _oldest(connection):
                self.pool.suspect(connection, started, _no_answer(connection, timeout))
        raise NotSent(
            f"{BACKLOG_PUBLISHES} publishes or {BACKLOG_BYTES} bytes wait for an answer,"
            f" and no room was made {within(timeout)}"
        )

    def _give_up(
        self, connection: Connection, slot: PublishSlot, started: float, timeout: float
    ) -> None:
        """The time is over. Raises, unless the outcome came at the last moment."""
        connection.publishes.recall()
        if slot.done:
            return
        self.pool.suspect(connection, started, _no_answer(connection, timeout))
        if connection.send_queue.take_back(slot):
            error: PublishError = NotSent(
                f"{connection.nsqd_address} took no bytes {within(timeout)}"
            )
        elif slot.wait(0):
            return
        else:
            # The slot stays in the queue of answers; else the next answer would be matched to it.
            slot.abandoned = True
            # An answer that still comes shows that nsqd works again, as that of a Future does.
            slot.on_end = lambda late: self._prove(connection, late)
            slot.future = Future()
            unanswered = list(connection.send_queue.pending)
            if sum(waiting.abandoned for waiting in unanswered) > _ABANDONED_MAX:
                connection.cut()
            error = OutcomeUnknown(_no_answer(connection, timeout))
        raise error

    def _prove(self, connection: Connection, slot: PublishSlot) -> None:
        """The outcome of a publish that nobody waits for."""
        if slot.error is None and self.pool.in_doubt:
            self.pool.prove(connection)

    def _may_try_again(self, connection: Connection, error: PublishError) -> bool:
        """Whether it is safe, or wanted, to send it once more, here or elsewhere."""
        if isinstance(error, OutcomeUnknown):
            return self._retry_unknown
        if isinstance(error, NotSent):
            return True
        # Another nsqd may take what this one could not store.
        if not isinstance(error, Refused) or not error.error.retriable:
            return False
        # Part of an MPUB may be stored; another nsqd would store that part twice.
        if isinstance(error.error, MpubFailed) or self.pool.is_single:
            return False
        return self.pool.leave(connection)

    def _count(self, error: PublishError) -> None:
        with self._lock:
            if isinstance(error, NotSent):
                self._not_sent += 1
            elif isinstance(error, Refused):
                self._refused += 1
            else:
                self._unknown += 1

    # -- the end and the counters ---------------------------------------------------------------

    def close(self, timeout: float) -> None:
        """No new publishes; those under way have ``timeout`` seconds; then all is closed."""
        self.pool.stop_taking()
        # Publishes that wait for room go on and find the Writer closed.
        self._window.close()
        self.pool.close(timeout)

    def stats(self) -> WriterStats:
        now = self._now()
        live = self.pool.connections()
        published = self.pool.published
        with self._lock:
            refused, not_sent, unknown = self._refused, self._not_sent, self._unknown
        return WriterStats(
            connections=tuple(
                WriterConnectionStats(
                    address=c.nsqd_address,
                    unanswered=len(c.send_queue.pending),
                    connected_seconds=now - c.connected_at,
                )
                for c in live
            ),
            published=published,
            refused=refused,
            not_sent=not_sent,
            outcome_unknown=unknown,
            outage_seconds=self.pool.outage_seconds,
        )
