"""RdyAllocator case by case; test_rdy_histories.py drives it through random histories."""

from __future__ import annotations

import random

import pytest

from gnsqsync.policy.backoff import Backoff, Phase, Rule
from gnsqsync.policy.rdy import TEST_IDLE_TIMEOUT, Load, RdyAllocator, Regime, fill
from gnsqsync.policy.rdy_turns import (
    FIRST_LOOK,
    LONGEST_LOOK,
    MOST_MESSAGES,
    PEEK,
    TURN_SECONDS,
)
from tests.support.allocator import is_idle, node_under_test, rdy_of

MAX_RDY = 2500


class Cluster:
    """Some nodes whose loads the test sets by hand."""

    def __init__(
        self,
        max_in_flight: int,
        nodes: str = "",
        transit: float = 0.0,
        seed: int = 1,
        most_messages: int = 1,
        **timeouts: float,
    ) -> None:
        self.now = 0.0
        self.rdy: RdyAllocator[str] = RdyAllocator(
            max_in_flight,
            transit=transit,
            most_messages=most_messages,
            rng=random.Random(seed),
            **timeouts,
        )
        self.in_flight: dict[str, int] = {}
        self.last: dict[str, float] = {}
        self.received: dict[str, int] = {}
        # Messages that the turn of each node still allows.
        self.left: dict[str, int] = {}
        # Nodes whose turn has ended with an answer: RDY 0 has left before it.
        self.ended: set[str] = set()
        for node in nodes:
            self.join(node)
        if nodes:
            self.update()

    def join(self, node: str, cap: int = MAX_RDY, round_trip: float = 0.0) -> None:
        self.rdy.add(node, cap, self.now, round_trip)
        self.in_flight[node] = 0
        self.last[node] = 0.0
        self.received[node] = 0

    def leave(self, node: str) -> None:
        del self.in_flight[node], self.last[node]
        self.rdy.remove(node)

    def deliver(self, nodes: str, in_flight: int = 0) -> None:
        """Messages came from these nodes just now; ``in_flight`` of them are not answered."""
        for node in nodes:
            self.last[node] = self.now
            self.received[node] += max(1, in_flight)
            self.left[node] = max(0, self.left.get(node, 0) - max(1, in_flight))
            self.in_flight[node] = in_flight

    def handle(self, nodes: str) -> None:
        """A message came from each of these nodes and was answered, or all there are."""
        for node in nodes:
            if not self.in_flight[node]:
                self.deliver(node)
            self.in_flight[node] = 0
            if self.rdy.takes_turns and self.levels[node] and not self.left[node]:
                self.ended.add(node)

    def update(self, step: float = 0.0) -> list[tuple[str, int]]:
        self.now += step
        loads = {
            node: Load(self.in_flight[node], self.last[node], self.received[node])
            for node in self.in_flight
        }
        before = {**self.levels, **dict.fromkeys(self.ended, 0)}
        changes = self.rdy.update(self.now, loads)
        self.left.update(self.rdy.begun)
        assert {**before, **dict(changes)} == self.levels
        assert all(before[node] != rdy or node in self.ended for node, rdy in changes)
        self.ended.clear()
        directions = [rdy > before[node] for node, rdy in changes]
        assert directions == sorted(directions), "a raise stands before a lowering"
        return changes

    def update_busy(self, nodes: str, seconds: float) -> None:
        """Time passes in rounds of 5 seconds, in which only these nodes deliver."""
        for _ in range(int(seconds / 5)):
            self.now += 5.0
            self.deliver(nodes)
            self.update()

    @property
    def levels(self) -> dict[str, int]:
        return {node: rdy_of(self.rdy, node) for node in self.in_flight}


# SHARE: enough slots for all


def test_one_node_gets_the_whole_limit() -> None:
    cluster = Cluster(10, "a")
    assert cluster.levels == {"a": 10}
    assert cluster.rdy.regime is Regime.SHARE
    assert not cluster.rdy.waiting
    assert cluster.rdy.next_at is None


@pytest.mark.parametrize(("limit", "nodes"), [(10, 3), (9, 6), (8, 4), (200, 7), (5, 5)])
def test_the_remainder_is_used(limit: int, nodes: int) -> None:
    levels = sorted(Cluster(limit, "abcdefg"[:nodes]).levels.values())
    assert sum(levels) == limit
    assert levels[-1] - levels[0] <= 1


def test_an_update_without_a_cause_changes_nothing() -> None:
    cluster = Cluster(10, "abc")
    for _ in range(10):
        cluster.deliver("abc")
        assert cluster.update(step=1.0) == []


