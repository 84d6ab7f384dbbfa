"""The publishes of one Writer in one process: sent, waited for, told what became of them.

Knows outcomes and deadlines; its NsqdPool says which nsqd takes a publish.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial

from gnsqsync.addresses import Address
from gnsqsync.connection.connection import Connection
from gnsqsync.connection.send_queue import PublishSlot, end_each
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
from gnsqsync.policy import credentials
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


class _WindowSlot(PublishSlot):
    """A publish of the window. It may be put off to a fresh connection before its future ends."""

    __slots__ = (
        "began",
        "connection",
        "deadline",
        "has_room",
        "is_copy",
        "put_off",
        "reason",
        "timeout",
    )

    # Set before it is submitted.
    connection: Connection
    # Why it was put off.
    reason: PublishError

    def __init__(
        self,
        data: bytes,
        future: Future[None],
        messages: int,
        *,
        began: float,
        timeout: float,
        is_copy: bool,
        on_end: Callable[[PublishSlot], None],
        put_off: Callable[[_WindowSlot, PublishError], bool],
    ) -> None:
        super().__init__(data, None, future, messages, on_end)
        self.began = began
        self.timeout = timeout
        self.deadline = began + timeout
        # True while it counts in the window.
        self.has_room = True
        # True if its nsqds must be different ones, and it goes to its own only.
        self.is_copy = is_copy
        self.put_off = put_off

    def fail(self, error: PublishError) -> None:
        if not self.put_off(self, error):
            super().fail(error)


class Publisher:
    """Publishes through NsqdPool; any number of threads share them. ``_lock`` guards the counts.

    A refusal of credentials on a connection that was there before the publish began is of no
    account: the secret may be another one by now, and so may its rights. The publish goes to a
    fresh connection. What a connection refuses that was opened for it, or since, stays refused.
    """

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
        self.pool: NsqdPool = NsqdPool(
            addresses, policy, options, runtime, lookups, outage, events, self._send_again
        )
        # Publishes of the window that were put off, each list for its connection's reading thread.
        self._waiting: dict[Connection, list[_WindowSlot]] = {}
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
        began = started
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
                if started >= deadline or not (
                    self._is_outdated(connection, error, began)
                    or self._may_try_again(connection, error)
                ):
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

        def ended(slot: PublishSlot, keep: object = keep) -> None:
            self._leave_window(place)
            if slot.error is not None:
                self._count(slot.error)
            self._prove(place.connection, slot)

        place = _WindowSlot(
            data,
            future,
            messages,
            began=started,
            timeout=timeout,
            is_copy=used is not None,
            on_end=ended,
            put_off=self._put_off,
        )
        try:
            if not self._window.enter(len(data), started):
                self._wait_for_room(len(data), started, timeout)
            self._submit(place, used or ())
        except PublishError as error:
            self._count(error)
            raise
        if used is not None:
            used.add(place.connection.address)
        return future

    def _submit(self, slot: _WindowSlot, without: Collection[Address]) -> None:
        """Send it to a connection that it may have; raises as ``NsqdPool.pick``."""
        while True:
            try:
                connection = self.pool.pick(slot.deadline, slot.timeout, [], without)
            except BaseException:  # also one from outside: no outcome gives the room back
                self._leave_window(slot)
                raise
            slot.connection = connection
            if connection.publishes.submit(slot, max(0.0, slot.deadline - self._now())):
                return
            self.pool.pass_over(connection)

    def _leave_window(self, slot: _WindowSlot) -> None:
        if slot.has_room:
            slot.has_room = False
            self._window.leave(len(slot.data))

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

    @staticmethod
    def _is_outdated(connection: Connection, error: PublishError, began: float) -> bool:
        """Return True if credentials were refused that are older than a publish begun then."""
        return connection.connected_at < began and credentials.are_refused(error)

    def _put_off(self, slot: _WindowSlot, error: PublishError) -> bool:
        """Keep it for a fresh connection, if that may take it. By the reading thread."""
        if not self._is_outdated(slot.connection, error, slot.began):
            return False
        slot.reason = error
        self._waiting.setdefault(slot.connection, []).append(slot)
        return True

    def _send_again(self, lost: Connection) -> None:
        """Send what was put off. By the reading thread of ``lost``, as the last thing it does."""
        waiting = self._waiting.pop(lost, [])
        why: PublishError | None = None

        def again(slot: _WindowSlot) -> None:
            nonlocal why
            error = why or slot.reason
            try:
                if why is None:
                    self._resubmit(slot)
                    return
            except ClosedError:
                why = slot.reason
            except PublishError as raised:
                error = raised
                if self._now() < slot.deadline:
                    # No nsqd takes this client. The others would each wait to be told the same.
                    why = raised
            except BaseException:  # one from outside leaves no publish without an outcome
                if not slot.has_room:
                    # The publish went to no connection, which would tell its outcome.
                    PublishSlot.fail(slot, error)
                raise
            PublishSlot.fail(slot, error)

        end_each(partial(again, slot) for slot in waiting)

    def _resubmit(self, slot: _WindowSlot) -> None:
        # Another nsqd may have another copy.
        others = self.pool.others(slot.connection.address) if slot.is_copy else ()
        self._submit(slot, others)

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
