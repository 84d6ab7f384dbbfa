"""Dials of one Writer: the pending ones by address, the threads that dial and read, the failures.

Must not know which nsqd takes a publish, or decide when there is an outage: its owner does.

A publish dials on its own thread, and starts a reading thread afterwards. A dial aside runs on the
thread ``nsq-read``, which waits for the pause, dials, repeats while the nsqd is sought, and reads.

Surprise: a dial may be forgotten while it goes on. Once it is overdue, it no longer counts, and a
connection that it still opens is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from gnsqsync.addresses import Address
from gnsqsync.connection.publishing import Owner, PublishingConnection
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
    """Remove tracebacks, whose frames of publishers would keep a forgotten Writer alive."""
    while error is not None:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


@dataclass(frozen=True, slots=True)
class Dial:
    """A connection that is being dialled, or will be."""

    connection: PublishingConnection
    # Released when the dial ends.
    over: Latch
    # Time at which the dial begins.
    at: float
    # Time by which it must have ended. After that, its thread was killed between two instructions,
    # or still looks up a name.
    due: float


class Seeker(Protocol):
    """The object that wants the dialled connections. Called with the lock held."""

    def on_connected(self, connection: PublishingConnection) -> bool:
        """Take a new connection into use. Return False if the Writer is closed."""

    def on_dial_failed(self, address: Address, end: DialEnd) -> None:
        """Note that a dial failed, for any reason."""

    def is_sought(self, address: Address) -> bool:
        """Return True if the nsqd is to be dialled again, because none can take a publish."""


class Dials:
    """Dials by address, at most one each, by a publish or in the background.

    The thread of a background dial then reads. The lock belongs to the owner, and guards the
    tables, ``news`` and the outage. The methods of the section "the table" are called with the lock
    held, and so are ``_end`` and ``_note``. The others are called without it.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        runtime: Runtime,
        lock: Lock,
        owner: Owner,
        seeker: Seeker,
        outage: Outage,
        events: Events,
    ) -> None:
        """``owner``: learns of the end of each connection."""
        self._options = options
        self._runtime = runtime
        self._now = runtime.now
        self._lock = lock
        self._owner = owner
        self._seeker = seeker
        self._outage = outage
        self._events = events
        # Pending dials.
        self._under_way: dict[Address, Dial] = {}
        # Time and error of the last dial, for each address whose last dial failed.
        self._failures: dict[Address, tuple[float, NSQError]] = {}
        # Threads that dial or read.
        self._tasks: list[Task] = []
        # True once no dial may begin.
        self._ended = False
        # True if no thread could be started for the last dial in the background.
        self._lacks_threads = False
        # Set when dials that wait for their time must not begin.
        self._ending = runtime.event()
        # Released when any dial ends, or by the owner. Each release installs a new latch.
        self.news: Latch = runtime.latch()

    # -- the table, with the lock held -----------------------------------------------------------

    def get(self, address: Address) -> Dial | None:
        return self._under_way.get(address)

    @property
    def addresses(self) -> Iterable[Address]:
        return self._under_way.keys()

    def begin(self, address: Address, pause: float = 0.0) -> Dial:
        """Plan a dial of an address that has none. The caller dials in ``pause`` seconds."""
        connection = PublishingConnection(address, self._options, self._runtime, self._owner)
        at = self._now() + pause
        due = lost_at(at + self._options.connect_timeout)
        dial = self._under_way[address] = Dial(connection, self._runtime.latch(), at, due)
        self._outage.begun(address, at)
        return dial

    def begin_missing(self, addresses: Iterable[Address]) -> list[Dial]:
        """Plan dials of the addresses that have none, after a pause if the last one has failed."""
        now = self._now()
        missing = [address for address in addresses if address not in self._under_way]
        return [self.begin(address, self._outage.pause(address, now)) for address in missing]

    def failure(self, address: Address, since: float) -> NSQError | None:
        """Return the error of the last dial, by any thread, if it failed at ``since`` or later."""
        failed_at, error = self._failures.get(address, (0.0, None))
        return error if failed_at >= since else None

    def renew_news(self) -> Latch:
        """Install a new latch. Return the old one, to be released without the lock."""
        news, self.news = self.news, self._runtime.latch()
        return news

    def _end(self, connection: PublishingConnection) -> Dial | None:
        """Remove the dial of a connection. Return None if it was overdue and forgotten."""
        dial = self._under_way.get(connection.address)
        if dial is None or dial.connection is not connection:
            return None
        return self._under_way.pop(connection.address)

    # -- dialling --------------------------------------------------------------------------------

    def open(
        self, connection: PublishingConnection, timeout: float | None, *, aside: bool = False
    ) -> tuple[NSQError | None, Dial | None]:
        """Dial on this thread. Return the error, or None if the connection is live; and a dial.

        The second value is a new dial of the same nsqd, or None. There is one if this dial ran in
        the background (``aside``) and failed, and the nsqd is still sought.
        """
        try:
            return self._open(connection, timeout, aside)
        except BaseException as error:
            # Raised by a user's function, a logging handler, or a kill, perhaps while this thread
            # waited for the lock. No thread would read from the connection.
            if connection.connected_at:
                connection.lose(ConnectionLost(f"no thread reads from it: {error!r}"))
            self._drop(connection)
            raise

    def _open(
        self, connection: PublishingConnection, timeout: float | None, aside: bool
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
            # A function of the user, such as auth_secret, failed. That is no outage: the next
            # publish tries again and gets the error, too.
            with self._lock:
                self._outage.works(address)
            raise
        finally:
            with self._lock:
                dial = self._end(connection)
                if opened and dial is not None and self._seeker.on_connected(connection):
                    live = True
                    self._failures.pop(address, None)
                    self._outage.connected(address)
                elif dial is not None:
                    end = DialEnd.TURNED_AWAY
                    if failure is not None:
                        end = end_of_dial(failure, reached=connection.reached)
                    self._seeker.on_dial_failed(address, end)
                    if failure is not None:
                        self._note(address, began, failure)
                        if aside and self._seeker.is_sought(address):
                            again = self.begin(address, self._outage.pause(address, self._now()))
                news = self.renew_news()
            if dial is not None:
                dial.over.release()
            # Threads that wait look again, whatever the end was.
            news.release()
        if failure is not None:
            self._events.dial_failed(connection, failure)
            return failure, again
        if self._ended or not live:
            connection.close()
            if not live:
                # The pool's close() does not know it. Nothing was sent, so do not wait for EOF.
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
        """Dial in the background, on a new thread. Return False if no thread can be started.

        A later publish then tries again. The warning is logged once, until a thread starts.
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

    def read_aside(self, connection: PublishingConnection) -> None:
        """Read on a new thread from a connection that was opened on this one, or raise NotSent."""
        self._spawn(connection, connection.read)

    def _serve(self, dial: Dial | None) -> None:
        """Dial, again while the nsqd is sought, then read. Body of the thread ``nsq-read``."""
        while dial is not None:
            connection = dial.connection
            try:
                self._ending.wait(max(0.0, dial.at - self._now()))
                if self._ended:
                    return
                error, dial = self.open(connection, None, aside=True)
            finally:
                # ``open`` forgets the dials that it begins. This forgets a dial that never began.
                self._drop(connection)
            if error is None:
                connection.read()

    def _spawn(
        self, connection: PublishingConnection, body: Callable[..., object], *args: object
    ) -> None:
        try:
            task = self._runtime.spawn(f"nsq-read {connection.nsqd_address}", body, *args)
        except BaseException as error:
            # A kill counts, too: without a thread, only this code can end the connection.
            if not self._drop(connection):
                connection.lose(ConnectionLost("no thread reads from it"))
            if isinstance(error, RuntimeError):
                # Python 3.12 starts no thread once the interpreter is ending.
                raise NotSent(f"no thread reads from {connection.nsqd_address}: {error}") from error
            raise
        with self._lock:
            self._tasks = [t for t in self._tasks if t.alive]
            self._tasks.append(task)

    def _drop(self, connection: PublishingConnection) -> bool:
        """Forget a dial that no thread will begin. Return True if it was planned."""
        with self._lock:
            dial = self._end(connection)
            if dial is None:
                return False
            news = self.renew_news()
        dial.over.release()
        news.release()
        return True

    def end_overdue(self) -> None:
        """Forget dials whose thread is gone, as their time is over."""
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
        """Let no further dial begin."""
        self._ended = True
        self.news.release()
        self._ending.set()

    def close(self) -> None:
        """End the dials that are under way. Called after ``stop()``."""
        with self._lock:
            dials = list(self._under_way.values())
        for dial in dials:
            dial.connection.close()

    def tasks(self) -> list[Task]:
        """Return the threads that dial or read."""
        with self._lock:
            return list(self._tasks)

    def let_go(self) -> None:
        """Cut all dials. By the garbage collector, so it takes no lock."""
        self._ended = True
        self._ending.set()
        for dial in list(self._under_way.values()):
            dial.connection.cut()

    def abandon(self) -> None:
        """Close the descriptors in a forked child. Takes no lock."""
        self._ended = True
        for dial in self._under_way.values():
            dial.connection.abandon()
