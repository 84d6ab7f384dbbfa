"""The nsqds of one Writer in one process: which one takes a publish, dials, benches.

Holds the policy object and the lock around it; knows no publish and no outcome.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from gnsqsync.addresses import Address
from gnsqsync.config import ConnectionOptions
from gnsqsync.errors import ClosedError, ConnectionLost, NotSent, NSQError
from gnsqsync.finding import Finder, Lookups
from gnsqsync.net.connection import PASSING_WAIT, Connection
from gnsqsync.net.joining import join_or_cut
from gnsqsync.policy.bench import WriterNodes
from gnsqsync.runtime import Latch, Runtime, Task
from gnsqsync.wire import commands

__all__ = ["Outlets"]

log = logging.getLogger("gnsqsync.writer")

# A dial that failed is not repeated within so many seconds, by whichever publish.
_DIAL_PAUSE = 0.25
# So many seconds after its connect_timeout a dial counts as given up by who began it: killed
# between two instructions, or still looking up a name.
_GRACE_SECONDS = 5.0


def _log_fields(connection: Connection) -> dict[str, str]:
    return {"nsqd": connection.nsqd_address}


@dataclass(frozen=True, slots=True)
class _Dial:
    """A connection that somebody is dialling."""

    connection: Connection
    # Released at its end.
    over: Latch
    # When it is over at the latest.
    due: float


@dataclass
class _Choice:
    """What to do next for a publish, decided under the lock: one of the first three."""

    # Released when there is, perhaps, more to choose from than there was.
    news: Latch
    connection: Connection | None = None
    dial: Connection | None = None
    # Others dial one of those that are left: until when that is waited for.
    others_dial: float | None = None
    # How many nsqds are still to be tried in this round; a dial gets its share of the time.
    untried: int = 1
    dial_aside: list[Connection] = field(default_factory=list)
    # What came of the dials of this round, the publish's own and those of others.
    failures: list[NSQError] = field(default_factory=list)


class Outlets:
    """One connection to each nsqd of a Writer.

    ``_lock`` guards the tables of connections, dials and tasks, and the nodes. ``ready`` is read
    without it: an immutable tuple, replaced as a whole, of the connections to use when nothing
    needs a decision; a publish that gets one that is just lost learns it there.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        policy: str,
        options: ConnectionOptions,
        runtime: Runtime,
        lookups: Lookups,
    ) -> None:
        self.pid = os.getpid()
        self.runtime = runtime
        self._failover = policy == "failover"
        self._options = options
        self._now = runtime.now
        self._lock = runtime.lock()
        # Released when other nsqds are listed, when any dial ends, and at the end of all; then
        # there is a new one.
        self._news = runtime.latch()
        self._finder = Finder(lookups, runtime, self._on_found)
        self._closed = False
        self._nodes = WriterNodes(addresses, policy)
        self._live: dict[Address, Connection] = {}
        self._dialling: dict[Address, _Dial] = {}
        self._failures: dict[Address, tuple[float, NSQError]] = {}
        self._tasks: list[Task] = []
        self.ready: tuple[Connection, ...] = ()
        # Live, but without an OK so far: one that only accepts connections stays on the bench.
        self._unproven: set[Connection] = set()
        # Live, but a publish there ended without an answer in time.
        self._suspects: set[Connection] = set()
        # Whether there are any of both: then an OK is news, and to be told to prove().
        self.in_doubt = False
        self._turn = itertools.count()
        self._past_published = 0

    # -- which nsqd ------------------------------------------------------------------------------

    def pick(self, deadline: float, timeout: float, causes: list[BaseException]) -> Connection:
        """A connection for a publish, dialled if need be; ClosedError, or NotSent without one."""
        ready = self.ready
        if ready:
            return ready[next(self._turn) % len(ready)] if len(ready) > 1 else ready[0]
        since = self._now() - _DIAL_PAUSE
        while True:
            choice = self._choose(since)
            for connection in choice.dial_aside:
                self._dial_aside(connection)
            if choice.connection is not None:
                return choice.connection
            left = deadline - self._now()
            if choice.dial is not None:
                error = self._open(choice.dial, max(0.001, left / choice.untried))
                if error is None:
                    self._spawn(choice.dial, Connection.read)
                    return choice.dial
                causes.append(error)
            elif choice.others_dial is not None:
                choice.news.wait(max(0.0, min(deadline, choice.others_dial) - self._now()))
            else:
                # Each was tried: wait for the first bench to end, unless waiting is no use.
                causes.extend(error for error in choice.failures if error not in causes)
                if choice.failures and not any(e.retriable for e in choice.failures):
                    self._raise_not_sent("no nsqd accepts this client", causes)
                bench_end = self._bench_end()
                self._finder.wait(choice.news, min(deadline, bench_end))
                # Not after news, or those that are benched would be dialled before their time.
                if self._now() >= bench_end:
                    since = bench_end
            if self._now() >= deadline:
                for connection in self.connections():
                    return connection
                # Dials of others may have failed just now.
                causes.extend(error for error in self._failed_since(since) if error not in causes)
                self._raise_not_sent(f"no nsqd could be reached within {timeout:g} s", causes)

    def _choose(self, since: float) -> _Choice:
        """The next step of a publish for which ``ready`` has no connection.

        A dial that failed after ``since`` is not repeated, whoever tried it: a hundred publishes
        that meet at a dead nsqd are one dial.
        """
        self._end_overdue()
        with self._lock:
            choice = _Choice(self._news)
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
                    due = self._dialling[address].due
                    choice.others_dial = min(choice.others_dial or due, due)
                elif choice.dial is None:
                    choice.dial = self._new_connection(address)
            if choice.connection is not None and choice.dial is not None:
                # Somebody else takes this publish; the one that is missing is dialled aside.
                choice.dial_aside.append(choice.dial)
                choice.dial = None
        choice.untried = max(1, len(self._nodes.listed) - len(choice.failures))
        return choice

    def _new_connection(self, address: Address) -> Connection:
        """A connection to dial now; holding ``_lock``."""
        connection = Connection(address, self._options, self.runtime, self)
        due = self._now() + self._options.connect_timeout + _GRACE_SECONDS
        self._dialling[address] = _Dial(connection, self.runtime.latch(), due)
        return connection

    def _end_overdue(self) -> None:
        """Forget dials whose end nobody tells."""
        if not self._dialling:
            return
        now = self._now()
        with self._lock:
            overdue = [dial for dial in self._dialling.values() if dial.due <= now]
            for dial in overdue:
                del self._dialling[dial.connection.address]
        for dial in overdue:
            dial.connection.cut()
            dial.over.release()

    def _end_dial(self, connection: Connection) -> _Dial | None:
        """None where it was overdue and forgotten; holding ``_lock``."""
        dial = self._dialling.get(connection.address)
        if dial is None or dial.connection is not connection:
            return None
        return self._dialling.pop(connection.address)

    def _failed_since(self, since: float) -> list[NSQError]:
        """What came of the last dials of the listed nsqds, by whomever."""
        with self._lock:
            known = [self._failures.get(address) for address in self._nodes.listed]
        return [failed[1] for failed in known if failed is not None and failed[0] >= since]

    def _renew_news(self) -> Latch:
        """The one to release behind ``_lock``, which is held."""
        news, self._news = self._news, self.runtime.latch()
        return news

    def _bench_end(self) -> float:
        """When the first bench ends; now, if one is over; infinity without nsqds."""
        with self._lock:
            now = self._now()
            ends = [self._nodes.benched_until(address, now) for address in self._nodes.listed]
        return min((now if end is None else end for end in ends), default=math.inf)

    def _raise_not_sent(self, text: str, causes: list[BaseException]) -> None:
        unique = list(dict.fromkeys(str(cause) for cause in causes))
        lookups = self._finder.failures
        shown = unique[-max(1, len(self._nodes.listed)) :] + [str(error) for error in lookups]
        if self._finder.asks and not self._nodes.listed and not lookups:
            shown.append("no nsqlookupd lists one")
        if shown:
            text += ": " + "; ".join(shown)
        causes.extend(lookups)
        raise NotSent(text, causes) from (causes[-1] if causes else None)

    # -- what came of it -------------------------------------------------------------------------

    def prove(self, connection: Connection) -> None:
        """nsqd said OK there: off the bench."""
        with self._lock:
            if connection in self._unproven or connection in self._suspects:
                self._unproven.discard(connection)
                self._suspects.discard(connection)
                self._nodes.ok(connection.address, self._now())
                self._refresh()

    def suspect(self, connection: Connection) -> None:
        """It was too slow: on the bench, so that the next publishes go to others, if there are."""
        with self._lock:
            if self._live.get(connection.address) is connection:
                self._suspects.add(connection)
                self._nodes.failed(connection.address, self._now())
                self._refresh()

    def leave(self, connection: Connection) -> bool:
        """It cannot store a message now: on the bench. Whether there is another one live."""
        with self._lock:
            # Not one that came behind it: an OK there would not be told, and it stay benched.
            if self._live.get(connection.address, connection) is connection:
                self._nodes.failed(connection.address, self._now())
            return any(address != connection.address for address in self._live)

    def pass_over(self, connection: Connection) -> None:
        """A publish failed there. If it is about to be lost, no other one goes there.

        ``on_lost`` comes only when callbacks of futures have returned.
        """
        with self._lock:
            if connection.closed or connection.outbox.has_ended:
                self._forget(connection)

    @property
    def is_single(self) -> bool:
        return len(self._nodes.listed) == 1

    # -- connections -----------------------------------------------------------------------------

    def _open(self, connection: Connection, timeout: float | None) -> NSQError | None:
        """Dial on this thread; the error, or None when it is live."""
        address = connection.address
        failure: NSQError | None = None
        opened = live = False
        try:
            connection.open(timeout)
            opened = True
        except NSQError as error:
            failure = error
        finally:
            with self._lock:
                dial = self._end_dial(connection)
                if opened and dial is not None and not self._closed:
                    live = True
                    self._unproven.add(connection)
                    self._live[address] = connection
                    self._failures.pop(address, None)
                    self._refresh()
                elif dial is not None:
                    self._nodes.failed(address, self._now())
                    if failure is not None:
                        self._failures[address] = (self._now(), failure)
                news = self._renew_news()
            if dial is not None:
                dial.over.release()
            # Whoever waits looks again, however it ended.
            news.release()
        if failure is not None:
            level = logging.WARNING if failure.retriable else logging.ERROR
            level = logging.DEBUG if connection.closing else level
            log.log(level, "%s", failure, extra=_log_fields(connection))
            return failure
        try:
            if self._closed or not live:
                connection.close()
                if not live:
                    # Nothing was sent on it, and close() does not know it: no wait for nsqd's EOF.
                    connection.cut()
            log.info("connected to %s", connection.nsqd_address, extra=_log_fields(connection))
        except BaseException as error:
            # Handlers of logging wait for locks and networks: the caller may be killed there.
            connection.lose(ConnectionLost(f"nobody reads it: {error!r}"))
            raise
        return None

    def _serve(self, connection: Connection) -> None:
        """Dial aside and then read: the body of ``nsq-read`` for an nsqd that comes back."""
        if self._open(connection, None) is None:
            connection.read()

    def _dial_aside(self, connection: Connection) -> None:
        """Where no thread can be started, the next publish tries again."""
        try:
            self._spawn(connection, self._serve)
        except NotSent as error:
            log.warning("%s", error, extra=_log_fields(connection))

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
            dial = self._end_dial(connection)
            news = self._renew_news()
        if dial is not None:
            dial.over.release()
            news.release()
        else:
            connection.lose(ConnectionLost("nobody reads it"))

    def _refresh(self) -> None:
        """Make ``ready`` anew, holding ``_lock``: () while some nsqd is missing or suspect."""
        self.in_doubt = bool(self._unproven or self._suspects)
        listed = self._nodes.listed
        if self._closed or (self._suspects and len(listed) > 1):
            self.ready = ()
            return
        wanted = [self._live.get(address) for address in (listed[:1] if self._failover else listed)]
        live = tuple(connection for connection in wanted if connection is not None)
        self.ready = live if len(live) == len(wanted) else ()

    # -- looking for nsqds -----------------------------------------------------------------------

    def start(self) -> None:
        """Begin to ask the nsqlookupds, if there are any."""
        self._finder.start()

    def _on_found(self, source: Hashable, addresses: set[Address]) -> None:
        """What one nsqlookupd lists now. By its poll thread."""
        with self._lock:
            if self._closed:
                return
            known = [*self._live, *self._dialling]
            if not self._nodes.discovered(source, addresses, known):
                return
            self._refresh()
            news = self._renew_news()
        news.release()

    def connect(self, timeout: float) -> None:
        """Dial every nsqd side by side and wait; NotSent when none can be reached."""
        deadline = self._now() + timeout
        with self._lock:
            if self._closed:
                raise ClosedError("the Writer is closed")
            news = None if self._nodes.listed else self._news
        if news is not None:
            self._finder.wait(news, deadline)
        self._end_overdue()
        with self._lock:
            missing = [a for a in self._nodes.listed if a not in self._live]
            new = [self._new_connection(a) for a in missing if a not in self._dialling]
            dials = [self._dialling[a] for a in missing]
        for connection in new:
            self._dial_aside(connection)
        for dial in dials:
            dial.over.wait(max(0.0, min(deadline, dial.due) - self._now()))
        if not self.is_connected:
            self.pick(deadline, timeout, [])

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
            self._forget(connection)
        if connection.closing:
            log.debug("%s closed as asked", connection.nsqd_address, extra=_log_fields(connection))
        else:
            log.warning(
                "lost %s: %s", connection.nsqd_address, reason, extra=_log_fields(connection)
            )

    def _forget(self, connection: Connection) -> None:
        """No publish goes there any more; once, holding ``_lock``."""
        if self._live.get(connection.address) is connection:
            del self._live[connection.address]
            self._unproven.discard(connection)
            self._suspects.discard(connection)
            self._past_published += connection.published
            self._nodes.failed(connection.address, self._now())
            self._refresh()

    # -- the end -----------------------------------------------------------------------------------

    def stop_taking(self) -> None:
        """From now on ``pick()`` raises ClosedError, also where it waits."""
        with self._lock:
            self._closed = True
            self.ready = ()
        self._news.release()
        self._finder.stop()

    def close(self, timeout: float) -> None:
        """After ``stop_taking()``: publishes under way have ``timeout`` seconds, then all ends."""
        deadline = self._now() + timeout
        with self._lock:
            live = list(self._live.values())
            dialling = [dial.connection for dial in self._dialling.values()]
        for connection in dialling:
            connection.close()
        for connection in live:
            connection.outbox.wait_until_answered(deadline, PASSING_WAIT)
            connection.close()
        with self._lock:
            tasks = list(self._tasks)
        join_or_cut(tasks, self.connections, self.runtime)
        self._finder.join()

    def let_go(self) -> None:
        """The Writer was forgotten without a close. By the garbage collector: takes no lock.

        Nobody waits for an answer then. A forked child must not end its parent's connections.
        """
        if self.pid != os.getpid():
            return
        self._closed = True
        self.ready = ()
        self._finder.let_go()
        for connection in list(self._live.values()):
            connection.cut()
        for dial in list(self._dialling.values()):
            dial.connection.cut()

    def abandon(self) -> None:
        """In a forked child: close the descriptors and nothing else. No lock is to be trusted.

        A greenlet that was publishing is copied into the child, and finds this closed.
        """
        self._closed = True
        self.ready = ()
        for connection in self._live.values():
            connection.abandon()
        for dial in self._dialling.values():
            dial.connection.abandon()

    @property
    def published(self) -> int:
        """Messages that nsqds have confirmed, over connections that are gone, too."""
        with self._lock:
            return self._past_published + sum(c.published for c in self._live.values())
