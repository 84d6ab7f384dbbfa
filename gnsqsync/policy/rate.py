"""How many messages a Reader may be sent now, at so many a second.

A token bucket. Takes the time as an argument; knows no RDY and no connection.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["RateLimit"]

# Tokens are handed out at most each so many seconds: at a high rate several at a time, but no more
# than a quarter of the burst, so that none is lost in a full bucket.
_STEP_SECONDS: Final = 0.02


class RateLimit:
    """``rate`` tokens a second, of which it keeps ``burst`` at most. Each message takes one.

    It may fall into debt, by messages that were on the wire when their RDY was lowered: then there
    is none until that is made up for. So in any time t it grants ``rate * t + burst`` at most.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._step = min(_STEP_SECONDS, burst / (4 * rate))
        self._tokens = float(burst)
        self._at = -math.inf

    def take(self, count: int, now: float) -> None:
        """So many messages have come."""
        self._fill(now)
        self._tokens -= count

    def tokens(self, now: float) -> int:
        """How many messages may come now."""
        self._fill(now)
        return max(0, math.floor(self._tokens))

    def next_at(self, now: float) -> float:
        """When there are more tokens than now; some at a time where the rate is high."""
        self._fill(now)
        missing = max(math.floor(self._tokens) + 1, 1) - self._tokens
        return now + max(missing / self._rate, self._step)

    def _fill(self, now: float) -> None:
        if now > self._at:
            if self._at > -math.inf:
                self._tokens = min(self._tokens + (now - self._at) * self._rate, self._burst)
            self._at = now
