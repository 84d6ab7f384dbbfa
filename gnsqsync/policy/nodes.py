"""Which nsqds a reader dials, and when.

Knows addresses, wishes and delays. Must not know sockets, locks or the time of day.
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

# A connection that lived this long (seconds) was a good one: its delays start again.
STABLE_AFTER: Final = 5.0

# Dials of a discovered node that no nsqlookupd lists any more, before it is forgotten.
UNLISTED_TRIES: Final = 3

# Questions to nsqlookupds about a node whose connection ended, before the node is forgotten. They
# take about 20 seconds. A node that restarts later is found by the usual questions.
UNLISTED_ASKS: Final = 7

# Seconds that nsqlookupds have to answer that. After them, what they said last counts.
ANSWER_SECONDS: Final = 2.0


class NodeState(enum.Enum):
    """WAITING for its next dial, DIALLING (handshake included), or LIVE."""

    WAITING = "waiting"
    DIALLING = "dialling"
    LIVE = "live"


@dataclass(slots=True, eq=False)
class _Node:
    delays: ReconnectDelays
    due_at: float
    state: NodeState = NodeState.WAITING
    direct: bool = False
    sources: set[Hashable] = field(default_factory=set)
    # The nsqlookupds that listed it when its connection ended, and have not answered since.
    stale: set[Hashable] = field(default_factory=set)
    # Its connection ended, and no nsqlookupd has listed it since.
    in_doubt: bool = False
    asks_left: int = 0
    # Pauses between these questions. A question is no dial, so it must not change ``delays``.
    asks: ReconnectDelays | None = None
    tries_left: int = 0
    live_since: float = 0.0

    @property
    def listed(self) -> bool:
        return self.direct or bool(self.sources or self.stale)

    def doubt(self, asks: ReconnectDelays) -> None:
        """Distrust what nsqlookupds said: the connection ended. ``asks``: pauses of questions."""
        self.in_doubt = True
        self.asks_left = UNLISTED_ASKS
        self.asks = asks
        self.stale |= self.sources
        self.sources.clear()

    @property
    def asked(self) -> bool:
        """Whether nsqlookupds were asked since it is in doubt."""
        return self.asks_left < UNLISTED_ASKS

    def trust(self) -> None:
        self.in_doubt = False
        self.sources |= self.stale
        self.stale.clear()


class ReaderNodes:
    """The nsqds that a reader wants to be connected to, and the time of the next dial of each.

    A reader consumes from every nsqd that has its topic. Some addresses are given by the user
    ("direct"): they are dialled for ever. Others are found by asking nsqlookupd, the registry of
    nsqds: they are dialled as long as any nsqlookupd lists them, and UNLISTED_TRIES times after
    that, since dialling a node that is gone for good would go on for ever. A connection that lives
    is never given up because of an answer of nsqlookupd, which forgets everything when it restarts.

    One that ended may have done so because its topic was deleted, and SUB would create the topic
    again. So the nsqlookupds are asked (``ask()``) when its dial is due: it is dialled when one
    lists it, or does not answer but did list it. Else it is asked for UNLISTED_ASKS times in all.

    There is at most one dial or connection per address. Every failure and every loss comes here
    and is followed by a jittered delay that grows up to the bound of its kind (DialEnd), and starts
    afresh only after a connection that lived for STABLE_AFTER seconds. Not thread-safe: the owner
    holds a lock.
    """

    def __init__(self, direct: Iterable[Address], rng: random.Random) -> None:
        self._rng = rng
        self._nodes: dict[Address, _Node] = {}
        for address in direct:
            self.add_direct(address)

    def add_direct(self, address: Address) -> None:
        """Want this nsqd until ``remove()``. A new one is due at once."""
        node = self._node(address, 0.0)
        node.direct = True
        node.trust()

    def remove(self, address: Address) -> None:
        """Want this nsqd no more: cancels its redials; a dial under way ends in a refusal.

        A live connection is the owner's to close. A nsqlookupd that goes on listing the
        address brings it back with its next answer.
        """
        node = self._nodes.get(address)
        if node is None:
            return
        node.direct = False
        node.sources.clear()
        node.stale.clear()
        node.tries_left = 0
        # While dialling or live the entry stays, so that the address is not dialled twice.
        if node.state is NodeState.WAITING:
            del self._nodes[address]

    def discovered(self, source: Hashable, addresses: Set[Address], now: float) -> None:
        """One nsqlookupd (``source``) answered: exactly these are listed there now.

        Do not call it when the question failed: then its last answer stands.
        """
        for address in addresses:
            node = self._node(address, now)
            node.tries_left = UNLISTED_TRIES
            if node.in_doubt and not node.asked:
                # Perhaps said before its connection ended.
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
        """Whether to ask the nsqlookupds now, about nodes whose dial would be due.

        ``discovered()`` tells what they say. Call it before ``due()``.
        """
        wanted = False
        for address, node in list(self._nodes.items()):
            if not node.in_doubt or node.due_at > now:
                continue
            if node.asked and node.listed:
                # Those that listed it do not answer.
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
        """A dial begins of one that was ``due()`` just now."""
        self._nodes[address].state = NodeState.DIALLING

    def connected(self, address: Address, now: float) -> bool:
        """The handshake is through. False when the address was removed meanwhile: close it."""
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
        """A dial failed, or a connection ended; an end that is reported twice counts once.

        ``end``: the kind, of a dial. A connection that ended soon was turned away. Returns when it
        is dialled or asked for again (seconds), or None for never.
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
            # Removed nodes have no tries left, and a good connection does not give them any.
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
        """The addresses to dial now, the longest due first. Report each by ``dialling()``."""
        due = [
            (node.due_at, address)
            for address, node in self._nodes.items()
            if node.state is NodeState.WAITING and not node.in_doubt and node.due_at <= now
        ]
        return [address for _, address in sorted(due)]

    def next_at(self) -> float | None:
        """When the next dial or question is due, in seconds; None when there is none."""
        return min(
            (node.due_at for node in self._nodes.values() if node.state is NodeState.WAITING),
            default=None,
        )

    def _node(self, address: Address, due_at: float) -> _Node:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = _Node(ReconnectDelays(rng=self._rng), due_at)
        return node
