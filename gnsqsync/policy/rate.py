"""Rate limit of a Reader: a token bucket that tells how many messages may come now.

Takes the time as an argument. Must not know RDY or a connection.

``take`` counts the messages that came, and ``tokens`` says how many more may come.

Surprise: the bucket may be in debt, because messages were on the wire when RDY was lowered. No
message may come until the debt is paid.
"""

from __future__ import annotations

import math
from typing import Final

__all__ = ["RateLimit"]

# Seconds between two grants of tokens: at a high rate several at a time, but no more than a quarter
# of the burst, so that none is lost in a full bucket.
_STEP_SECONDS: Final = 0.02


class RateLimit:
    """Bucket that gains ``rate`` tokens a second and holds ``burst``. Each message takes one.

    Messages that were on the wire when RDY was lowered may bring it into debt. It then grants none
    until the debt is paid. In any time t it grants at most ``rate * t + burst``.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = burst
        self._step = min(_STEP_SECONDS, burst / (4 * rate))
        self._tokens = float(burst)
        self._at = -math.inf

    def take(self, count: int, now: float) -> None:
        """Note that ``count`` messages have come."""
        self._fill(now)
        self._tokens -= count

    def tokens(self, now: float) -> int:
        """Return the number of messages that may come now."""
        self._fill(now)
        return max(0, math.floor(self._tokens))

    def next_at(self, now: float) -> float:
        """Return the time of the next tokens; at a high rate, of several at once."""
        self._fill(now)
        missing = max(math.floor(self._tokens) + 1, 1) - self._tokens
        return now + max(missing / self._rate, self._step)

    def _fill(self, now: float) -> None:
        if now > self._at:
            if self._at > -math.inf:
                self._tokens = min(self._tokens + (now - self._at) * self._rate, self._burst)
            self._at = now
