"""When unreachable nsqds count as an outage, in which publishes fail at once.

Knows addresses, errors and delays. Must not know sockets, locks or the time of day.
"""

from __future__ import annotations

import math
import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from gnsqsync.addresses import Address
from gnsqsync.errors import AuthFailed, ConnectionLost, NSQError
from gnsqsync.policy.backoff import ReconnectDelays

__all__ = ["REFUSED", "Outage", "is_final"]

# Seconds of nothing but refusals that are an outage: a restart of nsqd takes less.
REFUSED: Final = 1.0
# Seconds between two dials: at most so many while it may be a restart, then more and more.
_QUICK: Final = 0.1
_FIRST: Final = 0.5
_LONGEST: Final = 3.0


def is_final(error: NSQError) -> bool:
    """Whether waiting is useless because something has to be changed first.

    nsqd does not say whether it refused a secret or could not reach its auth server.
    """
    return not error.retriable or isinstance(error, AuthFailed)


@dataclass(slots=True, eq=False)
class _Away:
    """An nsqd that could not take a publish since ``since``."""

    since: float
    delays: ReconnectDelays
    # Connected again, but no publish was answered yet.
    connected: bool = False
    # Since when every attempt was refused; None while it is silent.
    refused_since: float | None = None
    error: NSQError | None = None


class Outage:
    """Whether none of a Writer's nsqds can take a publish, and for how long that has been so.

    An nsqd is away from the start of a dial or publish that failed until it is connected or
    answers. It is an outage when all are away, each for long enough:

    * at once, where trying again is useless;
    * after ``refused`` seconds, if it refused each time;
    * after ``silent`` seconds in any case.

    With infinity for both only what is final counts. The address None stands for "no address is
    known". Not thread-safe.
    """

    def __init__(self, refused: float, silent: float, rng: random.Random | None = None) -> None:
        self._refused = refused
        self._silent = silent
        self._rng = rng or random.Random()
        self._away: dict[Address | None, _Away] = {}

    def begun(self, address: Address | None, now: float) -> None:
        """A dial begins, or the search for addresses: silence until there is a result."""
        away = self._away.get(address)
        if away is None:
            away = self._away[address] = _Away(now, ReconnectDelays(_FIRST, _LONGEST, self._rng))
        elif away.connected:
            # The delays go on growing: an nsqd that accepts connections but no publishes is dialled
            # less and less often.
            self._away[address] = _Away(now, away.delays)

    def failed(
        self, address: Address, began: float, now: float, error: NSQError, *, silent: bool
    ) -> None:
        """What began at ``began`` has failed: a dial, or a publish that was not answered in time.

        ``silent``: it took too long, and nothing said no.
        """
        self.begun(address, began)
        away = self._away[address]
        away.error = error
        if silent:
            away.refused_since = None
        elif away.refused_since is None:
            away.refused_since = now

    def connected(self, address: Address) -> None:
        """A dial succeeded."""
        away = self._away.get(address)
        if away is not None:
            away.connected = True

    def works(self, address: Address | None) -> None:
        """A publish was answered there, or nothing is known of it; with None, there are some."""
        self._away.pop(address, None)

    def forget_others(self, addresses: Collection[Address]) -> None:
        """Only these may get publishes from now on."""
        for address in [a for a in self._away if a is not None and a not in addresses]:
            del self._away[address]

    def due(self, addresses: Collection[Address]) -> float:
        """When it is an outage, or was, if nothing changes; infinity while one may work."""
        return max(self._due(address) for address in addresses or (None,))

    def _due(self, address: Address | None) -> float:
        away = self._away.get(address)
        if away is None or away.connected:
            return math.inf
        if away.error is not None and is_final(away.error):
            return away.since
        silent = away.since + self._silent
        if away.refused_since is None:
            return silent
        return min(silent, away.refused_since + self._refused)

    def since(self, addresses: Collection[Address]) -> float:
        """Since when all have been away; only where they are."""
        return max(self._away[address].since for address in addresses or (None,))

    def errors(self, addresses: Iterable[Address]) -> list[NSQError]:
        """The last error of each; only where all are away."""
        found = ((address, self._away[address].error) for address in addresses)
        return [error or ConnectionLost(f"{address} does not answer") for address, error in found]

    def pause(self, address: Address, now: float) -> float:
        """Seconds until this one is dialled again; 0 only where nothing has failed."""
        away = self._away.get(address)
        if away is None or away.error is None:
            return 0.0
        if now - away.since < REFUSED and not is_final(away.error):
            return self._rng.uniform(0.5, 1.0) * _QUICK
        return away.delays.next()
