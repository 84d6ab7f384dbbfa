"""The dials of one Writer: which are under way or about to begin, on which thread, how they ended.

Knows which nsqds are dialled and read from. Its owner says which of them takes a publish, and what
an outage is.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from gnsqsync.addresses import Address
from gnsqsync.connection.connection import Connection, Owner
from gnsqsync.errors import ConnectionLost, NotSent, NSQError
from gnsqsync.options import ConnectionOptions
from gnsqsync.policy.outage import Outage
from gnsqsync.policy.ownership import lost_at
from gnsqsync.policy.redials import DialEnd, end_of_dial
from gnsqsync.runtime import Latch, Lock, Runtime, Task
from gnsqsync.writer.events import Events, fields

__all__ = ["Dial", "Dials"]

log: logging.Logger = logging.getLogger("gnsqsync.writer")


def _without_frames(error: BaseException | None) -> None:
    """Remove the tracebacks: they refer to frames of publishers, and so keep a forgotten Writer
    alive."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


@dataclass(frozen=True, slots=True)
class Dial:
    """A connection that is being dialled, or will be."""

    connection: Connection
    # Released at its end.
    over: Latch
    # When it begins.
    at: float
    # When it is over at the latest. Then its thread was killed between two instructions, or still
    # looks up a name.
    due: float


class Seeker(Owner, Protocol):
    """The one that wants the connections. Called with the lock held."""

    def on_connected(self, connection: Connection) -> bool:
        """It may be used from now on; False when the Writer is closed."""

    def on_dial_failed(self, address: Address, end: DialEnd) -> None:
        """Note a dial that failed, for any reason."""

    def is_sought(self, address: Address) -> bool:
        """Whether it is to be dialled again and again, as none can take a publish."""


