"""Outage of a Writer: the time from which unreachable nsqds make publishes fail at once.

Knows addresses, errors and delays. Must not know sockets, locks or the time of day.

Dials and publishes report what they met, and ``due`` says when the outage begins.

Surprise: a connected nsqd counts as able to take publishes, even before its first OK. It is
away again from the start of the next dial, or of a publish that gets no answer.
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

# Seconds of nothing but refusals that are an outage. A restart of nsqd takes less.
REFUSED: Final = 1.0
# Upper bound in seconds of a delay between two dials while it may be a restart.
_QUICK: Final = 0.1
# Seconds of the first delay (``_FIRST``) and of the longest (``_LONGEST``) in an outage.
_FIRST: Final = 0.5
_LONGEST: Final = 3.0


def is_final(error: NSQError) -> bool:
    """Return True if waiting is useless because something has to be changed first.

    nsqd does not say whether it refused a secret or could not reach its auth server.
    """
    return not error.retriable or isinstance(error, AuthFailed)


@dataclass(slots=True, eq=False)
class _Away:
    """State of an nsqd that has not been able to take a publish since ``since``."""

    since: float
    delays: ReconnectDelays
    # True once connected again, while no publish was answered yet.
    connected: bool = False
    # Time since which every attempt was refused; None while the nsqd is silent.
    refused_since: float | None = None
    # Error of the last attempt.
    error: NSQError | None = None


class Outage:
    """State of an outage, in which none of a Writer's nsqds can take a publish.

    An nsqd is away from the start of a failed dial or publish, until it is connected or answers. An
    outage begins when all nsqds have been away for long enough:

    * at once, if trying again is useless;
    * after ``refused`` seconds, if the nsqd refused each time;
    * after ``silent`` seconds in any case.

    With infinity for both, only final errors count. The address None stands for "no address is
    known". Not thread-safe.
    """

    def __init__(self, refused: float, silent: float, rng: random.Random | None = None) -> None:
        self._refused = refused
        self._silent = silent
        self._rng = rng or random.Random()
        self._away: dict[Address | None, _Away] = {}

    def begun(self, address: Address | None, now: float) -> None:
        """Note that a dial begins, or the search for addresses. It counts as silent meanwhile."""
        away = self._away.get(address)
        if away is None:
            away = self._away[address] = _Away(now, ReconnectDelays(_FIRST, _LONGEST, self._rng))
        elif away.connected:
            # The delays continue to grow, so that an nsqd that accepts connections but no publishes
            # is dialled less and less often.
            self._away[address] = _Away(now, away.delays)

    def failed(
        self, address: Address, began: float, now: float, error: NSQError, *, silent: bool
    ) -> None:
        """Note a failed dial, or a publish that was not answered in time. It began at ``began``.

        ``silent``: True if the time passed without a refusal.
        """
        self.begun(address, began)
        away = self._away[address]
        away.error = error
        if silent:
            away.refused_since = None
        elif away.refused_since is None:
            away.refused_since = now

    def connected(self, address: Address) -> None:
        """Note that a dial succeeded."""
        away = self._away.get(address)
        if away is not None:
            away.connected = True

    def works(self, address: Address | None) -> None:
        """Note that an nsqd answered or is not known any more; None: that addresses are known."""
        self._away.pop(address, None)

    def forget_others(self, addresses: Collection[Address]) -> None:
        """Forget all nsqds but these, which may get publishes from now on."""
        for address in [a for a in self._away if a is not None and a not in addresses]:
            del self._away[address]

    def due(self, addresses: Collection[Address]) -> float:
        """Return the time at which the outage begins or began; infinity while an nsqd may work."""
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
        """Return the time since which all have been away. All of them must be away."""
        return max(self._away[address].since for address in addresses or (None,))

    def errors(self, addresses: Iterable[Address]) -> list[NSQError]:
        """Return the last error of each address. All of them must be away."""
        found = ((address, self._away[address].error) for address in addresses)
        return [error or ConnectionLost(f"{address} does not answer") for address, error in found]

    def pause(self, address: Address, now: float) -> float:
        """Return the seconds until the next dial; 0 only if nothing has failed there."""
        away = self._away.get(address)
        if away is None or away.error is None:
            return 0.0
        if now - away.since < REFUSED and not is_final(away.error):
            return self._rng.uniform(0.5, 1.0) * _QUICK
        return away.delays.next()
