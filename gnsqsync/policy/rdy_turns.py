"""Turns of nsqds when there are more nsqds than slots: the states of a turn, the length of a look.

Knows counts and moments. Must not know how slots are counted, connections, locks or clocks.

A turn is RDY 1 for one message, or for several messages of an nsqd with a backlog. The last answer
ends the turn: RDY 0 leaves before it, in the same write, so the slot is free at once. An nsqd that
has nothing loses its turn after a *look*.

Surprise: RDY 0 alone does not free a slot. While it is on the way to nsqd, a message may be on the
way here. After a look, the slot therefore counts as used until RDY 0 has arrived
(``RdyNode.transit``). The same holds after a turn whose last answer may have left before RDY 0
(``Turn.is_sure`` is False).
"""

from __future__ import annotations

import enum
from typing import Final

__all__ = [
    "FIRST_LOOK",
    "LEAST_TRANSIT",
    "LONGEST_LOOK",
    "LONGEST_REST",
    "MOST_MESSAGES",
    "PEEK",
    "TURN_SECONDS",
    "Looks",
    "Turn",
    "TurnState",
]

# Seconds of a look for one slot, beyond a round trip, after a message.
FIRST_LOOK: Final = 0.02
# Seconds of a look after many rounds without a message. It bounds the cost of an idle Reader.
LONGEST_LOOK: Final = 0.25
# Factor by which a round without a message makes looks longer.
_GROWTH: Final = 1.5
# Seconds of a look while an nsqd that had a message in its last turn waits for the slot. This finds
# a message that waits at nsqd, but is too short for one that is yet to come.
PEEK: Final = 0.01
# Seconds of the first rest, in which an nsqd that had nothing leaves the slot to nsqds that had
# messages. A rest begins with the second empty look in a row, as a full nsqd may be late once.
# Without rests, nine empty nsqds would slow down a full one.
_FIRST_REST: Final = 0.05
# Upper bound in seconds of a rest, for each nsqd: with ten nsqds, a rest is 2 s at most.
LONGEST_REST: Final = 0.2
# Upper bound of the messages in a turn of an nsqd with a backlog. A turn costs a round trip and a
# new division of RDY beyond its messages: turns of one message reach a seventh of the rate of one
# nsqd, turns of 16 half of it, turns of 32 three fifths.
MOST_MESSAGES: Final = 32
# Upper bound of the seconds in such a turn, by the speed of the nsqd's last turn.
TURN_SECONDS: Final = 0.025
# Turns in a row that must use all their messages before the next ones are longer.
_BACKLOG_TURNS: Final = 3
# Least seconds for which the slot of a lowered RDY counts as used.
LEAST_TRANSIT: Final = 0.002


class TurnState(enum.Enum):
    """Progress of an nsqd's turn."""

    WAITS = "waits"  # RDY 0
    LOOKS = "looks"  # RDY 1, and no message came yet
    OPEN = "open"  # the message of this turn is not answered


