"""Turns of nsqds that are more than the slots: the states of one turn, and the length of a look.

Knows counts and moments. Must not know how slots are counted, connections, locks or clocks.

A turn is RDY 1 for one message. An nsqd that has a message sends it at once, so a turn that finds
something lasts a round trip and the time of the handler. The answer ends the turn: RDY 0 leaves
before that answer, in the same write, so nsqd cannot send another message and the slot is free at
once. An nsqd that has nothing loses its turn after a *look*. Its RDY 0 is then on its way while a
message may be, too, so the slot stays used until RDY 0 has arrived (``RdyNode.transit``).
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = [
    "FIRST_LOOK",
    "LEAST_TRANSIT",
    "LONGEST_LOOK",
    "LONGEST_REST",
    "PEEK",
    "Looks",
    "Turn",
    "TurnState",
]

# Seconds of a look for one slot, beyond a round trip: after a message, and when nothing came for
# many rounds. The longest look bounds what an idle reader costs.
FIRST_LOOK: Final = 0.02
LONGEST_LOOK: Final = 0.2
# Factor by which a round without a message makes looks longer.
_GROWTH: Final = 1.5
# Seconds of a look while an nsqd that had a message in its last turn waits for the slot. A peek
# finds what waits at nsqd, and is too short for what may yet come.
PEEK: Final = 0.01
# Seconds in which an nsqd that had nothing leaves the slot to nsqds that had messages: from the
# second look in a row on, as a full nsqd may be late once; and at most for each nsqd. Without that,
# nine empty nsqds would slow down a full one.
_FIRST_REST: Final = 0.05
LONGEST_REST: Final = 0.2
# Least seconds that a lowered RDY counts as used.
LEAST_TRANSIT: Final = 0.002


class TurnState(enum.Enum):
    """Progress of an nsqd's turn."""

    WAITS = "waits"  # RDY 0
    LOOKS = "looks"  # RDY 1, and no message came yet
    OPEN = "open"  # the message of this turn is not answered


class Turn:
    """The turn of an nsqd.

    ==============  ==============================================  ======
    state           event                                           next
    ==============  ==============================================  ======
    WAITS           ``begin``: RDY 1 is sent                        LOOKS
    WAITS           ``begin`` with messages of an earlier time      OPEN
    LOOKS           ``observe``: a message came                     OPEN
    LOOKS           ``lose``: nothing came within the look          WAITS
    OPEN            ``observe``: all is answered, or another came   WAITS
    LOOKS, OPEN     ``stop``: RDY is taken away                     WAITS
    ==============  ==============================================  ======
    """

    __slots__ = ("_before", "_empty", "began_at", "rests_until", "state")

    def __init__(self) -> None:
        self.state: TurnState = TurnState.WAITS
        self.began_at: float = 0.0
        # Moment (seconds) until which nsqds that had messages come first.
        self.rests_until: float = 0.0
        # Messages that had come before the turn, and looks in a row that found nothing.
        self._before = 0
        self._empty = 0

    @property
    def had_message(self) -> bool:
        """True unless the last turn found nothing. A new nsqd may have messages, too."""
        return not self._empty

    def begin(self, now: float, received: int, in_flight: int) -> None:
        """Begin with RDY 1. ``received``: how many messages the nsqd has sent so far."""
        self.state = TurnState.OPEN if in_flight else TurnState.LOOKS
        self.began_at = now
        self._before = received - (in_flight > 0)

    def observe(self, received: int, in_flight: int) -> bool:
        """Note what came and what is answered. Return True if that ends the turn."""
        if self.state is TurnState.LOOKS and (received > self._before or in_flight):
            self.state = TurnState.OPEN
            self._empty = 0
            self.rests_until = 0.0
        if self.state is TurnState.OPEN and (not in_flight or received > self._before + 1):
            self.state = TurnState.WAITS
            return True
        return False

    def lose(self, now: float, nodes: int) -> None:
        """End a look that found nothing, and rest from the second one on; longer each time."""
        self.state = TurnState.WAITS
        if self._empty:
            rest = _FIRST_REST * 2.0 ** min(self._empty - 1, 20)
            self.rests_until = now + min(rest, LONGEST_REST * nodes)
        self._empty += 1

    def stop(self) -> None:
        """End a turn for another reason: its slot was taken away, or no turns are needed."""
        self.state = TurnState.WAITS


class Looks:
    """Length of a look: short after a message, longer after each round without any."""

    def __init__(self, longest: float) -> None:
        """``longest``: upper bound in seconds, as the user wants it."""
        self._longest = longest
        self._seconds = FIRST_LOOK
        self._empty = 0

    def seconds(self, slots: int, *, is_wanted: bool) -> float:
        """Return the length of a look, in seconds beyond a round trip.

        Looks that go on side by side in more ``slots`` last longer, so that they cost as much as in
        one. ``is_wanted``: an nsqd that had a message waits for a slot.
        """
        return min(PEEK if is_wanted else self._seconds * slots, self._longest)

    def found(self) -> None:
        """A message came: more may follow."""
        self._seconds = FIRST_LOOK
        self._empty = 0

    def ended_empty(self, nodes: int) -> None:
        """A look found nothing; ``nodes`` of them are a round."""
        self._empty += 1
        if self._empty >= nodes:
            self._empty = 0
            self._seconds = min(_GROWTH * self._seconds, LONGEST_LOOK)
