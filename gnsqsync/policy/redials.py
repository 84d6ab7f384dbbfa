"""Ends of a dial, and the longest pause before the next dial after each of them.

Knows errors and seconds. Must not know sockets, clocks, or who dials.

``end_of_dial`` sorts an error into one of three kinds, and each kind has its longest pause.

Surprise: an nsqd that turns a client away gets the longest pause, and one whose kernel refuses at
once the shortest. The cost of a dial decides, not its chance.
"""

from __future__ import annotations

import enum

__all__ = ["DialEnd", "end_of_dial"]


class DialEnd(enum.Enum):
    """Kind of end of a dial. The value is the longest pause before the next dial, in seconds.

    The cost of a dial bounds the pause. REFUSED: the kernel refused at once, or no name or route
    leads there. Such a dial costs nothing. SILENT: no answer came, so each dial waits for its whole
    timeout. TURNED_AWAY: nsqd took the connection and then ended it, at TLS, IDENTIFY, AUTH or SUB
    or soon after. Such a dial costs nsqd the most, and an operator has to act first.
    """

    REFUSED = 5.0
    SILENT = 30.0
    TURNED_AWAY = 60.0


def end_of_dial(error: BaseException, *, reached: bool) -> DialEnd:
    """Return the kind of a failed dial. ``reached``: True if TCP or unix connected."""
    if isinstance(error.__cause__, TimeoutError):
        return DialEnd.SILENT
    return DialEnd.TURNED_AWAY if reached else DialEnd.REFUSED
