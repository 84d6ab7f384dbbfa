"""Connections of one Reader: dialled, lost and removed, with RDY and backoff over all of them.

Owns the nodes, the RdyControl, and the lock around both. Must not know a handler or a byte.

``_tick`` does what is due, and ``_arm`` sets the timer for the next one. Each dial runs on a thread
of its own (``_serve``), which then reads. The connections report to the methods ``on_*``.

Surprise: code under ``_lock`` only decides. It returns connections, and the caller flushes them
after it, because a flush may block and a hook of a user may call back.
"""

from __future__ import annotations

import logging
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Hashable

from gnsqsync.addresses import Address
from gnsqsync.connection.joining import join_or_cut
from gnsqsync.connection.link import PASSING_WAIT, State
from gnsqsync.connection.subscribed import SubscribedConnection
from gnsqsync.errors import ConfigError, ConnectionLost, FinFailed, NSQError, ServerError
from gnsqsync.foreign import repr_of
from gnsqsync.message import Fate, Message
from gnsqsync.policy import credentials
from gnsqsync.policy.latency import JointRate
from gnsqsync.policy.nodes import ReaderNodes
from gnsqsync.policy.rdy import RdyAllocator
from gnsqsync.policy.redials import end_of_dial
from gnsqsync.policy.requeue import requeue_delay
from gnsqsync.reader.chunks import Chunk, Chunks
from gnsqsync.reader.dead_letters import DeadLetters
from gnsqsync.reader.events import Events
from gnsqsync.reader.options import ReaderSetup
from gnsqsync.reader.pauses import Pauses
from gnsqsync.reader.rdy_control import RdyControl
from gnsqsync.reader.retiring import Retiring
from gnsqsync.runtime import Runtime, Task
from gnsqsync.runtime.timer import Timer

__all__ = ["Subscription"]

log: logging.Logger = logging.getLogger("gnsqsync.reader")


