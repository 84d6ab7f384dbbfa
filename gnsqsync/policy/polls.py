"""Pauses between two questions to one nsqlookupd.

Knows counts and seconds. Must not know who asks, clocks or sockets.

Answers and failures are counted, and ``next`` turns the counts into a pause.

Surprise: at first, the next question comes sooner after a failure than after an answer.
"""

from __future__ import annotations

import math
import random
from typing import Final

__all__ = ["EAGER_LONGEST", "EAGER_SECONDS", "RETRY_LONGEST", "PollPauses"]

# Seconds of an eager search, from its first question on, or from the first answer that lists
# nothing any more.
EAGER_SECONDS: Final = 300.0
# Seconds of the first pause (``_EAGER_FIRST``) and of the longest (``EAGER_LONGEST``).
_EAGER_FIRST: Final = 0.25
EAGER_LONGEST: Final = 3.0

# Seconds until a failed nsqlookupd is asked again, at first.
_RETRY_FIRST: Final = 1.0
# Upper bound of those seconds. With jitter and the timeout of a question, they are less than 5 s.
RETRY_LONGEST: Final = 2.5


class PollPauses:
    """Pauses between questions to one nsqlookupd. The interval bounds all of them.

    ==========================  ====================================================
    The last question           Seconds until the next one
    ==========================  ====================================================
    listed something            the interval
    listed nothing, and no      0.25, 0.5, 1, 2, 3, 3 ... for five minutes; then the
    other nsqlookupd does       interval
    listed nothing, but         the interval
    another nsqlookupd does
    failed, and no other        1, 2, 2.5, 2.5 ...
    nsqlookupd answers
    failed, but another         1, 2, 4 ... to the interval
    nsqlookupd answers
    ==========================  ====================================================

    Jitter moves each pause by up to half of ``jitter``, a part of the pause, to either side.
    """

    __slots__ = ("_eager_until", "_failures", "_lists", "_nothing", "_rng")

    def __init__(self, rng: random.Random | None = None) -> None:
        self._rng = rng or random.Random()
        # Questions in a row that failed.
        self._failures = 0
        # True if the last answer listed something.
        self._lists = False
        # Number of answers in a row that listed nothing.
        self._nothing = 0
        # Time at which the eager search ends.
        self._eager_until = -math.inf

    def begin(self, now: float) -> None:
        """Be eager from now on: a new user asks, or the last thing listed is gone."""
        self._nothing = 0
        self._eager_until = now + EAGER_SECONDS

    def answered(self, now: float, *, listed: bool) -> None:
        """Note an answer. ``listed``: it named at least one nsqd or topic."""
        self._failures = 0
        if self._lists and not listed:
            self.begin(now)
        self._lists = listed
        self._nothing = 0 if listed else self._nothing + 1

    def failed(self) -> None:
        """Note a question without a usable answer."""
        self._failures += 1

    def usual(self, now: float, interval: float, *, searching: bool, alone: bool) -> float:
        """Return the seconds until the next question, before the jitter.

        ``searching``: no nsqlookupd lists anything. ``alone``: no other nsqlookupd answers.
        """
        if self._failures:
            pause = _doubled(_RETRY_FIRST, self._failures - 1)
            return min(pause, interval, RETRY_LONGEST if alone else math.inf)
        if searching and not self._lists and now < self._eager_until:
            return min(_doubled(_EAGER_FIRST, self._nothing - 1), EAGER_LONGEST, interval)
        return interval

    def next(
        self, now: float, interval: float, jitter: float, *, searching: bool, alone: bool
    ) -> float:
        """Return the seconds until the next question."""
        pause = self.usual(now, interval, searching=searching, alone=alone)
        return pause * self._rng.uniform(1 - jitter / 2, 1 + jitter / 2)


def _doubled(first: float, times: int) -> float:
    return first * 2.0 ** max(0, min(times, 16))
