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
    # A caller met the end. The reading thread ends the connection.
    FAILED = "failed"


# Looked at in each publish: a global is quicker than an attribute of an enum.
_READING_THREAD = TurnState.READING_THREAD
_FREE = TurnState.FREE
_CALLER = TurnState.CALLER
_FAILED = TurnState.FAILED


class Caller(Protocol):
    """One that waits for an answer, or a message, and reads it by itself when it has the turn."""

    @property
    def done(self) -> bool:
        """Whether it has its answer."""

    @property
    def latch(self) -> Latch | None:
        """Released when it is given the turn. A caller sets it, and looks at ``owner`` then."""


class ReadTurn:
    """The turn to read from one connection.

    It is the reading thread's at first. ``lend`` gives it to callers, of which one at a time has
    it and gives it on; ``look`` takes it back when none uses it. So a lone caller pays for no other
    thread, and a connection that nobody uses is watched by its own. A caller is a publisher, or the
    only worker of a Reader.

    Where each state leads, and by which method:

    * READING_THREAD: FREE, or CALLER where one waits, by ``lend``.
    * FREE: CALLER by ``take``; READING_THREAD by ``look`` and ``recall``.
    * CALLER: the next CALLER, FREE or READING_THREAD by ``release``, READING_THREAD whenever it
      was recalled by ``look`` or ``recall``; FAILED by ``fail``.

    ``_mutex`` guards all fields, and nothing waits under it. Two steps do without it. A caller that
    has the turn, which is then the only one that changes ``state``, may set FREE; it then looks
    whether somebody came before that. And one that takes itself out of ``_waiting`` is given
    nothing any more.
    """

    def __init__(self, runtime: Runtime, nsqd_address: str) -> None:
        self.state: TurnState = _READING_THREAD
        self._nsqd_address = nsqd_address
        self._now = runtime.now
        self._mutex = runtime.mutex()
        # The caller that reads, in the state CALLER, and its deadline.
        self.owner: Caller | None = None
        self._deadline = 0.0
        # Those that wait for the turn, each with its deadline.
        self._waiting: dict[Caller, float] = {}
        # Whether the reading thread is next, also when callers wait.
        self._recalled = False
        # Whether a caller had the turn since the reading thread looked.
        self._used = False
        self._failure: BaseException | None = None
        # Set when the reading thread has something to see.
        self._called = runtime.event()

    # -- callers -----------------------------------------------------------------------------

    @property
    def is_lent(self) -> bool:
        """Whether callers read, and go on doing so."""
        return (self.state is _FREE or self.state is _CALLER) and not self._recalled

    @property
    def has_waiting(self) -> bool:
        """Whether a caller waits for the turn."""
        return bool(self._waiting)

    def take(self, caller: Caller, deadline: float) -> bool:
        """Whether the turn was free: it is the caller's, until ``release``.

        Else the caller waits for it, until ``leave``: ``owner`` tells, and its latch.
        """
        with self._mutex:
            if self.state is _FREE:
                # As ``_give``, without a call: each publish comes here. In this order: an
                # exception from outside between the two leaves a turn that is released.
                self._used = True
                self._deadline = deadline
                self.owner = caller
                self.state = _CALLER
                return True
            self._waiting[caller] = deadline
            if self.state is not _FREE:
                return False
            # It became free in between.
            del self._waiting[caller]
            self._give(caller, deadline)
            return True

    def leave(self, caller: Caller) -> bool:
        """Stop waiting. Whether the turn has been given to the caller."""
        # One that is still there is given nothing, nor is one that has its answer. An answer that
        # comes later than the turn is the end of the connection, when nobody needs the turn.
        if self._waiting.pop(caller, None) is not None or caller.done:
            return False
        with self._mutex:
            return self.owner is caller

    def release(self, caller: Caller, unread: object, wanted: object) -> None:
        """Stop waiting, and give the turn on if it is the caller's. However its wait ended.

        ``unread`` is true when answers are due that no caller reads for itself: with none waiting,
        the reading thread is next. ``wanted`` is true when that thread has something to do at once.
        """
        if not (unread or wanted or self._waiting or self._recalled) and self.owner is caller:
            self.owner = None
            self.state = _FREE
            if not (self._waiting or self._recalled):
                return
        following = None
        with self._mutex:
            self._waiting.pop(caller, None)
            if self.owner is caller or self.state is _FREE:
                if wanted or self._recalled:
                    self._call_back()
                elif (following := self._give_to_next()) is None:
                    if unread:
                        self._call_back()
                    else:
                        self.owner = None
                        self.state = _FREE
        if following is not None:
            _wake(following)

    def fail(self, caller: Caller, error: BaseException) -> None:
        """The caller met the end of the connection: nobody reads any more."""
        with self._mutex:
            if self.owner is caller:
                self._failure = error
                self.state = _FAILED
                self.owner = None
                self._called.set()

    def recall(self) -> None:
        """Have the reading thread read, as soon as the caller that reads now has its answer."""
        with self._mutex:
            if self.state is _CALLER:
                self._recalled = True
            if self.state is _FREE:
                self._call_back()

    # -- the reading thread ------------------------------------------------------------------

    def lend(self) -> None:
        """Let callers read. Until ``look`` says so, the turn is not the reading thread's."""
        with self._mutex:
            self._called.clear()
            following = self._give_to_next()
            if following is None:
                self._used = True
                self.state = _FREE
        if following is not None:
            _wake(following)

    def look(self) -> bool:
        """Wait 0.1 s, or until called. Whether the turn is the reading thread's again.

        Raises what a caller met, and ConnectionLost when one was killed while it had the turn.
        """
        self._called.wait(LOOK_SECONDS)
        self._called.clear()
        with self._mutex:
            used, self._used = self._used, False
            if self.state is _CALLER and not used:
                self._recalled = True
            if self.state is _FREE and not used:
                self._recalled = False
                self.state = _READING_THREAD
            state, failure = self.state, self._failure
            deserted = self._now() >= lost_at(self._deadline)
        if failure is not None:
            raise failure
        if deserted and state is _CALLER:
            raise ConnectionLost(f"the one that read from {self._nsqd_address} was killed")
        return state is _READING_THREAD

    # -- holding the mutex -------------------------------------------------------------------

    def _give(self, caller: Caller, deadline: float) -> None:
        self._used = True
        self._deadline = deadline
        # In this order: the caller begins as soon as it sees itself there.
        self.state = _CALLER
        self.owner = caller

    def _give_to_next(self) -> Caller | None:
        """To the newest that waits: its own answer comes after those of all others."""
        while self._waiting:
            try:
                caller, deadline = self._waiting.popitem()
            except KeyError:
                break  # the last one has just left
            if not caller.done:
                self._give(caller, deadline)
                return caller
        return None

    def _call_back(self) -> None:
        self._recalled = False
        self.state = _READING_THREAD
        self._called.set()
        self.owner = None


def _wake(caller: Caller) -> None:
    """It has the turn now. Without a latch it has not looked yet."""
    if caller.latch is not None:
        caller.latch.release()