def test_idle_nodes_keep_1_and_lend_the_rest() -> None:
    cluster = Cluster(8, "abcd")
    assert set(cluster.levels.values()) == {2}
    cluster.update_busy("b", 10)
    assert cluster.levels == {"a": 1, "b": 5, "c": 1, "d": 1}
    assert is_idle(cluster.rdy, "a")
    assert not is_idle(cluster.rdy, "b")
    cluster.update_busy("bd", 5)
    assert sorted(cluster.levels.values()) == [1, 1, 3, 3]
    assert cluster.levels["a"] == cluster.levels["c"] == 1


def test_next_at_says_when_an_idle_node_can_lend() -> None:
    cluster = Cluster(8, "ab")
    cluster.now = 4.0
    cluster.deliver("a")
    assert cluster.update() == []
    assert cluster.rdy.next_at == 10.0
    assert cluster.update(step=6.0) == [("b", 1), ("a", 7)]
    assert cluster.rdy.next_at == 14.0


def test_when_all_are_idle_all_have_their_share() -> None:
    cluster = Cluster(9, "abc")
    cluster.update_busy("a", 15)
    assert cluster.levels == {"a": 7, "b": 1, "c": 1}
    cluster.update_busy("", 10)
    assert cluster.levels == {"a": 3, "b": 3, "c": 3}
    assert cluster.rdy.next_at is None


def test_a_node_whose_rdy_is_full_is_not_idle() -> None:
    """Handlers that take a minute: nsqd cannot deliver, so its silence says nothing."""
    cluster = Cluster(4, "ab")
    cluster.deliver("ab", in_flight=2)
    for _ in range(12):
        assert cluster.update(step=5.0) == []
    cluster.in_flight["a"] = 1
    assert cluster.update(step=1.0) == []


def test_a_long_message_at_an_idle_node_leaves_room_for_its_next_one() -> None:
    cluster = Cluster(8, "ab")
    cluster.deliver("b", in_flight=1)
    cluster.update_busy("a", 60)
    assert cluster.levels == {"a": 6, "b": 2}
    cluster.in_flight["b"] = 0
    cluster.update_busy("a", 5)
    assert cluster.levels == {"a": 7, "b": 1}


def test_the_servers_max_rdy_count_caps_and_the_others_take_the_rest() -> None:
    cluster = Cluster(100)
    cluster.join("a", cap=10)
    cluster.join("b", cap=1)
    cluster.join("c")
    cluster.update()
    assert cluster.levels == {"a": 10, "b": 1, "c": 89}
    cluster.update_busy("a", 10)
    assert cluster.levels == {"a": 10, "b": 1, "c": 89}


def test_a_server_that_allows_no_rdy_gets_none() -> None:
    cluster = Cluster(1)
    cluster.join("a", cap=0)
    cluster.join("b")
    cluster.update()
    assert cluster.levels == {"a": 0, "b": 1}
    assert cluster.rdy.regime is Regime.SHARE
    assert not cluster.rdy.waiting


# Joins, losses, limits


def test_a_join_lowers_the_others_first() -> None:
    cluster = Cluster(10, "a")
    cluster.join("b")
    assert cluster.update() == [("a", 5), ("b", 5)]


def test_a_join_gets_what_is_not_in_flight_and_the_rest_as_it_drains() -> None:
    cluster = Cluster(10, "a")
    cluster.deliver("a", in_flight=8)
    cluster.join("b")
    assert cluster.update() == [("a", 5), ("b", 2)]
    assert cluster.rdy.waiting
    cluster.in_flight["a"] = 6
    assert cluster.update() == [("b", 4)]
    cluster.in_flight["a"] = 5
    assert cluster.update() == [("b", 5)]
    assert not cluster.rdy.waiting


def test_the_survivor_gets_the_whole_limit() -> None:
    cluster = Cluster(10, "ab")
    assert cluster.levels == {"a": 5, "b": 5}
    cluster.deliver("b", in_flight=5)
    cluster.leave("b")
    assert cluster.update() == [("a", 10)]


def test_a_node_that_comes_back_starts_at_0() -> None:
    cluster = Cluster(10, "ab")
    cluster.leave("b")
    cluster.update()
    cluster.join("b")
    assert rdy_of(cluster.rdy, "b") == 0
    assert cluster.update() == [("a", 5), ("b", 5)]


def test_removing_twice_or_asking_for_a_stranger_is_harmless() -> None:
    rdy = RdyAllocator(5)
    rdy.remove("a")
    assert rdy_of(rdy, "a") == 0
    assert not is_idle(rdy, "a")
    assert rdy.update(0.0, {"a": Load(3, 0.0)}) == []