class Dials:
    """At most one dial for each address, by a publish or in the background, on a thread that then
    reads.

    The lock is its owner's, and guards the table, ``news`` and the outage. Methods that say so are
    called with it held, the others without.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        runtime: Runtime,
        lock: Lock,
        owner: Seeker,
        outage: Outage,
        events: Events,
    ) -> None:
        self._options = options
        self._runtime = runtime
        self._now = runtime.now
        self._lock = lock
        self._owner = owner
        self._outage = outage
        self._events = events
        self._under_way: dict[Address, Dial] = {}
        self._failures: dict[Address, tuple[float, NSQError]] = {}
        self._tasks: list[Task] = []
        self._ended = False
        # Whether the last one in the background found no thread.
        self._lacks_threads = False
        # Set when dials that wait for their time need not begin.
        self._ending = runtime.event()
        # Released when any dial ends, and by the owner; then there is a new one.
        self.news: Latch = runtime.latch()

    # -- the table, with the lock held -----------------------------------------------------------

    def get(self, address: Address) -> Dial | None:
        return self._under_way.get(address)

    @property
    def addresses(self) -> Iterable[Address]:
        return self._under_way.keys()

    def begin(self, address: Address, pause: float = 0.0) -> Dial:
        """A new one, of an address that has none; for the caller to dial in ``pause`` seconds."""
        connection = Connection(address, self._options, self._runtime, self._owner)
        at = self._now() + pause
        due = lost_at(at + self._options.connect_timeout)
        dial = self._under_way[address] = Dial(connection, self._runtime.latch(), at, due)
        self._outage.begun(address, at)
        return dial

    def begin_missing(self, addresses: Iterable[Address]) -> list[Dial]:
        """New ones of those that nobody dials; what failed just now is left alone for a while."""
        now = self._now()
        missing = [address for address in addresses if address not in self._under_way]
        return [self.begin(address, self._outage.pause(address, now)) for address in missing]

    def failure(self, address: Address, since: float) -> NSQError | None:
        """The error of its last dial, by any thread, if that failed at ``since`` or later."""
        failed_at, error = self._failures.get(address, (0.0, None))
        return error if failed_at >= since else None

    def renew_news(self) -> Latch:
        """Returns the latch to release once the lock is free."""
        news, self.news = self.news, self._runtime.latch()
        return news

    def _end(self, connection: Connection) -> Dial | None:
        """None if it was overdue and forgotten."""
        dial = self._under_way.get(connection.address)
        if dial is None or dial.connection is not connection:
            return None
        return self._under_way.pop(connection.address)

    # -- dialling --------------------------------------------------------------------------------

    def open(
        self, connection: Connection, timeout: float | None, *, aside: bool = False
    ) -> tuple[NSQError | None, Dial | None]:
        """Dial on this thread. Returns the error, None when it is live; and what to dial next.

        That is the same nsqd again, if it is dialled in the background (``aside``) and still
        wanted.
        """
        try:
            return self._open(connection, timeout, aside)
        except BaseException as error:
            # Of the user's functions, of handlers of logging, or from outside, perhaps while it
            # waited for the lock. Nobody would read from the connection.
            if connection.connected_at:
                connection.lose(ConnectionLost(f"nobody reads it: {error!r}"))
            self._drop(connection)
            raise

    def _open(
        self, connection: Connection, timeout: float | None, aside: bool
    ) -> tuple[NSQError | None, Dial | None]:
        address = connection.address
        failure: NSQError | None = None
        again: Dial | None = None
        opened = live = False
        began = self._now()
        try:
            connection.open(timeout)
            opened = True
        except NSQError as error:
            failure = error
        except Exception:
            # Raised by a function of the user, such as auth_secret. That is no outage, so that the
            # next publish gets the error, too.
            with self._lock:
                self._outage.works(address)
            raise
        finally:
            with self._lock:
                dial = self._end(connection)
                if opened and dial is not None and self._owner.on_connected(connection):
                    live = True
                    self._failures.pop(address, None)
                    self._outage.connected(address)
                elif dial is not None:
                    end = DialEnd.TURNED_AWAY
                    if failure is not None:
                        end = end_of_dial(failure, reached=connection.reached)
                    self._owner.on_dial_failed(address, end)
                    if failure is not None:
                        self._note(address, began, failure)
                        if aside and self._owner.is_sought(address):
                            again = self.begin(address, self._outage.pause(address, self._now()))
                news = self.renew_news()
            if dial is not None:
                dial.over.release()
            # Those that wait look again, however it ended.
            news.release()
        if failure is not None:
            self._events.dial_failed(connection, failure)
            return failure, again
        if self._ended or not live:
            connection.close()
            if not live:
                # Nothing was sent on it, and close() does not know it: no wait for nsqd's EOF.
                connection.cut()
        self._events.connected(connection)
        return None, None

    def _note(self, address: Address, began: float, failure: NSQError) -> None:
        _without_frames(failure)
        now = self._now()
        self._failures[address] = (now, failure)
        silent = isinstance(failure.__cause__, TimeoutError)
        self._outage.failed(address, began, now, failure, silent=silent)

    def aside(self, dial: Dial) -> bool:
        """Dial in the background, on a thread of its own. False when none can be started.

        Then a publish may try again. That is logged once until a thread starts.
        """
        try:
            self._spawn(dial.connection, self._serve, dial)
        except NotSent as error:
            if not self._lacks_threads:
                log.warning("%s", error, extra=fields(dial.connection))
            self._lacks_threads = True
            return False
        self._lacks_threads = False
        return True

    def read_aside(self, connection: Connection) -> None:
        """Read from what was opened here; NotSent where no thread can be started."""
        self._spawn(connection, connection.read)

    def _serve(self, dial: Dial | None) -> None:
        """The body of ``nsq-read`` for an nsqd that comes back: dial, and then read."""
        while dial is not None:
            connection = dial.connection
            try:
                self._ending.wait(max(0.0, dial.at - self._now()))
                if self._ended:
                    return
                error, dial = self.open(connection, None, aside=True)
            finally:
                # Only if it did not begin; ``open`` has forgotten it else.
                self._drop(connection)
            if error is None:
                connection.read()

    def _spawn(self, connection: Connection, body: Callable[..., object], *args: object) -> None:
        try:
            task = self._runtime.spawn(f"nsq-read {connection.nsqd_address}", body, *args)
        except BaseException as error:
            # Also one from outside: nobody else ends what has no thread.
            if not self._drop(connection):
                connection.lose(ConnectionLost("nobody reads it"))
            if isinstance(error, RuntimeError):
                # Python 3.12 starts none any more when the interpreter ends.
                raise NotSent(f"no thread reads from {connection.nsqd_address}: {error}") from error
            raise
        with self._lock:
            self._tasks = [t for t in self._tasks if t.alive]
            self._tasks.append(task)

    def _drop(self, connection: Connection) -> bool:
        """Forget a dial that nobody will begin. Returns whether it was planned."""
        with self._lock:
            dial = self._end(connection)
            if dial is None:
                return False
            news = self.renew_news()
        dial.over.release()
        news.release()
        return True

    def end_overdue(self) -> None:
        """Forget dials that nobody ends any more."""
        if not self._under_way:
            return
        now = self._now()
        with self._lock:
            overdue = [dial for dial in self._under_way.values() if dial.due <= now]
            for dial in overdue:
                del self._under_way[dial.connection.address]
        for dial in overdue:
            dial.connection.cut()
            dial.over.release()

    # -- the end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """None begins any more."""
        self._ended = True
        self.news.release()
        self._ending.set()

    def close(self) -> None:
        """After ``stop()``: those under way end."""
        with self._lock:
            dials = list(self._under_way.values())
        for dial in dials:
            dial.connection.close()

    def tasks(self) -> list[Task]:
        """The threads that dial or read."""
        with self._lock:
            return list(self._tasks)

    def let_go(self) -> None:
        """By the garbage collector: takes no lock."""
        self._ended = True
        self._ending.set()
        for dial in list(self._under_way.values()):
            dial.connection.cut()

    def abandon(self) -> None:
        """In a forked child: takes no lock."""
        self._ended = True
        for dial in self._under_way.values():
            dial.connection.abandon()
