"""The token bucket of a rate limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsqsync.policy.rate import RateLimit


@given(
    rate=st.floats(0.01, 10_000),
    burst=st.integers(1, 1000),
    steps=st.lists(st.tuples(st.floats(0, 5), st.integers(0, 50)), max_size=60),
)
def test_a_limit_grants_at_most_rate_and_burst_in_any_time(
    rate: float, burst: int, steps: list[tuple[float, int]]
) -> None:
    limit = RateLimit(rate, burst)
    now = 100.0
    taken: list[tuple[float, int]] = []
    for pause, wanted in steps:
        now += pause
        count = min(wanted, limit.tokens(now))
        limit.take(count, now)
        taken.append((now, count))
        assert limit.next_at(now) > now
    for first, (since, _) in enumerate(taken):
        for until, (at, _) in enumerate(taken[first:], first):
            total = sum(count for _, count in taken[first : until + 1])
            assert total <= rate * (at - since) + burst + 1e-6 * (total + 1)


def test_next_at_is_when_there_is_one_more() -> None:
    limit = RateLimit(0.5, 3)
    assert limit.tokens(10.0) == 3
    limit.take(3, 10.0)
    assert limit.tokens(10.0) == 0
    assert limit.next_at(10.0) == 12.0
    assert limit.tokens(11.9) == 0
    assert limit.tokens(12.0) == 1
    # Several at a time where there are many.
    fast = RateLimit(1000, 10)
    fast.take(10, 0.0)
    assert fast.tokens(fast.next_at(0.0)) == 2


def test_a_debt_is_made_up_for() -> None:
    limit = RateLimit(1, 1)
    limit.take(4, 0.0)
    assert limit.next_at(0.0) == 4.0
    assert limit.tokens(3.9) == 0
    assert limit.tokens(4.0) == 1


def test_a_clock_that_stands_gives_nothing() -> None:
    limit = RateLimit(1, 1)
    limit.take(1, 5.0)
    assert limit.tokens(4.0) == 0
    assert limit.tokens(6.0) == pytest.approx(1)
