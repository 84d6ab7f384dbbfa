"""Pauses of a driver that has nothing to read, inside of Spark's question for the next offset.

Pure: times in, times out. Spark asks the sources of a query one after the other, so a source that
waits holds up all others.
"""

from __future__ import annotations

__all__ = ["Pauses"]

# Without data Spark asks again after 10 ms, which costs Spark more than the look at nsqds costs us.
# So a source that is alone waits this many seconds in a question.
LONGEST = 1.0
# A source beside others waits this part of the time since the last batch, and this many seconds.
_SHARE, _LONGEST_BESIDE = 0.05, 0.2


class Pauses:
    """Decides until when one question may wait. Times are seconds of one clock.

    Spark commits the last batch of all sources when it makes the next one. So a commit since the
    last question means that the query is busy, and a commit of the same epoch again means that
    others have data, and this source has none.
    """

    def __init__(self, now: float) -> None:
        self._committed_at = now
        self._answered_at = now
        # Epoch 0 has no rows, so a first commit of it means that others have data.
        self._epoch = 0
        # True from a commit until the answer to the next question.
        self._busy = False
        # True after a batch without rows of this source.
        self._beside_others = False

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

    def until(self, now: float) -> float:
        """Return the time at which a question that was asked ``now`` must have its answer."""
        if not self._beside_others:
            # A source that is alone looks before it says no, as processAllAvailable() relies on it.
            return now + LONGEST
        if self._busy:
            return now
        # If others wait, too, the wait of one of them is enough.
        idle = now - self._committed_at
        return self._answered_at + min(_SHARE * idle, _LONGEST_BESIDE)
