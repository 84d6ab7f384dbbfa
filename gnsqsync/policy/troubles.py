"""Log lines about repeated troubles: the beginning, then lines at growing intervals, the end.

Knows names and times. Must not know logging, or whose clock and lock it is given.

A failure is noted by place and kind, and the result is a ``Tell`` if a line is due.

Surprise: a trouble that comes back soon is not new. It keeps its interval, so an nsqd that comes
and goes does not fill the log.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

__all__ = ["AT_ONCE", "FIRST_INTERVAL", "LONGEST_INTERVAL", "MOST_PLACES", "Tell", "Troubles"]

# Seconds between the first two lines about a trouble that goes on. Each line doubles them.
FIRST_INTERVAL: Final = 60.0
# Upper bound of those seconds.
LONGEST_INTERVAL: Final = 3600.0

# Beginnings of a trouble that are told at once. After these, none is told until an interval passes
# without any.
AT_ONCE: Final = 5

# Places with troubles of their own. Places beyond that share one, as a peer may invent any number.
MOST_PLACES: Final = 1000
# Kinds of trouble at one place; the oldest is forgotten first.
_MOST_KINDS: Final = 50
# The place that stands for all places beyond MOST_PLACES.
_ELSEWHERE: Final = object()


class Tell(NamedTuple):
    """Facts for a log line that is due.

    ``seconds``: how long the trouble has lasted, 0 at its beginning. ``times``: how often it was
    met since the last line. ``again``: least seconds until the next line about it; 0 if the next
    one is told at once. ``users``: names of those that use the place.
    """

    seconds: float
    times: int
    again: float
    users: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Trouble:
    """State of a kind of trouble at a place."""

    # True from its beginning until its end is seen.
    open: bool = False
    # True once a line told its beginning.
    told: bool = False
    # Times of its beginning, of the last time it was met, and of the next line.
    since: float = -math.inf
    last_at: float = -math.inf
    next_at: float = -math.inf
    # Seconds between two lines, beginnings to be told at once, and times met since the last line.
    interval: float = FIRST_INTERVAL
    left: int = AT_ONCE
    times: int = 0

    def is_over(self, now: float) -> bool:
        """Return True if the next one counts as new, because this one ended long ago."""
        return not self.open and now - self.last_at > self.interval

    def met(self, now: float, lasts: bool) -> bool:
        """Note that it was met once more. Return True if a line is due."""
        begins = not self.open
        if self.is_over(now):
            self.interval = FIRST_INTERVAL
            self.left = AT_ONCE
            self.since = now
        if begins and lasts:
            self.since = now
            self.told = False
        self.open = lasts
        self.last_at = now
        self.times += 1
        if begins and self.left:
            self.left -= 1
        elif now >= self.next_at:
            self.interval = min(2 * self.interval, LONGEST_INTERVAL)
        else:
            return False
        self.next_at = now + self.interval
        self.told = True
        return True

    def take_times(self) -> int:
        times, self.times = self.times, 0
        return times


@dataclass(slots=True, eq=False)
class _Place:
    troubles: dict[Hashable, _Trouble] = field(default_factory=dict)
    users: dict[Hashable, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.users.values()))

    def is_over(self, now: float) -> bool:
        return not self.users and all(trouble.is_over(now) for trouble in self.troubles.values())


class Troubles:
    """Troubles at nsqds, nsqlookupds and other places, and the lines that are due about them.

    A trouble has a place and a kind: many connections to one place that fail alike make one line.
    It lasts from ``began`` until something succeeds at the place (``ended``), or it is a single
    event (``happened``). ``lock`` guards all fields; ``now`` returns seconds.
    """

    def __init__(self, lock: AbstractContextManager[object], now: Callable[[], float]) -> None:
        self._lock = lock
        self._now = now
        # Users and troubles of each place.
        self._places: dict[Hashable, _Place] = {}
        # Time at which places without a trouble were last forgotten.
        self._swept_at = -math.inf

    def uses(self, place: Hashable, user: Hashable, name: str) -> None:
        """Note that ``user`` depends on the place, under ``name`` in lines about it."""
        with self._lock:
            self._at(place, self._now()).users[user] = name

    def leaves(self, user: Hashable, place: Hashable | None = None) -> None:
        """Forget a user of a place, or of all places. A place without users is forgotten."""
        with self._lock:
            for key in list(self._places) if place is None else [place]:
                found = self._places.get(key)
                if found is not None and found.users.pop(user, "") and not found.users:
                    del self._places[key]

    def is_told(self, user: Hashable) -> bool:
        """Return True if a trouble that was told still lasts at a place of this user."""
        with self._lock:
            return any(
                trouble.open and trouble.told
                for place in self._places.values()
                if user in place.users
                for trouble in place.troubles.values()
            )

    def began(self, place: Hashable, kind: Hashable) -> Tell | None:
        """Note a failure that is likely to go on. Return what to tell, if a line is due."""
        return self._met(place, kind, lasts=True)

    def happened(self, place: Hashable, kind: Hashable) -> Tell | None:
        """Note a single failure. Return what to tell, if a line is due."""
        return self._met(place, kind, lasts=False)

    def _met(self, place: Hashable, kind: Hashable, *, lasts: bool) -> Tell | None:
        with self._lock:
            now = self._now()
            at = self._at(place, now)
            trouble = at.troubles.get(kind)
            if trouble is None:
                if len(at.troubles) >= _MOST_KINDS:
                    del at.troubles[next(iter(at.troubles))]
                trouble = at.troubles[kind] = _Trouble()
            if not trouble.met(now, lasts):
                return None
            again = 0.0 if trouble.left and not lasts else trouble.interval
            return Tell(now - trouble.since, trouble.take_times(), again, at.names)

    def ended(self, place: Hashable) -> Tell | None:
        """Note a success at the place. Return what to tell, if the beginning was told."""
        with self._lock:
            now = self._now()
            at = self._places.get(place)
            if at is None:
                return None
            told = []
            for trouble in at.troubles.values():
                if trouble.open:
                    trouble.open = False
                    trouble.last_at = now
                    if trouble.told:
                        told.append(Tell(now - trouble.since, trouble.take_times(), 0.0, at.names))
            # If there were several kinds, such as a timeout and then a refusal, the first counts.
            return max(told, default=None)

    def _at(self, place: Hashable, now: float) -> _Place:
        found = self._places.get(place)
        if found is None:
            if len(self._places) >= MOST_PLACES and now - self._swept_at > FIRST_INTERVAL:
                self._swept_at = now
                self._places = {k: p for k, p in self._places.items() if not p.is_over(now)}
            if len(self._places) >= MOST_PLACES:
                place = _ELSEWHERE
            found = self._places.setdefault(place, _Place())
        return found
