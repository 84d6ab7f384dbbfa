"""When the owner of a lock, a turn or a dial counts as gone.

An exception from outside (gevent.Timeout, a kill, a signal handler that raises) may hit between any
two instructions, so also between taking something and the ``try`` whose ``finally`` gives it back.
"""

from __future__ import annotations

__all__ = ["GRACE_SECONDS", "lost_at"]

# An owner needs microseconds to give back what it has. Only an encoder or the look-up of a name
# works longer than that.
GRACE_SECONDS: float = 5.0


def lost_at(due: float) -> float:
    """The time (monotonic seconds) from which an owner is gone that was ``due`` to give back.

    The thread that finds it ends the connection: how far the owner came is not known.
    """
    return due + GRACE_SECONDS
