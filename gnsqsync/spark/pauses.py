"""Pauses of a driver that has nothing to read, inside of Spark's question for the next offset.

Pure: times in, times out. Spark asks the sources of a query one after the other, so a source that
waits holds up all others. Each question looks at the nsqds before it says no, because
processAllAvailable() takes a no for the truth about all that was published before.
"""

from __future__ import annotations

__all__ = ["Pauses"]

# Without data Spark asks again after 10 ms, which costs Spark more than the look at nsqds costs us.
# So a source that is alone goes on looking for this many seconds in a question.
LONGEST = 1.0
# A source beside others waits this part of the time since the last batch. It waits this many
# seconds at most, or until its next look may be: a look at many nsqds costs more.
_SHARE, _LONGEST_BESIDE = 0.05, 0.2


class Pauses:
    """Decides when one question looks at the nsqds. Times are seconds of one clock.

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

        ``next_look`` is the time before which a look would cost too much of a core. A busy query
        has one look for each batch, which costs more than the look.
        """
        if self.is_alone:
            return max(now, next_look)
        if self._busy:
            return now
        # If others wait, too, the wait of one of them is enough.
        share = self._answered_at + _SHARE * (now - self._committed_at)
        return max(now, min(share, max(self._answered_at + _LONGEST_BESIDE, next_look)))

    def last_look_at(self, now: float) -> float:
        """Return the time until which a question that was asked ``now`` goes on looking."""
        return now + LONGEST if self.is_alone else now
