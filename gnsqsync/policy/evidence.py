"""Evidence of an outage: failures of different messages against successes.

Knows counts, moments and keys of messages. Must not know pauses, connections or clocks.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

__all__ = ["ALMOST", "ENOUGH", "IN_A_ROW", "MOST_KNOWN", "Evidence"]

# Weights of an outcome. With these a third of failures is the border.
_FAILURE: Final = 2
_SUCCESS: Final = 1
# Above this count failures dominate: 15 in quick succession are enough.
ENOUGH: Final = 28
# The count from which the next failure is enough.
ALMOST: Final = 27
# A second takes that much off: the evidence of a minute ago is gone.
_PER_SECOND: Final = 0.5
# Upper bound of remembered messages; the one that was noted longest ago is forgotten first. A fifth
# of 20 messages a second that fail five times in 15 minutes are 3,600.
MOST_KNOWN: Final = 10_000
# Different messages that failed without a success between, from which it is worth a line.
IN_A_ROW: Final = 5


class Evidence:
    """Counts failures of different messages, less the successes and what time takes off.

    A message is evidence once. A process that starts beside a channel of poison messages must not
    take them for an outage: a message that nsqd has delivered before may have failed elsewhere, so
    its failure counts only while no message succeeds.

    ``successes`` is added to by workers without a lock: a lost count changes nothing. The rest is
    under the lock of the owner.
    """

    __slots__ = (
        "_at",
        "_failed",
        "_row",
        "_seen",
        "count",
        "failures",
        "in_a_row",
        "since",
        "successes",
    )

    def __init__(self) -> None:
        # Total of successes.
        self.successes: int = 0
        # Count of messages that failed on their first try.
        self.count: float = 0.0
        # Count of all messages that failed since the last success.
        self._row = 0.0
        # Failures that were counted, and since when (seconds), as the counts last rose from 0.
        self.failures: int = 0
        self.since: float = 0.0
        # Different messages that failed since the last success.
        self.in_a_row: int = 0
        # Value of ``successes`` at the last failure, and the moment of that failure.
        self._seen = 0
        self._at = 0.0
        # Messages that failed here, the latest at the end.
        self._failed: dict[Hashable, None] = {}

    def failed(
        self, key: Hashable, tries: int, now: float, counts: bool = True
    ) -> tuple[bool, bool]:
        """Note a failure. Return True if the message has not failed here before; if enough have.

        ``tries``: the number of deliveries of the message, as far as it was handled then.
        ``counts``: False for a failure that is no evidence.
        """
        self._go_on(now)
        is_new = key not in self._failed
        if is_new:
            if len(self._failed) >= MOST_KNOWN:
                del self._failed[next(iter(self._failed))]
            self.in_a_row += 1
        else:
            del self._failed[key]
        self._failed[key] = None
        if not (is_new and counts):
            return is_new, False
        self.failures += 1
        self._row += _FAILURE
        if tries <= 1:
            self.count += _FAILURE
        return True, max(self.count, self._row) > ENOUGH

    def _go_on(self, now: float) -> None:
        """Take off the successes since the last failure, and the time."""
        successes = self.successes - self._seen
        leak = (now - self._at) * _PER_SECOND
        self._seen, self._at = self.successes, now
        self.count = max(0.0, self.count - successes * _SUCCESS - leak)
        self._row = max(0.0, self._row - leak)
        if successes:
            self._row = 0.0
            self.in_a_row = 0
        if not (self.count or self._row):
            self.failures, self.since = 0, now

    def restart(self, count: float, now: float) -> None:
        """Begin anew at ``count``."""
        self.count = self._row = count
        self.failures, self.since = 0, now
        self._seen, self._at = self.successes, now