def test_messages_of_a_retired_node_count_until_it_is_removed() -> None:
    cluster = Cluster(10, "ab", transit=0.1)
    cluster.deliver("a", in_flight=3)
    cluster.rdy.retire("a")
    cluster.update()
    assert cluster.levels == {"a": 0, "b": 5}
    # Messages may be on the wire for a moment; then only what is in flight holds slots.
    assert cluster.rdy.next_at == cluster.now + 0.1
    cluster.update(0.1)
    assert cluster.levels == {"a": 0, "b": 7}
    cluster.leave("a")
    cluster.update()
    assert cluster.levels == {"b": 10}


def test_a_retired_node_is_not_the_one_to_test() -> None:
    cluster = Cluster(4, "ab")
    cluster.rdy.phase = Phase.TESTING
    cluster.update()
    tested = node_under_test(cluster.rdy)
    assert tested is not None
    cluster.rdy.retire(tested)
    cluster.update()
    other = "b" if tested == "a" else "a"
    assert node_under_test(cluster.rdy) == other
    assert cluster.levels == {tested: 0, other: 1}
    assert not cluster.leave(tested)


def test_a_raised_limit_is_used_at_once() -> None:
    cluster = Cluster(4, "ab")
    cluster.rdy.max_in_flight = 9
    cluster.update()
    assert sorted(cluster.levels.values()) == [4, 5]


def test_a_lowered_limit_holds_although_more_is_in_flight() -> None:
    """a uses up the limit alone, so b may get nothing before a has drained."""
    cluster = Cluster(10, "ab")
    cluster.deliver("a", in_flight=5)
    cluster.rdy.max_in_flight = 4
    assert sorted(cluster.update()) == [("a", 2), ("b", 0)]
    assert cluster.rdy.waiting
    cluster.in_flight["a"] = 3
    assert cluster.update() == [("b", 1)]
    cluster.in_flight["a"] = 1
    assert cluster.update() == [("b", 2)]


def test_redeliveries_above_rdy_use_slots_of_the_others() -> None:
    """nsqd timed messages out and sent them again while handlers still have the old ones."""
    cluster = Cluster(10, "ab")
    cluster.deliver("a", in_flight=8)
    assert cluster.update() == [("b", 2)]
    assert cluster.rdy.waiting
    cluster.in_flight["a"] = 5
    assert cluster.update() == [("b", 5)]


@pytest.mark.parametrize("how", ["pause", "limit"])
def test_pause_lowers_all_to_0_and_lasts_over_joins(how: str) -> None:
    cluster = Cluster(10, "ab")
    cluster.deliver("a", in_flight=5)
    if how == "pause":
        cluster.rdy.paused = True
    else:
        cluster.rdy.max_in_flight = 0
    assert sorted(cluster.update()) == [("a", 0), ("b", 0)]
    assert cluster.rdy.regime is Regime.SILENT
    assert not cluster.rdy.waiting
    assert cluster.rdy.next_at is None
    cluster.join("c")
    cluster.leave("b")
    assert cluster.update(step=100.0) == []
    if how == "pause":
        cluster.rdy.max_in_flight = 12
        assert cluster.update() == []
        cluster.rdy.paused = False
    else:
        cluster.rdy.max_in_flight = 12
    cluster.in_flight["a"] = 0
    assert sorted(cluster.update()) == [("a", 6), ("c", 6)]


def test_a_join_moves_no_more_than_it_must() -> None:
    for seed in range(20):
        cluster = Cluster(4, "ab", seed=seed)
        cluster.join("c")
        changes = dict(cluster.update())
        assert changes.pop("c") == 1
        assert list(changes.values()) == [1]


def test_a_node_idle_before_a_pause_is_idle_after_it() -> None:
    cluster = Cluster(8, "ab")
    cluster.update_busy("a", 10)
    cluster.rdy.paused = True
    cluster.update()
    cluster.rdy.paused = False
    cluster.update(step=60.0)
    assert cluster.levels == {"a": 7, "b": 1}
    assert cluster.update() == []


def test_a_full_rdy_of_1_is_no_sign_of_more_messages() -> None:
    cluster = Cluster(2, "ab")
    cluster.update_busy("a", 5)
    cluster.deliver("b")
    cluster.update_busy("a", 10)
    assert is_idle(cluster.rdy, "b")
    cluster.in_flight["b"] = 1
    cluster.update_busy("a", 5)
    assert is_idle(cluster.rdy, "b")
    cluster.deliver("b", in_flight=1)
    cluster.update()
    assert not is_idle(cluster.rdy, "b")