class Turn:
    """Turn of one nsqd.

    ==============  ==============================================  ======
    state           event                                           next
    ==============  ==============================================  ======
    WAITS           ``begin``: RDY 1 is sent                        LOOKS
    WAITS           ``begin`` while a message is in flight          OPEN
    LOOKS           ``observe``: a message came                     OPEN
    LOOKS           ``lose``: nothing came within the look          WAITS
    OPEN            ``observe``: the last message is answered       WAITS
    OPEN            ``observe``: another message is answered        LOOKS
    OPEN            ``observe``: more came than the turn allows     WAITS
    LOOKS, OPEN     ``stop``: RDY is taken away                     WAITS
    ==============  ==============================================  ======
    """

    __slots__ = (
        "_before",
        "_empty",
        "_full",
        "_next",
        "_seen",
        "began_at",
        "is_sure",
        "looks_since",
        "messages",
        "rests_until",
        "state",
    )

    def __init__(self) -> None:
        # State by the table above, and the time (seconds) at which the turn began.
        self.state: TurnState = TurnState.WAITS
        self.began_at: float = 0.0
        # Time (seconds) from which the nsqd could have sent the next message.
        self.looks_since: float = 0.0
        # Upper bound of the messages of this turn, and of the next one.
        self.messages: int = 1
        self._next = 1
        # Time (seconds) until which nsqds that had messages come first.
        self.rests_until: float = 0.0
        # Number of messages received before the turn, and before the look.
        self._before = 0
        self._seen = 0
        # True if RDY 0 leaves before the answer to the last message of the turn: the number of its
        # messages was known before nsqd could send one.
        self.is_sure: bool = False
        # Looks in a row that found nothing, and turns in a row that used all their messages.
        self._empty = 0
        self._full = 0

    @property
    def had_message(self) -> bool:
        """True unless the last turn found nothing. A new nsqd counts as one with messages."""
        return not self._empty

    def begin(self, now: float, received: int, in_flight: int, most: int, *, raised: bool) -> None:
        """Begin with RDY 1.

        ``received``: number of messages that the nsqd has sent so far. ``most``: upper bound of the
        messages of the turn. ``raised``: False if nsqd has RDY already.
        """
        last = self._before + self.messages
        self.state = TurnState.OPEN if in_flight else TurnState.LOOKS
        self.began_at = self.looks_since = now
        self._before = received - (in_flight > 0)
        self._seen = received
        self.messages = min(most, self._next)
        self.is_sure = raised or (self.is_sure and self._before + self.messages >= last)

    def left(self, received: int) -> int:
        """Return how many messages the turn still allows."""
        if self.state is TurnState.WAITS:
            return 0
        return max(0, self.messages - (received - self._before))

    def observe(self, now: float, received: int, in_flight: int) -> bool:
        """Note messages and answers. Return True if they end the turn."""
        if self.state is TurnState.LOOKS and (received > self._seen or in_flight):
            self.state = TurnState.OPEN
            self._empty = 0
            self.rests_until = 0.0
        came = received - self._before
        if self.state is not TurnState.OPEN or (in_flight and came <= self.messages):
            return False
        if came < self.messages:
            self.state = TurnState.LOOKS
            self.looks_since = now
            self._seen = received
            return False
        self.state = TurnState.WAITS
        self._full += 1
        self._next = self._lengthen(now - self.began_at, came)
        return True

    def _lengthen(self, seconds: float, came: int) -> int:
        """Return the length of the next turn in messages. The last one used all ``came`` messages.

        An nsqd that had a message in several turns one after the other has a backlog.
        """
        if self._full < _BACKLOG_TURNS:
            return 1
        fitting = MOST_MESSAGES
        if seconds > 0:
            fitting = min(fitting, int(TURN_SECONDS * came / seconds))
        return max(1, min(2 * self.messages, fitting))

    def lose(self, now: float, nodes: int) -> bool:
        """End a look that found nothing. Return True if the whole turn found nothing.

        From the second such turn in a row on, the nsqd rests, longer each time.
        """
        self.state = TurnState.WAITS
        self._full = 0
        self._next = 1
        if self._seen > self._before:
            return False
        if self._empty:
            rest = _FIRST_REST * 2.0 ** min(self._empty - 1, 20)
            self.rests_until = now + min(rest, LONGEST_REST * nodes)
        self._empty += 1
        return True

    def stop(self) -> None:
        """End a turn because its slot was taken away, or because no turns are needed."""
        self.state = TurnState.WAITS
        self.is_sure = False


class Looks:
    """Length of a look: short after a message, longer after each round without any."""

    def __init__(self, longest: float) -> None:
        """``longest``: upper bound in seconds, as the user wants it."""
        self._longest = longest
        self._seconds = FIRST_LOOK
        self._empty = 0

    def seconds(self, slots: int, *, is_wanted: bool) -> float:
        """Return the length of a look, in seconds beyond a round trip.

        With more ``slots``, looks run side by side, and last longer so that they cost as much as
        looks in one slot. ``is_wanted``: an nsqd that had a message waits for a slot.
        """
        return min(PEEK if is_wanted else self._seconds * slots, self._longest)

    def found(self) -> None:
        """Note that a message came, so that more may follow."""
        self._seconds = FIRST_LOOK
        self._empty = 0

    def ended_empty(self, nodes: int) -> None:
        """Note a look that found nothing. A round is ``nodes`` of them."""
        self._empty += 1
        if self._empty >= nodes:
            self._empty = 0
            self._seconds = min(_GROWTH * self._seconds, LONGEST_LOOK)
