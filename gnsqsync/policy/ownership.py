"""From when on the owner of a lock, of a turn or of a dial counts as gone.

An exception from outside (gevent.Timeout, a kill, a signal handler that raises) may strike between
any two instructions, so also between taking something and the ``try`` that gives it back.
"""

from __future__ import annotations

__all__ = ["GRACE_SECONDS", "lost_at"]

# An owner needs microseconds to give back what it has. Only an encoder or the look-up of a name
# works longer than that.
GRACE_SECONDS: float = 5.0


def lost_at(due: float) -> float:
    """From when on (monotonic seconds) nobody gives back any more what was ``due`` at that time.

    Whoever finds such a thing ends the connection: how far its owner came is not known.
    """
    return due + GRACE_SECONDS
