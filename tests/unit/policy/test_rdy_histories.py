"""RdyAllocator over random histories: the limit is never exceeded, nobody waits for ever.

The nsqds here deliver as the real one does: whenever they have a message and fewer in flight
than their RDY.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from gnsqsync.policy.backoff import Phase
from gnsqsync.policy.rdy import Load, RdyAllocator, Regime
from gnsqsync.policy.rdy_turns import LONGEST_LOOK, LONGEST_REST, MOST_MESSAGES
from tests.support.allocator import node_under_test, rdy_of
from tests.support.marks import few_and_many

IDLE, TURN = 2.0, 5.0
ROUND = 1.0


class Nsqd:
    """One nsqd without a wire: RDY and answers work at once."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.rdy = 0
        self.in_flight = 0
        self.backlog = 0
        self.last_message_at = 0.0
        self.received = 0
        # Messages until RDY 0, or None without a turn.
        self.left: int | None = None

    def deliver(self, now: float) -> None:
        count = max(0, min(self.backlog, self.rdy - self.in_flight))
        if count:
            self.in_flight += count
            self.backlog -= count
            self.last_message_at = now
            self.came(count)

    def came(self, count: int) -> None:
        self.received += count
        if self.left is not None:
            self.left = max(0, self.left - count)

    def answer(self, count: int) -> None:
        self.in_flight -= count
        if self.left == 0 and not self.in_flight:
            self.rdy = 0  # written before the answer


