"""Which nsqd is dialled when."""

from __future__ import annotations

import copy
import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from gnsqsync.addresses import Address
from gnsqsync.policy.nodes import (
    ANSWER_SECONDS,
    STABLE_AFTER,
    UNLISTED_ASKS,
    UNLISTED_TRIES,
    NodeState,
    ReaderNodes,
)
from tests.support.marks import few_and_many
from tests.support.nodes import states_of

A, B, C = (Address(name, 4150) for name in "abc")


def reader(*direct: Address) -> ReaderNodes:
    return ReaderNodes(direct, random.Random(5))


def connect(nodes: ReaderNodes, address: Address, now: float) -> None:
    nodes.dialling(address)
    assert nodes.connected(address, now)


def dial_and_fail(nodes: ReaderNodes, address: Address) -> float | None:
    """A dial when it is due, which fails at once; returns when the next one is."""
    now = nodes.next_at()
    assert now is not None
    assert nodes.due(now) == [address]
    nodes.dialling(address)
    return nodes.ended(address, now)


def test_direct_nodes_are_due_at_once_and_in_one_go() -> None:
    nodes = reader(A, B)
    assert nodes.next_at() == 0.0
    assert nodes.due(0.0) == [A, B]
    nodes.dialling(A)
    assert nodes.due(0.0) == [B]
    nodes.dialling(B)
    assert nodes.due(1e9) == []
    assert nodes.next_at() is None


def test_a_direct_node_is_dialled_for_ever_with_growing_jittered_delays() -> None:
    nodes = reader(A)
    full = 0.5
    for _ in range(100):
        before = nodes.next_at()
        assert before is not None
        again = dial_and_fail(nodes, A)
        assert again is not None
        assert full / 2 <= again - before <= full
        full = min(full * 2, 60.0)
    assert states_of(nodes) == {A: NodeState.WAITING}


def test_first_failure_takes_the_same_path_as_a_loss() -> None:
    never, lost = reader(A), reader(A)
    nodes_failed = dial_and_fail(never, A)
    connect(lost, A, 0.0)
    assert lost.ended(A, 0.0) == nodes_failed


def test_delays_start_again_only_after_a_connection_that_lived() -> None:
    nodes = reader(A)
    now = 0.0
    for _ in range(6):
        connect(nodes, A, now)
        again = nodes.ended(A, now + STABLE_AFTER - 0.1)
        assert again is not None
        now = again
    # Six short lives: the delay has grown to 16 seconds.
    connect(nodes, A, now)
    again = nodes.ended(A, now)
    assert again is not None and 16 <= again - now <= 32
    connect(nodes, A, again)
    end = again + STABLE_AFTER
    again = nodes.ended(A, end)
    assert again is not None and 0.25 <= again - end <= 0.5


def test_a_discovered_node_is_dialled_while_it_is_listed() -> None:
    nodes = reader()
    assert nodes.next_at() is None
    nodes.discovered("lookup1", {A}, 10.0)
    assert nodes.due(10.0) == [A]
    for _ in range(50):
        assert dial_and_fail(nodes, A) is not None


def test_a_vanished_node_gets_a_few_tries_and_is_forgotten() -> None:
    nodes = reader()
    nodes.discovered("lookup1", {A, B}, 10.0)
    connect(nodes, B, 10.0)
    nodes.discovered("lookup1", {B}, 20.0)
    for _ in range(UNLISTED_TRIES - 1):
        assert dial_and_fail(nodes, A) is not None
    assert dial_and_fail(nodes, A) is None
    assert states_of(nodes) == {B: NodeState.LIVE}
    nodes.discovered("lookup1", {A}, 100.0)
    assert nodes.due(100.0) == [A]


def lose_and_ask(nodes: ReaderNodes, address: Address, now: float) -> float:
    """The end of its connection; returns when the nsqlookupds are asked, and none has answered."""
    asked_at = nodes.ended(address, now)
    assert asked_at is not None and not nodes.ask(asked_at - 0.001)
    assert nodes.ask(asked_at) and nodes.due(asked_at) == []
    return asked_at


def test_a_live_node_is_kept_when_it_vanishes_and_asked_for_when_it_ends() -> None:
    nodes = reader()
    nodes.discovered("lookup1", {A}, 0.0)
    connect(nodes, A, 0.0)
    nodes.discovered("lookup1", set(), 60.0)
    nodes.discovered("lookup1", set(), 120.0)
    assert states_of(nodes) == {A: NodeState.LIVE}
    now: float | None = lose_and_ask(nodes, A, 130.0)
    asks = 0
    while now is not None:
        asks += nodes.ask(now) or asks == 0
        nodes.discovered("lookup1", set(), now)
        assert nodes.due(now) == []
        now = nodes.next_at()
    assert asks == UNLISTED_ASKS
    assert states_of(nodes) == {}


