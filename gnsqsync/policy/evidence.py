"""Evidence of an outage: failures of different messages against successes.

Knows counts, moments and keys of messages. Must not know pauses, connections or clocks.

The first failure of a message adds points. Successes and time take points away.

Surprise: a message is evidence once, however often it fails. Otherwise a few poison messages would
look like an outage.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

__all__ = ["ALMOST", "ENOUGH", "IN_A_ROW", "MOST_KNOWN", "Evidence"]

# Points that a failure adds. With both weights, a third of failures is the border.
_FAILURE: Final = 2
# Points that a success takes away.
_SUCCESS: Final = 1
# Failures dominate above this count; 15 in quick succession reach it.
ENOUGH: Final = 28
# Count from which one more failure is enough.
ALMOST: Final = 27
# Amount that each second takes off: the evidence of a minute ago is gone.
_PER_SECOND: Final = 0.5
# Upper bound of remembered messages; the oldest is forgotten first. If a fifth of 20 messages a
# second fail five times in 15 minutes, 3,600 are needed.
MOST_KNOWN: Final = 10_000
# Seconds after a pause in which fewer failures in a row are enough.
_WARY_SECONDS: Final = 30.0
# Count at which such a row begins: eight different messages reach ENOUGH from there. If a fifth of
# the messages are poison, eight in a row come once in half a million.
_WARY: Final = 14
# Number of different messages that fail in a row before a log line is due.
IN_A_ROW: Final = 5


class Evidence:
    """Count of failures of different messages, less successes and what time takes off.

    A message is evidence once. A process that starts on a channel of poison messages must not take
    them for an outage. A message that nsqd has delivered before may have failed elsewhere, so its
    failure counts only while no message succeeds.

    Workers add to ``successes`` without a lock, because a lost count changes nothing. The lock of
    the owner guards the rest.
    """

    __slots__ = (
        "_at",
        "_failed",
        "_row",
        "_seen",
        "_wary_until",
        "count",
        "failures",
        "in_a_row",
        "is_over",
        "since",
        "successes",
    )

    def __init__(self) -> None:
        # Total number of successes.
        self.successes: int = 0
        # Weighted count of messages that failed on their first try.
        self.count: float = 0.0
        # True if the count has been 0 since the last pause: that outage is over.
        self.is_over: bool = True
        # Weighted count of all messages that failed since the last success.
        self._row = 0.0
        # Time until which ``_row`` begins at _WARY.
        self._wary_until = 0.0
        # Number of counted failures, and the time (seconds) of the first, since the count was 0.
        self.failures: int = 0
        self.since: float = 0.0
        # Number of different messages that failed since the last success.
        self.in_a_row: int = 0
        # Value of ``successes`` at the last failure, and the time of that failure.
        self._seen = 0
        self._at = 0.0
        # Keys of messages that failed here, the latest last.
        self._failed: dict[Hashable, None] = {}

    def failed(
        self, key: Hashable, tries: int, now: float, counts: bool = True
    ) -> tuple[bool, bool]:
        """Note a failure. Return (the message has not failed here before, failures dominate).

        ``tries``: the number of deliveries that were handled. ``counts``: False for a failure that
        is no evidence.
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
            self._row = _WARY if now < self._wary_until else 0.0
            self.in_a_row = 0
        if not self.count:
            self.is_over = True
            if successes or not self._row:
                self.failures, self.since = 0, now

    def restart(self, count: float, now: float) -> None:
        """Begin anew at ``count``, as a pause has ended."""
        self.count = self._row = count
        self.is_over, self._wary_until = False, now + _WARY_SECONDS
        self.failures, self.since = 0, now
        self._seen, self._at = self.successes, now
