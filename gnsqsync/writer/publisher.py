"""Publishes of one Writer in one process: sent, waited for, and ended with a result or an error.

Knows outcomes and deadlines. Its NsqdPool says which nsqd takes a publish.

``publish`` waits for the answer on the caller's thread. ``publish_async`` admits a publish to the
AsyncWindow and leaves its answer to the reading thread.

Surprise: a publish whose time is over stays in the queue of answers. nsqd answers in order, so the
next answer would otherwise go to the wrong publish.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial

from gnsqsync.addresses import Address
from gnsqsync.connection.publish_slot import PublishSlot, end_each
from gnsqsync.connection.publishing import PublishingConnection
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
from gnsqsync.policy.outage import Outage
from gnsqsync.policy.writer_nodes import Policy
from gnsqsync.runtime import Runtime
from gnsqsync.stats import WriterConnectionStats, WriterStats
from gnsqsync.wire import commands
from gnsqsync.writer.async_window import BACKLOG_BYTES, BACKLOG_PUBLISHES, AsyncWindow
from gnsqsync.writer.events import Events
from gnsqsync.writer.nsqd_pool import NsqdPool, within

__all__ = ["Publisher"]

# Upper bound of unanswered publishes whose callers gave up; beyond it the connection is closed.
_ABANDONED_MAX = 100
# Seconds between two looks of a waiting publish at whether its bytes are still unsent.
_LOOK_SECONDS = 0.1
# Seconds for an MPUB whose time the MPUBs before it used up: what can leave at once still does.
_LEAST_SECONDS = 0.001


def _no_answer(connection: PublishingConnection, timeout: float) -> str:
    return f"{connection.nsqd_address} did not answer the publish {within(timeout)}"


def _oldest(connection: PublishingConnection) -> PublishSlot | None:
    """Return the publish that is to be answered next, or None."""
    try:
        return connection.send_queue.pending[0]
    except IndexError:
        return None


class _WindowSlot(PublishSlot):
    """A publish of the window. It can move to a fresh connection before its future ends."""

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

    # Connection to which the publish is submitted; set before the submit.
    connection: PublishingConnection
    # Refusal for which the publish waits for a fresh connection.
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
        # True if it is one of several copies, which must go to different nsqds.
        self.is_copy = is_copy
        self.put_off = put_off

    def fail(self, error: PublishError) -> None:
        if not self.put_off(self, error):
            super().fail(error)


class Publisher:
    """Sender of publishes through NsqdPool. Many threads share it. ``_lock`` guards the counts.

    The credentials of an older connection may have been replaced since, or their rights changed. A
    publish that nsqd refuses for that goes to a fresh connection. If the connection was opened
    after the publish began, the refusal is final.
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
        # Raises ConfigError on an OS thread that may not publish here; None: any thread may.
        self.check_thread: Callable[[], None] | None = (
            runtime.check_thread if runtime.has_home_thread else None
        )
        self.pool: NsqdPool = NsqdPool(
            addresses, policy, options, runtime, lookups, outage, events, self._send_again
        )
        # Connections of the pool, of which a publish reads ``ready`` and ``in_doubt``.
        self._table = self.pool.table
        # Publishes that wait for a fresh connection, by their old connection. The reading thread of
        # the old connection sends them.
        self._waiting: dict[PublishingConnection, list[_WindowSlot]] = {}
        self._retry_unknown = retry_unknown
        self._window = AsyncWindow(runtime)
        self._now = runtime.now
        self._lock = runtime.lock()
        # Counts of publishes that were refused, not sent, or left with an unknown outcome.
        self._refused = self._not_sent = self._unknown = 0

    # -- publishing ------------------------------------------------------------------------------

    def publish_all(self, topic: str, chunks: list[list[bytes]], timeout: float) -> None:
        """Publish each chunk of bodies as one MPUB, one after the other, all within ``timeout``.

        Raises as ``publish()``. The error says how many messages nsqd has confirmed.
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

        ``started``: now. ``deadline``: end of the time, if other MPUBs came before in that time.
        Raises NotSent, Refused or OutcomeUnknown; see Writer.publish.
        """
        pool, table = self.pool, self._table
        if deadline is None:
            deadline = started + timeout
        causes: list[BaseException] = []
        began = started
        try:
            while True:
                ready = table.ready
                if len(ready) == 1:
                    connection = ready[0]
                else:
                    connection = pool.pick(deadline, timeout, causes)
                    if not ready and self._now() >= deadline:
                        # Sent now, the publish would have no time left to wait for its answer.
                        text = f"no time was left for {connection.nsqd_address} {within(timeout)}"
                        raise NotSent(text, causes)
                slot = PublishSlot(data, None, None, messages)
                connection.publishes.publish(slot, started, deadline)
                if not slot.done:
                    self._wait_longer(connection, slot, started, deadline, timeout)
                error = slot.error
                if error is None:
                    if table.in_doubt:
                        pool.prove(connection)
                    return
                # A try at the deadline would send the publish, with no time left for its answer.
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
        connection: PublishingConnection,
        slot: PublishSlot,
        started: float,
        deadline: float,
        timeout: float,
    ) -> None:
        """Wait for an outcome. Raise an error when the time ends before it."""
        while (left := deadline - self._now()) > 0:
            if connection.send_queue.has_unsent:
                # The kernel is full, and the thread that wrote our bytes has stopped. This thread
                # writes for others, too, so it does so briefly: its own answer may come meanwhile.
                connection.send_queue.flush(min(left, _LOOK_SECONDS))
            left = deadline - self._now()
            if connection.publishes.wait_aside(slot, min(left, _LOOK_SECONDS)):
                return
        self._give_up(connection, slot, started, timeout)

    def _verdict(
        self, error: PublishError | ClosedError, causes: list[BaseException]
    ) -> PublishError | ClosedError:
        """Count and return the error to raise. After a retry, an unknown outcome stays unknown."""
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
        """Send a publish and return. ``timeout``: seconds to find a connection only.

        ``keep`` is kept alive until there is an outcome. ``used``: addresses that must not be
        used; the chosen one is added.
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
        """Send it on a connection outside ``without``. Raises as ``NsqdPool.pick``."""
        while True:
            try:
                connection = self.pool.pick(slot.deadline, slot.timeout, [], without)
            except BaseException:  # even a kill: without an outcome, only this gives the room back
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
        """Wait for room for ``size`` bytes. Raise NotSent if there is none in time.

        A connection that answers no publish meanwhile becomes suspect.
        """
        if self.pool.outage_seconds:
            self.pool.pick(started + timeout, timeout, [])
        oldest = [(c, _oldest(c)) for c in self._table.connections()]
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
        self, connection: PublishingConnection, slot: PublishSlot, started: float, timeout: float
    ) -> None:
        """Raise the error of a publish whose time is over, unless its outcome came just now."""
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
            # The slot stays in the queue, or the next answer would be given to the wrong publish.
            slot.abandoned = True
            # A late answer shows that nsqd works again. A future makes the reading thread call
            # this.
            slot.on_end = lambda late: self._prove(connection, late)
            slot.future = Future()
            unanswered = list(connection.send_queue.pending)
            if sum(waiting.abandoned for waiting in unanswered) > _ABANDONED_MAX:
                connection.cut()
            error = OutcomeUnknown(_no_answer(connection, timeout))
        raise error

    def _prove(self, connection: PublishingConnection, slot: PublishSlot) -> None:
        """Pass an OK on to the pool, for a publish that no caller waits for."""
        if slot.error is None and self._table.in_doubt:
            self.pool.prove(connection)

    def _may_try_again(self, connection: PublishingConnection, error: PublishError) -> bool:
        """Return True if a second try, here or elsewhere, is safe or wanted by the user."""
        if isinstance(error, OutcomeUnknown):
            return self._retry_unknown
        if isinstance(error, NotSent):
            return True
        # Another nsqd may be able to store the message.
        if not isinstance(error, Refused) or not error.error.retriable:
            return False
        # An MPUB may be stored in part, and another nsqd would store that part twice.
        if isinstance(error.error, MpubFailed) or self.pool.is_single:
            return False
        return self.pool.leave(connection)

    @staticmethod
    def _is_outdated(connection: PublishingConnection, error: PublishError, began: float) -> bool:
        """Return True if credentials were refused on a connection older than ``began``."""
        return connection.connected_at < began and credentials.are_refused(error)

    def _put_off(self, slot: _WindowSlot, error: PublishError) -> bool:
        """Keep a publish for a fresh connection, if that may take it. By the reading thread."""
        if not self._is_outdated(slot.connection, error, slot.began):
            return False
        slot.reason = error
        self._waiting.setdefault(slot.connection, []).append(slot)
        return True

    def _send_again(self, lost: PublishingConnection) -> None:
        """Send the publishes that waited. By the reading thread of ``lost``, as its last act."""
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
                    # The client is refused everywhere. The others would wait to learn the same.
                    why = raised
            except BaseException:  # a kill must leave no publish without an outcome
                if not slot.has_room:
                    # The publish is on no connection, so none will tell its outcome.
                    PublishSlot.fail(slot, error)
                raise
            PublishSlot.fail(slot, error)

        end_each(partial(again, slot) for slot in waiting)

    def _resubmit(self, slot: _WindowSlot) -> None:
        # A copy must not go to an nsqd that may have another copy.
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
        """Refuse new publishes, give those under way ``timeout`` seconds, then close all."""
        self.pool.stop_taking()
        # Publishes that wait for room now go on, and find the Writer closed.
        self._window.close()
        self.pool.close(timeout)

    def stats(self) -> WriterStats:
        now = self._now()
        live = self._table.connections()
        published = self._table.published
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
