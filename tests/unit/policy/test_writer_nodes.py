"""Which nsqd gets the next publish."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsqsync.addresses import Address
from gnsqsync.errors import ConfigError
from gnsqsync.policy.writer_nodes import TRIAL, WriterNodes

A, B, C = (Address(name, 4150) for name in "abc")


def writer(*addresses: Address, policy: str = "round_robin") -> WriterNodes:
    return WriterNodes(addresses, policy, random.Random(5))


def benched_until(nodes: WriterNodes, address: Address, now: float) -> float | None:
    """When the bench of this address ends (seconds), or None when it is not benched."""
    bench = nodes._benches.get(address)
    return bench.until if bench is not None and bench.until > now else None


def test_round_robin_takes_turns_and_dials_the_ones_that_are_not_live() -> None:
    nodes = writer(A, B, C)
    live: set[Address] = set()
    firsts = []
    for i in range(9):
        order = nodes.candidates(float(i), live)
        assert sorted(order) == [A, B, C]
        firsts.append(order[0])
        live.add(order[0])
        nodes.ok(order[0])
    assert firsts[:3] == firsts[3:6] == firsts[6:]
    assert set(firsts[:3]) == {A, B, C}


def test_writers_do_not_all_begin_at_the_same_node() -> None:
    firsts = {
        WriterNodes([A, B, C], rng=random.Random(seed)).candidates(0.0, ())[0] for seed in range(40)
    }
    assert firsts == {A, B, C}


def test_a_benched_node_comes_last_until_its_bench_ends() -> None:
    nodes = writer(A, B, C)
    until = nodes.failed(B, 100.0)
    assert 100.25 <= until <= 100.5
    assert benched_until(nodes, B, 100.0) == until
    for _ in range(6):
        assert nodes.candidates(100.0, {A, C})[-1] == B
    assert benched_until(nodes, B, until) is None
    assert B in {nodes.candidates(until, {A, C})[0] for _ in range(3)}


def test_live_ones_come_before_the_ones_to_dial() -> None:
    nodes = writer(A, B, C, policy="failover")
    assert nodes.candidates(0.0, {C}) == [A, C, B]
    nodes.failed(A, 10.0)
    assert nodes.candidates(10.0, {C}) == [B, C, A]
    nodes.failed(B, 10.0)
    assert nodes.candidates(10.0, {C})[0] == C


def test_all_benched_are_still_offered_the_earliest_end_first() -> None:
    nodes = writer(A, B)
    for now in (0.0, 1.0, 3.0, 7.0):
        last = nodes.failed(A, now)
    first = nodes.failed(B, 7.0)
    assert first < last
    assert nodes.candidates(7.0, ()) == [B, A]


def test_benches_grow_once_a_bench_and_start_again_with_success() -> None:
    nodes = writer(A, B)
    now = 0.0
    full = 0.5
    for _ in range(10):
        until = nodes.failed(A, now)
        assert full / 2 <= until - now <= full
        # Sixteen publishers were waiting on the connection that broke.
        assert {nodes.failed(A, now + 0.01) for _ in range(16)} == {until}
        now, full = until, min(full * 2, 60.0)
    nodes.ok(A)
    assert benched_until(nodes, A, now) is None
    assert nodes.failed(A, now) - now <= 0.5


def test_failover_sticks_to_the_first_and_fails_back_after_the_bench() -> None:
    nodes = writer(A, B, policy="failover")
    assert [nodes.candidates(0.0, {A, B})[0] for _ in range(5)] == [A] * 5
    until = nodes.failed(A, 0.0)
    assert [nodes.candidates(0.1, {B})[0] for _ in range(5)] == [B] * 5
    assert nodes.candidates(until, {B}) == [A, B]
    nodes.ok(A)
    assert nodes.candidates(until + 0.2, {A, B}) == [A, B]


@pytest.mark.parametrize("policy", ["failover", "round_robin"])
def test_a_single_publish_tries_a_node_whose_bench_has_ended(policy: str) -> None:
    nodes = writer(A, B, policy=policy)
    until = nodes.failed(A, 0.0)
    firsts = [nodes.candidates(until, {B})[0] for _ in range(10)]
    assert firsts.count(A) == 1
    assert A in [nodes.candidates(until + TRIAL, {B})[0] for _ in range(2)]
    # The trial fails: that is a failure after the first bench, so the next one is longer.
    now = until + TRIAL + 0.1
    assert 0.5 <= nodes.failed(A, now) - now <= 1.0


@pytest.mark.parametrize("policy", ["failover", "round_robin"])
def test_one_publish_tries_a_live_node_that_hung(policy: str) -> None:
    """It kept its connection, but a publish there had no answer."""
    nodes = writer(A, B, policy=policy)
    live = {A, B}
    until = nodes.failed(A, 0.0)
    firsts = [nodes.candidates(until, live)[0] for _ in range(10)]
    assert firsts.count(A) == 1
    # It hangs still: that is a failure after the first bench, so the next one is longer.
    again = nodes.failed(A, until + 1.0)
    assert 0.5 <= again - (until + 1.0) <= 1.0
    assert [nodes.candidates(again - 0.1, live)[0] for _ in range(4)] == [B] * 4
    assert A in [nodes.candidates(again, live)[0] for _ in range(2)]
    nodes.ok(A)
    firsts = [nodes.candidates(again + 0.2, live)[0] for _ in range(4)]
    assert firsts.count(A) == (4 if policy == "failover" else 2)


def test_without_a_live_alternative_nobody_is_kept_waiting() -> None:
    nodes = writer(A, B, policy="failover")
    assert [nodes.candidates(0.0, ()) for _ in range(4)] == [[A, B]] * 4


def test_one_address_is_always_offered() -> None:
    nodes = writer(A)
    nodes.failed(A, 1.0)
    assert nodes.candidates(1.0, ()) == [A]


def test_found_nodes_come_and_go() -> None:
    nodes = writer(B, policy="failover")
    assert nodes.discovered("one", {C, A}, ())
    assert nodes.candidates(0.0, ()) == [B, A, C]
    assert not nodes.discovered("two", {C, B}, ())
    nodes.failed(A, 0.0)
    # Not listed any more, and without a connection: forgotten, its bench too.
    assert nodes.discovered("one", set(), ())
    assert nodes.candidates(0.0, ()) == [B, C]
    assert nodes.discovered("one", {A}, ())
    assert benched_until(nodes, A, 0.0) is None
    assert nodes.candidates(0.0, ()) == [B, A, C]


def test_a_live_node_that_is_listed_no_more_comes_last() -> None:
    nodes = writer(policy="failover")
    assert nodes.candidates(0.0, ()) == []
    nodes.discovered("one", {A, B}, ())
    nodes.discovered("one", {B}, {A})
    assert nodes.candidates(0.0, {A}) == [B, A]
    nodes.failed(B, 0.0)
    assert nodes.candidates(0.0, {A}) == [B, A]
    # Its end, and what was under way there, come late.
    nodes.discovered("one", {B, C}, ())
    assert nodes.failed(A, 1.0) == 1.0
    nodes.ok(A)
    assert nodes.candidates(60.0, ()) == [B, C]


def test_writers_of_a_found_list_do_not_all_begin_at_the_same_node() -> None:
    firsts = set()
    for seed in range(40):
        nodes = WriterNodes((), rng=random.Random(seed))
        nodes.discovered("one", {A, B, C}, ())
        firsts.add(nodes.candidates(0.0, ())[0])
    assert firsts == {A, B, C}


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match="failover"):
        writer(A, policy="random")


@settings(max_examples=60, deadline=None)
@given(
    policy=st.sampled_from(["failover", "round_robin"]),
    events=st.lists(
        st.tuples(
            st.sampled_from(["ok", "failed", "candidates"]),
            st.sampled_from([A, B, C]),
            st.sets(st.sampled_from([A, B, C])),
            st.sampled_from([0.0, 0.1, 1.0, 30.0]),
        ),
        max_size=60,
    ),
)
def test_every_address_is_a_candidate_once_and_benched_ones_come_last(
    policy: str, events: list[tuple[str, Address, set[Address], float]]
) -> None:
    nodes = WriterNodes([A, B, C], policy, random.Random(0))
    now = 0.0
    for name, address, live, step in events:
        now += step
        if name == "ok":
            nodes.ok(address)
            assert benched_until(nodes, address, now) is None
        elif name == "failed":
            assert now < nodes.failed(address, now) <= now + 60.0
        else:
            ends = [benched_until(nodes, a, now) or 0.0 for a in (A, B, C)]
            benched = dict(zip((A, B, C), ends, strict=True))
            order = nodes.candidates(now, live)
            assert sorted(order) == [A, B, C]
            rank = [(benched[a] > 0, benched[a]) for a in order]
            assert rank == sorted(rank)
            able = [a for a in order if not benched[a]][1:]
            assert able == sorted(able, key=lambda a: a not in live)