def test_after_a_pause_nobody_is_idle_because_of_it() -> None:
    cluster = Cluster(10, "ab")
    cluster.rdy.paused = True
    cluster.update()
    cluster.update(step=60.0)
    cluster.rdy.paused = False
    cluster.update()
    cluster.now += 1
    cluster.deliver("a")
    assert cluster.update() == []
    assert cluster.levels == {"a": 5, "b": 5}


# ROTATE: more nodes than slots


def test_the_first_that_connect_get_1_and_the_others_wait() -> None:
    cluster = Cluster(2)
    for node in "abcd":
        cluster.join(node)
        cluster.update(step=0.001)
    assert cluster.levels == {"a": 1, "b": 1, "c": 0, "d": 0}
    assert cluster.rdy.regime is Regime.ROTATE


def others(cluster: Cluster) -> str:
    """The nodes at RDY 0."""
    return "".join(node for node, rdy in cluster.levels.items() if not rdy)


def turn_of(cluster: Cluster) -> str:
    """The only node at RDY 1."""
    (node,) = (node for node, rdy in cluster.levels.items() if rdy)
    return node


def look(cluster: Cluster) -> float:
    """Let the look at hand end; its length in seconds."""
    began, due = cluster.now, cluster.rdy.next_at
    assert due is not None
    cluster.now = due
    cluster.update()
    return due - began


def test_a_look_that_finds_nothing_goes_to_who_waited_longest() -> None:
    cluster = Cluster(1)
    for node in "abc":
        cluster.join(node)
        cluster.update(step=0.001)
    order = [turn_of(cluster)]
    for _ in range(30):
        look(cluster)
        order.append(turn_of(cluster))
    assert "".join(order) == ("abc" * 11)[:31]


def test_looks_grow_with_each_round_that_found_nothing_up_to_a_limit() -> None:
    cluster = Cluster(1, "abc")
    for _ in range(3):
        look(cluster)  # new nodes are only peeked at
    lengths = [look(cluster) for _ in range(60)]
    assert lengths == pytest.approx(sorted(lengths))
    assert FIRST_LOOK <= lengths[0] < 2 * FIRST_LOOK
    assert lengths[-1] == pytest.approx(LONGEST_LOOK)


def test_any_message_makes_looks_short_again() -> None:
    cluster = Cluster(1, "abc")
    for _ in range(60):
        look(cluster)
    cluster.handle(turn_of(cluster))
    cluster.update()
    for _ in range(3):
        assert look(cluster) <= FIRST_LOOK + 1e-9


def test_looks_side_by_side_cost_no_more_than_those_of_one_slot() -> None:
    cluster = Cluster(2, "abcd")
    looks = 0
    while cluster.now < 60.0:
        look(cluster)
        looks += cluster.now >= 30.0
    assert looks <= 30.0 / LONGEST_LOOK + 2


def test_low_rdy_idle_timeout_bounds_a_look() -> None:
    cluster = Cluster(1, low_rdy_idle_timeout=0.1)
    for node in "abc":
        cluster.join(node)
    cluster.update()
    assert max(look(cluster) for _ in range(60)) == pytest.approx(0.1)


def test_a_look_lasts_a_round_trip_longer() -> None:
    cluster = Cluster(1)
    cluster.join("a", round_trip=0.3)
    cluster.join("b", round_trip=0.3)
    cluster.update()
    assert look(cluster) >= 0.3


def test_a_turn_ends_with_the_answer_to_its_message() -> None:
    """At once, without the transit: RDY 0 has left before the answer."""
    cluster = Cluster(1, "abc", transit=0.1)
    order = []
    for _ in range(9):
        first = turn_of(cluster)
        order.append(first)
        cluster.deliver(first, in_flight=1)
        assert cluster.update(step=5.0) == []
        cluster.handle(first)
        assert cluster.rdy.waiting
        changes = cluster.update(step=1.0)
        assert changes[0] == (first, 0) and changes[1][1] == 1
        assert cluster.rdy.begun == {changes[1][0]: 1}
    assert order == order[:3] * 3 and len(set(order)) == 3


def test_a_message_answered_between_two_updates_ends_the_turn() -> None:
    cluster = Cluster(1, "ab", transit=0.1)
    first = turn_of(cluster)
    other = others(cluster)
    cluster.handle(first)
    assert cluster.update() == [(first, 0), (other, 1)]


def test_a_further_message_ends_the_turn_and_raises_no_rdy_while_open() -> None:
    cluster = Cluster(1, "ab")
    first = turn_of(cluster)
    cluster.deliver(first, in_flight=2)
    assert cluster.update() == [(first, 0)]
    cluster.in_flight[first] = 1
    assert cluster.update(step=1.0) == []
    cluster.in_flight[first] = 0
    assert cluster.update(step=1.0)[0][1] == 1