class AnyHistory(RuleBasedStateMachine):
    """Any order of events, an update after each: what must hold at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.limit = 5
        self.paused = False
        self.phase = Phase.OPEN
        self.names = itertools.count()
        self.nodes: dict[int, Nsqd] = {}
        self.rdy: RdyAllocator[int] = RdyAllocator(
            self.limit,
            low_rdy_idle_timeout=IDLE,
            low_rdy_timeout=TURN,
            most_messages=MOST_MESSAGES,
            rng=random.Random(0),
        )

    def used(self) -> int:
        return sum(max(node.rdy, node.in_flight) for node in self.nodes.values())

    def update(self) -> None:
        """As often as deliveries change the picture; without any, a second time does nothing."""
        for _ in range(8):
            loads = self.loads()
            changes = self.rdy.update(self.now, loads)
            for name, node in self.nodes.items():
                left = self.rdy.begun.get(name, node.left or 0)
                node.left = left if self.rdy.takes_turns else None
            self.apply(changes)
            self.check()
            if self.loads() == loads:
                assert self.rdy.update(self.now, loads) == []
                return
        raise AssertionError("update() does not come to rest")

    def apply(self, changes: list[tuple[int, int]]) -> None:
        raising = False
        for name, rdy in changes:
            node = self.nodes[name]
            assert rdy != node.rdy or rdy == 0
            assert 0 <= rdy <= node.cap
            raising = raising or rdy > node.rdy
            assert not (raising and rdy < node.rdy), "lower before raise"
            before = self.used()
            node.rdy = rdy
            # Not one command of it may take a slot that is not free.
            assert self.used() <= max(before, self.limit)
            node.deliver(self.now)

    def loads(self) -> dict[int, Load]:
        return {
            name: Load(node.in_flight, node.last_message_at, node.received)
            for name, node in self.nodes.items()
        }

    def check(self) -> None:
        nodes = self.nodes.values()
        in_flight = sum(node.in_flight for node in nodes)
        assert self.used() <= max(self.limit, in_flight)
        assert {name: rdy_of(self.rdy, name) for name in self.nodes} == {
            name: node.rdy for name, node in self.nodes.items()
        }
        able = [node for node in nodes if node.cap]
        given_out = sum(node.rdy for node in nodes)
        due = self.rdy.next_at
        assert due is None or due > self.now
        if self.paused or self.limit == 0 or self.phase is Phase.BLOCKED:
            assert self.rdy.regime is Regime.SILENT
            assert given_out == 0
            assert not self.rdy.waiting
        elif self.phase is Phase.TESTING:
            assert given_out == (1 if able else 0)
            assert (node_under_test(self.rdy) is None) == (not able)
        elif len(able) > self.limit:
            assert self.rdy.waiting
            assert self.used() >= self.limit
            assert max(node.rdy for node in nodes) <= 1
        elif self.rdy.waiting:
            # Somebody wants more: then there must be nothing left to give.
            assert self.used() >= self.limit
        else:
            assert given_out == min(self.limit, sum(node.cap for node in able))
            assert all(node.rdy for node in able)
        if self.phase is not Phase.TESTING:
            assert node_under_test(self.rdy) is None

    @precondition(lambda self: len(self.nodes) < 8)
    @rule(cap=st.sampled_from([2500, 2500, 2500, 3, 1, 0]), backlog=st.integers(0, 30))
    def join(self, cap: int, backlog: int) -> None:
        name = next(self.names)
        self.nodes[name] = Nsqd(cap)
        self.nodes[name].backlog = backlog
        self.rdy.add(name, cap, self.now)
        self.update()

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.nodes)))
        del self.nodes[name]
        self.rdy.remove(name)
        self.update()

    @precondition(lambda self: self.nodes)
    @rule(data=st.data(), count=st.integers(1, 30))
    def publish(self, data: st.DataObject, count: int) -> None:
        node = self.nodes[data.draw(st.sampled_from(sorted(self.nodes)))]
        node.backlog += count
        node.deliver(self.now)
        self.update()

    @precondition(lambda self: any(node.in_flight for node in self.nodes.values()))
    @rule(data=st.data(), share=st.sampled_from([0.0, 0.5, 1.0]))
    def answer(self, data: st.DataObject, share: float) -> None:
        holding = [name for name, node in self.nodes.items() if node.in_flight]
        node = self.nodes[data.draw(st.sampled_from(sorted(holding)))]
        node.answer(max(1, int(node.in_flight * share)))
        node.deliver(self.now)
        self.update()

    @precondition(lambda self: any(node.in_flight for node in self.nodes.values()))
    @rule(count=st.integers(1, 4))
    def deliver_again(self, count: int) -> None:
        """nsqd times messages out and sends them again while handlers have the old ones."""
        node = next(node for node in self.nodes.values() if node.in_flight)
        node.in_flight += count
        node.came(count)
        self.update()

    @rule(limit=st.sampled_from([0, 1, 2, 3, 5, 9, 40]))
    def set_limit(self, limit: int) -> None:
        self.limit = limit
        self.rdy.max_in_flight = limit
        self.update()

    @rule()
    def pause_or_resume(self) -> None:
        self.paused = not self.paused
        if self.paused:
            self.rdy.paused = True
        else:
            self.rdy.paused = False
        self.update()

    @rule(phase=st.sampled_from(list(Phase)))
    def back_off(self, phase: Phase) -> None:
        self.phase = phase
        self.rdy.phase = phase
        self.update()

    @rule(step=st.sampled_from([0.01, 0.5, 1.9, 3.0, 10.0]))
    def pass_time(self, step: float) -> None:
        self.now += step
        self.update()

    @rule()
    def pass_time_to_next(self) -> None:
        due = self.rdy.next_at
        if due is not None:
            self.now = due
            self.update()


@few_and_many(40, 300)
def test_any_history(count: int) -> None:
    run_state_machine_as_test(
        AnyHistory, settings=settings(max_examples=count, stateful_step_count=40, deadline=None)
    )


class Wire:
    """One nsqd behind a wire that takes ``latency`` seconds each way and keeps the order."""

    def __init__(self, world: World, name: int, latency: float, interval: float | None) -> None:
        self.world = world
        self.name = name
        self.latency = latency
        self.lost = False
        # nsqd's side. An interval of 0.0 is an endless backlog, None no message ever.
        self.rdy = 0
        self.in_flight = 0
        self.backlog = math.inf if interval == 0.0 else 0
        # The client's side, and what left nsqd but was not answered, wherever it is.
        self.received = 0
        self.total = 0
        self.last_message_at = 0.0
        self.unanswered = 0
        # Messages until RDY 0, or None without a turn. True while that RDY 0 is under way.
        self.left: int | None = None
        self.ends_turn = False
        self.waits_since: float | None = world.now
        if interval:
            self.publish(interval)

    def wire(self, arrive: Callable[[], None]) -> None:
        if self.latency:
            self.world.after(self.latency, arrive)
        else:
            arrive()

    def publish(self, interval: float) -> None:
        self.backlog += 1
        self.deliver()
        wait = self.world.rng.uniform(0.5, 1.5) * interval
        self.world.after(wait, lambda: self.lost or self.publish(interval))

    def set_rdy(self, rdy: int) -> None:
        def arrives() -> None:
            self.rdy = rdy
            self.deliver()

        if rdy == 0:
            self.waits_since = self.world.now
        elif self.waits_since is not None:
            self.world.longest_wait = max(
                self.world.longest_wait, self.world.now - self.waits_since
            )
            self.waits_since = None
        self.wire(arrives)

    @property
    def used(self) -> int:
        """Messages that the client has not answered, or that nsqd may yet send."""
        if self.ends_turn:
            return self.unanswered
        return max(self.rdy, self.unanswered)

    def deliver(self) -> None:
        while not self.lost and self.backlog and self.in_flight < self.rdy:
            self.backlog -= 1
            self.in_flight += 1
            self.unanswered += 1
            self.wire(self.receive)

    def receive(self) -> None:
        if not self.lost:
            self.received += 1
            self.total += 1
            if self.left:
                self.left -= 1
            self.last_message_at = self.world.now
            self.world.after(self.world.handler_time(), self.answer)

    def answer(self) -> None:
        if not self.lost:
            self.received -= 1
            self.unanswered -= 1
            ends_turn = self.left == 0 and not self.received
            if ends_turn:
                self.ends_turn = True
                self.waits_since = self.world.now

            def arrives() -> None:
                if ends_turn:
                    self.rdy = 0  # written before the answer
                    self.ends_turn = False
                self.in_flight -= 1
                self.deliver()

            self.wire(arrives)
            if self.world.rdy.waiting:
                self.world.update()


class World:
    """A reader's use of the allocator in simulated time: events, and rounds if asked for."""

    def __init__(
        self, limit: int, slowest: float, *, transit: float = 0.0, rounds: bool, seed: int
    ) -> None:
        self.limit = limit
        self.slowest = slowest
        self.transit = transit
        self.rng = random.Random(seed)
        self.now = 0.0
        self.longest_wait = 0.0
        self.most_used = 0
        self.nodes: dict[int, Wire] = {}
        self.rdy: RdyAllocator[int] = RdyAllocator(
            limit,
            low_rdy_idle_timeout=IDLE,
            low_rdy_timeout=TURN,
            transit=transit,
            most_messages=MOST_MESSAGES,
            rng=self.rng,
        )
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._alarm: float | None = None
        if rounds:
            self.round()

    def handler_time(self) -> float:
        return self.rng.choice([0.05, self.rng.uniform(0.05, self.slowest), self.slowest])

    def after(self, seconds: float, fn: Callable[[], object]) -> None:
        self.at(self.now + seconds, fn)

    def at(self, moment: float, fn: Callable[[], object]) -> None:
        heapq.heappush(self._events, (moment, next(self._order), fn))

    def round(self) -> None:
        self.update()
        self.after(ROUND, self.round)

    def join(self, name: int, interval: float | None) -> None:
        # The wire takes less than half the transit, so that both ways fit in.
        self.nodes[name] = Wire(self, name, self.rng.uniform(0, 0.49) * self.transit, interval)
        self.rdy.add(name, 2500, self.now)
        self.update()

    def lose(self, name: int) -> None:
        self.nodes.pop(name).lost = True
        self.rdy.remove(name)
        self.update()

    def update(self) -> None:
        loads = {
            name: Load(node.received, node.last_message_at, node.total)
            for name, node in self.nodes.items()
        }
        changes = self.rdy.update(self.now, loads)
        for name, node in self.nodes.items():
            left = self.rdy.begun.get(name, node.left or 0)
            node.left = left if self.rdy.takes_turns else None
        for name, rdy in changes:
            self.nodes[name].set_rdy(rdy)
        due = self.rdy.next_at
        if due is not None and due != self._alarm:
            self._alarm = due
            self.at(due, lambda: self.now == self._alarm and self.update())

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, fn = heapq.heappop(self._events)
            fn()
            used = sum(node.used for node in self.nodes.values())
            self.most_used = max(self.most_used, used)
        self.now = until
        for node in self.nodes.values():
            if node.waits_since is not None:
                self.longest_wait = max(self.longest_wait, self.now - node.waits_since)


