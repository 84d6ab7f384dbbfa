"""RDY of each nsqd: the one place that divides max_in_flight.

Knows the rules and what is in flight. Must not know connections, commands, locks or clocks.

An update has two steps. The first sets the *targets*, the RDY that each node should have, by the
rule that ``RdyAllocator.regime`` returns. The second sets the *grants*, the RDY that each node may
have now, because a slot that is in use elsewhere cannot be given away yet. All rules about who
deserves RDY are in the first step, and the second step alone keeps the limit.

Surprise: ``RdyNode.rdy`` is the promise to nsqd, not what is on the wire. RdyLevel may ask for
less, and in a turn the caller lowers RDY itself (``begun``), before the answer to the message.
"""

from __future__ import annotations

import enum
import random
from collections.abc import Mapping, Sequence
from typing import Final, Generic

from gnsqsync.policy.backoff import Phase
from gnsqsync.policy.rdy_node import Key, Load, RdyNode
from gnsqsync.policy.rdy_turns import LEAST_TRANSIT, Looks, TurnState

__all__ = ["TEST_IDLE_TIMEOUT", "Load", "RdyAllocator", "Regime", "fill"]

# Seconds for which the node under test may be silent before another node is tested.
TEST_IDLE_TIMEOUT: Final = 1.0


class Regime(enum.Enum):
    """Rule by which RDY is given out at present.

    SILENT: no node gets any (paused, a limit of 0, or a pause of the backoff). TEST: one node gets
    RDY 1, as the backoff asks for one message. SHARE: there is a slot for each node, or more.
    ROTATE: there are more nodes than slots, and nodes take turns.
    """

    SILENT = "silent"
    TEST = "test"
    SHARE = "share"
    ROTATE = "rotate"