def test_a_message_that_comes_after_the_turn_holds_up_the_others() -> None:
    """And its node gets no turn while it is open, though RDY 1 would cost no slot there."""
    cluster = Cluster(1, "ab", transit=0.1)
    first = turn_of(cluster)
    other = others(cluster)
    while cluster.levels[first]:
        look(cluster)
    cluster.deliver(first, in_flight=1)
    assert cluster.update(step=1.0) == []
    assert cluster.levels == {first: 0, other: 0}
    cluster.handle(first)
    assert cluster.update(step=1.0) == [(other, 1)]


def test_a_message_during_the_turn_of_another_node_takes_the_slot() -> None:
    cluster = Cluster(1, "ab")
    first = turn_of(cluster)
    other = others(cluster)
    cluster.deliver(other, in_flight=1)
    assert cluster.update() == [(first, 0)]
    cluster.handle(other)
    assert cluster.update() == [(first, 1)]


def test_a_long_message_keeps_the_slot_and_no_more() -> None:
    cluster = Cluster(1, "ab")
    first = turn_of(cluster)
    other = others(cluster)
    cluster.deliver(first, in_flight=1)
    cluster.update()
    assert cluster.rdy.next_at == 30.0
    assert cluster.update(step=30.0) == [(first, 0)]
    cluster.handle(first)
    assert cluster.update(step=300.0) == [(other, 1)]


def test_nodes_that_are_full_take_turns_evenly() -> None:
    cluster = Cluster(2, "abcde", most_messages=MOST_MESSAGES)
    counts = dict.fromkeys("abcde", 0)
    for _ in range(500):
        for node in [node for node, rdy in cluster.levels.items() if rdy]:
            counts[node] += 1
            cluster.handle(node)
        cluster.update(step=0.001)
    assert sum(counts.values()) == 1000
    assert max(counts.values()) - min(counts.values()) <= MOST_MESSAGES


def test_a_share_lowered_to_one_is_a_turn_until_all_is_answered() -> None:
    cluster = Cluster(4, "ab")
    cluster.deliver("a", in_flight=2)
    cluster.update()
    cluster.rdy.max_in_flight = 1
    cluster.update()
    assert cluster.levels == {"a": 1, "b": 0} and cluster.left["a"] == 0
    cluster.handle("a")
    cluster.update()
    assert cluster.levels == {"a": 0, "b": 1}


def test_slow_handlers_keep_turns_at_one_message() -> None:
    cluster = Cluster(1, "abc", most_messages=MOST_MESSAGES)
    order = []
    for _ in range(30):
        order.append(turn_of(cluster))
        cluster.handle(order[-1])
        cluster.update(step=TURN_SECONDS)
    assert "".join(order) == "".join(order[:3]) * 10


def test_a_node_that_has_no_more_messages_loses_a_turn_of_several() -> None:
    cluster = Cluster(1, "ab", transit=0.002, most_messages=MOST_MESSAGES)
    while cluster.left[turn_of(cluster)] < 3:
        cluster.handle(turn_of(cluster))
        cluster.update(step=0.001)
    first = turn_of(cluster)
    cluster.handle(first)
    assert cluster.update(step=0.001) == []
    began = cluster.now
    assert look(cluster) == pytest.approx(PEEK)
    assert cluster.levels[first] == 0
    look(cluster)
    assert turn_of(cluster) != first
    assert cluster.now - began <= PEEK + 0.003
    assert not is_idle(cluster.rdy, first)


def test_empty_nodes_leave_most_of_the_time_to_a_full_one() -> None:
    cluster = Cluster(1, "abcdefghij", transit=0.002)
    waits = dict.fromkeys("abcdefghij", 0.0)
    handled = 0
    while cluster.now < 20.0:
        if cluster.levels["a"]:
            cluster.handle("a")
            cluster.update(step=0.001)
            handled += 1
        else:
            look(cluster)
        for node, rdy in cluster.levels.items():
            if rdy:
                waits[node] = cluster.now
            assert cluster.now - waits[node] <= 0.25 * 10
    # 1,000 a second would be all of it.
    assert handled >= 0.9 * 20_000


def test_the_longest_turn_ends_for_a_node_of_a_lowered_limit() -> None:
    cluster = Cluster(2, "abc")
    first, second = (node for node, rdy in cluster.levels.items() if rdy)
    cluster.handle(first)
    cluster.update(step=0.001)
    cluster.rdy.max_in_flight = 1
    assert cluster.update(step=0.001) == [(second, 0)]


