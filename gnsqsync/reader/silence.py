"""Notices when nsqd may send nothing for long. Knows no RDY, only reasons and the time."""

from __future__ import annotations

__all__ = ["SILENT_SECONDS", "UNCONNECTED", "Silence"]

# A shorter time without RDY is nothing to talk about.
SILENT_SECONDS = 30.0

# The reason that an outage may have told before.
UNCONNECTED = "no nsqd is connected"


class Silence:
    """Tells once of each reason why all RDY is 0. Not thread-safe: the owner holds a lock."""

    def __init__(self) -> None:
        self._reason = ""
        self._since = 0.0
        self._told = False

    def note(self, reason: str, now: float) -> float | None:
        """``reason``: why no nsqd may send, "" when one may.

        Returns for how many seconds it has been so, when it is time to say it; else None.
        """
        if reason != self._reason:
            self._reason, self._since, self._told = reason, now, False
        if not reason or self._told or now - self._since < SILENT_SECONDS:
            return None
        self._told = True
        return now - self._since
