"""Pauses of a driver that has nothing to read, inside of Spark's question for the next offset.

Pure: times in, times out. Spark asks the sources of a query one after the other, so a source that
waits holds up all others. Each question includes a look at the nsqds before the answer "nothing":
processAllAvailable() relies on that answer for every message that was published before it.
"""

from __future__ import annotations

__all__ = ["Pauses"]

# Seconds for which a source that is alone goes on looking in one question. Without data Spark asks
# again after 10 ms, and each question costs Spark more than a look at the nsqds costs us.
LONGEST = 1.0
# A source beside others waits for this share of the time since the last batch (_SHARE), and for
# this many seconds at most (_LONGEST_BESIDE). It waits longer if its next look is due later,
# because a look at many nsqds costs more.
_SHARE, _LONGEST_BESIDE = 0.05, 0.2


class Pauses:
    """Decides when one question looks at the nsqds. Times are seconds of one clock.

    Spark commits the last batch of all sources when it makes the next one. A commit since the last
    question therefore means that the query is busy. A second commit of the same epoch means that
    other sources have data and this source has none.
    """

    def __init__(self, now: float) -> None:
        # Time of the last commit.
        self._committed_at = now
        # Time of the last answer.
        self._answered_at = now
        # The epoch of the last commit. Epoch 0 has no rows, so already its first commit means that
        # other sources have data.
        self._epoch = 0
        # True from a commit until the answer to the next question.
        self._busy = False
        # True after a batch without rows of this source.
        self._beside_others = False

    @property
    def is_alone(self) -> bool:
        """True while no other source of the query is known to have data."""
        return not self._beside_others

    def committed(self, epoch: int, now: float) -> None:
        """Note that Spark has begun a batch after the one that ended at ``epoch``."""
        self._beside_others = self._beside_others or epoch == self._epoch
        self._epoch = epoch
        self._busy = True
        self._committed_at = now

    def answered(self, now: float) -> None:
        """Note the end of a question."""
        self._answered_at = now
        self._busy = False

    def look_at(self, now: float, next_look: float) -> float:
        """Return the time of the first look of a question that was asked ``now``.

        ``next_look``: before this time a look would cost too much of a core. A busy query looks
        once for each batch without that limit, because the batch costs more than the look.
        """
        if self.is_alone:
            return max(now, next_look)
        if self._busy:
            return now
        # The wait counts from the last answer, so it includes the waits of the other sources.
        share = self._answered_at + _SHARE * (now - self._committed_at)
        return max(now, min(share, max(self._answered_at + _LONGEST_BESIDE, next_look)))

    def last_look_at(self, now: float) -> float:
        """Return the time until which a question that was asked ``now`` goes on looking."""
        return now + LONGEST if self.is_alone else now