def test_a_slot_that_drains_belongs_to_who_waited_longest() -> None:
    """And not to the node where it drains, although RDY 1 would cost nothing there."""
    cluster = Cluster(2, "ab")
    cluster.join("c")
    cluster.join("d")
    cluster.deliver("ab", in_flight=1)
    cluster.update()
    assert sorted(cluster.update(step=30.0)) == [("a", 0), ("b", 0)]
    cluster.leave("c")
    assert cluster.update(step=1.0) == []
    cluster.in_flight["b"] = 0
    assert cluster.update(step=1.0)[0] == ("d", 1)


def test_with_a_slot_for_each_node_again_rdy_has_no_bound_of_one_message() -> None:
    cluster = Cluster(1, "ab")
    cluster.handle(turn_of(cluster))
    cluster.rdy.max_in_flight = 2
    cluster.update()
    assert cluster.levels == {"a": 1, "b": 1}
    assert not cluster.rdy.takes_turns and not cluster.rdy.begun
    cluster.rdy.max_in_flight = 1
    cluster.deliver("a", in_flight=1)
    cluster.update()
    assert cluster.rdy.begun == {"a": 0}
    assert cluster.levels == {"a": 1, "b": 0}


def test_a_node_lowered_for_messages_elsewhere_keeps_its_turn() -> None:
    cluster = Cluster(2)
    for node in "abc":
        cluster.join(node)
        cluster.update(step=1.0)
    cluster.deliver("a", in_flight=3)
    assert cluster.update() == [("a", 0), ("b", 0)]
    cluster.in_flight["a"] = 1
    assert cluster.update() == [("b", 1)]


def test_losing_a_node_passes_its_turn_on() -> None:
    cluster = Cluster(1, "ab")
    first = next(node for node, rdy in cluster.levels.items() if rdy)
    cluster.leave(first)
    (change,) = cluster.update()
    assert change[1] == 1


def test_many_readers_do_not_all_begin_at_the_same_node() -> None:
    firsts = set()
    for seed in range(40):
        cluster = Cluster(1, "abc", seed=seed)
        firsts |= {node for node, rdy in cluster.levels.items() if rdy}
    assert firsts == {"a", "b", "c"}


def test_lowering_the_limit_below_the_number_of_nodes() -> None:
    cluster = Cluster(12, "abc")
    cluster.rdy.max_in_flight = 2
    cluster.update()
    assert sorted(cluster.levels.values()) == [0, 1, 1]
    cluster.rdy.max_in_flight = 12
    cluster.update()
    assert cluster.levels == {"a": 4, "b": 4, "c": 4}


# Backoff


def test_blocked_is_0_for_all_and_testing_is_1_for_one() -> None:
    cluster = Cluster(10, "abc")
    cluster.rdy.phase = Phase.BLOCKED
    assert sorted(cluster.update()) == [("a", 0), ("b", 0), ("c", 0)]
    assert node_under_test(cluster.rdy) is None
    cluster.rdy.phase = Phase.TESTING
    ((node, rdy),) = cluster.update()
    assert rdy == 1
    assert node_under_test(cluster.rdy) == node
    cluster.join("d")
    assert cluster.update() == []
    cluster.rdy.phase = Phase.OPEN
    cluster.update()
    assert sorted(cluster.levels.values()) == [2, 2, 3, 3]
    assert node_under_test(cluster.rdy) is None


def test_a_test_stays_at_its_node_while_the_message_is_handled() -> None:
    cluster = Cluster(10, "abc")
    cluster.rdy.phase = Phase.TESTING
    cluster.update()
    node = node_under_test(cluster.rdy)
    assert isinstance(node, str)
    cluster.deliver(node, in_flight=1)
    for _ in range(20):
        assert cluster.update(step=5.0) == []
    assert node_under_test(cluster.rdy) == node


def test_a_test_moves_on_from_a_node_without_messages() -> None:
    cluster = Cluster(1, "abc")
    cluster.rdy.phase = Phase.TESTING
    cluster.update()
    seen = [node_under_test(cluster.rdy)]
    for _ in range(5):
        due = cluster.rdy.next_at
        assert due is not None and due > cluster.now
        cluster.now = due
        cluster.update()
        assert sum(cluster.levels.values()) == 1
        seen.append(node_under_test(cluster.rdy))
    assert set(seen[:3]) == {"a", "b", "c"}
    assert seen[3:] == seen[:3]


def test_a_test_begins_at_a_node_that_had_messages() -> None:
    for seed in range(10):
        cluster = Cluster(20, "abcdefgh", seed=seed)
        cluster.update_busy("e", 20)
        for _ in range(4):
            cluster.rdy.phase = Phase.BLOCKED
            cluster.update()
            cluster.rdy.phase = Phase.TESTING
            cluster.update(step=2.0)
            assert node_under_test(cluster.rdy) == "e"
            cluster.deliver("e", in_flight=1)
            cluster.update()
            cluster.in_flight["e"] = 0


