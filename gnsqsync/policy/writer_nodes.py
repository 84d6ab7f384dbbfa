"""Nsqds of a Writer: which one gets the next publish, and how long a failed one is avoided.

Knows addresses, failures and delays. Must not know sockets, locks or the time of day.

``candidates`` orders the nsqds for one publish, ``failed`` benches one, and ``ok`` brings it back.

Surprise: benched nsqds are offered, too, behind the others. To try one of them is better than to
fail untried.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable, Iterable, Set
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gnsqsync.addresses import Address
from gnsqsync.errors import ConfigError
from gnsqsync.policy.backoff import ReconnectDelays
from gnsqsync.policy.redials import DialEnd

__all__ = ["TRIAL", "Policy", "WriterNodes"]

Policy: TypeAlias = Literal["round_robin", "failover"]

# Seconds in which only one publisher tries a node whose bench has just ended.
TRIAL: Final = 5.0

# Upper bound of the random first turn while no nsqd is known yet.
_TURNS: Final = 1000


@dataclass(slots=True, eq=False)
class _Bench:
    # Lengths of the next benches, and the end of the last bench; 0 after an OK.
    delays: ReconnectDelays
    until: float = 0.0
    # True while one publisher tries the node, and the others stay away until ``until``.
    on_trial: bool = False


class WriterNodes:
    """Order in which a publish tries the nsqds.

    One nsqd is enough for a message. Several are either a reserve ("failover": the first of the
    list that works) or share the load ("round_robin": each in its turn). A node that failed is
    benched: for a growing, jittered time publishes go to the others. Then a single publish tries
    it, and the others stay away for TRIAL seconds, so that a node that hangs does not delay
    everybody. If it works, it is back.

    When all are benched, they are still offered, first the one whose bench ends first, because
    trying is better than failing untried. Not thread-safe: the owner holds a lock.

    As for a Reader, addresses are given ("direct") or found by asking nsqlookupds. A node that is
    no longer listed comes last, and only while it has a connection. It may still be there, because
    an nsqlookupd that restarts forgets everything; but a node that is gone must get nothing new.
    """

    def __init__(
        self,
        addresses: Iterable[Address],
        policy: Policy = "round_robin",
        rng: random.Random | None = None,
    ) -> None:
        if policy not in ("round_robin", "failover"):
            raise ConfigError(f"policy is {policy!r}; it must be 'round_robin' or 'failover'")
        self._rng = rng or random.Random()
        self._direct = tuple(addresses)
        # Addresses that each nsqlookupd lists.
        self._sources: dict[Hashable, Set[Address]] = {}
        self._benches = {address: self._bench() for address in self._direct}
        # Addresses to publish to, in the order of "failover". Replaced as a whole.
        self.listed: tuple[Address, ...] = self._direct
        self._failover = policy == "failover"
        # A random start, so that many Writers made at once do not begin at the same nsqd.
        self._turn = self._rng.randrange(len(self._benches) or _TURNS)

    def discovered(
        self, source: Hashable, addresses: Set[Address], live: Collection[Address]
    ) -> bool:
        """Take the answer of one nsqlookupd (``source``), which lists exactly these now.

        Do not call it when the question failed: the last answer then stands. ``live``: addresses
        with a connection or a dial, which are not forgotten yet. Return True if ``listed`` changed.
        """
        self._sources[source] = addresses
        found = set().union(*self._sources.values()).difference(self._direct)
        listed = (*self._direct, *sorted(found))
        changed = listed != self.listed
        self.listed = listed
        for address in [a for a in self._benches if a not in listed and a not in live]:
            del self._benches[address]
        for address in listed:
            if address not in self._benches:
                self._benches[address] = self._bench()
        return changed

    def _bench(self) -> _Bench:
        return _Bench(ReconnectDelays(rng=self._rng))

    def candidates(self, now: float, live: Collection[Address]) -> list[Address]:
        """Return every address once, in the order in which to try this publish.

        ``live`` are those with a connection. First comes the node whose turn it is, even if it must
        be dialled, because only its turn brings it back. Then come the others that are not benched,
        live ones first; then the benched ones, by the end of their bench; and last the live ones
        that are not listed any more.
        """
        able = [address for address in self.listed if self._benches[address].until <= now]
        if not self._failover and able:
            turn = self._turn % len(able)
            self._turn += 1
            able = able[turn:] + able[:turn]
        rest = sorted(able[1:], key=lambda address: address not in live)
        if rest and rest[0] in live:
            bench = self._benches[able[0]]
            # The node has to be dialled, or it failed and has acknowledged nothing since.
            if able[0] not in live or bench.until:
                bench.until = now + TRIAL
                bench.on_trial = True
        benched = [address for address in self.listed if address not in able]
        benched.sort(key=lambda address: self._benches[address].until)
        leaving = [address for address in live if address not in self.listed]
        return able[:1] + rest + benched + leaving

    def failed(self, address: Address, now: float, end: DialEnd = DialEnd.TURNED_AWAY) -> float:
        """Bench a node after a failed dial, connection or publish. Return its end in seconds.

        ``end``: the kind, of a dial; it bounds the bench as it bounds a Reader's pause. Only the
        first failure of a bench makes the next one longer, because all publishes under way on a
        connection fail together.
        """
        bench = self._benches.get(address)
        if bench is None:  # the node was forgotten while the publish ended
            return now
        if bench.until <= now or bench.on_trial:
            bench.until = now + bench.delays.next(end.value)
            bench.on_trial = False
        return bench.until

    def ok(self, address: Address) -> None:
        """Take a node off the bench after an OK. Cheap, for every publish."""
        bench = self._benches.get(address)
        if bench is not None and bench.until:
            bench.until = 0.0
            bench.on_trial = False
            bench.delays.reset()
