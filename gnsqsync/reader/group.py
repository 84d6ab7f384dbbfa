"""Groups of Readers, for a process that consumes several topics or channels.

Knows how Readers start, share a limit, fail and stop together. Must not know which Readers there
are to be: a subclass decides. ``Group`` is what a user holds, ``Members`` are the Readers that run,
and ``_SharedLimit`` divides one max_in_flight.

Surprise: the shared limit uses the RDY allocator with Readers in the place of nsqds.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from gnsqsync.errors import ClosedError, ConfigError
from gnsqsync.keywords import checks_names
from gnsqsync.options import check_int
from gnsqsync.policy.latency import JointRate
from gnsqsync.policy.rdy import Load, RdyAllocator
from gnsqsync.reader.advice import Told, advise
from gnsqsync.reader.reader import Reader
from gnsqsync.runtime import Event, Runtime, RuntimeLike, Task, choose
from gnsqsync.runtime.event_loop import warn_that_start_blocks
from gnsqsync.runtime.timer import Timer
from gnsqsync.stats import Health, StopResult

__all__ = ["Group", "Members", "ReaderGroup", "advise_once"]

# Seconds between two divisions of a shared max_in_flight, without another cause.
_ROUND_SECONDS = 1.0
# Upper bound of the seconds for which a limit taken from a Reader counts as used there, until nsqd
# has its RDY 0.
_TRANSIT_SECONDS = 0.1
# Seconds between two wake-ups of a waiting thread, as in a Reader, so that signal handlers run.
_WAKE_SECONDS = 1.0

Self = TypeVar("Self", bound="Group")


class Group(ABC):
    """Base of ReaderGroup and TopicGroup: one start, one stop, one error that ends all."""

    def __init__(self, max_in_flight: int | None, runtime: RuntimeLike | None) -> None:
        if max_in_flight is not None:
            check_int("max_in_flight", max_in_flight, 1)
        self._max_in_flight = max_in_flight
        self._runtime_choice = runtime
        self._members: Members | None = None
        # Threads of the group itself, which end when the group stops.
        self._own: Sequence[Task] = ()

    @property
    @abstractmethod
    def readers(self) -> tuple[Reader, ...]: ...

    @abstractmethod
    def _begin(self, runtime: Runtime, members: Members) -> Sequence[Task]:
        """Start the Readers. Return the threads to wait for before the Readers."""

    def _forgets(self) -> bool:
        """Return True if a Reader that was stopped alone is no member any more."""
        return False

    @checks_names
    def start(self, block: bool = True) -> list[StopResult] | None:
        """Start all Readers. With ``block``, wait until ``stop()``. See Reader.start.

        Args:
            block: True to wait for the end.

        Returns:
            The results in the order of the readers, or None without ``block``.

        Raises:
            ClosedError: The group was started before.
            NSQError: A Reader could not start, or ended by an error; the others are stopped.
        """
        if block:
            warn_that_start_blocks()
        runtime = choose(self._runtime_choice)
        members = Members(runtime, self._max_in_flight, self.stop, self._forgets)
        # dict.setdefault is atomic, so of two threads that start, one wins.
        if self.__dict__.setdefault("_started", members) is not members:
            name = type(self).__name__
            raise ClosedError(f"a {name} is started once; make a new one to consume again")
        self._members = members
        try:
            members.begin()
            self._own = self._begin(runtime, members)
        except BaseException:  # some Readers may run already
            self.stop(0.0)
            raise
        finally:
            members.begun.set()
            members.close_if_over()
        if not block:
            return None
        try:
            return self.join()
        except BaseException:  # Ctrl-C, or a signal handler that raises
            self.stop()
            self.join()
            raise

    @checks_names
    def stop(self, timeout: float = 30.0) -> None:
        """Ask every Reader to end, and return at once. See Reader.stop.

        Args:
            timeout: Seconds in which handlers at work may finish.
        """
        for reader in self.readers:
            reader.stop(timeout)

    def join(self) -> list[StopResult]:
        """Wait until all Readers have stopped, and return their results in order.

        Returns:
            The results in the order of the readers.

        Raises:
            ClosedError: The group was not started.
            NSQError: A Reader ended by this error; the others were stopped.
        """
        members = self._members
        if members is None:
            raise ClosedError(f"the {type(self).__name__} is not started")
        while not members.begun.wait(_WAKE_SECONDS):
            pass
        for task in self._own:
            _wait_for(task)
        return members.join()

    def health(self, handler_limit: float | None = None) -> Health:
        """Return the health of all Readers together. See Reader.health.

        Args:
            handler_limit: Seconds that a handler may run, 0 or more; None: for ever.
        """
        return Health.of(reader.health(handler_limit) for reader in self.readers)

    def __enter__(self: Self) -> Self:
        if self._members is None:
            self.start(block=False)
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()
        self.join()


class ReaderGroup(Group):
    """Several Readers that start and stop together.

    Args:
        readers: The Readers; one or more, none of them started.
        max_in_flight: One limit for all of them, 1 or more, divided anew each second. Idle readers
            keep one message and lend the rest to busy ones. If there are more readers than that,
            they take turns, one message each. None means that each keeps its own limit.
        runtime: As in Reader.

    Raises:
        ConfigError: There is no reader, or one is not a Reader; two have the same topic and channel
            on a common server without ``shared=True``; or dead letters would go round for ever.

    Threads:
        Any thread or greenlet may call each method.
    """

    @checks_names
    def __init__(
        self,
        readers: Iterable[Reader],
        *,
        max_in_flight: int | None = None,
        runtime: RuntimeLike | None = None,
    ) -> None:
        super().__init__(max_in_flight, runtime)
        self._given = tuple(readers)
        if not self._given or not all(isinstance(reader, Reader) for reader in self._given):
            raise ConfigError("a ReaderGroup needs one Reader or more")
        # Imported here, because a Reader without a group loads this module, too.
        from gnsqsync.reader.claims import check_claims

        check_claims(reader._setup.claim for reader in self._given)

    @property
    def readers(self) -> tuple[Reader, ...]:
        """The Readers, in the given order."""
        return self._given

    def _begin(self, runtime: Runtime, members: Members) -> Sequence[Task]:
        advise_once(self._given)
        members.add(self._given)
        return ()


def advise_once(readers: Iterable[Reader], told: Told | None = None) -> None:
    """Warn about options of Readers that start soon. Equal warnings make one line.

    Processes that are forked from this one do not repeat the warnings, nor do Readers with the
    same ``told``.
    """
    chosen = [reader for reader in readers if not reader._setup.is_advised]
    advise([reader._setup for reader in chosen], told)
    for reader in chosen:
        reader._setup = replace(reader._setup, is_advised=True)


class Members:
    """Running Readers. A watcher waits for each, and the first error ends all.

    A watcher calls ``on_error`` after an error, and ``forgets`` when a Reader ends without one.
    ``_lock`` guards the tables and ``_watched``. ``readers`` is replaced as a whole, so that
    ``Group.stop()`` may read it in a signal handler.
    """

    def __init__(
        self,
        runtime: Runtime,
        max_in_flight: int | None,
        on_error: Callable[[], None],
        forgets: Callable[[], bool],
    ) -> None:
        self.readers: tuple[Reader, ...] = ()
        # Set when the start of the group is over. join() then waits for all members.
        self.begun: Event = runtime.event()
        self._runtime = runtime
        self._max_in_flight = max_in_flight
        self._on_error = on_error
        self._forgets = forgets
        self._lock = runtime.lock()
        self._share: _SharedLimit | None = None
        self._together = JointRate()
        # A timer for all members. With one each, hundreds of topics would need hundreds of threads.
        self._timer = Timer(runtime, "nsq-timer group")
        # Tasks that wait for the end of one Reader each.
        self._watchers: list[Task] = []
        # Number of Readers whose watcher has not ended.
        self._watched = 0
        # Results of the Readers that have ended.
        self._results: dict[Reader, StopResult] = {}
        self._errors: list[BaseException] = []

    def begin(self) -> None:
        """Start the timer, before the first ``add``."""
        self._timer.start()

    def add(self, readers: Iterable[Reader]) -> None:
        """Start Readers. If one cannot start, its error is raised; those before it run."""
        new = tuple(readers)
        for reader in new:
            # With a shared limit, each begins with 0 and gets its part when all are there.
            own = None if self._max_in_flight is None else 0
            reader._prepare_for_group(self._together, self._timer, own, self._hurry)
            reader.start(block=False)
            with self._lock:
                self.readers = (*self.readers, reader)
                self._watched += 1
            try:
                watcher = self._runtime.spawn(f"nsq-group {reader.topic}", self._watch, reader)
            except BaseException:
                # The Reader has no watcher, so this thread stops it.
                self._forget(reader)
                reader.stop(0.0)
                with self._lock:
                    self._watched -= 1
                raise
            with self._lock:
                self._watchers = [task for task in self._watchers if task.alive]
                self._watchers.append(watcher)
        if self._max_in_flight is not None:
            if self._share is None:
                self._share = _SharedLimit(self._max_in_flight, self._runtime, self._timer)
            self._share.add(new)
            for reader in new:
                # A Reader that has ended by now was removed from the limit before it was added.
                if reader not in self.readers or reader in self._results:
                    self._share.remove(reader)

    def _hurry(self) -> None:
        if self._share is not None:
            self._share.hurry()

    def drop(self, reader: Reader) -> None:
        """Stop a Reader, without a wait for its end."""
        if self._share is not None:
            self._share.remove(reader)
        reader.stop()

    def _forget(self, reader: Reader) -> None:
        with self._lock:
            self.readers = tuple(r for r in self.readers if r is not reader)

    def fail(self, error: BaseException) -> None:
        """End all Readers. ``join()`` raises the first error."""
        self._errors.append(error)
        self._on_error()

    def _watch(self, reader: Reader) -> None:
        try:
            self._wait_for_end(reader)
        finally:
            with self._lock:
                self._watched -= 1
            self.close_if_over()

    def close_if_over(self) -> None:
        """Stop the shared timer when all have ended and none can come, even without a join."""
        if self.begun.is_set() and not self._watched and not self._forgets():
            self._timer.stop()

    def _wait_for_end(self, reader: Reader) -> None:
        """Wait for the end of a Reader, and end the others if it ended by an error."""
        try:
            reader._wait_ended()
            result = reader.join()
        except BaseException as error:  # noqa: BLE001 - join() raises it
            self.fail(error)
            return
        assert result is not None
        if self._forgets():
            self._forget(reader)
        else:
            with self._lock:
                self._results[reader] = result
        if self._share is not None:
            self._share.remove(reader)

    def join(self) -> list[StopResult]:
        """Wait for all Readers, when none is added any more. Return results or raise an error."""
        with self._lock:
            watchers = list(self._watchers)
        for watcher in watchers:
            _wait_for(watcher)
        self._timer.stop()
        if self._errors:
            raise self._errors[0]
        return [self._results[reader] for reader in self.readers]


def _wait_for(task: Task) -> None:
    while not task.join(_WAKE_SECONDS):
        pass


class _SharedLimit:
    """Division of one max_in_flight over Readers, as a Reader divides its own over nsqds.

    With more Readers than slots, each turn is lent for one message, whose answer ends the turn. The
    tables belong to the timer's thread. Any thread may call ``hurry``.
    """

    def __init__(self, limit: int, runtime: Runtime, timer: Timer) -> None:
        self._limit = limit
        self._runtime = runtime
        self._allocator: RdyAllocator[Reader] = RdyAllocator(
            limit, transit=_TRANSIT_SECONDS, rng=random.Random()
        )
        # Messages that each Reader has received, the time of the last change, and its share.
        self._received: dict[Reader, int] = {}
        self._busy_at: dict[Reader, float] = {}
        self._shares: dict[Reader, int] = {}
        # True while shares are lent for one message each.
        self._lends_turns = False
        # True while a round is asked for and has not begun.
        self._is_hurried = False
        # Time of the round that the allocator wants; infinity without one.
        self._round_at = math.inf
        self._timer = timer
        self._timer.after(_ROUND_SECONDS, self._next_round)

    def add(self, readers: tuple[Reader, ...]) -> None:
        self._timer.after(0.0, lambda: self._join(readers))

    def remove(self, reader: Reader) -> None:
        self._timer.after(0.0, lambda: self._leave(reader))

    def hurry(self) -> None:
        """Divide anew at once, because an answer may have freed a slot."""
        if not self._is_hurried:
            self._is_hurried = True
            self._timer.after(0.0, self._round)

    def _join(self, readers: tuple[Reader, ...]) -> None:
        now = self._runtime.now()
        for reader in readers:
            self._allocator.add(reader, self._limit, now)
            self._received[reader] = 0
            self._busy_at[reader] = now
            self._shares[reader] = 0
        self._round()

    def _leave(self, reader: Reader) -> None:
        self._allocator.remove(reader)
        self._received.pop(reader, None)
        self._busy_at.pop(reader, None)
        self._shares.pop(reader, None)

    def _next_round(self) -> None:
        # Planned first, so that a failing round is not the last one.
        self._timer.after(_ROUND_SECONDS, self._next_round)
        self._round()

    def _round_if_due(self, when: float) -> None:
        # An earlier round was planned meanwhile if the times differ.
        if when == self._round_at:
            self._round()

    def _round(self) -> None:
        # Cleared before the look, so that an answer from now on asks for the next round.
        self._is_hurried = False
        self._round_at = math.inf
        now = self._runtime.now()
        loads = {}
        for reader, before in self._received.items():
            received, in_flight, round_trip = reader._load()
            if received != before:
                self._received[reader] = received
                self._busy_at[reader] = now
            loads[reader] = Load(in_flight, self._busy_at[reader], received)
            self._allocator.set_round_trip(reader, round_trip)
        changes = self._allocator.update(now, loads)
        self._lend(changes)
        due = self._allocator.next_at
        if due is not None:
            self._round_at = due
            self._timer.after(max(0.0, due - now), lambda: self._round_if_due(due))

    def _lend(self, changes: list[tuple[Reader, int]]) -> None:
        one_message = self._allocator.takes_turns
        if one_message is not self._lends_turns:
            self._lends_turns = one_message
            changed = {reader for reader, _ in changes}
            kept = [(r, share) for r, share in self._shares.items() if r not in changed]
            # Lowered shares come first, then those that are only lent in another way.
            changes = sorted(changes + kept, key=lambda change: change[1] > self._shares[change[0]])
        for reader, share in changes:
            self._shares[reader] = share
            reader._lend(share, one_message=one_message)