class Subscription:
    """The connections of a Reader to its topic and channel.

    ``_lock`` is the RDY allocator's lock. It guards the RdyControl, the nodes, the tables of dials
    and tasks, the flag ``_stopping``, and ``_tick_at``. Connections that must be flushed are
    flushed after it, in the order that was decided.
    """

    def __init__(
        self,
        setup: ReaderSetup,
        runtime: Runtime,
        *,
        timer: Timer,
        chunks: Chunks,
        dead_letters: DeadLetters,
        events: Events,
        rng: random.Random,
        on_hopeless: Callable[[NSQError], None],
        on_settled: Callable[[], None],
        ask: Callable[[], None],
    ) -> None:
        """``on_hopeless``: called when every nsqd refuses us and no retry can change that.

        ``on_settled``: called during a stop, when a message left the in-flight table or a worker
        ended. ``ask``: makes nsqlookupds be asked at once; ``on_discovered`` gets their answers.
        """
        self._setup = setup
        self._flow = setup.flow
        self._runtime = runtime
        self._timer = timer
        self._chunks = chunks
        self._dead_letters = dead_letters
        self._events = events
        self._on_hopeless = on_hopeless
        self._on_settled = on_settled
        self._ask = ask
        # True while nsqlookupds are asked, so that more nsqds may come.
        self.discovers: bool = bool(setup.lookups.urls)
        # Addresses that the user gave.
        self._direct = set(setup.nsqds)
        self._lock = runtime.lock()
        # Connections whose dial is planned or under way.
        self._dialling: dict[SubscribedConnection, None] = {}
        # Connections that are closing because they were removed or replaced.
        self._retiring = Retiring(timer)
        # Threads that dial or read.
        self._tasks: list[Task] = []
        # Addresses whose nsqd refused us for a reason that a retry does not change.
        self._refused: dict[Address, NSQError] = {}
        # Addresses where this Reader was subscribed: a secret that was right may be so again.
        self._subscribed: set[Address] = set()
        # True once a stop has begun: no dial from now on.
        self._stopping = False
        # Time of the planned ``_tick``; infinity without one.
        self._tick_at = math.inf
        # Addresses to connect to, and the time of each next dial.
        self._nodes = ReaderNodes(self._direct, rng)
        self._limits_rate = self._flow.rate_limit is not None
        # True if a worker may read by itself: it is alone, and handles any message that comes.
        worker_may_read = (
            setup.handler is not None
            and self._flow.concurrency == 1
            and not self._limits_rate
            and chunks.lanes is None
        )
        self._rdy = RdyControl(
            self._flow, setup.together or JointRate(), rng, worker_may_read=worker_may_read
        )
        self.pauses: Pauses = Pauses(
            self._rdy, self._lock, runtime, chunks, dead_letters.tries, events, self._apply
        )
        # Read without the lock by other modules.
        self.allocator: RdyAllocator[Address] = self._rdy.allocator

    # Wakes housekeeping when messages are in flight. Set before the start.
    wake: Callable[[], None]

    # -- the nsqds ---------------------------------------------------------------------------

    def start(self) -> None:
        """Dial the direct nsqds, side by side, each on the thread that then reads from it."""
        self._tick()

    def on_discovered(self, source: Hashable, addresses: set[Address]) -> None:
        """Take the list of one nsqlookupd. By its poll thread."""
        with self._lock:
            self._nodes.discovered(source, addresses, self._runtime.now())
        self._tick()

    def add_nsqd(self, address: Address) -> None:
        with self._lock:
            self._direct.add(address)
            self._nodes.add_direct(address)
        self._tick()

    def remove_nsqd(self, address: Address) -> None:
        """End redials of an nsqd, and send CLS. Messages that no handler has begun go back.

        The connection closes when the others are answered.
        """
        changed: list[SubscribedConnection] = []
        with self._lock:
            self._direct.discard(address)
            self._refused.pop(address, None)
            self._nodes.remove(address)
            dialling = [c for c in self._dialling if c.address == address]
            connection = self._rdy.connections.get(address)
            if connection is not None:
                connection.stop_delivering()
                self._retiring.add([connection])
                changed = self._rdy.leave(address, self._runtime.now())
        self._events.leaves(str(address))
        for dial in dialling:
            dial.close()
        if connection is not None:
            connection.start_closing()
        self._apply(changed)
        if connection is not None:
            self._chunks.give_back()
            self.settled()

    def _dial_due(self, now: float) -> list[SubscribedConnection]:
        """Return the connections to open now; holding ``_lock``."""
        if self._stopping:
            return []
        due = []
        for address in self._nodes.due(now):
            self._nodes.dialling(address)
            connection = SubscribedConnection(
                address,
                self._setup.options,
                self._runtime,
                self,
                topic=self._setup.topic,
                channel=self._setup.channel,
                adaptive=self._flow.latency == "adaptive",
                headers=self._flow.headers,
            )
            self._dialling[connection] = None
            due.append(connection)
        return due

    def _serve(self, connection: SubscribedConnection) -> None:
        """Open a connection and read from it until its end. Body of the thread ``nsq-read``."""
        try:
            connection.open()
        except NSQError as error:
            self._dial_failed(connection, error)
            return
        except BaseException as error:
            # An auth_secret() that asks a server, say, and that may soon work again.
            self._dial_failed(connection, ConnectionLost(f"the dial was ended by {repr_of(error)}"))
            raise
        with self._lock:
            self._dialling.pop(connection, None)
            now = self._runtime.now()
            address = connection.address
            # ``connected`` is False if the address was removed during the dial.
            joined = not self._stopping and self._nodes.connected(address, now)
            if joined:
                self._refused.pop(address, None)
                self._subscribed.add(address)
                changed = self._rdy.join(connection, now)
                limit = self._rdy.max_in_flight
                crowd = self._rdy.is_new_crowd()
        if not joined:
            # Cut at once: no RDY was sent, and a stop waits for this thread.
            connection.cut()
            connection.read()
            return
        try:
            self._apply(changed)
            self._events.connected(connection)
            if crowd:
                self._events.crowd(limit)
        except BaseException as error:
            # The connection ends with its reading thread.
            connection.lose(ConnectionLost(f"its reading thread was ended by {repr_of(error)}"))
            raise
        connection.read()

    def _dial_failed(self, connection: SubscribedConnection, error: NSQError) -> None:
        address = connection.address
        hopeless: NSQError | None = None
        with self._lock:
            self._dialling.pop(connection, None)
            if self._stopping:
                return
            direct = address in self._direct
            end = end_of_dial(error, reached=connection.reached)
            again = self._nodes.ended(address, self._runtime.now(), end)
            if direct and not error.retriable and not self._may_change(address, error):
                self._refused[address] = error
                if not self.discovers and self._refused.keys() >= self._direct:
                    hopeless = error
            else:
                self._refused.pop(address, None)
        if connection.end_was_asked:
            log.debug("the dial of %s ended as asked", connection.nsqd_address)
            self._arm()
            return
        pause = None if again is None else again - self._runtime.now()
        try:
            self._events.dial_failed(connection, error, pause, discovered=not direct)
        finally:
            # A hook of a user may raise a BaseException, such as gevent.Timeout.
            if hopeless is not None:
                self._on_hopeless(hopeless)
            self._tick()

    def _may_change(self, address: Address, error: NSQError) -> bool:
        """Return True if a file or function can cure this error without a restart."""
        if isinstance(error, ConfigError) or address not in self._subscribed:
            return isinstance(error, ConfigError)
        by_function = callable(self._setup.options.auth_secret)
        return credentials.fail_tls(error) or (by_function and credentials.are_refused(error))

    def on_lost(self, connection: SubscribedConnection, reason: Exception) -> None:
        # Dropped here; nsqd delivers the connection's queued messages again.
        self._chunks.give_back()
        with self._lock:
            now = self._runtime.now()
            changed = self._rdy.lose(connection, now)
            pause = None
            if changed is not None:
                again = self._nodes.ended(connection.address, now)
                pause = None if again is None or self._stopping else again - now
            discovered = connection.address not in self._direct
        if changed is None:
            return
        self._apply(changed)
        self.settled()
        try:
            self._events.lost(connection, reason, pause, discovered=discovered)
        finally:
            self._tick()

    # -- RDY and backoff ---------------------------------------------------------------------

    def _apply(self, changed: list[SubscribedConnection]) -> None:
        for connection in changed:
            connection.send_queue.flush(PASSING_WAIT)
        self._arm()

    def _tick(self) -> None:
        """Do what is due now: the end of a backoff pause, redials, an RDY round."""
        with self._lock:
            self._tick_at = math.inf
            now = self._runtime.now()
            step = self.pauses.tick(now)
            useless = [] if self._stopping else self._rdy.leave_useless(now)
            self._retiring.add(connection for connection, _ in useless)
            changed = self._rdy.plan(now)
            ask = not self._stopping and self._nodes.ask(now)
            due = self._dial_due(now)
            self._tasks = [task for task in self._tasks if task.alive]
            silent = None if self._stopping else self._rdy.silent_for(now)
        if silent is not None:
            self._events.silent(*silent)
        for connection, why in useless:
            # The end of this connection leads to a dial, like any other loss.
            self._events.anew(connection, why)
            connection.start_closing()
        if ask:
            self._ask()
        for connection in due:
            self._events.dials(connection.nsqd_address)
            self._spawn(connection)
        self._apply(changed)
        self.pauses.tell(step)

    def _spawn(self, connection: SubscribedConnection) -> None:
        address = connection.nsqd_address
        try:
            task = self._runtime.spawn(f"nsq-read {address}", self._serve, connection)
        except BaseException as error:
            # Counted as a failed dial, because nothing else would bring this nsqd back.
            failure = ConnectionLost(f"no thread for {address}: {error}")
            failure.__cause__ = error
            self._dial_failed(connection, failure)
            if not isinstance(error, RuntimeError):
                raise
            return
        with self._lock:
            self._tasks.append(task)

    def _arm(self) -> None:
        """Set the timer for the next ``_tick``."""
        with self._lock:
            if self._stopping:
                return
            now = self._runtime.now()
            when = now + self._flow.rdy_redistribute_interval
            for at in (
                self._nodes.next_at(),
                self.allocator.next_at,
                self.pauses.backoff.next_at,
                self._rdy.rate_at,
            ):
                if at is not None:
                    when = min(when, at)
            if when >= self._tick_at:
                return
            self._tick_at = when
        self._timer.after(when - now, lambda: self._tick_if_current(when))

    def _tick_if_current(self, when: float) -> None:
        # An earlier tick was planned meanwhile if the times differ.
        if when == self._tick_at:
            self._tick()

    def answered(self) -> None:
        """Act on answered messages: their room may go to an nsqd that waits for it."""
        if self.allocator.waiting and not self._rdy.turns_go_on:
            self._replan()
        if self.allocator.one_message and self._setup.on_turn_used is not None:
            self._setup.on_turn_used()
        self.settled()

    def settled(self) -> None:
        """Let a stop or a removal go on if it waits for this. From any thread; cheap."""
        if self._stopping:
            self._on_settled()
        else:
            self._retiring.look()

    def set_max_in_flight(self, count: int) -> None:
        self.lend(count, one_message=False)

    def lend(self, slots: int, *, one_message: bool) -> None:
        """Take the part of a group's limit. With ``one_message``, it ends when a message came."""
        self.pauses.set_whole(slots, one_message=one_message)

    @property
    def max_in_flight(self) -> int:
        """The limit that the user wishes. Takes no lock."""
        return self._rdy.max_in_flight

    def set_paused(self, paused: bool) -> None:
        with self._lock:
            self.allocator.paused = paused
        self._replan()

    def _replan(self) -> None:
        with self._lock:
            changed = self._rdy.plan(self._runtime.now())
        self._apply(changed)

    # -- reports of the connections ------------------------------------------------------------

    def on_messages(self, connection: SubscribedConnection, messages: list[Message]) -> None:
        if self._limits_rate and self._rdy.is_used_up(connection):
            # Done before a worker sends FINs, which would make room for more.
            self._replan()
        self._chunks.put(connection, messages)
        self.wake()
        if not connection.delivers:
            # The messages crossed with our CLS or RDY 0, and were given back.
            self.settled()

    def read(self, connection: SubscribedConnection) -> Chunk | None:
        """Receive the next messages in place of the reading thread. By the only worker."""
        messages = connection.messages.read_for_worker()
        if not messages:
            return None
        self.wake()
        return connection, messages

    def on_answered(
        self, connection: SubscribedConnection, message: Message, success: bool | None
    ) -> None:
        pauses = self.pauses
        if success:
            pauses.succeeded(1)
        elif success is False:
            pauses.failed(connection, message)
        else:
            pauses.succeeded(0)
        self.answered()

    def on_handed_back(self, message: Message) -> None:
        self._dead_letters.tries.note_uncalled(message)

    def on_failure(self, connection: SubscribedConnection, message: Message) -> Fate | None:
        if not self._dead_letters.tries.is_last(message):
            return None
        return self._dead_letters.settle(connection, message, sys.exc_info()[1])

    def on_finished(self, count: int) -> None:
        self.pauses.succeeded(count)
        self.answered()

    def on_drained(self, connection: SubscribedConnection) -> None:
        self.settled()

    def on_answer_failed(
        self, connection: SubscribedConnection, message_id: str, error: ServerError
    ) -> None:
        late = self._chunks.late(message_id) if isinstance(error, FinFailed) else None
        self._events.answer_failed(connection, message_id, error, late)
        if self._flow.backoff_on_fin_failed and isinstance(error, FinFailed):
            self.pauses.answer_failed(connection, message_id)
        self.answered()

    def on_overdue(self, connection: SubscribedConnection, count: int) -> None:
        self._events.overdue(connection, count)
        self.answered()

    def requeue_delay_for(self, message: Message) -> float:
        flow = self._flow
        return requeue_delay(
            message._id, message.attempts, flow.requeue_delay, flow.max_requeue_delay
        )

    # -- stopping ------------------------------------------------------------------------------

    def start_closing(self) -> None:
        """Send CLS to every nsqd, begin no dial, and give back what no handler has begun."""
        with self._lock:
            self._stopping = True
            dialling = list(self._dialling)
        for connection in dialling:
            connection.close()
        connections = self.connections()
        for connection in connections:
            connection.stop_delivering()
        for connection in connections:
            connection.start_closing()
        self._chunks.give_back()

    def close(self) -> None:
        for connection in self.connections():
            connection.close()

    def join(self) -> None:
        """Wait for the reading threads of closed connections."""
        with self._lock:
            tasks = list(self._tasks)
        join_or_cut(tasks, self.connections, self._runtime)

    def abandon(self) -> None:
        """Close the descriptors in a forked child, and no more: any lock may be held for ever."""
        self._stopping = True
        for connection in [*self.connections(), *self._dialling]:
            connection.abandon()

    # -- state -----------------------------------------------------------------------------------

    def connections(self) -> list[SubscribedConnection]:
        """Return the connections. Takes no lock: copying the values of a dict is one step."""
        return list(self._rdy.connections.values())

    @property
    def in_flight(self) -> int:
        return sum(len(connection.in_flight) for connection in self.connections())

    @property
    def is_drained(self) -> bool:
        """True if, after ``start_closing``, nothing is in flight and nsqd sends no more."""
        return all(c.state is State.DRAINED and not c.in_flight for c in self.connections())

    @property
    def is_starved(self) -> bool:
        """True if some connection has 85 % of its RDY in flight."""
        going_on = [c for c in self.connections() if not c.end_was_asked]
        return any(c.in_flight and len(c.in_flight) >= 0.85 * c.level.share for c in going_on)

    @property
    def is_connected(self) -> bool:
        """True if a connection is open. Takes no lock."""
        return any(c.state is State.OPEN for c in self.connections())

    def load(self) -> tuple[int, int, float]:
        """Return the messages received, those in flight, and the slowest round trip (seconds)."""
        with self._lock:
            received, round_trip = self._rdy.received, self._rdy.round_trip
        # Order matters: a message is in the table before it is counted.
        return received, self.in_flight, round_trip

    def totals(self) -> Counter[str]:
        with self._lock:
            return self._rdy.totals()
