"""Grace of an owner: the time after which the holder of a lock, turn or dial counts as gone.

A kill may strike between any two instructions, even between taking a lock and the ``try`` whose
``finally`` gives it back. Here, a kill is gevent.Timeout, GreenletExit, or an exception of a signal
handler.

Surprise: a lock is never taken from its owner. The connection that it guards is given up instead.
"""

from __future__ import annotations

__all__ = ["GRACE_SECONDS", "lost_at"]

# Seconds that an owner may be late. An owner needs microseconds to give back what it holds; only an
# encoder or the look-up of a name takes longer.
GRACE_SECONDS: float = 5.0


def lost_at(due: float) -> float:
    """Return the time (monotonic seconds) from which an owner counts as gone.

    ``due``: the time at which it had to give back what it holds. The thread that finds it gone ends
    the connection, because nobody knows how far the owner came.
    """
    return due + GRACE_SECONDS
