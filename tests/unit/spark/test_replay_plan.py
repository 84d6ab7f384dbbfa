"""The parts of a replay and its pace, without Spark."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gnsqsync.errors import ConfigError
from gnsqsync.spark.jobs.replay_plan import Bucket, Plan, Waves, first_shift, pack

WHAT: dict[str, Any] = {
    "archive": "/data",
    "topics": ["a"],
    "start": None,
    "end": None,
    "filter": None,
    "topic": "t",
}


def test_neighbours_are_packed_up_to_the_size() -> None:
    buckets = [Bucket(0, 4, 40), Bucket(4, 8, 60), Bucket(8, 12, 1), Bucket(20, 24, 250)]
    random.Random(1).shuffle(buckets)
    plan = pack(WHAT, buckets, 100)
    assert plan.bounds == (0, 8, 20, 24)
    assert plan.counts == (100, 1, 250)
    assert plan.messages == 351


def test_every_moment_is_in_one_part() -> None:
    chance = random.Random(7)
    starts = sorted(chance.sample(range(10_000), 300))
    buckets = [Bucket(start, start + 1, chance.randint(1, 150)) for start in starts]
    plan = pack(WHAT, buckets, 100)
    assert list(plan.bounds) == sorted(set(plan.bounds))
    assert len(plan.bounds) == len(plan.counts) + 1
    for part, count in enumerate(plan.counts):
        inside = [b for b in buckets if plan.bounds[part] <= b.start < plan.bounds[part + 1]]
        assert sum(b.messages for b in inside) == count
        assert count <= 100 or len(inside) == 1


def test_nothing_makes_no_part() -> None:
    plan = pack(WHAT, [], 100)
    assert (plan.bounds, plan.counts, plan.messages) == ((), (), 0)
    assert Waves(plan, ()).take(10, 10) is None


def test_a_plan_is_read_as_it_was_written() -> None:
    plan = pack(WHAT, [Bucket(5, 9, 3), Bucket(9, 10, 100)], 100)
    assert Plan.from_json(plan.to_json()) == plan


def test_a_plan_of_another_version() -> None:
    data = pack(WHAT, [], 1).to_json().replace(b'"version": 1', b'"version": 2')
    with pytest.raises(ConfigError, match="begun by another version of gnsqsync"):
        Plan.from_json(data)


@pytest.mark.parametrize("key", ["archive", "topics", "start", "end", "filter", "topic"])
def test_another_replay_is_told_from_this_one(key: str) -> None:
    plan = pack(WHAT, [], 1)
    plan.check_same(dict(WHAT), "/state")
    with pytest.raises(ConfigError, match=f"/state holds a replay with .*{key.rstrip('s')}"):
        plan.check_same({**WHAT, key: "other"}, "/state")


@pytest.mark.parametrize(
    ("low", "high", "count", "size"),
    [(0, 1, 1, 10), (0, 3_600_000_000, 1_000_000, 10_000), (7, 8, 5_000, 1), (0, 1 << 50, 3, 10)],
)
def test_the_first_buckets_are_neither_many_nor_thick(
    low: int, high: int, count: int, size: int
) -> None:
    shift = first_shift(low, high, count, size)
    buckets = ((high - 1) >> shift) - (low >> shift) + 1
    parts = -(-count // size)
    assert buckets <= 20 * parts + 2
    assert shift == 0 or buckets >= 5 * parts


def waves(counts: list[int], done: set[int]) -> Waves:
    return Waves(Plan(WHAT, tuple(range(len(counts) + 1)), tuple(counts)), done)


def test_waves_take_parts_in_order_without_those_that_are_done() -> None:
    left = waves([10, 10, 10, 50, 10, 10], {1, 4})
    assert left.take(20, 9) == ((0, 2), 20)
    assert left.take(20, 9) == ((3,), 50)
    assert left.take(1000, 9) == ((5,), 10)
    assert left.take(1000, 9) is None


def test_a_wave_has_a_number_of_parts_at_most() -> None:
    left = waves([1] * 10, set())
    assert left.take(1000, 4) == ((0, 1, 2, 3), 4)
    assert left.take(2.5, 4) == ((4, 5), 2)
    assert left.take(0, 4) == ((6,), 1)


def test_the_pace() -> None:
    pytest.importorskip("pyspark")
    from gnsqsync.spark.jobs.replay_sink import Pace

    now = 100.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    pace = Pace(50.0, lambda: now, sleep)
    assert pace.burst == 5
    pace.spent(5)
    assert now == pytest.approx(100.1)
    now += 0.06
    pace.spent(5)
    assert now == pytest.approx(100.2)
    # A second that nobody used is not made up for.
    now += 1.0
    pace.spent(5)
    pace.spent(5)
    assert now == pytest.approx(101.3)


def test_a_slow_pace_still_sends() -> None:
    pytest.importorskip("pyspark")
    from gnsqsync.spark.jobs.replay_sink import Pace

    assert Pace(0.5, lambda: 0.0, lambda seconds: None).burst == 1
