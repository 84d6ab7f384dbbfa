"""Whose turn it is to read from a connection: its reading thread's, or a caller's.

Knows no frame and no socket.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from gnsqsync.errors import ConnectionLost
from gnsqsync.policy.ownership import lost_at
from gnsqsync.runtime import Latch, Runtime

__all__ = ["Caller", "ReadTurn", "TurnState"]

# How often the reading thread looks, while callers read, whether they still do.
LOOK_SECONDS = 0.1


class TurnState(Enum):
    """Which thread reads now, and which is next."""

    # The reading thread reads, or is just waking up to it.
    READING_THREAD = "reading thread"
    # Nobody reads. The next caller may; the reading thread looks now and then.
    FREE = "free"
    # A caller reads, or has been woken to read.
    CALLER = "caller"
    # A caller reads; the reading thread is next.
    RECALLED = "recalled"
    # A caller met the end. The reading thread ends the connection.
    FAILED = "failed"


# Looked at in each publish: a global is quicker than an attribute of an enum.
_READING_THREAD = TurnState.READING_THREAD
_FREE = TurnState.FREE
_CALLER = TurnState.CALLER
_RECALLED = TurnState.RECALLED
_FAILED = TurnState.FAILED


class Caller(Protocol):
    """One that waits for an answer, and reads it by itself when it has the turn."""

    @property
    def done(self) -> bool:
        """Whether it has its answer."""

    @property
    def latch(self) -> Latch | None:
        """Released when it is given the turn; it must be there while the caller waits."""


class ReadTurn:
    """The turn to read from one connection.

    It is the reading thread's at first. ``lend`` gives it to callers, of which one at a time has
    it and gives it on; ``look`` takes it back when none uses it. So a lone caller pays for no other
    thread, and a connection that nobody uses is watched by its own.

    Where each state leads, and by which method:

    * READING_THREAD: FREE, or CALLER where one waits, by ``lend``.
    * FREE: CALLER by ``take`` and ``join``; READING_THREAD by ``look`` and ``recall``.
    * CALLER: the next CALLER, FREE or READING_THREAD by ``release``; RECALLED by ``look`` and
      ``recall``; FAILED by ``fail``.
    * RECALLED: READING_THREAD by ``release``; FAILED by ``fail``.

    ``_mutex`` guards all fields. Nothing waits under it.
    """

    def __init__(self, runtime: Runtime, nsqd_address: str) -> None:
        self.state: TurnState = _READING_THREAD
        self._nsqd_address = nsqd_address
        self._now = runtime.now
        self._mutex = runtime.mutex()
        # The caller that reads, in the states CALLER and RECALLED, and its deadline.
        self._owner: Caller | None = None
        self._deadline = 0.0
        # Those that wait for the turn, each with its deadline.
        self._waiting: dict[Caller, float] = {}
        # Whether a caller had the turn since the reading thread looked.
        self._used = False
        self._failure: BaseException | None = None
        # Set when the reading thread has something to see.
        self._called = runtime.event()

    # -- callers -----------------------------------------------------------------------------

    @property
    def is_lent(self) -> bool:
        """Whether callers read, and go on doing so."""
        return self.state is _FREE or self.state is _CALLER

    @property
    def has_waiting(self) -> bool:
        """Whether a caller waits for the turn."""
        return bool(self._waiting)

    def take(self, caller: Caller, deadline: float) -> bool:
        """Whether the turn was free. Then it is the caller's, until ``release``."""
        # Without the mutex: one that finds it used waits by ``join``, which looks again.
        if self.state is not _FREE:
            return False
        with self._mutex:
            if self.state is not _FREE:
                return False
            self._give(caller, deadline)
            return True

    def join(self, caller: Caller, deadline: float) -> bool:
        """As ``take``; where the turn is not free, wait for it: the caller's latch tells."""
        with self._mutex:
            if self.state is _FREE:
                self._give(caller, deadline)
                return True
            self._waiting[caller] = deadline
            return False

    def leave(self, caller: Caller) -> bool:
        """Stop waiting. Whether the turn has been given to the caller."""
        with self._mutex:
            self._waiting.pop(caller, None)
            return self._owner is caller

    def release(self, caller: Caller, *, unread: object, wanted: object) -> None:
        """Stop waiting, and give the turn on if it is the caller's. However its wait ended.

        ``unread`` is true when answers are due that no caller reads for itself: with none waiting,
        the reading thread is next. ``wanted`` is true when that thread has something to do at once.
        """
        waiting = self._waiting
        with self._mutex:
            if waiting:
                waiting.pop(caller, None)
            if self._owner is not caller or self.state is _FAILED:
                return
            if self.state is _RECALLED or wanted:
                self._call_back()
                return
            latch = self._give_to_next() if waiting else None
            if latch is None:
                if unread:
                    self._call_back()
                else:
                    self.state = _FREE
                    # After the change. It would keep the bytes of its publish.
                    self._owner = None
                return
        latch.release()

    def fail(self, caller: Caller, error: BaseException) -> None:
        """The caller met the end of the connection: nobody reads any more."""
        with self._mutex:
            if self._owner is caller:
                self._failure = error
                self.state = _FAILED
                self._called.set()

    def recall(self) -> None:
        """Have the reading thread read, as soon as the caller that reads now has its answer."""
        with self._mutex:
            if self.state is _FREE:
                self._call_back()
            elif self.state is _CALLER:
                self.state = _RECALLED

    # -- the reading thread ------------------------------------------------------------------

    def lend(self) -> None:
        """Let callers read. Until ``look`` says so, the turn is not the reading thread's."""
        with self._mutex:
            self._called.clear()
            latch = self._give_to_next()
            if latch is None:
                self._used = True
                self.state = _FREE
        if latch is not None:
            latch.release()

    def look(self) -> bool:
        """Wait 0.1 s, or until called. Whether the turn is the reading thread's again.

        Raises what a caller met, and ConnectionLost when one was killed while it had the turn.
        """
        self._called.wait(LOOK_SECONDS)
        self._called.clear()
        with self._mutex:
            used, self._used = self._used, False
            if self.state is _FREE and not used:
                self.state = _READING_THREAD
            elif self.state is _CALLER and not used:
                self.state = _RECALLED
            state, failure = self.state, self._failure
            deserted = self._now() >= lost_at(self._deadline)
        if failure is not None:
            raise failure
        if deserted and state in (_CALLER, _RECALLED):
            raise ConnectionLost(f"the publisher that read from {self._nsqd_address} was killed")
        return state is _READING_THREAD

    # -- holding the mutex -------------------------------------------------------------------

    def _give(self, caller: Caller, deadline: float) -> None:
        self._used = True
        self._deadline = deadline
        # In this order: an exception from outside between the two leaves a turn that is released.
        self._owner = caller
        self.state = _CALLER

    def _give_to_next(self) -> Latch | None:
        """To the newest that waits: its own answer comes after those of all others."""
        while self._waiting:
            caller, deadline = self._waiting.popitem()
            if not caller.done:
                self._give(caller, deadline)
                assert caller.latch is not None
                return caller.latch
        return None

    def _call_back(self) -> None:
        self.state = _READING_THREAD
        self._called.set()
        self._owner = None
