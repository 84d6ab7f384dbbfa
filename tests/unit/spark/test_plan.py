"""The plan of an epoch: limits, shares and partitions, without Spark and without nsqd."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsqsync.spark.plan import (
    MESSAGES_A_TASK,
    MOST_ALONE,
    Part,
    Source,
    Targets,
    Trust,
    first_offset,
    group,
    next_offset,
    parts_of,
    scale,
    share_out,
)

A, B, C = (Source(f"{name}:4150", "t") for name in "abc")
DEPTHS = st.dictionaries(st.sampled_from([A, B, C, Source("a:4150", "u")]), st.integers(0, 10**6))


def test_an_offset_carries_its_plan_through_json() -> None:
    start = first_offset("some-id", "ch")
    parts = [Part("a:4150", "t", 10), Part("b:4150", "u", 1)]
    end = json.loads(json.dumps(next_offset(start, parts)))
    assert (end["stream"], end["channel"], end["epoch"]) == ("some-id", "ch", 1)
    assert parts_of(end) == parts
    assert parts_of(next_offset(end, [])) == [] == parts_of(start)


def test_parts_keep_their_order_above_ten() -> None:
    parts = [Part("a:4150", "t", number) for number in range(25)]
    assert parts_of(next_offset(first_offset("s", "c"), parts)) == parts


def test_without_a_limit_everything_is_taken() -> None:
    assert scale({A: 5, B: 0}, None) == {A: 5}
    assert scale({A: 5, B: 3}, 8) == {A: 5, B: 3}


def test_a_limit_is_shared_in_proportion() -> None:
    assert scale({A: 900, B: 100}, 100) == {A: 90, B: 10}
    assert scale({A: 1_000_000, B: 1}, 100) == {A: 99, B: 1}


def test_a_limit_below_the_number_of_sources_goes_round() -> None:
    taken = [set(scale({A: 9, B: 9, C: 9}, 2, turn)) for turn in range(3)]
    assert taken == [{A, B}, {B, C}, {C, A}]


@given(DEPTHS, st.integers(1, 2_000_000), st.integers(0, 50))
def test_a_limit_is_used_up_and_kept(depths: dict[Source, int], limit: int, turn: int) -> None:
    taken = scale(depths, limit, turn)
    assert sum(taken.values()) == min(limit, sum(depths.values()))
    assert all(0 < count <= depths[source] for source, count in taken.items())


def test_one_partition_for_each_nsqd_that_has_something() -> None:
    assert share_out({A: 10, B: 20}) == [Part("a:4150", "t", 10), Part("b:4150", "t", 20)]
    assert share_out({}) == []


def test_more_partitions_go_to_the_deeper_ones() -> None:
    parts = share_out({A: 10, B: 30}, 4)
    assert [part.nsqd[0] for part in parts] == ["a", "b", "b", "b"]
    assert [part.budget for part in parts] == [10, 10, 10, 10]


@given(DEPTHS, st.integers(1, 40))
def test_shares_add_up(depths: dict[Source, int], min_partitions: int) -> None:
    budgets = {source: depth for source, depth in depths.items() if depth}
    parts = share_out(budgets, min_partitions)
    total = sum(budgets.values())
    assert len(parts) >= min(min_partitions, total)
    # Rounding down gives everybody at least one, so at most that many more than asked for.
    assert len(parts) <= max(min_partitions, 1) + len(budgets)
    assert all(part.budget > 0 for part in parts)
    for source, budget in budgets.items():
        mine = [part.budget for part in parts if Source(part.nsqd, part.topic) == source]
        assert sum(mine) == budget
        assert max(mine) - min(mine) <= 1


def test_targets_end_whatever_comes_in() -> None:
    targets = Targets({A: 25, B: 5})
    seen = []
    for _ in range(10):
        # Somebody goes on publishing.
        waiting = targets.bound({A: 1000, B: 1000, C: 1000})
        parts = share_out(scale(waiting, 10))
        if not parts:
            break
        seen.append(sum(part.budget for part in parts))
        targets.take(parts)
    assert seen == [10, 10, 10]


@pytest.mark.parametrize(("depth", "bound"), [(3, 3), (0, 0), (50, 20), (None, 20)])
def test_targets_are_bound_by_what_is_there(depth: int | None, bound: int) -> None:
    """But not by what cannot be seen: its messages would wait for the next run."""
    assert Targets({A: 20}).bound({A: depth}) == {A: bound}


def test_an_unreachable_nsqd_is_left_for_the_next_run() -> None:
    targets = Targets({A: 20, B: 5})
    targets.drop(A)
    targets.drop(A)
    assert targets.bound({A: 20, B: 5}) == {B: 5}


def test_an_nsqd_that_gives_nothing_is_asked_less_often() -> None:
    trust, parts = Trust(), [Part(*A, 5), Part(*B, 5)]
    now, pauses = 0.0, []
    for read in range(7):
        trust.planned(parts, {A: 10 * read, B: 3})
        assert trust.judge({A: 10 * read + 5, B: 3}, now) == [B]
        assert trust.allows(A, now) and not trust.allows(B, now)
        start = now
        while not trust.allows(B, now):
            now += 0.5
        pauses.append(now - start)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    # It gives something again.
    trust.planned(parts, {A: 1, B: 3})
    assert trust.judge({A: 2, B: 4}, now) == []
    assert trust.allows(B, now)
    trust.planned(parts, {A: 2, B: 4})
    assert trust.judge({A: 3, B: 4}, now) == [B]
    assert not trust.allows(B, now + 0.9) and trust.allows(B, now + 1)


def test_an_epoch_is_judged_once() -> None:
    trust = Trust()
    trust.planned([Part(*A, 5)], {A: 1})
    assert trust.judge({A: 1}, 0.0) == [A]
    assert trust.judge({A: 1}, 5.0) == []
    assert trust.allows(A, 5.0)


def test_an_nsqd_that_cannot_be_asked_is_not_judged() -> None:
    trust = Trust()
    trust.planned([Part(*A, 5), Part(*B, 5)], {B: 1})
    assert trust.judge({A: 1}, 0.0) == []


@given(st.lists(st.integers(1, 10**5), max_size=300), st.integers(1, 400))
def test_every_part_is_read_by_one_task_and_no_task_is_empty(
    budgets: list[int], min_partitions: int
) -> None:
    parts = [Part(f"{number}:4150", "t", budget) for number, budget in enumerate(budgets)]
    tasks = group(parts, min_partitions)
    assert sorted(number for task in tasks for number in task) == list(range(len(parts)))
    assert all(tasks)
    assert tasks == group(parts, min_partitions)
    assert len(tasks) >= min(len(parts), max(MOST_ALONE, min_partitions))


def test_few_parts_have_a_task_each() -> None:
    parts = [Part(f"{number}:4150", "t", 1) for number in range(MOST_ALONE)]
    assert sorted(group(parts)) == [[number] for number in range(MOST_ALONE)]


def test_many_small_parts_share_tasks_evenly_and_large_ones_do_not() -> None:
    small = [Part(f"{number}:4150", "t", 1) for number in range(200)]
    assert {len(task) for task in group(small)} == {12, 13}
    assert len(group(small, 200)) == 200
    large = [part._replace(budget=MESSAGES_A_TASK) for part in small]
    assert len(group(large)) == 200
    # One that has as much as all others together has a task of its own.
    mixed = [*small, Part("large:4150", "t", 40_000)]
    assert [200] in group(mixed)
