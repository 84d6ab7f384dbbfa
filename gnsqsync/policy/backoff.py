"""How long to hold back after failures: of messages (Backoff) and of dials (ReconnectDelays).

Knows the arithmetic and the states. Must not know connections, clocks or who waits.
"""

from __future__ import annotations

import enum
import math
import random
from collections.abc import Callable
from typing import Final

from gnsqsync.foreign import ends_worker

__all__ = ["Backoff", "Phase", "ReconnectDelays", "Strategy"]

Strategy = Callable[[int], float]

# One success leads one level down, so a strategy that never reaches the ceiling must not climb for
# ever. 2**32 seconds is past any ceiling.
_TOP_LEVEL: Final = 32


class Phase(enum.Enum):
    """What the backoff allows: OPEN everything, BLOCKED nothing, TESTING one message."""

    OPEN = "open"
    BLOCKED = "blocked"
    TESTING = "testing"


class _Signal(enum.Enum):
    """What can happen to a backoff. The first three are verdicts of answered messages."""

    SUCCESS = enum.auto()
    FAILURE = enum.auto()
    NO_VERDICT = enum.auto()
    PAUSE_OVER = enum.auto()


# (phase, signal) -> (step of the level, next phase). What is missing is ignored: verdicts during
# a pause belong to messages delivered before it, and while OPEN only failures say anything.
# A level of 0 is OPEN, whatever the table says.
_TRANSITIONS: Final = {
    (Phase.OPEN, _Signal.FAILURE): (+1, Phase.BLOCKED),
    (Phase.BLOCKED, _Signal.PAUSE_OVER): (0, Phase.TESTING),
    (Phase.TESTING, _Signal.SUCCESS): (-1, Phase.BLOCKED),
    (Phase.TESTING, _Signal.FAILURE): (+1, Phase.BLOCKED),
    (Phase.TESTING, _Signal.NO_VERDICT): (0, Phase.BLOCKED),
}


class Backoff:
    """Slows a reader down while its handlers fail, because what they depend on is in trouble.

    A handler mostly fails because of something that it uses (a database, an API), and the next
    thousand messages would fail too. So after a failure nothing is asked for during a
    pause; then a single message is let through as a test, from one nsqd: its success shortens
    the next pause (a level down), its failure lengthens it (a level up), and at level 0 the reader
    runs freely again. There is one state per reader and none per connection: the handlers are in
    trouble and not the nsqds, ten nsqds must not send ten tests, and a reconnect must not forget.

    The pause at level n is ``multiplier * 2**n`` seconds for "exponential", a random part of it
    for "full_jitter", ``strategy(n)`` for a callable; never more than ``max_duration``. At the
    level that reaches ``max_duration`` further failures repeat the pause, so that leaving takes as
    many successes as there are levels (7 at the defaults). ``max_duration=0`` switches it off.
    A callable runs under the reader's lock: it has to be arithmetic and nothing else. Where it
    raises, or returns no number, the pause is that of "exponential"; see ``error``.
    """

    def __init__(
        self,
        max_duration: float = 128.0,
        multiplier: float = 1.0,
        strategy: str | Strategy = "exponential",
        rng: random.Random | None = None,
    ) -> None:
        self.phase: Phase = Phase.OPEN
        # Above 0 while the phase is not OPEN.
        self.level: int = 0
        self.resume_at: float | None = None
        # What a callable strategy raised when it did so first.
        self.error: BaseException | None = None
        self._max_duration = max_duration
        self._multiplier = multiplier
        self._strategy = strategy
        self._rng = rng or random.Random()
        self._at_ceiling = False

    def note(self, successes: int, failures: int, now: float) -> bool:
        """Judge what became of messages: how many succeeded, how many failed with backoff.

        Call it for failures always, for the rest only while the level is above 0. Any failure
        outweighs the successes. (0, 0) are messages that say neither, requeued without backoff:
        the test message is used up, so the pause is repeated. Returns whether the phase changed.
        """
        if failures:
            return self._signal(_Signal.FAILURE, now)
        if successes:
            return self._signal(_Signal.SUCCESS, now)
        return self._signal(_Signal.NO_VERDICT, now)

    def tick(self, now: float) -> bool:
        """Let the pause end when its time has come. Returns whether the phase changed."""
        if self.resume_at is None or now < self.resume_at:
            return False
        return self._signal(_Signal.PAUSE_OVER, now)

    def _signal(self, signal: _Signal, now: float) -> bool:
        transition = _TRANSITIONS.get((self.phase, signal))
        if transition is None or self._max_duration <= 0:
            return False
        step, phase = transition
        level = self.level + step
        if step > 0 and (self._at_ceiling or level > _TOP_LEVEL):
            level = self.level
        if level == 0:
            phase = Phase.OPEN
        resume_at: float | None = None
        at_ceiling = self._at_ceiling
        if phase is Phase.BLOCKED:
            # Before any assignment: what ends a strategy from outside leaves the state as it was.
            pause, at_ceiling = self._pause(level)
            resume_at = now + pause
        elif phase is Phase.OPEN:
            at_ceiling = False
        self.phase, self.level, self.resume_at = phase, level, resume_at
        self._at_ceiling = at_ceiling
        return True

    def _pause(self, level: int) -> tuple[float, bool]:
        """Seconds to pause at this level, and whether a higher level could not be longer."""
        ceiling = self._max_duration
        if callable(self._strategy):
            try:
                # Written so that a NaN gives the ceiling.
                wanted = float(self._strategy(level))
                return (max(0.0, wanted), False) if wanted < ceiling else (ceiling, True)
            except BaseException as error:
                # The function is the user's; what it raises is kept, to be told.
                if ends_worker(error):
                    raise
                self.error = self.error or error
        full = self._multiplier * 2.0**level
        pause = min(full, ceiling)
        if self._strategy == "full_jitter":
            pause *= self._rng.random()
        return pause, full >= ceiling


class ReconnectDelays:
    """How long to wait before the next dial of one address.

    Each failure doubles the delay from ``initial`` up to ``maximum`` seconds, and each delay is
    drawn from the upper half of that, so that clients which lost the same nsqd at the same moment
    do not come back at the same moment. Independent of Backoff: switching that off does
    not make the client dial in a loop.
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
