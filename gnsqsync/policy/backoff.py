"""Pauses after failures: of messages (Backoff) and of dials (ReconnectDelays).

Knows the arithmetic and the states. Must not know connections, clocks or who waits. ``Evidence``
says when failures are an outage; the two tables of transitions say what follows from that.

Surprise: by the rule of outages, a single failure outside of a test changes nothing. A pause begins
when the Evidence says so.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple

from gnsqsync.foreign import ends_worker
from gnsqsync.policy.evidence import ALMOST, Evidence

__all__ = ["Backoff", "Phase", "ReconnectDelays", "Rule", "Step", "Strategy"]

# A function that returns the seconds of the pause at a level.
Strategy = Callable[[int], float]

# Upper bound of the level. A user's strategy may never reach the ceiling, but each level needs a
# success on the way back. 2**32 seconds is past any ceiling.
_TOP_LEVEL: Final = 32
# Seconds after which a growing Reader has its whole share, however few successes there were.
_GROWTH_SECONDS: Final = 5.0
# Part of a pause that chance may take off, so that consumers do not all test at the same time.
_JITTER: Final = 0.2


class Phase(enum.Enum):
    """The messages that the backoff allows.

    OPEN: all. BLOCKED: none. TESTING: one. GROWING: ``limit``, which doubles with each success.
    """

    OPEN = "open"
    BLOCKED = "blocked"
    TESTING = "testing"
    GROWING = "growing"


class _Signal(enum.Enum):
    """An event in the life of a backoff. The first three are verdicts on answered messages."""

    SUCCESS = enum.auto()
    FAILURE = enum.auto()
    NO_VERDICT = enum.auto()
    # Failures of different messages dominate: the Evidence says so.
    OUTAGE = enum.auto()
    PAUSE_OVER = enum.auto()
    GROWN = enum.auto()


# Table from (phase, signal) to (step of the level, next phase). A missing pair is ignored: verdicts
# during a pause belong to messages delivered before it, and a success while OPEN says nothing. A
# level of 0 always means OPEN.
_Transitions = dict[tuple[Phase, _Signal], tuple[int, Phase]]

# The table for a Reader that only an outage pauses.
_OUTAGES: Final[_Transitions] = {
    (Phase.OPEN, _Signal.OUTAGE): (+1, Phase.BLOCKED),
    (Phase.BLOCKED, _Signal.PAUSE_OVER): (0, Phase.TESTING),
    (Phase.TESTING, _Signal.FAILURE): (+1, Phase.BLOCKED),
    (Phase.TESTING, _Signal.NO_VERDICT): (0, Phase.BLOCKED),
    (Phase.TESTING, _Signal.SUCCESS): (0, Phase.GROWING),
    (Phase.GROWING, _Signal.OUTAGE): (+1, Phase.BLOCKED),
    (Phase.GROWING, _Signal.GROWN): (-_TOP_LEVEL, Phase.OPEN),
}

# The table for the rule of NSQ's guide for clients.
_EVERY_FAILURE: Final[_Transitions] = {
    (Phase.OPEN, _Signal.FAILURE): (+1, Phase.BLOCKED),
    (Phase.BLOCKED, _Signal.PAUSE_OVER): (0, Phase.TESTING),
    (Phase.TESTING, _Signal.FAILURE): (+1, Phase.BLOCKED),
    (Phase.TESTING, _Signal.NO_VERDICT): (0, Phase.BLOCKED),
    (Phase.TESTING, _Signal.SUCCESS): (-1, Phase.BLOCKED),
}


class Rule(enum.Enum):
    """The failures that pause a Reader, and the longest pause in seconds if none is given."""

    OUTAGES = 25.0
    EVERY_FAILURE = 128.0

    @property
    def longest_pause(self) -> float:
        """The default of ``max_backoff_duration``."""
        return self.value


class Step(NamedTuple):
    """A change of the phase, to be reported once the lock under which it was decided is free."""

    phase: Phase
    # Level of the backoff after the change; 0 means OPEN.
    level: int
    # Seconds of the pause that begins now, else 0.
    seconds: float
    # True if the pause is the first one of a climb.
    is_new_climb: bool
    # The messages whose failures led to it, and the seconds in which they failed.
    failures: int
    stretch: float


class Backoff:
    """Slows a Reader down while a system that its handlers need is in trouble.

    A poison message is not an outage: a message that fails alone must not stop the others. The
    default rule tells the two apart::

        1. Count. The first failure of a message adds two. A success takes one off, and so do two
           seconds. Above 28 the Reader pauses, and no message comes. (A message that was delivered
           before counts only while no message succeeds.)
        2. Pause. At level n it lasts 2**n s, at most 25 s, less up to a fifth by chance. Then one
           message comes as a test.
        3. If the test fails, the next pause is a level higher. If it says nothing (the message
           failed here before, or was requeued without backoff), the pause is repeated.
        4. If the test succeeds, two messages may be in flight. That limit doubles with each
           further success, and ends after 5 s. The count stands at 27, so that the next failure
           pauses again, a level higher.
        5. When successes and time have taken the count to 0, the outage is over, and the level
           is 0. For half a minute after a pause, eight failures in a row are enough for the next.

    The Reader therefore pauses when more than a third of the outcomes of a minute are failures, and
    never for fewer than 15 in a minute, or eight soon after a pause. ``Rule.EVERY_FAILURE`` is the
    rule of NSQ's guide for clients: each failure pauses; each success in a test leads one level
    down, after one more pause.

    There is one state for a Reader, not one for each connection. The handlers are in trouble, not
    the nsqds; ten nsqds must not send ten tests; and a reconnect must not forget the level.

    The pause at level n is ``multiplier * 2**n`` seconds for "exponential", a random part of that
    for "full_jitter", ``strategy(n)`` for a callable, and never more than ``max_duration``. At the
    level that reaches ``max_duration``, further failures repeat the pause. ``max_duration=0``
    switches the backoff off. A callable runs under the Reader's lock, so it must only compute. If
    it raises or returns no number, the pause is that of "exponential", and ``error`` keeps the
    error.
    """

    def __init__(
        self,
        max_duration: float | None = None,
        multiplier: float = 1.0,
        strategy: str | Strategy = "exponential",
        rng: random.Random | None = None,
        rule: Rule = Rule.OUTAGES,
    ) -> None:
        # Messages that may come now, by the table of transitions.
        self.phase: Phase = Phase.OPEN
        # Exponent of the pause; above 0 while the phase is not OPEN.
        self.level: int = 0
        # Time at which the pause ends; None without a pause.
        self.resume_at: float | None = None
        # Upper bound of messages in flight while GROWING, else None.
        self.limit: int | None = None
        # The limit of messages in flight without a backoff; set by the owner.
        self.whole: int = 1
        # True if the last pause was the first one of a climb.
        self.is_new_climb: bool = False
        # First error of a callable strategy.
        self.error: BaseException | None = None
        self.evidence: Evidence = Evidence()
        self.rule: Rule = rule
        # Transitions of ``rule``.
        self._table = _OUTAGES if rule is Rule.OUTAGES else _EVERY_FAILURE
        self._max_duration = rule.longest_pause if max_duration is None else max_duration
        self._multiplier = multiplier
        self._strategy = strategy
        self._rng = rng or random.Random()
        # True if a higher level would not make the pause longer.
        self._at_ceiling = False
        # Time at which GROWING ends by itself.
        self._grown_at: float | None = None
        # Level of the last pause. The next one continues that climb while its outage is not over.
        self._last_level = 0

    @property
    def next_at(self) -> float | None:
        """Time at which ``tick()`` changes something; None means never."""
        return self._grown_at if self.resume_at is None else self.resume_at

    @property
    def gives_back(self) -> bool:
        """True while messages that wait in the client must go back to nsqd."""
        return self.phase is Phase.BLOCKED and self.rule is Rule.OUTAGES

    # Verdicts on messages. Each method returns True if RDY must be planned anew.

    def succeeded(self, count: int, now: float) -> bool:
        """Judge successes. Needed while the phase is not OPEN; else ``evidence`` counts them."""
        if self.limit is not None:
            return self._grow(count, now)
        return self._signal(_Signal.SUCCESS, now)

    def failed(self, key: Hashable, tries: int, now: float, counts: bool = True) -> bool:
        """Judge the failure of one message. Call it for each failure.

        ``tries``: the number of deliveries that were handled. Only the first failure of a message
        is evidence. ``counts``: False if the user excuses the failure.
        """
        is_new, dominates = self.evidence.failed(key, tries, now, counts)
        if not counts:
            return self._signal(_Signal.NO_VERDICT, now)
        if self.rule is Rule.EVERY_FAILURE or (is_new and self.phase is Phase.TESTING):
            return self._signal(_Signal.FAILURE, now)
        if dominates:
            return self._signal(_Signal.OUTAGE, now)
        return self._signal(_Signal.NO_VERDICT, now)

    def no_verdict(self, now: float) -> bool:
        """Note an answer that is neither success nor failure: the test message is used up."""
        return self._signal(_Signal.NO_VERDICT, now)

    def step(self, now: float) -> Step:
        """Describe the change that was made just now."""
        pause = 0.0 if self.resume_at is None else self.resume_at - now
        evidence = self.evidence
        stretch = now - evidence.since
        return Step(self.phase, self.level, pause, self.is_new_climb, evidence.failures, stretch)

    def tick(self, now: float) -> bool:
        """End the pause or the growth if its time has come. Return True if one ended."""
        if self.next_at is None or now < self.next_at:
            return False
        is_pause = self.resume_at is not None
        return self._signal(_Signal.PAUSE_OVER if is_pause else _Signal.GROWN, now)

    def set_whole(self, whole: int, now: float) -> bool:
        """Set the limit of messages in flight. A growth that has reached it ends.

        Returns True if the phase changes. A group that lends a Reader's slot to another sets 0
        until the slot is back.
        """
        self.whole = whole
        return self._grow(0, now) if whole else False

    def _grow(self, successes: int, now: float) -> bool:
        if self.limit is None:
            return False
        # min(): the limit has fewer than 32 bits, so more doublings change nothing.
        self.limit <<= min(successes, 32)
        if self.limit >= self.whole:
            return self._signal(_Signal.GROWN, now)
        return successes > 0

    def _signal(self, signal: _Signal, now: float) -> bool:
        transition = self._table.get((self.phase, signal))
        if transition is None or self._max_duration <= 0:
            return False
        step, phase = transition
        before, at_ceiling = self.level, self._at_ceiling
        if self.phase is Phase.OPEN:
            before = 0 if self.evidence.is_over else self._last_level
            at_ceiling = at_ceiling and before > 0
        level = max(0, before + step)
        if step > 0 and (at_ceiling or level > _TOP_LEVEL):
            level = before
        if level == 0:
            phase = Phase.OPEN
        resume_at: float | None = None
        if phase is Phase.BLOCKED:
            # Computed before any assignment: a kill in the user's strategy must not change the
            # state.
            pause, at_ceiling = self._pause(level)
            resume_at = now + pause
            self.is_new_climb = before == 0
        if phase is Phase.GROWING:
            self.limit, self._grown_at = 2, now + _GROWTH_SECONDS
            self.evidence.restart(ALMOST, now)
        else:
            self.limit = self._grown_at = None
        if phase is Phase.OPEN and self.rule is Rule.OUTAGES:
            self._last_level = self.level
        self.phase, self.level, self.resume_at = phase, level, resume_at
        self._at_ceiling = at_ceiling
        if phase is Phase.GROWING:
            self._grow(0, now)
        return True

    def _pause(self, level: int) -> tuple[float, bool]:
        """Return the seconds of the pause, and True if a higher level would not be longer."""
        ceiling = self._max_duration
        if callable(self._strategy):
            try:
                # The comparison is false for NaN, which therefore gives the ceiling.
                wanted = float(self._strategy(level))
                return (max(0.0, wanted), False) if wanted < ceiling else (ceiling, True)
            except BaseException as error:
                # The function is the user's. Its error is kept, to be reported.
                if ends_worker(error):
                    raise
                self.error = self.error or error
        full = self._multiplier * 2.0**level
        pause = min(full, ceiling)
        if self._strategy == "full_jitter":
            pause *= self._rng.random()
        elif self.rule is Rule.OUTAGES:
            pause *= self._rng.uniform(1.0 - _JITTER, 1.0)
        return pause, full >= ceiling


class ReconnectDelays:
    """Pauses between two dials of one address, or two tries of what a relay could not reach.

    Each failure doubles the delay from ``initial`` up to ``maximum`` seconds. Each delay is drawn
    from the upper half of that. So clients that lost the same nsqd at one moment do not all come
    back at one moment. Independent of Backoff: with the backoff off, the client still does not dial
    in a loop.
    """

    __slots__ = ("_initial", "_maximum", "_rng", "_step")

    def __init__(
        self, initial: float = 0.5, maximum: float = 60.0, rng: random.Random | None = None
    ) -> None:
        self._initial = initial
        self._maximum = maximum
        self._rng = rng or random.Random()
        self._step = initial

    def next(self, longest: float = math.inf) -> float:
        """Return the seconds until the next dial: never 0, never above the maximum.

        ``longest``: another maximum, for this pause. A later pause grows from this one.
        """
        full = min(self._step, self._maximum, longest)
        self._step = min(2.0 * full, self._maximum)
        return full * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Start again at ``initial``: the connection proved itself."""
        self._step = self._initial