class RdyAllocator(Generic[Key]):
    """Divides a reader's max_in_flight among its nsqds.

    nsqd pushes messages, and RDY bounds them: "RDY n" on a connection means "at most n unanswered
    messages here", until it is changed (docs/protocol/flow#rdy). A Reader promises its user that at
    most ``max_in_flight`` messages are unanswered in all, but it cannot know which of its nsqds
    will have messages. This class divides the promise and keeps it. After each update ::

        sum(max(RDY, in flight) over all nodes) <= max_in_flight

    There are two exceptions: messages in flight before a limit was lowered, and messages that nsqd
    delivered again after a timeout. While there are too many of those, no node gets a new one. RDY
    that is taken from a node goes to another only when the messages in flight there are answered.
    Until then ``waiting`` is True, and each answer must be followed by an update().

    * Enough slots (SHARE): every node has at least RDY 1, because nsqd cannot announce messages,
      only deliver them. A node that delivered nothing for ``low_rdy_idle_timeout`` keeps only that
      1, or room for one more than it has in flight. The busy nodes get the rest, with the remainder
      of the division, so the whole limit is given out. No node gets more than its server's
      max_rdy_count.
    * More nodes than slots (ROTATE): as many nodes as there are slots get RDY 1, each for a
      ``Turn``: one message, or several of a node with a backlog. The last answer ends the turn, and
      so does a look without a message (``Looks``), after ``low_rdy_idle_timeout`` at most. After
      ``low_rdy_timeout`` RDY is lowered in any case. The node that waited longest is next. A node
      whose look found nothing rests, and lets nodes that had messages go first, for at most 0.2 s
      times the number of nodes.

      A further message may come in spite of RDY 0, because the first one timed out or nsqd had
      chosen it already. It is handled like any other, uses a slot, and its node gets no turn until
      it is answered. With N nodes, M messages in a turn, and D for the longest time that a message
      stays unanswered, a node waits for at most ::

          N * (longest look + longest rest + M * D + transit)

      if update() is called when ``next_at`` says, and on answers while ``waiting``. The caller
      itself must lower RDY before the last answer of a turn; ``begun`` lists new turns.
    * Backoff and pause: RDY 0 for all (SILENT), or RDY 1 for one node (TEST), as one message is
      enough to see if handlers work again. The test passes on from a node that has no message.

    Call update() after every change and whenever ``next_at`` has come; nothing else computes. A
    node is any hashable key of the caller's. ``transit`` bounds the seconds that a lowered RDY may
    take to reach nsqd. For RDY 1 it is twice the round trip, and 2 ms at least. Slots count as used
    in that time, because messages may be on the wire. With ``transit`` 0, a slot is free at once
    unless a message is known to be in flight. Not thread-safe: the owner holds a lock.
    """

    def __init__(
        self,
        max_in_flight: int,
        *,
        low_rdy_idle_timeout: float = 10.0,
        low_rdy_timeout: float = 30.0,
        transit: float = 0.0,
        most_messages: int = 1,
        rng: random.Random | None = None,
    ) -> None:
        """``most_messages``: upper bound of the messages of a turn."""
        # Limit as the user wishes. A limit of 0 is like a pause.
        self.max_in_flight: int = max_in_flight
        # True while the user wants no messages. New and lost nodes do not end the pause.
        self.paused: bool = False
        # True while a group lends the limit for one message: there are turns even if each node has
        # a slot.
        self.one_message: bool = False
        # Number of messages that had come when the limit was lent; None until the next update.
        self._came_before: int | None = None
        # True once the message for which the limit was lent has come.
        self._is_used_up = False
        # Phase of the backoff: how many messages it allows.
        self.phase: Phase = Phase.OPEN
        # Result of the last update. ``waiting``: some node gets its RDY when messages elsewhere are
        # answered. ``next_at``: time at which an update is needed without an event, or None.
        self.waiting: bool = False
        self.next_at: float | None = None
        # Turns that the last update began: number of messages to come before RDY 0.
        self.begun: dict[Key, int] = {}
        # True if the last update found more nodes than slots.
        self.takes_turns: bool = False
        self._idle_timeout = low_rdy_idle_timeout
        self._turn_timeout = low_rdy_timeout
        self._most_messages = most_messages
        self._transit = transit
        self._rng = rng or random.Random()
        self._nodes: dict[Key, RdyNode[Key]] = {}
        # Node under test, in the regime TEST.
        self._test: RdyNode[Key] | None = None
        # Numbers of updates and of lost turns. They order the queue, because times may be equal. A
        # node that joined before an update comes before a node that lost its turn in the update.
        # Nodes that lost their turns in one update come in the order of the losses.
        self._updates = 0
        self._losses = 0
        # Length of the looks.
        self._looks = Looks(low_rdy_idle_timeout)
        # True while a node that had a message waits for a slot.
        self._is_wanted = False

    # Events. Each must be followed by an update().

    def add(self, node: Key, max_rdy_count: int, now: float, round_trip: float = 0.0) -> None:
        """Add a subscribed connection, at RDY 0. ``max_rdy_count`` is from the IDENTIFY answer.

        ``round_trip``: seconds that nsqd took to answer a command; 0 means unknown.
        """
        transit = self._transit_of(round_trip)
        self._nodes[node] = RdyNode(
            node,
            max_rdy_count,
            now,
            (self._updates, 0),
            self._rng.random(),
            transit,
            round_trip,
        )

    def remove(self, node: Key) -> None:
        """Remove a lost connection. Its messages are gone and its slots are free.

        If it was under test, the next update tests another node.
        """
        gone = self._nodes.pop(node, None)
        if gone is not None and gone is self._test:
            self._test = None

    def retire(self, node: Key) -> None:
        """Give a node no more RDY. Its messages in flight count until ``remove()``."""
        retired = self._nodes[node]
        retired.cap = retired.target = 0

    def lend(self, slots: int, *, one_message: bool) -> None:
        """Set the limit. With ``one_message``, it is 0 again once a message has come."""
        self.max_in_flight = slots
        self.one_message = one_message
        self._came_before = None

    def set_round_trip(self, node: Key, seconds: float) -> None:
        """Set the seconds that this node takes to answer a command; 0 means unknown."""
        found = self._nodes[node]
        found.round_trip, found.transit = seconds, self._transit_of(seconds)

    def _transit_of(self, round_trip: float) -> float:
        if round_trip <= 0:
            return self._transit
        return min(self._transit, max(LEAST_TRANSIT, 2 * round_trip))

    # Decisions.

    @property
    def regime(self) -> Regime:
        """Rule that is in force."""
        if self.paused or self.max_in_flight == 0 or self.phase is Phase.BLOCKED:
            return Regime.SILENT
        if self._is_used_up:
            return Regime.SILENT
        if self.phase is Phase.TESTING:
            return Regime.TEST
        if len(self._eligible()) <= self.max_in_flight and not self.one_message:
            return Regime.SHARE
        return Regime.ROTATE

    def update(self, now: float, loads: Mapping[Key, Load]) -> list[tuple[Key, int]]:
        """Decide anew. Return (node, RDY) for nodes that change, the lowered ones first.

        A node without a load counts as one with nothing in flight. ``in_flight`` must not include a
        message for which no answer can come, because it would block a slot.
        """
        self._updates += 1
        self.begun.clear()
        ended = [n for n in self._nodes.values() if self._observe(n, now, loads.get(n.key))]
        for node in sorted(ended, key=lambda node: node.queued):
            self._queue(node)
        self._is_used_up = self.one_message and self._has_come()
        regime = self.regime
        if (regime is Regime.ROTATE) is not self.takes_turns:
            self._begin_or_end_turns(now, regime)
        if regime is not Regime.TEST:
            self._test = None
        if regime is not Regime.SHARE:
            for node in self._nodes.values():
                node.target = 0
        if regime is Regime.TEST:
            self._target_test(now)
        elif regime is Regime.SHARE:
            _target_share(self._eligible(), self.max_in_flight)
        elif regime is Regime.ROTATE:
            self._target_rotate(now)
        changes = self._grant(regime, now)
        self.waiting = self.takes_turns or self._is_short
        self.next_at = self._find_next(regime)
        return changes

    @property
    def _is_short(self) -> bool:
        """True if some node has less than its target."""
        return any(node.rdy < node.target for node in self._nodes.values())

    def _observe(self, node: RdyNode[Key], now: float, load: Load | None) -> bool:
        """Note the load of a node. Return True if the answer to its message ended its turn."""
        before = node.received
        node.observe(now, load, self._idle_limit(node))
        if not self.takes_turns:
            return False
        if node.received > before:
            self._looks.found()
            node.idle = False
        if not node.turn.observe(now, node.received, node.in_flight):
            return False
        # The caller sent RDY 0 before the answer, if the turn is sure.
        if not node.turn.is_sure:
            node.hold(now, self._transit)
        node.rdy = 0
        return True

    def _has_come(self) -> bool:
        """Return True if a message came since the limit was lent."""
        received = sum(node.received for node in self._nodes.values())
        if self._came_before is None or received < self._came_before:  # a node was removed
            self._came_before = received
        return received > self._came_before

    def _queue(self, node: RdyNode[Key]) -> None:
        """Put a node at the end of the queue."""
        self._losses += 1
        node.queued = (self._updates, self._losses)

    def _begin_or_end_turns(self, now: float, regime: Regime) -> None:
        self.takes_turns = regime is Regime.ROTATE
        for node in self._nodes.values():
            node.turn.stop()
            if self.takes_turns and node.rdy:
                self._begin_turn(node, now, raised=False)
            elif regime is Regime.SHARE:
                # A look was too short to call a node idle in a share.
                node.restart(now)

    def _begin_turn(self, node: RdyNode[Key], now: float, *, raised: bool) -> None:
        most = 1 if self.one_message else self._most_messages
        node.turn.begin(now, node.received, node.in_flight, most, raised=raised)
        self.begun[node.key] = node.turn.left(node.received)

    def turn_left(self, key: Key) -> int:
        """Return the number of messages that the turn of this node still allows."""
        node = self._nodes.get(key)
        return 0 if node is None else node.turn.left(node.received)

    def _turn_ends(self, node: RdyNode[Key]) -> float:
        """Return the time (seconds) at which a turn ends without an answer."""
        length = self._turn_timeout
        if node.turn.state is TurnState.LOOKS:
            look = self._looks.seconds(self.max_in_flight, is_wanted=self._is_wanted)
            return node.turn.looks_since + min(length, look + node.round_trip)
        return node.turn.began_at + length

    def _idle_limit(self, node: RdyNode[Key]) -> float:
        """Return the seconds without a message after which a node counts as idle."""
        if node is self._test:
            # The whole Reader waits for this node, and at RDY 1 nsqd sends at once.
            return min(self._idle_timeout, TEST_IDLE_TIMEOUT)
        return self._idle_timeout

    # First step: the targets.

    def _eligible(self) -> list[RdyNode[Key]]:
        """Return the nodes that may get RDY. A server may be configured to allow none at all."""
        return [node for node in self._nodes.values() if node.cap > 0]

    def _target_test(self, now: float) -> None:
        """Aim at one node, and keep it until it shows that it has no messages."""
        nodes = self._eligible()
        # While older messages use up the limit, only a node that has one of them can be at RDY 1.
        # The answer to that message is then the verdict.
        if sum(node.in_flight for node in nodes) >= self.max_in_flight:
            nodes = [node for node in nodes if node.in_flight] or nodes
        test = self._test
        if test is None or not test.rdy or test.idle or test not in nodes:
            if test is not None and test.rdy:
                self._queue(test)
            # Idle nodes come last, or each test would begin with a tour of all of them.
            self._test = min(
                nodes, key=lambda node: (node.idle, node.queued, node.draw), default=None
            )
            if self._test is not None and self._test.rdy:
                self._test.restart(now)
        if self._test is not None:
            self._test.target = 1

    def _target_rotate(self, now: float) -> None:
        """Aim at RDY 1 for ``max_in_flight`` nodes: turns that go on, the queue, ended turns."""
        nodes = self._eligible()
        # A node with a message that came in spite of RDY 0 has to wait for its answer.
        queue = [node for node in nodes if not node.rdy and not node.in_flight]
        queue.sort(key=lambda node: (node.turn.rests_until > now, node.queued, node.draw))
        holders = [node for node in nodes if node.rdy]
        free = max(0, self.max_in_flight - len(holders))
        self._is_wanted = any(node.turn.had_message for node in queue[free:])
        staying: list[RdyNode[Key]] = []
        leaving: list[RdyNode[Key]] = []
        for node in holders:
            (leaving if self._turn_ends(node) <= now else staying).append(node)
        # If not all can stay, the longest turn ends first.
        staying.sort(key=lambda node: (-node.turn.began_at, node.draw))
        leaving.sort(key=lambda node: (-node.turn.began_at, node.draw))
        for node in (staying + queue + leaving)[: self.max_in_flight]:
            node.target = 1
        # This decides the length of the turns that begin from here on.
        self._is_wanted = any(node.turn.had_message and not node.target for node in queue)
        for node in leaving:
            if node.turn.state is TurnState.LOOKS and node.turn.lose(now, len(nodes)):
                node.idle = True
                self._looks.ended_empty(len(nodes))
            if node.target:
                # The turn goes on: no other node wants the slot.
                self._begin_turn(node, now, raised=False)

    # Second step: the grants.

    def _grant(self, regime: Regime, now: float) -> list[tuple[Key, int]]:
        """Bring RDY as near to the targets as the slots in use allow."""
        nodes = sorted(
            self._nodes.values(), key=lambda node: (node.rdy > 0, node.queued, node.draw)
        )
        used = [max(node.in_flight, node.held) for node in nodes]
        for i, node in enumerate(nodes):
            if node.target < node.rdy and node.transit > 0:
                used[i] = max(used[i], node.rdy)
        free = max(0, self.max_in_flight - sum(used))
        # RDY costs no further slot up to the number of slots that a node uses already. Above the
        # limit, only its messages in flight count there: a message that a lowered RDY may still
        # bring need not come.
        is_above = sum(used) > self.max_in_flight
        costless = [node.in_flight for node in nodes] if is_above else used
        # Free slots first go to RDY that nodes have already.
        keep = [min(node.rdy, node.target) for node in nodes]
        base = [min(level, use) for level, use in zip(keep, costless, strict=True)]
        kept = fill(base, keep, free)
        free -= sum(kept) - sum(base)
        if regime is Regime.ROTATE:
            levels = _hand_on(nodes, kept, costless, free)
        else:
            targets = [node.target for node in nodes]
            base = [
                max(level, min(target, use))
                for level, target, use in zip(kept, targets, costless, strict=True)
            ]
            levels = fill(base, targets, free)
        lowered: list[tuple[Key, int]] = []
        raised: list[tuple[Key, int]] = []
        for node, rdy in zip(nodes, levels, strict=True):
            if rdy < node.rdy or rdy < node.told:
                lowered.append((node.key, rdy))
            elif rdy > node.rdy:
                raised.append((node.key, rdy))
            node.told = rdy
            if rdy < node.rdy:
                self._lower(node, rdy, now)
            elif rdy > node.rdy:
                # In SHARE, a node that was idle before a pause stays idle, so its share is lent at
                # once. A turn or a test is a new chance.
                if not node.rdy and not (node.idle and regime is Regime.SHARE):
                    node.restart(now)
                node.rdy = rdy
                if self.takes_turns:
                    self._begin_turn(node, now, raised=True)
        return lowered + raised

    def _lower(self, node: RdyNode[Key], rdy: int, now: float) -> None:
        if not rdy:
            node.turn.stop()
            self.begun.pop(node.key, None)
        node.hold(now, self._transit)
        node.rdy = rdy
        # A node that still has its turn, and lost RDY because others use up the limit, keeps its
        # place in the queue.
        if not node.target:
            self._queue(node)

    def _find_next(self, regime: Regime) -> float | None:
        moments: list[float] = []
        nodes = self._eligible()
        if len(nodes) > 1:
            for node in nodes:
                if node.rdy and regime is Regime.ROTATE:
                    moments.append(self._turn_ends(node))
                elif node.rdy and not node.idle and node.in_flight < node.rdy:
                    moments.append(node.busy_at + self._idle_limit(node))
        if self._is_short:
            # Looks at all nodes, because a retired node holds its slots until then, too.
            moments.extend(node.held_until for node in self._nodes.values() if node.held)
        return min(moments, default=None)


