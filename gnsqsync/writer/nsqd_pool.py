"""Choice of the nsqd that takes a publish, for one Writer in one process.

Holds the policy objects and the lock around them. Must not know a publish or its outcome.

``pick`` decides under the lock (``_choose``) and acts without it: it dials, waits or raises.
``WriterNodes`` keeps the order of the nsqds, ``ConnectionTable`` the connections, ``Outage`` says
when to give up, and ``Dials`` dials.

Surprise: ``ready`` is read without the lock, so a publish may get a connection that has just been
lost. The publish finds out when it sends, and comes back to ``pick``.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field

from gnsqsync.addresses import Address
from gnsqsync.connection.joining import join_or_cut
from gnsqsync.connection.link import PASSING_WAIT
from gnsqsync.connection.publishing import PublishingConnection
from gnsqsync.discovery.lookups import Lookups
from gnsqsync.discovery.polling import Discovery
from gnsqsync.discovery.questions import ALL_NSQDS
from gnsqsync.errors import ClosedError, ConnectionLost, NotSent, NSQError
from gnsqsync.options import ConnectionOptions
from gnsqsync.policy.outage import Outage, is_final
from gnsqsync.policy.writer_nodes import Policy, WriterNodes
from gnsqsync.runtime import Latch, Runtime
from gnsqsync.stats import counted
from gnsqsync.wire import commands
from gnsqsync.writer.connection_table import ConnectionTable
from gnsqsync.writer.dials import Dial, Dials
from gnsqsync.writer.events import Events
from gnsqsync.writer.health import stuck_threads

__all__ = ["NsqdPool", "within"]

# After a failed dial, no publish dials that nsqd again for this many seconds. If no thread could be
# started for a background dial, the next try waits as long.
_DIAL_PAUSE = 0.25
# Seconds after which a failed dial says nothing about now. In an outage, dials come more often.
_OLD_SECONDS = 10.0
# Seconds that a publish waits for the end of an outage before it fails. In a loop of publishes,
# the dialling thread then gets to run, on greenlets and between requests of a web server, too.
_LAST_LOOK = 0.005


def within(timeout: float) -> str:
    """Format a timeout for an error. It may be the rest of a longer timeout, so it is rounded."""
    return f"within {round(timeout, 3):g} s"


def _outage_text(choice: _Choice) -> str:
    if choice.failures and all(map(is_final, choice.failures)):
        return "no nsqd accepts this client"
    return f"no nsqd can be reached for {choice.outage:.1f} s"


@dataclass
class _Choice:
    """Next step of a publish, decided under the lock: a connection, a dial, an outage or a wait."""

    # Released when there may be more nsqds to choose from.
    news: Latch
    # Time at which that wait ends: the outage begins, or a dial is overdue.
    until: float
    connection: PublishingConnection | None = None
    dial: Dial | None = None
    # Seconds that the outage has lasted; None without an outage.
    outage: float | None = None
    # Number of nsqds still to be tried in this round. A dial gets its share of the time.
    untried: int = 1
    # Dials to begin in the background.
    dials_aside: list[Dial] = field(default_factory=list)
    # Errors of the dials of this round, by any thread, or of all in an outage.
    failures: list[NSQError] = field(default_factory=list)


class NsqdPool:
    """Choice among the connections of a Writer, one to each nsqd.

    ``_lock`` guards the tables of connections and dials, the nodes and the outage. ``table.ready``
    is read without it: an immutable tuple of connections, replaced as a whole, that is empty while
    there is something to decide. A publish may get a connection that was lost at this moment, and
    finds out when it sends.

    A publish dials an nsqd itself, unless a dial there has just failed. When no nsqd is left, all
    are dialled in the background, again and again, until one of them can take publishes.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        policy: Policy,
        options: ConnectionOptions,
        runtime: Runtime,
        lookups: Lookups,
        outage: Outage,
        events: Events,
        after_lost: Callable[[PublishingConnection], None],
    ) -> None:
        """``after_lost``: called last, by the reading thread of a lost connection."""
        self.pid: int = os.getpid()
        self.runtime = runtime
        self._now = runtime.now
        self._lock = runtime.lock()
        self._discovery = Discovery(
            ALL_NSQDS, lookups, self._on_found, events.lookup_changed, runtime
        )
        self._outage = outage
        self._events = events
        self._after_lost = after_lost
        self._nodes = WriterNodes(addresses, policy)
        # Connections of this Writer; a publish reads ``ready`` and ``in_doubt`` from it.
        self.table: ConnectionTable = ConnectionTable(self._nodes, policy, self._lock, runtime)
        self._dials = Dials(options, runtime, self._lock, self, self.table, outage, events)
        # Counter of publishes, for taking turns.
        self._turn = itertools.count()

    # -- choice of an nsqd -----------------------------------------------------------------------

    def pick(
        self,
        deadline: float,
        timeout: float,
        causes: list[BaseException],
        without: Collection[Address] = (),
    ) -> PublishingConnection:
        """Return a connection for a publish, dialled if need be. Raises ClosedError or NotSent.

        ``without``: addresses that must not be used, because they have the message.
        """
        ready = self.table.ready
        if without:
            ready = tuple(one for one in ready if one.address not in without)
        if ready:
            return ready[next(self._turn) % len(ready)] if len(ready) > 1 else ready[0]
        since = self._now() - _DIAL_PAUSE
        looked = False
        while True:
            choice = self._choose(since, without)
            for dial in choice.dials_aside:
                if not self._dials.aside(dial):
                    # The failed start has released this latch, so a wait for it would not wait.
                    choice.news = self._dials.news
                    choice.until = min(choice.until, self._now() + _DIAL_PAUSE)
            if choice.connection is not None:
                return choice.connection
            left = deadline - self._now()
            if choice.outage is not None:
                self._discovery.hurry()
                if looked:
                    causes.extend(choice.failures)
                    self._raise_not_sent(_outage_text(choice), causes)
                looked = True
                choice.news.wait(_LAST_LOOK)
            elif choice.dial is not None:
                connection = choice.dial.connection
                error, _ = self._dials.open(connection, max(0.001, left / choice.untried))
                if error is None:
                    self._dials.read_aside(connection)
                    return connection
                causes.append(error)
            else:
                # Each nsqd was tried, and is dialled in the background from now on.
                self._discovery.wait(choice.news, min(deadline, choice.until))
            if self._now() >= deadline:
                for connection in self.table.live():
                    if connection.address not in without:
                        return connection
                # Dials of other threads may have failed just now.
                with self._lock:
                    known = [self._dials.failure(address, since) for address in self._nodes.listed]
                causes.extend(error for error in known if error and error not in causes)
                self._raise_not_sent(f"no nsqd could be reached {within(timeout)}", causes)

    def _choose(self, since: float, without: Collection[Address]) -> _Choice:
        """Return the next step of a publish for which ``ready`` has no connection.

        A dial that failed after ``since``, on any thread, is not repeated: a hundred publishes that
        meet at a dead nsqd make one dial.
        """
        self._dials.end_overdue()
        with self._lock:
            if self.table.is_closed:
                raise ClosedError("the Writer is closed")
            now = self._now()
            addresses = self._nodes.candidates(now, self.table.addresses)
            listed = self._nodes.listed
            if without:
                # The nsqds in ``without`` are live, and a dial would replace their connections.
                listed = tuple(address for address in listed if address not in without)
                addresses = [address for address in addresses if address not in without]
                if not addresses:
                    having = counted(len(without), "nsqd")
                    raise NotSent(f"no nsqd is known besides {having} with a copy")
            if not addresses:
                self._outage.begun(None, now)
            if self._outage.due(addresses) <= now and self._is_old(addresses, now):
                for address in addresses:
                    self._outage.works(address)
            choice = _Choice(self._dials.news, self._outage.due(addresses))
            if choice.until <= now:
                choice.outage = now - self._outage.since(addresses)
                choice.failures = self._outage.errors(addresses)
                choice.dials_aside = self._dials.begin_missing(listed)
                return choice
            for address in addresses:
                live = self.table.get(address)
                if live is not None:
                    choice.connection = live
                    break
                failure = self._dials.failure(address, since)
                under_way = self._dials.get(address)
                if failure is not None:
                    choice.failures.append(failure)
                if under_way is not None:
                    choice.until = min(choice.until, under_way.due)
                elif failure is None and choice.dial is None:
                    choice.dial = self._dials.begin(address)
            if choice.connection is not None and choice.dial is not None:
                # Another nsqd takes this publish; the missing one is dialled in the background.
                choice.dials_aside.append(choice.dial)
                choice.dial = None
            elif choice.connection is None and choice.dial is None:
                choice.dials_aside = self._dials.begin_missing(listed)
        choice.untried = max(1, len(listed) - len(choice.failures))
        return choice

    def _is_old(self, addresses: Sequence[Address], now: float) -> bool:
        """Return True if what is known of the nsqds is old. Holding ``_lock``.

        When nobody has published for a while, no dial or connection tells how they are now.
        """
        return bool(addresses) and not any(
            address in self.table.addresses
            or self._dials.get(address)
            or self._dials.failure(address, now - _OLD_SECONDS)
            for address in addresses
        )

    @property
    def outage_seconds(self) -> float:
        """Seconds for which no nsqd could take a publish; 0 without an outage."""
        with self._lock:
            addresses = {*self._nodes.listed, *self.table.addresses}
            now = self._now()
            is_outage = self._outage.due(addresses) <= now
            return now - self._outage.since(addresses) if is_outage else 0.0

    def _raise_not_sent(self, text: str, causes: list[BaseException]) -> None:
        unique = list(dict.fromkeys(str(cause) for cause in causes))
        lookups = self._discovery.failures
        shown = unique[-max(1, len(self._nodes.listed)) :] + [str(error) for error in lookups]
        if self._discovery.has_any and not self._nodes.listed and not lookups:
            shown.append("no nsqlookupd lists one")
        if shown:
            text += ": " + "; ".join(shown)
        causes.extend(lookups)
        raise NotSent(text, causes) from (causes[-1] if causes else None)

    # -- outcomes --------------------------------------------------------------------------------

    def prove(self, connection: PublishingConnection) -> None:
        """Take the nsqd off the bench, because it said OK on this connection."""
        with self._lock:
            news = None
            if self.table.prove(connection):
                self._outage.works(connection.address)
                news = self._dials.renew_news()
            answered = self.table.answered()
        if news is not None:
            news.release()
        for old in answered:
            old.cut()

    def suspect(self, connection: PublishingConnection, since: float, why: str) -> None:
        """Bench the nsqd of a slow connection, so that the next publishes go to others.

        ``since``: time at which the unanswered publish began. ``why``: text of the error.
        """
        dials = []
        with self._lock:
            now = self._now()
            if self.table.suspect(connection, now):
                error = ConnectionLost(why)
                self._outage.failed(connection.address, since, now, error, silent=True)
                if self._outage.due(self._nodes.listed) <= now:
                    dials = self._dials.begin_missing(self._nodes.listed)
        for dial in dials:
            self._dials.aside(dial)

    def leave(self, connection: PublishingConnection) -> bool:
        """Bench an nsqd that cannot store a message now. Return True if another one is live."""
        with self._lock:
            self.table.bench(connection)
            return any(address != connection.address for address in self.table.addresses)

    def pass_over(self, connection: PublishingConnection) -> None:
        """Take a connection with a failed publish out of use, if it is about to end.

        ``on_lost`` comes later, only after callbacks of futures have returned.
        """
        with self._lock:
            queue = connection.send_queue
            if connection.is_closed or queue.has_ended or queue.peer_stopped:
                self._forget(connection)

    def others(self, address: Address) -> Collection[Address]:
        """Return all nsqds but this one, so that a publish without them goes to this one."""
        with self._lock:
            return {*self._nodes.listed, *self.table.addresses} - {address}

    @property
    def is_single(self) -> bool:
        return len(self._nodes.listed) == 1

    # -- discovery -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to ask the nsqlookupds, if there are any."""
        try:
            self._discovery.start()
        except RuntimeError as error:
            # Python 3.12 starts no thread once the interpreter is ending.
            raise NotSent(f"no thread asks for nsqds: {error}", [error]) from error

    def _on_found(self, source: Hashable, addresses: set[Address]) -> None:
        """Take the list of one nsqlookupd. By its poll thread."""
        with self._lock:
            if self.table.is_closed:
                return
            known = [*self.table.addresses, *self._dials.addresses]
            if not self._nodes.discovered(source, addresses, known):
                return
            self._outage.forget_others({*self._nodes.listed, *self.table.addresses})
            if self._nodes.listed:
                self._outage.works(None)
            self.table.renew()
            news = self._dials.renew_news()
        news.release()

    def connect(self, timeout: float) -> None:
        """Dial all nsqds side by side and wait. Raises NotSent if none can be reached."""
        deadline = self._now() + timeout
        if self.outage_seconds:
            self.pick(deadline, timeout, [])
            return
        with self._lock:
            if self.table.is_closed:
                raise ClosedError("the Writer is closed")
            news = None if self._nodes.listed else self._dials.news
        if news is not None:
            self._discovery.wait(news, deadline)
        self._dials.end_overdue()
        with self._lock:
            missing = [a for a in self._nodes.listed if a not in self.table.addresses]
            new = [self._dials.begin(a) for a in missing if self._dials.get(a) is None]
            dials = [dial for a in missing if (dial := self._dials.get(a)) is not None]
        for dial in new:
            self._dials.aside(dial)
        for dial in dials:
            dial.over.wait(max(0.0, min(deadline, dial.due) - self._now()))
        if not self.table.is_connected:
            self.pick(deadline, timeout, [])

    def ping(self, timeout: float) -> None:
        """Connect if need be, and send a NOP on each connection."""
        if not self.table.is_connected or self.outage_seconds:
            self.connect(timeout)
        for connection in self.table.connections():
            connection.send_queue.commands.append(commands.NOP)
            connection.send_queue.flush(timeout)

    def stuck(self, name: str) -> list[str]:
        """Return a sentence for each hung thread. Takes no lock.

        The threads of replaced connections are left out, because no publish uses them any more.
        """
        return stuck_threads(name, self.table.live(), self._discovery)

    # -- reports of the connections ----------------------------------------------------------------

    def on_lost(self, connection: PublishingConnection, reason: Exception) -> None:
        with self._lock:
            self._forget(connection)
        try:
            self._events.lost(connection, reason)
        finally:
            self._after_lost(connection)

    def _forget(self, connection: PublishingConnection) -> None:
        """Take a connection out of use, once. Holding ``_lock``."""
        if self.table.remove(connection) and self._dials.get(connection.address) is None:
            # The next publish dials it, because no thread would see that the nsqd is back.
            self._outage.works(connection.address)

    # -- the end -----------------------------------------------------------------------------------

    def stop_taking(self) -> None:
        """Make ``pick()`` raise ClosedError from now on, even where it already waits."""
        with self._lock:
            self.table.end()
        self._dials.stop()
        self._discovery.stop()

    def close(self, timeout: float) -> None:
        """Give publishes under way ``timeout`` seconds, then end all. After ``stop_taking()``."""
        deadline = self._now() + timeout
        self._dials.close()
        for connection in self.table.connections():
            connection.send_queue.wait_until_answered(deadline, PASSING_WAIT)
            connection.close()
        join_or_cut(self._dials.tasks(), self.table.connections, self.runtime)
        self._discovery.join()

    def let_go(self) -> None:
        """End all connections of a forgotten Writer. By the garbage collector: takes no lock.

        No caller waits for an answer any more. A forked child must leave its parent's connections
        alone.
        """
        if self.pid != os.getpid():
            return
        connections = self.table.end()
        self._discovery.let_go()
        for connection in connections:
            connection.cut()
        self._dials.let_go()

    def abandon(self) -> None:
        """Close the descriptors in a forked child, and no more: any lock may be held for ever.

        A publishing greenlet is copied into the child, and finds the pool closed.
        """
        for connection in self.table.end():
            connection.abandon()
        self._dials.abandon()