def test_tests_take_turns_among_the_nodes_that_have_messages() -> None:
    cluster = Cluster(20, "abc")
    cluster.deliver("abc")
    seen = []
    for _ in range(6):
        cluster.rdy.phase = Phase.BLOCKED
        cluster.update(step=1.0)
        cluster.rdy.phase = Phase.TESTING
        cluster.update(step=1.0)
        seen.append(node_under_test(cluster.rdy))
    assert set(seen[:3]) == {"a", "b", "c"}
    assert seen[3:] == seen[:3]


def test_old_messages_count_against_the_test() -> None:
    """max_in_flight 1 and a message from before the pause: its own node is the test."""
    cluster = Cluster(1, "ab")
    first = next(node for node, rdy in cluster.levels.items() if rdy)
    cluster.deliver(first, in_flight=1)
    cluster.rdy.phase = Phase.BLOCKED
    cluster.update()
    cluster.rdy.phase = Phase.TESTING
    assert cluster.update() == [(first, 1)]


def test_a_test_moves_to_old_messages_when_a_lowered_limit_leaves_no_slot() -> None:
    cluster = Cluster(5, "a")
    cluster.rdy.phase = Phase.TESTING
    cluster.update()
    cluster.join("b")
    cluster.deliver("b", in_flight=1)
    assert cluster.update() == []
    cluster.rdy.max_in_flight = 1
    assert cluster.update() == [("a", 0), ("b", 1)]


def test_a_test_that_begins_without_a_pause_stays_where_it_began() -> None:
    cluster = Cluster(5, "ab")
    cluster.update(step=20.0)
    cluster.rdy.phase = Phase.TESTING
    cluster.update()
    assert sorted(cluster.levels.values()) == [0, 1]
    assert cluster.update() == []
    assert cluster.update(step=0.9 * TEST_IDLE_TIMEOUT) == []


def test_a_node_that_is_silent_under_test_does_not_hold_up_the_reader() -> None:
    cluster = Cluster(5, "ab")
    cluster.rdy.phase = Phase.TESTING
    cluster.update()
    silent = node_under_test(cluster.rdy)
    cluster.update(step=TEST_IDLE_TIMEOUT)
    assert node_under_test(cluster.rdy) not in (None, silent)
    assert sum(cluster.levels.values()) == 1


def test_pause_during_a_test_sends_no_test() -> None:
    cluster = Cluster(10, "ab")
    cluster.rdy.phase = Phase.TESTING
    cluster.update()
    cluster.rdy.paused = True
    cluster.update()
    assert cluster.levels == {"a": 0, "b": 0}
    assert node_under_test(cluster.rdy) is None
    cluster.rdy.paused = False
    cluster.update()
    assert sum(cluster.levels.values()) == 1
    assert node_under_test(cluster.rdy) is not None


def test_a_lost_test_is_made_again_elsewhere() -> None:
    cluster = Cluster(10, "ab")
    backoff = Backoff(rule=Rule.EVERY_FAILURE)
    backoff.failed("x", 1, cluster.now)
    cluster.rdy.phase = backoff.phase
    cluster.update()
    assert backoff.tick(2.0)
    cluster.rdy.phase = backoff.phase
    cluster.update(step=2.0)
    node = node_under_test(cluster.rdy)
    assert isinstance(node, str)
    other = "b" if node == "a" else "a"
    cluster.leave(node)
    assert cluster.update() == [(other, 1)]


def test_a_test_with_nobody_there_waits_for_the_first_to_come() -> None:
    cluster = Cluster(10)
    cluster.rdy.phase = Phase.TESTING
    assert cluster.update() == []
    assert node_under_test(cluster.rdy) is None
    cluster.join("a")
    assert cluster.update(step=60.0) == [("a", 1)]
    assert node_under_test(cluster.rdy) == "a"


def test_losing_a_node_that_is_not_under_test_is_no_lost_test() -> None:
    cluster = Cluster(10, "ab")
    cluster.rdy.phase = Phase.TESTING
    cluster.update()
    assert not cluster.leave("a" if node_under_test(cluster.rdy) == "b" else "b")


# transit: what may be on the wire


def test_lowered_rdy_counts_until_it_can_have_arrived() -> None:
    cluster = Cluster(10, "a", transit=0.5)
    cluster.join("b")
    assert cluster.update() == [("a", 5)]
    assert cluster.rdy.waiting
    assert cluster.rdy.next_at == 0.5
    assert cluster.update(step=0.4) == []
    assert cluster.update(step=0.1) == [("b", 5)]
    assert not cluster.rdy.waiting


