"""Turn to read from one connection: it belongs to the reading thread or to one caller.

Knows no frame and no socket. The table of states is in the docstring of ReadTurn.

Surprise: ``take`` and ``release`` run in each publish, so their usual paths avoid the mutex or a
call. Both rely on the order of two assignments.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from gnsqsync.errors import ConnectionLost
from gnsqsync.policy.ownership import lost_at
from gnsqsync.runtime import Latch, Runtime

__all__ = ["Caller", "ReadTurn", "TurnState"]

# Seconds between two looks of the reading thread at whether callers still read.
LOOK_SECONDS = 0.1


class TurnState(Enum):
    """State of the turn: which thread reads now, and which is next."""

    # The reading thread reads, or is about to.
    READING_THREAD = "reading thread"
    # Free: no thread reads. The next caller may read; the reading thread looks now and then.
    FREE = "free"
    # A caller reads, or has been woken to read.
    CALLER = "caller"
    # A caller met the end of the connection. The reading thread has to end it.
    FAILED = "failed"


# Globals, because each publish looks at them and an enum's attribute is slower: ``_FREE``,
# ``_CALLER``, ``_FAILED``, and
_READING_THREAD = TurnState.READING_THREAD
_FREE = TurnState.FREE
_CALLER = TurnState.CALLER
_FAILED = TurnState.FAILED


class Caller(Protocol):
    """A publisher or worker that waits, and reads for itself when it gets the turn."""

    @property
    def done(self) -> bool:
        """True once the caller has its answer."""

    @property
    def latch(self) -> Latch | None:
        """Latch that is released with the turn. The caller sets it, then looks at ``owner``."""


class ReadTurn:
    """The turn to read from one connection.

    The reading thread has the turn at first. ``lend`` gives it to callers: one at a time holds it
    and passes it on. ``look`` takes it back when no caller uses it. So a lone caller needs no other
    thread, and its own thread watches an idle connection. A caller is a publisher, or the only
    worker of a Reader.

    The transitions of each state, and their methods:

    * READING_THREAD: ``lend`` leads to CALLER if one waits, else to FREE.
    * FREE: ``take`` leads to CALLER; ``look`` and ``recall`` lead to READING_THREAD.
    * CALLER: ``release`` leads to the next CALLER, to FREE, or after a recall (by ``look`` or
      ``recall``) to READING_THREAD; ``fail`` leads to FAILED.

    ``_mutex`` guards all fields, and no thread waits while it holds it. Two steps take no mutex.
    First, the caller that holds the turn is the only thread that changes ``state``, so it may set
    FREE; it then looks whether another caller began to wait before that. Second, a caller that
    removes itself from ``_waiting`` cannot be given the turn any more.
    """

    def __init__(self, runtime: Runtime, nsqd_address: str) -> None:
        self.state: TurnState = _READING_THREAD
        self._nsqd_address = nsqd_address
        self._now = runtime.now
        self._mutex = runtime.mutex()
        # The caller that reads, in state CALLER.
        self.owner: Caller | None = None
        # Time in seconds at which the owner will have stopped, unless it was killed.
        self._deadline = 0.0
        # Callers that wait for the turn, with their deadlines; the newest is last.
        self._waiting: dict[Caller, float] = {}
        # True if the reading thread gets the turn next, even when callers wait.
        self._recalled = False
        # True if a caller had the turn since the last look of the reading thread.
        self._used = False
        # Error that a caller met, in state FAILED. The reading thread raises it.
        self._failure: BaseException | None = None
        # Set to wake the reading thread out of ``look``.
        self._called = runtime.event()

    # -- callers -----------------------------------------------------------------------------

    @property
    def is_lent(self) -> bool:
        """True while callers read and the reading thread is not next."""
        return (self.state is _FREE or self.state is _CALLER) and not self._recalled

    @property
    def has_waiting(self) -> bool:
        """True while a caller waits for the turn."""
        return bool(self._waiting)

    def take(self, caller: Caller, deadline: float) -> bool:
        """Take the turn. Return True if it was free; the caller then holds it until ``release``.

        Return False if the caller has to wait until ``leave``; ``owner`` and its latch tell.
        """
        with self._mutex:
            if self.state is _FREE:
                # ``_give`` written out, since each publish comes here. Order matters: a kill
                # between the two last lines leaves a turn with an owner, which ``release`` gives
                # back.
                self._used = True
                self._deadline = deadline
                self.owner = caller
                self.state = _CALLER
                return True
            self._waiting[caller] = deadline
            if self.state is not _FREE:
                return False
            # The turn became free between the first look and the entry in ``_waiting``.
            del self._waiting[caller]
            self._give(caller, deadline)
            return True

    def leave(self, caller: Caller) -> bool:
        """Stop waiting. Return True if the turn was given to the caller."""
        # A caller still in ``_waiting`` was never given the turn. A caller with an answer does not
        # need it, unless the answer is the end of the connection, when no thread needs the turn.
        if self._waiting.pop(caller, None) is not None or caller.done:
            return False
        with self._mutex:
            return self.owner is caller

    def release(self, caller: Caller, unread: object, wanted: object) -> None:
        """Stop waiting, and pass the turn on if the caller holds it, whatever ended its wait.

        ``unread``: true if answers are due that no caller reads for itself; without a waiting
        caller, the reading thread is then next. ``wanted``: true if the reading thread has to act
        at once.
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
        """Report that the caller met the end of the connection, so that no thread reads on."""
        with self._mutex:
            if self.owner is caller:
                self._failure = error
                self.state = _FAILED
                self.owner = None
                self._called.set()

    def recall(self) -> None:
        """Give the turn to the reading thread, as soon as the caller that reads has its answer."""
        with self._mutex:
            if self.state is _CALLER:
                self._recalled = True
            if self.state is _FREE:
                self._call_back()

    # -- the reading thread ------------------------------------------------------------------

    def lend(self) -> None:
        """Let callers read. The turn is theirs until ``look`` returns True."""
        with self._mutex:
            self._called.clear()
            following = self._give_to_next()
            if following is None:
                self._used = True
                self.state = _FREE
        if following is not None:
            _wake(following)

    def look(self) -> bool:
        """Wait 0.1 s, or until called. Return True if the reading thread has the turn again.

        Raises the error that a caller met, and ConnectionLost if the caller with the turn was
        killed.
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
            raise ConnectionLost(f"the thread that read from {self._nsqd_address} was killed")
        return state is _READING_THREAD

    # -- holding the mutex -------------------------------------------------------------------

    def _give(self, caller: Caller, deadline: float) -> None:
        self._used = True
        self._deadline = deadline
        # Order matters: the caller begins as soon as it sees itself in ``owner``.
        self.state = _CALLER
        self.owner = caller

    def _give_to_next(self) -> Caller | None:
        """Give the turn to the newest waiting caller: its answer comes after all others'."""
        while self._waiting:
            try:
                caller, deadline = self._waiting.popitem()
            except KeyError:
                break  # the last waiting caller has just left
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
    """Wake a caller that was given the turn. Without a latch, it has yet to look at ``owner``."""
    if caller.latch is not None:
        caller.latch.release()
