"""Dials of a Reader: the nsqds to connect to, and the time of each next dial.

Knows addresses, wishes and delays. Must not know sockets, locks or the time of day.

A node waits for its next dial, is dialled, or is live. ``due`` returns the addresses to dial now,
and ``ended`` plans the next dial.

Surprise: a discovered nsqd is not dialled at once after its connection has ended. The nsqlookupds
are asked first, because SUB would create a deleted topic again.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Hashable, Iterable, Set
from dataclasses import dataclass, field
from typing import Final

from gnsqsync.addresses import Address
from gnsqsync.policy.backoff import ReconnectDelays
from gnsqsync.policy.redials import DialEnd

__all__ = [
    "ANSWER_SECONDS",
    "STABLE_AFTER",
    "UNLISTED_ASKS",
    "UNLISTED_TRIES",
    "NodeState",
    "ReaderNodes",
]

# Seconds after which a connection counts as good, so that its delays start again.
STABLE_AFTER: Final = 5.0

# Dials of a discovered node that no nsqlookupd lists any more, before it is forgotten.
UNLISTED_TRIES: Final = 3

# Questions to nsqlookupds about a node whose connection ended, before it is forgotten. They take
# about 20 seconds. The regular questions find a node that restarts later.
UNLISTED_ASKS: Final = 7

# Seconds that nsqlookupds have for the answer. After them, their last answer counts.
ANSWER_SECONDS: Final = 2.0


class NodeState(enum.Enum):
    """State of a node: WAITING for its next dial, DIALLING (with the handshake), or LIVE."""

    WAITING = "waiting"
    DIALLING = "dialling"
    LIVE = "live"


@dataclass(slots=True, eq=False)
class _Node:
    delays: ReconnectDelays
    due_at: float
    # Time of the next dial or question.
    state: NodeState = NodeState.WAITING
    # True if the user gave the address.
    direct: bool = False
    # The nsqlookupds that list it.
    sources: set[Hashable] = field(default_factory=set)
    # The nsqlookupds that listed it when its connection ended, and have not answered since.
    stale: set[Hashable] = field(default_factory=set)
    # True if its connection ended and no nsqlookupd has listed it since.
    in_doubt: bool = False
    # Questions left before it is forgotten.
    asks_left: int = 0
    # Pauses between these questions, apart from ``delays``, because a question is no dial.
    asks: ReconnectDelays | None = None
    # Dials left once no nsqlookupd lists it.
    tries_left: int = 0
    live_since: float = 0.0

    @property
    def listed(self) -> bool:
        return self.direct or bool(self.sources or self.stale)

    def doubt(self, asks: ReconnectDelays) -> None:
        """Distrust the nsqlookupds, as the connection ended. ``asks``: pauses between questions."""
        self.in_doubt = True
        self.asks_left = UNLISTED_ASKS
        self.asks = asks
        self.stale |= self.sources
        self.sources.clear()

    @property
    def asked(self) -> bool:
        """True if nsqlookupds were asked since it came in doubt."""
        return self.asks_left < UNLISTED_ASKS

    def trust(self) -> None:
        self.in_doubt = False
        self.sources |= self.stale
        self.stale.clear()


class ReaderNodes:
    """The nsqds that a Reader wants a connection to, and the time of each one's next dial.

    A Reader consumes from every nsqd that has its topic. The user gives some addresses ("direct"),
    which are dialled for ever. nsqlookupd, the registry of nsqds, lists the others. They are
    dialled while any nsqlookupd lists them, and UNLISTED_TRIES times after that: otherwise the
    dials of a node that is gone for good would never end. An answer of nsqlookupd never closes a
    live connection, because nsqlookupd forgets everything when it restarts.

    A connection may have ended because its topic was deleted, and SUB would create the topic again.
    So when the next dial is due, the nsqlookupds are asked first (``ask()``). The node is dialled
    when one lists it, or when one that did list it does not answer. Otherwise they are asked
    UNLISTED_ASKS times in all.

    Each address has at most one dial or connection. After every failure and loss comes a jittered
    delay, which grows to the bound of its kind (DialEnd). It starts afresh only after a connection
    that lived for STABLE_AFTER seconds. Not thread-safe: the owner holds a lock.
    """

    def __init__(self, direct: Iterable[Address], rng: random.Random) -> None:
        self._rng = rng
        self._nodes: dict[Address, _Node] = {}
        for address in direct:
            self.add_direct(address)

    def add_direct(self, address: Address) -> None:
        """Want this nsqd until ``remove()``. A new address is due at once."""
        node = self._node(address, 0.0)
        node.direct = True
        node.trust()

    def remove(self, address: Address) -> None:
        """Want this nsqd no more. Its redials end; a dial under way is refused at its end.

        The owner closes a live connection. A nsqlookupd that still lists the address brings it back
        with its next answer.
        """
        node = self._nodes.get(address)
        if node is None:
            return
        node.direct = False
        node.sources.clear()
        node.stale.clear()
        node.tries_left = 0
        # A dialling or live entry stays, so that the address is not dialled twice.
        if node.state is NodeState.WAITING:
            del self._nodes[address]

    def discovered(self, source: Hashable, addresses: Set[Address], now: float) -> None:
        """Take the answer of one nsqlookupd (``source``), which lists exactly these now.

        Do not call it when the question failed: the last answer then stands.
        """
        for address in addresses:
            node = self._node(address, now)
            node.tries_left = UNLISTED_TRIES
            if node.in_doubt and not node.asked:
                # The nsqlookupd may have said this before it saw the connection end.
                node.stale.add(source)
                continue
            node.sources.add(source)
            if node.in_doubt:
                node.trust()
                node.due_at = now
        for address, node in self._nodes.items():
            if address not in addresses:
                node.sources.discard(source)
                node.stale.discard(source)

    def ask(self, now: float) -> bool:
        """Return True if nsqlookupds must be asked now, about nodes whose dial would be due.

        ``discovered()`` takes their answers. Call this before ``due()``.
        """
        wanted = False
        for address, node in list(self._nodes.items()):
            if not node.in_doubt or node.due_at > now:
                continue
            if node.asked and node.listed:
                # The nsqlookupds that listed it do not answer, so their last answer counts.
                node.trust()
            elif node.asks_left and node.asks is not None:
                wanted = True
                node.asks_left -= 1
                pause = node.asks.next(DialEnd.REFUSED.value)
                node.due_at = now + max(ANSWER_SECONDS, pause)
            else:
                del self._nodes[address]
        return wanted

    def dialling(self, address: Address) -> None:
        """Note that a dial begins, of an address that ``due()`` has just returned."""
        self._nodes[address].state = NodeState.DIALLING

    def connected(self, address: Address, now: float) -> bool:
        """Note a finished handshake. Return False if the address was removed: close it then."""
        node = self._nodes.get(address)
        if node is None or node.state is not NodeState.DIALLING:
            return False
        node.state = NodeState.LIVE
        node.live_since = now
        if not node.listed and not node.tries_left:
            del self._nodes[address]
            return False
        return True

    def ended(
        self, address: Address, now: float, end: DialEnd = DialEnd.TURNED_AWAY
    ) -> float | None:
        """Note a failed dial or a lost connection. An end that is reported twice counts once.

        ``end``: kind of the end, of a dial. A connection that ended soon was turned away. Return
        the time (seconds) of the next dial or question, or None if there is none.
        """
        node = self._nodes.get(address)
        if node is None:
            return None
        if node.state is NodeState.WAITING:
            return node.due_at
        lived = node.state is NodeState.LIVE
        node.state = NodeState.WAITING
        if lived and now - node.live_since >= STABLE_AFTER:
            node.delays.reset()
            # A removed node has no tries left, and even a good connection gives it none.
            if node.tries_left:
                node.tries_left = UNLISTED_TRIES
        elif not node.listed and node.tries_left:
            node.tries_left -= 1
        if not node.listed and not node.tries_left:
            del self._nodes[address]
            return None
        if lived and not node.direct:
            node.doubt(ReconnectDelays(rng=self._rng))
        node.due_at = now + node.delays.next(end.value)
        return node.due_at

    def due(self, now: float) -> list[Address]:
        """Return the addresses to dial, the longest due first. Report each by ``dialling()``."""
        due = [
            (node.due_at, address)
            for address, node in self._nodes.items()
            if node.state is NodeState.WAITING and not node.in_doubt and node.due_at <= now
        ]
        return [address for _, address in sorted(due)]

    def next_at(self) -> float | None:
        """Return the time of the next dial or question in seconds, or None."""
        return min(
            (node.due_at for node in self._nodes.values() if node.state is NodeState.WAITING),
            default=None,
        )

    def _node(self, address: Address, due_at: float) -> _Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = _Node(ReconnectDelays(rng=self._rng), due_at)
        return node