def test_messages_that_were_on_the_wire_are_found_in_flight() -> None:
    cluster = Cluster(10, "a", transit=0.5)
    cluster.join("b")
    cluster.update()
    cluster.deliver("a", in_flight=9)
    assert cluster.update(step=0.5) == [("b", 1)]


def test_a_turn_is_passed_on_after_the_transit() -> None:
    cluster = Cluster(1, "ab", transit=0.5)
    first = next(node for node, rdy in cluster.levels.items() if rdy)
    other = "b" if first == "a" else "a"
    assert cluster.update(step=10.0) == [(first, 0)]
    assert cluster.rdy.next_at == 10.5
    assert cluster.update(step=0.5) == [(other, 1)]


def test_a_turn_begun_with_rdy_up_keeps_its_slot_until_rdy_0_arrives() -> None:
    cluster = Cluster(1, "a", transit=0.5)
    cluster.join("b")
    cluster.update()
    assert cluster.levels == {"a": 1, "b": 0}
    cluster.handle("a")
    cluster.update()
    assert cluster.levels == {"a": 0, "b": 0}
    assert cluster.update(step=0.5) == [("b", 1)]
    # The number of messages of this turn was known before RDY 1 left.
    cluster.handle("b")
    cluster.update()
    assert cluster.levels == {"a": 1, "b": 0}


def test_a_test_moves_on_after_the_transit() -> None:
    cluster = Cluster(1, "ab", transit=0.5)
    cluster.rdy.phase = Phase.TESTING
    cluster.update()
    first = node_under_test(cluster.rdy)
    assert cluster.update(step=10.0) == [(first, 0)]
    assert node_under_test(cluster.rdy) is None
    assert cluster.update(step=0.2) == []
    (change,) = cluster.update(step=0.3)
    assert change[1] == 1 and change[0] != first


def test_rdy_lowered_twice_counts_as_before_the_first_time() -> None:
    cluster = Cluster(12, "a", transit=0.5)
    cluster.join("b")
    cluster.update()
    cluster.join("c")
    cluster.update(step=0.1)
    assert cluster.levels == {"a": 4, "b": 0, "c": 0}
    cluster.update(step=0.45)
    assert cluster.levels == {"a": 4, "b": 0, "c": 0}
    cluster.update(step=0.1)
    assert cluster.levels == {"a": 4, "b": 4, "c": 4}


def test_messages_on_the_wire_raise_no_rdy_above_a_lowered_limit() -> None:
    cluster = Cluster(2, "a", transit=0.5)
    cluster.now += 1
    cluster.join("b")
    cluster.update()
    cluster.update(0.6)
    assert cluster.levels == {"a": 1, "b": 1}
    cluster.deliver("a", in_flight=1)
    cluster.rdy.max_in_flight = 1
    for _ in range(3):
        cluster.update(0.1)
        assert cluster.levels["b"] == 0
    cluster.deliver("a")
    cluster.update(0.6)
    cluster.update(0.6)
    assert sum(cluster.levels.values()) == 1


def test_losing_a_node_that_did_not_get_the_test_yet_is_no_lost_test() -> None:
    cluster = Cluster(1, "ab", transit=0.5)
    cluster.rdy.phase = Phase.TESTING
    cluster.update()
    first = node_under_test(cluster.rdy)
    cluster.update(step=10.0)
    assert not cluster.leave("b" if first == "a" else "a")


def test_raising_the_same_node_again_need_not_wait() -> None:
    cluster = Cluster(10, "ab", transit=0.5)
    cluster.rdy.paused = True
    cluster.update()
    cluster.rdy.paused = False
    assert sorted(cluster.update(step=0.01)) == [("a", 5), ("b", 5)]


# The arithmetic


@pytest.mark.parametrize(
    ("levels", "caps", "budget", "filled"),
    [
        ([], [], 5, []),
        ([0, 0, 0], [9, 9, 9], 7, [3, 2, 2]),
        ([5, 0, 0], [9, 9, 9], 4, [5, 2, 2]),
        ([5, 0, 0], [9, 9, 9], 5, [5, 3, 2]),
        ([5, 0, 0], [9, 1, 9], 4, [5, 1, 3]),
        ([1, 1], [4, 2], 100, [4, 2]),
        ([3, 1], [3, 1], 0, [3, 1]),
        ([2, 2], [9, 9], 0, [2, 2]),
        ([6, 1], [9, 1], 1, [7, 1]),
    ],
)
def test_fill(levels: list[int], caps: list[int], budget: int, filled: list[int]) -> None:
    assert fill(levels, caps, budget) == filled