# What a node has: an endless backlog, nothing, or a message now and then.
intervals = st.sampled_from([0.0, 0.0, None, 0.7, 3.0])


@given(
    limit=st.integers(1, 4),
    nodes=st.lists(intervals, min_size=2, max_size=9),
    slowest=st.sampled_from([0.1, 1.0, 8.0]),
    rounds=st.booleans(),
    churn=st.lists(st.tuples(st.floats(1, 30), st.integers(0, 8)), max_size=3),
    seed=st.integers(0, 1000),
)
# Nodes that drain took their own slots back here, past one that waited longer.
@example(limit=3, nodes=[0.0, 0.0, 0.0, 3.0], slowest=8.0, rounds=False, churn=[], seed=0)
def nobody_waits_longer_than_the_docstring_says(
    limit: int,
    nodes: list[float | None],
    slowest: float,
    rounds: bool,
    churn: list[tuple[float, int]],
    seed: int,
) -> None:
    world = World(limit, slowest, rounds=rounds, seed=seed)
    for name, interval in enumerate(nodes):
        world.join(name, interval)

    def one_more() -> None:
        if 99 not in world.nodes and len(world.nodes) < len(nodes):
            world.join(99, 0.0)

    for moment, name in churn:
        # A node is lost, or one more comes: the newest waits behind all the others.
        if name < len(nodes):
            world.after(moment, lambda name=name: name in world.nodes and world.lose(name))
        else:
            world.after(moment, one_more)
    bound = len(nodes) * (LONGEST_LOOK + LONGEST_REST + MOST_MESSAGES * slowest)
    world.run(2 * bound + 10)
    assert world.longest_wait <= bound + 1e-6
    assert world.most_used <= limit