def _target_share(nodes: Sequence[RdyNode[Key]], max_in_flight: int) -> None:
    """Aim at 1 or more for each node. The busy nodes get the rest, or all if none is busy."""
    # The remainder stays with the nodes that had more, so that RDY does not move without cause.
    nodes = sorted(nodes, key=lambda node: (-node.target, node.draw))
    for node in nodes:
        node.target = 1
    busy = [node for node in nodes if not node.idle]
    idle = [node for node in nodes if node.idle]
    spare = max_in_flight - len(nodes)
    if busy:
        # Room for one more: a slow message at an idle node must not delay its next one.
        spare = _raise_targets(idle, [min(n.cap, n.in_flight + 1) for n in idle], spare)
        spare = _raise_targets(busy, [n.cap for n in busy], spare)
    # Either no node is busy, or max_rdy_count keeps the busy ones from taking it all.
    _raise_targets(nodes, [n.cap for n in nodes], spare)


def _hand_on(
    nodes: Sequence[RdyNode[Key]], levels: Sequence[int], costless: Sequence[int], free: int
) -> list[int]:
    """Raise nodes to RDY 1 in the order of the queue. Stop at the first that cannot rise.

    A node with a message in flight could rise at no cost. But then its slot would never come to
    nodes that wait longer.
    """
    levels = list(levels)
    for i, node in enumerate(nodes):
        if levels[i] < node.target:
            if not costless[i]:
                if not free:
                    break
                free -= 1
            levels[i] = 1
    return levels


