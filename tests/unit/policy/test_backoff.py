"""The backoff by the guide for clients, ``Rule.EVERY_FAILURE``, and the delays of redials.

``test_outages.py`` has the default rule.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsqsync.policy.backoff import Backoff, Phase, ReconnectDelays, Rule, Strategy


def guide(
    max_duration: float | None = 128.0,
    multiplier: float = 1.0,
    strategy: str | Strategy = "exponential",
    rng: random.Random | None = None,
) -> Backoff:
    return Backoff(max_duration, multiplier, strategy, rng, Rule.EVERY_FAILURE)


def fail(backoff: Backoff, now: float) -> bool:
    """The failure of one message, which has failed before."""
    return backoff.failed("message", 3, now)


def succeed(backoff: Backoff, now: float) -> bool:
    return backoff.succeeded(1, now)


def pause_of(backoff: Backoff, now: float) -> float:
    assert backoff.phase is Phase.BLOCKED
    assert backoff.resume_at is not None
    return backoff.resume_at - now


def wait_out(backoff: Backoff) -> float:
    """Let the pause end; returns the moment."""
    assert backoff.resume_at is not None
    now = backoff.resume_at
    assert backoff.tick(now)
    assert backoff.phase is Phase.TESTING
    return now


def climb(backoff: Backoff, failures: int) -> list[float]:
    """So many failed tests in a row, from OPEN; the pauses."""
    now = 0.0
    pauses = []
    for _ in range(failures):
        assert fail(backoff, now)
        pauses.append(pause_of(backoff, now))
        now = wait_out(backoff)
    return pauses


def test_one_failure_one_pause_one_test_one_success() -> None:
    backoff = guide()
    assert backoff.phase is Phase.OPEN
    assert not backoff.level
    assert fail(backoff, 100.0)
    assert (backoff.phase, backoff.level, backoff.resume_at) == (Phase.BLOCKED, 1, 102.0)
    assert backoff.level
    assert not backoff.tick(101.9)
    assert backoff.tick(102.0)
    assert (backoff.phase, backoff.level, backoff.resume_at) == (Phase.TESTING, 1, None)
    assert succeed(backoff, 103.0)
    assert (backoff.phase, backoff.level, backoff.resume_at) == (Phase.OPEN, 0, None)


def test_successes_while_open_change_nothing() -> None:
    backoff = guide()
    assert not succeed(backoff, 1.0)
    assert not backoff.no_verdict(1.0)
    assert not backoff.tick(1.0)
    assert backoff.phase is Phase.OPEN


def test_the_pause_doubles_up_to_exactly_the_ceiling() -> None:
    assert climb(guide(max_duration=120.0), 9) == [2, 4, 8, 16, 32, 64, 120, 120, 120]
    assert climb(guide(max_duration=128.0), 9) == [2, 4, 8, 16, 32, 64, 128, 128, 128]
    assert climb(guide(max_duration=1.5), 2) == [1.5, 1.5]
    assert climb(guide(max_duration=5.0, multiplier=0.25), 6) == [0.5, 1, 2, 4, 5, 5]


def test_failures_at_the_ceiling_do_not_make_the_way_back_longer() -> None:
    backoff = guide(max_duration=128.0)
    climb(backoff, 500)
    assert backoff.level == 7
    pauses = []
    now = 0.0
    for _ in range(7):
        assert succeed(backoff, now)
        if backoff.level:
            pauses.append(pause_of(backoff, now))
            now = wait_out(backoff)
    assert pauses == [64, 32, 16, 8, 4, 2]
    assert not backoff.level


def test_a_ceiling_that_was_reached_is_forgotten_with_the_backoff() -> None:
    backoff = guide(max_duration=1.5)
    climb(backoff, 3)
    assert succeed(backoff, 10.0)
    assert not backoff.level
    assert fail(backoff, 20.0)
    assert (backoff.level, pause_of(backoff, 20.0)) == (1, 1.5)


def test_a_burst_of_failures_counts_once() -> None:
    backoff = guide()
    assert fail(backoff, 10.0)
    resume_at = backoff.resume_at
    for i in range(200):
        assert not backoff.failed(i, 1, 10.0 + i * 0.01)
    assert (backoff.level, backoff.resume_at) == (1, resume_at)


def test_verdicts_during_a_pause_are_ignored() -> None:
    backoff = guide()
    climb(backoff, 2)
    fail(backoff, 50.0)
    before = (backoff.phase, backoff.level, backoff.resume_at)
    assert not succeed(backoff, 50.1)
    assert not fail(backoff, 50.2)
    assert not backoff.no_verdict(50.3)
    assert (backoff.phase, backoff.level, backoff.resume_at) == before


def test_one_verdict_a_pause() -> None:
    backoff = guide()
    climb(backoff, 3)
    assert backoff.phase is Phase.TESTING
    assert succeed(backoff, 20.0)
    assert not succeed(backoff, 20.0)
    assert not fail(backoff, 20.0)
    assert backoff.level == 2
    assert pause_of(backoff, 20.0) == 4.0


def test_the_longest_pause_is_128_seconds_as_in_the_guide() -> None:
    assert climb(guide(max_duration=None), 8) == [2, 4, 8, 16, 32, 64, 128, 128]


def test_a_requeue_without_backoff_repeats_the_pause() -> None:
    backoff = guide()
    climb(backoff, 3)
    assert backoff.no_verdict(20.0)
    assert (backoff.phase, backoff.level) == (Phase.BLOCKED, 3)
    assert pause_of(backoff, 20.0) == 8.0


def test_max_duration_0_switches_it_off() -> None:
    def strategy(level: int) -> float:
        raise AssertionError("not to be asked")

    backoff = guide(max_duration=0, strategy=strategy)
    for now in range(5):
        assert not fail(backoff, now)
        assert not succeed(backoff, now)
        assert not backoff.tick(now)
        assert (backoff.phase, backoff.level, backoff.resume_at) == (Phase.OPEN, 0, None)


def test_full_jitter_spreads_over_the_whole_pause_and_knows_the_ceiling() -> None:
    first = []
    for seed in range(300):
        backoff = guide(max_duration=10.0, strategy="full_jitter", rng=random.Random(seed))
        pauses = climb(backoff, 6)
        assert all(0 <= pause <= min(2.0**n, 10.0) + 1e-9 for n, pause in enumerate(pauses, 1))
        assert backoff.level == 4
        first.append(pauses[-1])
    assert min(first) < 1 and max(first) > 9
    assert 4 < sum(first) / len(first) < 6


def test_a_callable_gives_the_pause_of_a_level() -> None:
    asked = []

    def strategy(level: int) -> float:
        asked.append(level)
        return 3.0 * level

    backoff = guide(max_duration=10.0, strategy=strategy)
    assert climb(backoff, 6) == [3, 6, 9, 10, 10, 10]
    assert backoff.level == 4
    assert set(asked) == {1, 2, 3, 4}


@pytest.mark.parametrize(("value", "pause"), [(-5.0, 0.0), (math.inf, 8.0), (math.nan, 8.0)])
def test_a_callable_cannot_leave_the_bounds(value: float, pause: float) -> None:
    assert climb(guide(max_duration=8.0, strategy=lambda _: value), 1) == [pause]


def test_a_callable_may_return_any_number() -> None:
    backoff = guide(128.0, 1.0, lambda level: Decimal("0.5") * level)  # type: ignore[arg-type, return-value]
    assert fail(backoff, 10.0)
    assert backoff.resume_at == 10.5


def test_instead_of_a_callable_that_raises_it_is_exponential() -> None:
    def strategy(level: int) -> float:
        if level in (2, 4):
            raise ZeroDivisionError(level)
        return None if level == 3 else 1.0  # type: ignore[return-value]

    backoff = guide(max_duration=12.0, multiplier=0.75, strategy=strategy)
    assert backoff.error is None
    assert climb(backoff, 5) == [1, 3, 6, 12, 12]
    # The first one is told.
    error = backoff.error
    assert isinstance(error, ZeroDivisionError) and error.args == (2,)
    assert climb(backoff, 1) == [12]
    assert backoff.error is error


def test_a_callable_that_is_ended_from_outside_leaves_the_state_alone() -> None:
    def strategy(level: int) -> float:
        if level == 2:
            raise KeyboardInterrupt
        return 1.0

    backoff = guide(strategy=strategy)
    climb(backoff, 1)
    with pytest.raises(KeyboardInterrupt):
        fail(backoff, 5.0)
    assert (backoff.phase, backoff.level) == (Phase.TESTING, 1)


def test_levels_are_bounded_when_the_ceiling_is_never_reached() -> None:
    backoff = guide(strategy=lambda _: 5.0)
    climb(backoff, 200)
    assert backoff.level == 32


ACTIONS: dict[str, Callable[[Backoff, float], bool]] = {
    "fail": fail,
    "succeed": succeed,
    "neither": Backoff.no_verdict,
    "tick": Backoff.tick,
}

signals = st.lists(
    st.tuples(
        st.sampled_from(sorted(ACTIONS)),
        st.floats(0, 40, allow_nan=False),
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(
    signals=signals,
    max_duration=st.sampled_from([0.0, 0.7, 1.0, 2.0, 60.0, 120.0, 128.0]),
    multiplier=st.sampled_from([0.1, 1.0, 3.0]),
    jitter=st.booleans(),
)
def test_any_history(
    signals: list[tuple[str, float]], max_duration: float, multiplier: float, jitter: bool
) -> None:
    backoff = guide(
        max_duration, multiplier, "full_jitter" if jitter else "exponential", random.Random(1)
    )
    now = 0.0
    for name, step in signals:
        now += step
        phase, level, resume_at = backoff.phase, backoff.level, backoff.resume_at
        changed = ACTIONS[name](backoff, now)
        # What the states mean.
        assert changed == (backoff.phase is not phase)
        assert (backoff.phase is Phase.OPEN) == (backoff.level == 0)
        assert (backoff.phase is Phase.BLOCKED) == (backoff.resume_at is not None)
        if not changed:
            assert (backoff.level, backoff.resume_at) == (level, resume_at)
        # Every pause has its length, and none is longer than the ceiling.
        if changed and backoff.resume_at is not None:
            pause = backoff.resume_at - now
            full = min(multiplier * 2.0**backoff.level, max_duration)
            assert pause <= full + 1e-6
            if not jitter:
                assert pause == pytest.approx(full)
        # Verdicts count while OPEN and TESTING only, one level at a time.
        if phase is Phase.BLOCKED:
            assert changed == (name == "tick" and now >= (resume_at or 0))
        assert abs(backoff.level - level) <= 1
        if changed and name in ("neither", "tick"):
            assert backoff.level == level
    if max_duration == 0:
        assert not backoff.level


def test_reconnect_delays_grow_with_jitter_and_start_again() -> None:
    delays = ReconnectDelays(rng=random.Random(3))
    for full in (0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60):
        assert full / 2 <= delays.next() <= full
    delays.reset()
    assert 0.25 <= delays.next() <= 0.5
    assert 0.5 <= delays.next() <= 1.0


def test_reconnect_delays_never_exceed_the_maximum_nor_reach_0() -> None:
    delays = ReconnectDelays(initial=5.0, maximum=2.0, rng=random.Random(3))
    drawn = [delays.next() for _ in range(2000)]
    assert all(1.0 <= delay <= 2.0 for delay in drawn)
    assert len(set(drawn)) > 1900
