"""The connections of one Writer in one process: which nsqd takes a publish, dials, benches.

Holds the policy object and the lock around it; knows no topic and no command.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from gnsqsync.addresses import Address
from gnsqsync.backlog import BACKLOG_BYTES, BACKLOG_PUBLISHES, Backlog
from gnsqsync.config import ConnectionOptions
from gnsqsync.errors import (
    ClosedError,
    ConnectionLost,
    MpubFailed,
    NotSent,
    NSQError,
    OutcomeUnknown,
    PublishError,
    Refused,
)
from gnsqsync.net.connection import PASSING_WAIT, Connection, join_or_cut
from gnsqsync.net.outbox import PublishSlot
from gnsqsync.policy.nodes import WriterNodes
from gnsqsync.runtime import Latch, Runtime, Task
from gnsqsync.stats import WriterConnectionStats, WriterStats
from gnsqsync.wire import commands

__all__ = ["Publication"]

log = logging.getLogger("gnsqsync.writer")

# With so many publishes that gave up waiting and have no answer yet, a connection is closed.
_ABANDONED_MAX = 100
# A dial that failed is not repeated within so many seconds, by whichever publish.
_DIAL_PAUSE = 0.25
# How often, in seconds, who waits for an answer looks whether its bytes are still unsent.
_LOOK_SECONDS = 0.1


def _log_fields(connection: Connection) -> dict[str, str]:
    return {"nsqd": connection.nsqd_address}


@dataclass
class _Choice:
    """What to do next for a publish, decided under the lock: one of the first three."""

    connection: Connection | None = None
    dial: Connection | None = None
    wait_for: Latch | None = None
    # How many nsqds are still to be tried in this round; a dial gets its share of the time.
    untried: int = 1
    dial_aside: list[Connection] = field(default_factory=list)
    # What came of the dials of this round, the publish's own and those of others.
    failures: list[NSQError] = field(default_factory=list)


class Publication:
    """Publishes over one connection to each nsqd; any number of threads share them.

    ``_lock`` guards the tables of connections, dials and tasks, the nodes and the counters.
    ``_ready`` is read without it: an immutable tuple, replaced as a whole, of the connections to
    use when nothing needs a decision; a publish that gets one that is just lost learns it there.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        policy: str,
        options: ConnectionOptions,
        runtime: Runtime,
        *,
        retry_unknown: bool = False,
    ) -> None:
        self.pid = os.getpid()
        self.runtime = runtime
        self._addresses = tuple(addresses)
        self._failover = policy == "failover"
        self._options = options
        self._retry_unknown = retry_unknown
        self._backlog = Backlog(runtime)
        self._now = runtime.now
        self._lock = runtime.lock()
        self._ended = runtime.event()
        self._closed = False
        self._nodes = WriterNodes(addresses, policy)
        self._live: dict[Address, Connection] = {}
        self._dialling: dict[Address, tuple[Connection, Latch]] = {}
        self._failures: dict[Address, tuple[float, NSQError]] = {}
        self._tasks: list[Task] = []
        self._ready: tuple[Connection, ...] = ()
        # Live, but without an OK so far: one that only accepts connections stays on the bench.
        self._unproven: set[Connection] = set()
        # Live, but a publish there ended without an answer in time.
        self._suspects: set[Connection] = set()
        self._turn = itertools.count()
        self._past_published = 0
        self._refused = self._not_sent = self._unknown = 0

    # -- publishing ------------------------------------------------------------------------------

    def publish(self, data: bytes, messages: int, timeout: float) -> None:
        """Send one PUB, DPUB or MPUB and wait for its OK, all within ``timeout`` seconds.

        Raises NotSent, Refused or OutcomeUnknown; see Writer.publish.
        """
        deadline = self._now() + timeout
        causes: list[BaseException] = []
        try:
            while True:
                connection = self._pick(deadline, timeout, causes)
                slot = PublishSlot(data, self.runtime.latch(), messages=messages)
                connection.outbox.submit(slot, deadline - self._now())
                if not slot.wait(max(0.0, min(deadline - self._now(), _LOOK_SECONDS))):
                    self._wait_longer(connection, slot, deadline, timeout)
                error = slot.error
                if error is None:
                    if self._unproven or self._suspects:
                        self._prove(connection)
                    return
                # At the deadline it would leave, and nobody would wait for the answer.
                if self._now() >= deadline or not self._may_try_again(connection, error):
                    raise error
                causes.append(error)
        except (PublishError, ClosedError) as error:
            raise self._verdict(error, causes)  # noqa: B904 - mostly it is the same error

    def _wait_longer(
        self, connection: Connection, slot: PublishSlot, deadline: float, timeout: float
    ) -> None:
        """Until there is an outcome; raises when the time is over before."""
        while (left := deadline - self._now()) > 0:
            if connection.outbox.has_unsent:
                # Who was writing had less time than we have and left it where it was.
                connection.outbox.flush(left)
            if slot.wait(max(0.0, min(deadline - self._now(), _LOOK_SECONDS))):
                return
        self._give_up(connection, slot, timeout)

    def _verdict(
        self, error: PublishError | ClosedError, causes: list[BaseException]
    ) -> PublishError | ClosedError:
        """What to raise, counted: once an outcome was unknown, no later attempt makes it known."""
        unknown = next((c for c in causes if isinstance(c, OutcomeUnknown)), None)
        if unknown is not None and not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown(f"{unknown}; sending it again failed: {error}")
        if isinstance(error, PublishError):
            self._count(error)
        return error

    def _prove(self, connection: Connection) -> None:
        with self._lock:
            if connection in self._unproven or connection in self._suspects:
                self._unproven.discard(connection)
                self._suspects.discard(connection)
                self._nodes.ok(connection.address, self._now())
                self._refresh()

    def publish_async(
        self, data: bytes, messages: int, timeout: float, keep: object = None
    ) -> Future[None]:
        """Send it and return; ``timeout`` seconds are for finding a connection only.

        ``keep`` is referred to until there is an outcome.
        """
        future: Future[None] = Future()
        deadline = self._now() + timeout
        try:
            if not self._backlog.enter(len(data), deadline):
                raise NotSent(
                    f"{BACKLOG_PUBLISHES} publishes or {BACKLOG_BYTES} bytes wait for an answer,"
                    f" and no room was made within {timeout:g} s"
                )
            try:
                connection = self._pick(deadline, timeout, [])
            except BaseException:
                self._backlog.leave(len(data))
                raise
        except PublishError as error:
            self._count(error)
            raise

        def ended(slot: PublishSlot, keep: object = keep) -> None:
            self._backlog.leave(len(slot.data))
            if slot.error is not None:
                self._count(slot.error)
            elif self._unproven or self._suspects:
                self._prove(connection)

        slot = PublishSlot(data, self.runtime.latch(), future, messages=messages, on_end=ended)
        connection.outbox.submit(slot, max(0.0, deadline - self._now()))
        return future

    def _give_up(self, connection: Connection, slot: PublishSlot, timeout: float) -> None:
        """The time is over. Raises, unless the outcome came at the last moment."""
        if slot.wait(0):
            return
        self._suspect(connection)
        if connection.outbox.take_back(slot):
            error: PublishError = NotSent(
                f"{connection.nsqd_address} took no bytes within {timeout:g} s"
            )
        elif slot.wait(0):
            return
        else:
            # The slot stays in the queue of answers, or the next answer would be taken for it.
            slot.abandoned = True
            unanswered = list(connection.outbox.pending)
            if sum(waiting.abandoned for waiting in unanswered) > _ABANDONED_MAX:
                connection.cut()
            error = OutcomeUnknown(
                f"{connection.nsqd_address} did not answer the publish within {timeout:g} s"
            )
        raise error

    def _suspect(self, connection: Connection) -> None:
        """It was too slow: on the bench, so that the next publishes go to others, if there are."""
        with self._lock:
            if self._live.get(connection.address) is connection:
                self._suspects.add(connection)
                self._nodes.failed(connection.address, self._now())
                self._refresh()

    def _may_try_again(self, connection: Connection, error: PublishError) -> bool:
        """Whether it is safe, or wanted, to send it once more, here or elsewhere."""
        if isinstance(error, OutcomeUnknown):
            return self._retry_unknown
        return isinstance(error, NotSent) or self._may_go_elsewhere(connection, error)

    def _may_go_elsewhere(self, connection: Connection, error: PublishError) -> bool:
        """Whether another nsqd may take what this one could not store."""
        if not isinstance(error, Refused) or not error.error.retriable:
            return False
        # Part of an MPUB may be stored; another nsqd would store that part twice.
        if isinstance(error.error, MpubFailed) or len(self._addresses) == 1:
            return False
        with self._lock:
            self._nodes.failed(connection.address, self._now())
            others = [a for a in self._live if a != connection.address]
        return bool(others)

    def _count(self, error: PublishError) -> None:
        with self._lock:
            if isinstance(error, NotSent):
                self._not_sent += 1
            elif isinstance(error, Refused):
                self._refused += 1
            else:
                self._unknown += 1

    # -- which nsqd ------------------------------------------------------------------------------

    def _pick(self, deadline: float, timeout: float, causes: list[BaseException]) -> Connection:
        ready = self._ready
        if ready:
            return ready[next(self._turn) % len(ready)] if len(ready) > 1 else ready[0]
        since = self._now() - _DIAL_PAUSE
        while True:
            choice = self._choose(since)
            for connection in choice.dial_aside:
                self._spawn(connection, self._serve)
            if choice.connection is not None:
                return choice.connection
            left = deadline - self._now()
            if choice.dial is not None:
                error = self._open(choice.dial, max(0.001, left / choice.untried))
                if error is None:
                    self._spawn(choice.dial, Connection.read)
                    return choice.dial
                causes.append(error)
            elif choice.wait_for is not None:
                choice.wait_for.wait(max(0.0, left))
            else:
                # Each was tried: wait for the first bench to end, unless waiting is no use.
                causes.extend(error for error in choice.failures if error not in causes)
                if not any(error.retriable for error in choice.failures):
                    self._raise_not_sent("no nsqd accepts this client", causes)
                since = self._bench_end()
                self._ended.wait(max(0.0, min(left, since - self._now())))
            if self._now() >= deadline:
                self._raise_not_sent(f"no nsqd could be reached within {timeout:g} s", causes)

    def _choose(self, since: float) -> _Choice:
        """The next step of a publish for which ``_ready`` has no connection.

        A dial that failed after ``since`` is not repeated, whoever tried it: a hundred publishes
        that meet at a dead nsqd are one dial.
        """
        choice = _Choice()
        with self._lock:
            if self._closed:
                raise ClosedError("the Writer is closed")
            for address in self._nodes.candidates(self._now(), self._live.keys()):
                live = self._live.get(address)
                if live is not None:
                    choice.connection = live
                    break
                failed_at, failure = self._failures.get(address, (0.0, None))
                if failure is not None and failed_at >= since:
                    choice.failures.append(failure)
                    continue
                if address in self._dialling:
                    choice.wait_for = choice.wait_for or self._dialling[address][1]
                elif choice.dial is None:
                    choice.dial = self._new_connection(address)
            if choice.connection is not None and choice.dial is not None:
                # Somebody else takes this publish; the one that is missing is dialled aside.
                choice.dial_aside.append(choice.dial)
                choice.dial = None
        choice.untried = max(1, len(self._addresses) - len(choice.failures))
        return choice

    def _new_connection(self, address: Address) -> Connection:
        """A connection to dial now; holding ``_lock``."""
        connection = Connection(address, self._options, self.runtime, self)
        self._dialling[address] = (connection, self.runtime.latch())
        return connection

    def _bench_end(self) -> float:
        with self._lock:
            now = self._now()
            ends = [self._nodes.benched_until(address, now) for address in self._addresses]
        return min((end for end in ends if end is not None), default=now)

    def _raise_not_sent(self, text: str, causes: list[BaseException]) -> None:
        unique = list(dict.fromkeys(str(cause) for cause in causes))
        if unique:
            text += ": " + "; ".join(unique[-len(self._addresses) :])
        raise NotSent(text, causes) from (causes[-1] if causes else None)

    # -- connections -----------------------------------------------------------------------------

    def _open(self, connection: Connection, timeout: float | None) -> NSQError | None:
        """Dial on this thread; the error, or None when it is live."""
        address = connection.address
        failure: NSQError | None = None
        opened = False
        try:
            connection.open(timeout)
            opened = True
        except NSQError as error:
            failure = error
        finally:
            with self._lock:
                _, latch = self._dialling.pop(address)
                if opened and not self._closed:
                    self._unproven.add(connection)
                    self._live[address] = connection
                    self._failures.pop(address, None)
                    self._refresh()
                else:
                    self._nodes.failed(address, self._now())
                    if failure is not None:
                        self._failures[address] = (self._now(), failure)
            # Whoever waits for this dial looks again, however it ended.
            latch.release()
        if failure is None and self._closed:
            connection.close()
        if failure is None:
            log.info("connected to %s", connection.nsqd_address, extra=_log_fields(connection))
        else:
            level = logging.WARNING if failure.retriable else logging.ERROR
            level = logging.DEBUG if connection.closing else level
            log.log(level, "%s", failure, extra=_log_fields(connection))
        return failure

    def _serve(self, connection: Connection) -> None:
        """Dial aside and then read: the body of ``nsq-read`` for an nsqd that comes back."""
        if self._open(connection, None) is None:
            connection.read()

    def _spawn(self, connection: Connection, body: object) -> None:
        assert callable(body)
        try:
            task = self.runtime.spawn(f"nsq-read {connection.nsqd_address}", body, connection)
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, RuntimeError):
                # Python 3.12 starts none any more when the interpreter ends.
                raise NotSent(f"no thread reads from {connection.nsqd_address}: {error}") from error
            raise
        with self._lock:
            self._tasks = [t for t in self._tasks if t.alive]
            self._tasks.append(task)

    def _drop(self, connection: Connection) -> None:
        """Nobody will dial or read it."""
        with self._lock:
            _, latch = self._dialling.pop(connection.address, (connection, None))
        if latch is not None:
            latch.release()
        else:
            connection.lose(ConnectionLost("nobody reads it"))

    def _refresh(self) -> None:
        """Make ``_ready`` anew, holding ``_lock``: () while some nsqd is missing or suspect."""
        if self._suspects and len(self._addresses) > 1:
            self._ready = ()
        elif self._failover:
            first = self._live.get(self._addresses[0])
            self._ready = (first,) if first is not None else ()
        elif len(self._live) == len(self._addresses):
            self._ready = tuple(self._live.values())
        else:
            self._ready = ()

    def connect(self, timeout: float) -> None:
        """Dial every nsqd side by side and wait; NotSent when none can be reached."""
        deadline = self._now() + timeout
        with self._lock:
            if self._closed:
                raise ClosedError("the Writer is closed")
            missing = [a for a in self._addresses if a not in self._live]
            new = [self._new_connection(a) for a in missing if a not in self._dialling]
            latches = [self._dialling[a][1] for a in missing]
        for connection in new:
            self._spawn(connection, self._serve)
        for latch in latches:
            latch.wait(max(0.0, deadline - self._now()))
        if not self.is_connected:
            self._pick(deadline, timeout, [])

    def ping(self, timeout: float) -> None:
        """Connect if need be, and give a NOP to each connection."""
        if not self.is_connected:
            self.connect(timeout)
        for connection in self.connections():
            connection.outbox.commands.append(commands.NOP)
            connection.outbox.flush(timeout)

    @property
    def is_connected(self) -> bool:
        return bool(self._live)

    def connections(self) -> list[Connection]:
        with self._lock:
            return list(self._live.values())

    # -- what the connections tell -----------------------------------------------------------------

    def on_lost(self, connection: Connection, reason: Exception) -> None:
        with self._lock:
            self._unproven.discard(connection)
            self._suspects.discard(connection)
            self._past_published += connection.published
            if self._live.get(connection.address) is connection:
                del self._live[connection.address]
                self._nodes.failed(connection.address, self._now())
                self._refresh()
        if connection.closing:
            log.debug("%s closed as asked", connection.nsqd_address, extra=_log_fields(connection))
        else:
            log.warning(
                "lost %s: %s", connection.nsqd_address, reason, extra=_log_fields(connection)
            )

    # -- the end -----------------------------------------------------------------------------------

    def close(self, timeout: float) -> None:
        """No new publishes; those under way have ``timeout`` seconds; then all is closed."""
        deadline = self._now() + timeout
        with self._lock:
            self._closed = True
            self._ready = ()
            live = list(self._live.values())
            dialling = [connection for connection, _ in self._dialling.values()]
        self._ended.set()
        self._backlog.close()
        for connection in dialling:
            connection.close()
        for connection in live:
            self._wait_for_answers(connection, deadline)
            connection.close()
        with self._lock:
            tasks = list(self._tasks)
        join_or_cut(tasks, self.connections, self.runtime)

    def _wait_for_answers(self, connection: Connection, deadline: float) -> None:
        outbox = connection.outbox
        while not connection.closed and self._now() < deadline:
            outbox.flush(PASSING_WAIT)
            waiting = [*outbox.pending, *outbox.slots]
            if not waiting:
                return
            waiting[-1].wait(max(0.0, deadline - self._now()))

    def let_go(self) -> None:
        """The Writer was forgotten without a close. By the garbage collector: takes no lock.

        Nobody waits for an answer then. A forked child must not end its parent's connections.
        """
        if self.pid != os.getpid():
            return
        self._closed = True
        self._ready = ()
        for connection in list(self._live.values()):
            connection.cut()
        for connection, _ in list(self._dialling.values()):
            connection.cut()

    def abandon(self) -> None:
        """In a forked child: close the descriptors and nothing else. No lock is to be trusted.

        A greenlet that was publishing is copied into the child, and finds this closed.
        """
        self._closed = True
        self._ready = ()
        for connection in self._live.values():
            connection.abandon()
        for connection, _ in self._dialling.values():
            connection.abandon()

    def stats(self) -> WriterStats:
        now = self._now()
        with self._lock:
            live = list(self._live.values())
            published = self._past_published + sum(c.published for c in live)
            refused, not_sent, unknown = self._refused, self._not_sent, self._unknown
        return WriterStats(
            connections=tuple(
                WriterConnectionStats(
                    address=c.nsqd_address,
                    unanswered=len(c.outbox.pending),
                    connected_seconds=now - c.connected_at,
                )
                for c in live
            ),
            published=published,
            refused=refused,
            not_sent=not_sent,
            outcome_unknown=unknown,
        )