def _raise_targets(nodes: Sequence[RdyNode[Key]], caps: Sequence[int], budget: int) -> int:
    """Share ``budget`` out among these nodes. Return the rest of it."""
    before = [node.target for node in nodes]
    after = fill(before, caps, budget)
    for node, target in zip(nodes, after, strict=True):
        node.target = target
    return budget - (sum(after) - sum(before))


def fill(levels: Sequence[int], caps: Sequence[int], budget: int) -> list[int]:
    """Raise levels by ``budget`` in all, the lowest first, none above its cap.

    This works like water poured into vessels with these floors and rims. An indivisible rest goes
    to the first vessels at the surface.
    """
    before = sum(levels)
    if budget >= sum(caps) - before:
        return list(caps)
    pairs = list(zip(levels, caps, strict=True))
    surface, too_high = 0, max(caps, default=0)
    while too_high - surface > 1:
        middle = (surface + too_high) // 2
        if sum(max(level, min(cap, middle)) for level, cap in pairs) - before <= budget:
            surface = middle
        else:
            too_high = middle
    filled = [max(level, min(cap, surface)) for level, cap in pairs]
    left = budget - (sum(filled) - before)
    for i, (_, cap) in enumerate(pairs):
        if left and filled[i] == surface < cap:
            filled[i] += 1
            left -= 1
    return filled