def test_a_node_that_ended_is_dialled_when_it_is_listed_after_that() -> None:
    nodes = reader()
    for source in ("lookup1", "lookup2"):
        nodes.discovered(source, {A}, 0.0)
    connect(nodes, A, 0.0)
    ended = 100.0
    assert nodes.ended(A, ended) is not None
    # That may have been on its way when it ended.
    nodes.discovered("lookup1", {A}, ended + 0.1)
    asked_at = nodes.next_at()
    assert asked_at is not None and nodes.due(asked_at) == [] and nodes.ask(asked_at)
    nodes.discovered("lookup1", set(), asked_at + 0.1)
    assert nodes.due(asked_at + 0.1) == []
    nodes.discovered("lookup2", {A}, asked_at + 0.2)
    assert nodes.due(asked_at + 0.2) == [A]
    connect(nodes, A, asked_at + 0.2)


def test_a_node_that_ended_is_dialled_when_its_nsqlookupd_is_silent() -> None:
    nodes = reader()
    for source in ("lookup1", "lookup2"):
        nodes.discovered(source, {A}, 0.0)
    connect(nodes, A, 0.0)
    asked_at = lose_and_ask(nodes, A, 100.0)
    nodes.discovered("lookup1", set(), asked_at + 0.1)
    until = nodes.next_at()
    assert until == asked_at + ANSWER_SECONDS
    assert not nodes.ask(until)
    # As before: its last answer stands.
    for _ in range(20):
        assert dial_and_fail(nodes, A) is not None


def test_a_node_that_ended_comes_back_with_any_later_answer() -> None:
    nodes = reader()
    nodes.discovered("lookup1", {A}, 0.0)
    connect(nodes, A, 0.0)
    asked_at = lose_and_ask(nodes, A, 100.0)
    for _ in range(3):
        nodes.discovered("lookup1", set(), asked_at + 0.1)
        next_ask = nodes.next_at()
        assert next_ask is not None and nodes.ask(next_ask)
        asked_at = next_ask
    nodes.discovered("lookup1", set(), asked_at + 0.1)
    # Of a poll that came by itself.
    nodes.discovered("lookup1", {A}, asked_at + 0.2)
    assert nodes.due(asked_at + 0.2) == [A]


def test_a_node_that_ended_is_dialled_when_the_user_adds_it() -> None:
    nodes = reader()
    nodes.discovered("lookup1", {A}, 0.0)
    connect(nodes, A, 0.0)
    due = nodes.ended(A, 1.0)
    assert due is not None
    nodes.add_direct(A)
    assert not nodes.ask(due) and nodes.due(due) == [A]


def test_an_unlisted_node_that_flaps_is_forgotten_too() -> None:
    """Who does not answer had listed it, and then does not any more."""
    nodes = reader()
    nodes.discovered("lookup1", {A}, 0.0)
    connect(nodes, A, 0.0)
    now: float | None = nodes.ended(A, 1.0)
    lives = 0
    while now is not None and states_of(nodes):
        nodes.ask(now)
        if nodes.due(now):
            nodes.dialling(A)
            nodes.discovered("lookup1", set(), now)
            assert nodes.connected(A, now)
            assert nodes.ended(A, now + 0.1) is not None
            lives += 1
        now = nodes.next_at()
    assert lives == 1


def test_listed_by_one_of_several_lookupds_is_listed() -> None:
    nodes = reader()
    nodes.discovered("lookup1", {A}, 0.0)
    nodes.discovered("lookup2", {A}, 0.0)
    nodes.discovered("lookup1", set(), 1.0)
    for _ in range(20):
        assert dial_and_fail(nodes, A) is not None
    nodes.discovered("lookup2", set(), 1e6)
    nodes.discovered("lookup1", {A}, 1e6)
    for _ in range(20):
        assert dial_and_fail(nodes, A) is not None


def test_an_answer_of_lookupd_does_not_shorten_a_delay() -> None:
    nodes = reader()
    nodes.discovered("lookup1", {A}, 0.0)
    for _ in range(6):
        again = dial_and_fail(nodes, A)
    assert again is not None
    nodes.discovered("lookup1", {A}, again - 1)
    assert nodes.due(again - 1) == []
    assert nodes.next_at() == again


def test_direct_nodes_do_not_care_about_lookupd() -> None:
    nodes = reader(A)
    nodes.discovered("lookup1", {A}, 0.0)
    nodes.discovered("lookup1", set(), 1.0)
    for _ in range(20):
        assert dial_and_fail(nodes, A) is not None


def test_remove_cancels_the_redial() -> None:
    nodes = reader(A)
    dial_and_fail(nodes, A)
    nodes.remove(A)
    assert nodes.next_at() is None
    assert states_of(nodes) == {}
    nodes.remove(A)