@few_and_many(15, 120)
def test_nobody_waits_longer_than_the_docstring_says(count: int) -> None:
    settings(max_examples=count, deadline=None)(nobody_waits_longer_than_the_docstring_says)()


@given(
    limit=st.integers(1, 40),
    nodes=st.lists(intervals, min_size=1, max_size=6),
    slowest=st.sampled_from([0.1, 0.6]),
    rounds=st.booleans(),
    losses=st.integers(0, 5),
    seed=st.integers(0, 1000),
)
def the_whole_limit_is_given_out_soon_after_the_last_change(
    limit: int,
    nodes: list[float | None],
    slowest: float,
    rounds: bool,
    losses: int,
    seed: int,
) -> None:
    world = World(limit, slowest, rounds=rounds, seed=seed)
    for name, interval in enumerate(nodes):
        world.join(name, interval)
    world.run(4.0)
    for name in range(min(losses, len(nodes) - 1)):
        world.lose(name)
    world.run(4.0 + IDLE + slowest + 1.0)
    # Messages that come now and then may make a node look idle at any moment, and its share is
    # on its way to another one then; but never for longer than the messages there take.
    stuck_since = None
    for _ in range(60):
        world.run(world.now + 0.1)
        if world.rdy.takes_turns:
            continue
        given_out = sum(rdy_of(world.rdy, name) for name in world.nodes)
        assert world.rdy.waiting or given_out == limit
        if not world.rdy.waiting:
            stuck_since = None
        elif stuck_since is None:
            stuck_since = world.now
        else:
            assert world.now - stuck_since <= 2 * slowest + 0.2
    assert world.most_used <= limit
    if len(world.nodes) > limit or set(nodes) - {0.0, None}:
        return
    # Only endless backlogs and empty ones are left: every empty one lends all but 1.
    busy = [rdy_of(world.rdy, n) for n in world.nodes if nodes[n] == 0.0]
    empty = [rdy_of(world.rdy, n) for n in world.nodes if nodes[n] is None]
    shares = busy or empty
    assert max(shares) - min(shares) <= 1
    assert not busy or set(empty) <= {1}
    assert sum(busy) + sum(empty) == limit


@few_and_many(15, 80)
def test_the_whole_limit_is_given_out_soon_after_the_last_change(count: int) -> None:
    settings(max_examples=count, deadline=None)(
        the_whole_limit_is_given_out_soon_after_the_last_change
    )()


@given(
    limit=st.integers(1, 20),
    nodes=st.lists(intervals, min_size=2, max_size=6),
    slowest=st.sampled_from([0.06, 0.3, 2.0]),
    transit=st.sampled_from([0.02, 0.2, 1.0]),
    seed=st.integers(0, 1000),
)
def messages_on_the_wire_do_not_exceed_the_limit_either(
    limit: int, nodes: list[float | None], slowest: float, transit: float, seed: int
) -> None:
    """Counted at nsqd, with RDY, messages and answers under way."""
    world = World(limit, slowest, transit=transit, rounds=True, seed=seed)
    for name, interval in enumerate(nodes):
        world.after(name * 1.3, lambda name=name, interval=interval: world.join(name, interval))
    world.run(15.0)
    world.lose(0)
    world.run(20.0)
    assert world.most_used <= limit


@few_and_many(15, 120)
def test_messages_on_the_wire_do_not_exceed_the_limit_either(count: int) -> None:
    settings(max_examples=count, deadline=None)(
        messages_on_the_wire_do_not_exceed_the_limit_either
    )()


def test_without_transit_messages_on_the_wire_can_exceed_it() -> None:
    """The test above can fail: it does without the allowance."""
    worst = 0
    for seed in range(20):
        world = World(6, 0.1, transit=0.2, rounds=True, seed=seed)
        world.rdy._transit = 0.0  # of the nodes that join
        for name in range(3):
            world.after(name * 1.3, lambda name=name, world=world: world.join(name, 0.0))
        world.run(10.0)
        worst = max(worst, world.most_used)
    assert worst > 6