def test_remove_during_a_dial_refuses_the_connection() -> None:
    nodes = reader(A)
    nodes.dialling(A)
    nodes.remove(A)
    assert not nodes.connected(A, 1.0)
    # What the owner closes then reports its end; that schedules nothing.
    assert nodes.ended(A, 1.0) is None
    assert nodes.next_at() is None


def test_a_discovered_node_can_be_removed_and_comes_back_when_listed_again() -> None:
    nodes = reader()
    nodes.discovered("lookup1", {A}, 0.0)
    nodes.dialling(A)
    nodes.remove(A)
    assert nodes.ended(A, 1.0) is None
    assert states_of(nodes) == {}
    nodes.discovered("lookup1", {A}, 60.0)
    assert nodes.due(60.0) == [A]


def test_remove_of_a_live_node_ends_with_its_connection() -> None:
    nodes = reader(A)
    connect(nodes, A, 0.0)
    nodes.remove(A)
    assert nodes.ended(A, 100.0) is None
    assert states_of(nodes) == {}


def test_removed_and_added_again_during_a_dial_is_one_dial() -> None:
    nodes = reader(A)
    nodes.dialling(A)
    nodes.remove(A)
    nodes.add_direct(A)
    assert nodes.due(1e9) == []
    assert nodes.connected(A, 1.0)


def test_a_loss_reported_twice_counts_once() -> None:
    nodes = reader(A)
    connect(nodes, A, 0.0)
    again = nodes.ended(A, 1.0)
    assert nodes.ended(A, 1.0) == again
    assert nodes.ended(A, 1.1) == again
    assert nodes.next_at() == again


class ReaderNodesMachine(RuleBasedStateMachine):
    """Any order of events: one dial per address, nothing wanted is forgotten, nothing else kept."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = reader()
        self.now = 0.0
        self.direct: set[Address] = set()
        self.listed: dict[str, set[Address]] = {"lookup1": set(), "lookup2": set()}
        self.dials: set[Address] = set()
        self.live: set[Address] = set()

    @rule(address=st.sampled_from([A, B, C]))
    def add(self, address: Address) -> None:
        self.direct.add(address)
        self.nodes.add_direct(address)

    @rule(address=st.sampled_from([A, B, C]))
    def remove(self, address: Address) -> None:
        self.direct.discard(address)
        for addresses in self.listed.values():
            addresses.discard(address)
        self.nodes.remove(address)

    @rule(
        source=st.sampled_from(["lookup1", "lookup2"]),
        addresses=st.sets(st.sampled_from([A, B, C])),
    )
    def discover(self, source: str, addresses: set[Address]) -> None:
        self.listed[source] = set(addresses)
        self.nodes.discovered(source, addresses, self.now)

    @rule(step=st.sampled_from([0.0, 0.1, 1.0, 10.0, 60.0]))
    def pass_time(self, step: float) -> None:
        self.now += step

    @rule()
    def dial_all_due(self) -> None:
        for address in self.nodes.due(self.now):
            assert address not in self.dials | self.live
            self.nodes.dialling(address)
            self.dials.add(address)

    @rule()
    def ask(self) -> None:
        self.nodes.ask(self.now)

    @rule(address=st.sampled_from([A, B, C]), works=st.booleans())
    def dial_ends(self, address: Address, works: bool) -> None:
        if address not in self.dials:
            return
        self.dials.remove(address)
        if works and self.nodes.connected(address, self.now):
            self.live.add(address)
        elif not works:
            self.check_retry(address, self.nodes.ended(address, self.now))

    @rule(address=st.sampled_from([A, B, C]))
    def lose(self, address: Address) -> None:
        if address in self.live:
            self.live.remove(address)
            self.check_retry(address, self.nodes.ended(address, self.now))

    def check_retry(self, address: Address, again: float | None) -> None:
        if address in self.wanted():
            assert again is not None
        assert again is None or self.now < again <= self.now + 60.0

    def wanted(self) -> set[Address]:
        return self.direct.union(*self.listed.values())

    @invariant()
    def nothing_wanted_is_forgotten(self) -> None:
        states = states_of(self.nodes)
        assert self.wanted() <= set(states)
        assert {a for a, state in states.items() if state is NodeState.DIALLING} == self.dials
        assert {a for a, state in states.items() if state is NodeState.LIVE} == self.live
        waiting = {a for a, state in states.items() if state is NodeState.WAITING}
        assert waiting >= set(self.nodes.due(1e9))
        assert (self.nodes.next_at() is None) == (not waiting)
        # None of these nsqlookupds answers any more.
        later = copy.deepcopy(self.nodes)
        later.ask(1e9)
        later.ask(2e9)
        assert waiting & self.wanted() <= set(later.due(2e9))


@few_and_many(20, 200)
def test_any_order_of_events(count: int) -> None:
    run_state_machine_as_test(
        ReaderNodesMachine,
        settings=settings(max_examples=count, stateful_step_count=50, deadline=None),
    )
