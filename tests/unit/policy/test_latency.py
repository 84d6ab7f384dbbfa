"""RdyLevel: tight in a trickle, batches in a stream, all in a quick one; steady."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsqsync.policy.latency import STREAM_BELOW, STREAM_FROM, JointRate, RdyLevel

SETTLE_EVERY = 0.1


def adaptive(share: int = 100) -> RdyLevel:
    level = RdyLevel(adaptive=True)
    level.share = share
    return level


def steady(rate: float, start: float, seconds: float) -> Iterator[float]:
    for i in range(int(rate * seconds)):
        yield start + i / rate


def by_chance(rate: float, start: float, seconds: float, rng: random.Random) -> Iterator[float]:
    now = start
    while (now := now + rng.expovariate(rate)) < start + seconds:
        yield now


def run(level: RdyLevel, arrivals: Iterator[float], until: float, chunk: int = 1) -> int:
    """Messages as they arrive, settle() every 100 ms; returns how often the level changed."""
    changes = 0
    settle_at = 0.0
    last = level.streaming
    waiting = 0
    for moment in [*arrivals, until]:
        while settle_at <= moment:
            assert level.settle(settle_at) == level.streaming
            settle_at += SETTLE_EVERY
            changes += level.streaming != last
            last = level.streaming
        waiting += 1
        if moment < until and waiting == chunk:
            level.note(moment, chunk)
            waiting = 0
            changes += level.streaming != last
            last = level.streaming
    return changes


def test_tight_is_one_more_than_in_flight_up_to_the_share() -> None:
    level = adaptive(share=5)
    assert [level.wanted(n) for n in (0, 1, 3, 4, 5, 6, 9)] == [1, 2, 4, 5, 5, 0, 0]
    level.share = 0
    assert [level.wanted(n) for n in (0, 3)] == [0, 0]


def test_a_quick_stream_wants_the_share() -> None:
    level = adaptive(share=50)
    run(level, steady(50_000, 0.0, 1.0), 1.0)
    assert level.streaming
    assert [level.wanted(n) for n in (0, 20, 50, 51)] == [50, 50, 50, 0]
    level.share = 7
    assert level.wanted(0) == 7


def test_not_adaptive_wants_the_share_always() -> None:
    level = RdyLevel(adaptive=False)
    level.share = 50
    assert level.wanted(0) == 50
    level.note(1.0, 1)
    level.note(60.0, 1)
    assert not level.settle(61.0)
    assert level.wanted(0) == 50


@pytest.mark.parametrize("rate", [0.2, 10, 100, 400])
def test_a_trickle_stays_tight(rate: float) -> None:
    level = adaptive()
    assert run(level, by_chance(rate, 0.0, 60.0, random.Random(1)), 60.0) == 0
    assert not level.streaming


@pytest.mark.parametrize("chunk", [1, 30, 200])
def test_a_stream_opens_within_a_fraction_of_a_second(chunk: int) -> None:
    level = adaptive()
    level.note(0.0, 1)
    assert run(level, steady(5000, 10.0, 0.2), 10.2, chunk) == 1
    assert level.streaming


def test_a_stream_that_ends_goes_back_without_another_message() -> None:
    level = adaptive()
    run(level, steady(20_000, 0.0, 1.0), 1.0)
    assert level.streaming
    goes_on = [level.settle(1.0 + i * SETTLE_EVERY) for i in range(10)]
    assert goes_on == sorted(goes_on, reverse=True), "it ends once"
    assert not goes_on[6]
    assert level.wanted(0) == 1


def test_the_next_message_ends_a_stream_that_nobody_settles() -> None:
    level = adaptive()
    for moment in steady(5000, 0.0, 1.0):
        level.note(moment, 1)
    assert level.streaming
    level.note(30.0, 1)
    assert not level.streaming


def test_a_stream_that_thins_out_goes_back() -> None:
    level = adaptive()
    run(level, steady(5000, 0.0, 1.0), 1.0)
    for moment in steady(100, 1.0, 1.0):
        level.note(moment, 1)
    assert not level.streaming


@pytest.mark.parametrize("offset", [i * 0.01 for i in range(20)])
def test_a_lull_of_an_instant_is_not_the_end_of_a_stream(offset: float) -> None:
    level = adaptive()
    for moment in steady(5000, 0.0, 1.0 + offset):
        level.note(moment, 1)
    level.note(1.15 + offset, 1)
    assert level.streaming


def test_a_second_stream_after_a_long_silence_is_not_closed_by_the_silence() -> None:
    level = adaptive()
    run(level, steady(5000, 0.0, 1.0), 2.0)
    assert not level.streaming
    for moment in steady(5000, 100.0, 0.1):
        level.note(moment, 1)
    assert level.streaming
    assert level.settle(100.1)
    assert level.settle(100.2)


@pytest.mark.parametrize("rate", [300, 450, 500, 550, 750, 1000, 1100, 1500])
@pytest.mark.parametrize("open_first", [False, True])
def test_one_steady_rate_does_not_flap(rate: float, open_first: bool) -> None:
    level = adaptive()
    start = 0.0
    if open_first:
        run(level, steady(10_000, 0.0, 0.5), 0.5)
        assert level.streaming
        start = 0.5
    arrivals = by_chance(rate, start, 20.0, random.Random(7))
    # At most the one change that the rate asks for; near a limit it may need a while to come.
    assert run(level, arrivals, start + 20.0) <= 1
    if rate >= 1.1 * STREAM_FROM:
        assert level.streaming
    if rate <= 0.9 * STREAM_BELOW:
        assert not level.streaming


def test_a_slow_network_opens_at_half_of_what_it_can_do_tight() -> None:
    """At a round trip of 5 ms tight nsqd sends 200 messages a second and never 1000."""
    level = adaptive()
    run(level, steady(200, 0.0, 5.0), 5.0)
    assert not level.streaming
    level = adaptive()
    level.set_round_trip(0.005)
    run(level, steady(190, 0.0, 5.0), 5.0)
    assert level.streaming
    level = adaptive()
    level.set_round_trip(0.005)
    assert run(level, by_chance(50, 0.0, 60.0, random.Random(2)), 60.0) == 0


@pytest.mark.parametrize("seconds", [0.0, 0.0001, 0.0005])
def test_a_fast_network_changes_nothing(seconds: float) -> None:
    level = adaptive()
    level.set_round_trip(seconds)
    run(level, steady(900, 0.0, 2.0), 2.0)
    assert not level.streaming
    run(level, steady(1200, 2.0, 2.0), 4.0)
    assert level.streaming


@settings(max_examples=100, deadline=None)
@given(
    share=st.integers(0, 50),
    events=st.lists(st.tuples(st.integers(0, 300), st.floats(0, 1), st.booleans()), max_size=60),
    in_flight=st.integers(0, 60),
)
def test_wanted_is_within_the_share_and_leaves_room_for_one(
    share: int, events: list[tuple[int, float, bool]], in_flight: int
) -> None:
    level = adaptive(share)
    now = 0.0
    for count, step, settle in events:
        now += step
        if settle:
            level.settle(now)
        elif count:
            level.note(now, count)
        wanted = level.wanted(in_flight)
        if in_flight > share:
            assert wanted == 0
            continue
        assert 0 <= wanted <= share
        assert wanted >= min(share, in_flight + 1)
        if not level.streaming:
            assert wanted == min(share, in_flight + 1)


@pytest.mark.parametrize(("rate", "batch"), [(3_000, 6), (10_000, 20), (40_000, 80)])
def test_a_stream_comes_in_batches_of_2_ms(rate: float, batch: int) -> None:
    level = adaptive(share=2500)
    run(level, steady(rate, 0.0, 1.0), 1.0)
    assert level.streaming
    assert level.wanted(0) == pytest.approx(batch, abs=1)
    assert level.wanted(batch // 2) == pytest.approx(batch + batch // 2, abs=1)
    # More than a batch waits here: nothing is gained by taking less.
    assert level.wanted(2 * batch) == 2500
    level.share = 4
    assert level.wanted(0) == 4


def test_the_batch_follows_the_rate() -> None:
    level = adaptive(share=2500)
    run(level, steady(40_000, 0.0, 1.0), 1.0)
    run(level, steady(1_000, 1.0, 0.1), 1.1)
    assert level.wanted(0) <= 3
    run(level, steady(40_000, 1.1, 0.1), 1.2)
    assert level.wanted(0) == pytest.approx(80, abs=1)


def test_a_batch_is_all_where_nsqd_sends_as_often_by_itself() -> None:
    full = adaptive(share=2500)
    run(full, steady(150_000, 0.0, 0.2), 0.2)
    far = adaptive(share=2500)
    far.set_round_trip(0.004)
    run(far, steady(3_000, 0.0, 1.0), 1.0)
    together = JointRate()
    among_seven = [adaptive(share=2500) for _ in range(7)]
    for level in among_seven:
        together.join(level)
    run_all(among_seven, [3_000.0] * 7, 0.0, 1.0)
    always = RdyLevel(adaptive=False)
    always.share = 2500
    for moment in steady(3_000, 0.0, 1.0):
        always.note(moment, 1)
    assert [level.wanted(0) for level in (full, far, *among_seven, always)] == [2500] * 10


def test_a_batch_is_all_while_messages_wait_for_us_in_nsqd() -> None:
    """A process that computes beside reads late: it must get much at a time, or ever less.

    The two clocks differ by a minute."""
    level = adaptive(share=2500)
    for moment in steady(10_000, 0.0, 1.0):
        level.note(moment, 1, -60.0)
    assert level.wanted(0) == pytest.approx(20, abs=1)
    for moment in steady(1_000, 1.0, 0.1):
        level.note(moment, 10, -59.99)
    assert level.wanted(0) == 2500
    for moment in steady(10_000, 1.1, 0.1):
        level.note(moment, 1, -60.0)
    assert level.wanted(0) == pytest.approx(20, abs=1)


def test_tight_opens_where_messages_come_late() -> None:
    """Each message waits 6 ms for the interpreter's lock: tight, 160 a second are possible."""
    level = adaptive(share=100)
    for moment in steady(100, 0.0, 1.0):
        level.note(moment, 1, 0.001)
    for moment in steady(160, 1.0, 3.0):
        level.note(moment, 1, 0.007)
    assert level.streaming and level.wanted(0) == 100
    # That has passed.
    for moment in steady(160, 4.0, 5.0):
        level.note(moment, 1, 0.001)
    assert not level.streaming


def test_with_a_share_of_one_there_is_nothing_to_decide() -> None:
    level = adaptive(share=1)
    run(level, steady(5_000, 0.0, 1.0), 1.0)
    assert [level.wanted(0), level.wanted(1)] == [1, 1]
    # What came before does not count when there is more.
    level.share = 100
    run(level, steady(300, 1.0, 2.0), 3.0)
    assert not level.streaming and level.wanted(0) == 1
    run(level, steady(5_000, 3.0, 1.0), 4.0)
    assert level.streaming and level.wanted(0) == 10


def test_one_pause_is_not_late() -> None:
    level = adaptive(share=100)
    for number, moment in enumerate(steady(160, 0.0, 10.0)):
        level.note(moment, 1, 0.06 if number % 100 == 0 else 0.001)
        assert not level.streaming


def test_a_batch_is_never_too_small_for_the_network() -> None:
    """With a round trip of 2 ms batches of 2 ms would come half as fast as they are wanted."""
    level = adaptive(share=2500)
    level.set_round_trip(0.002)
    run(level, steady(3_000, 0.0, 1.0), 1.0)
    assert level.wanted(0) == pytest.approx(24, abs=1)


def several(count: int) -> list[RdyLevel]:
    together = JointRate()
    levels = [adaptive() for _ in range(count)]
    for level in levels:
        together.join(level)
    return levels


def run_all(levels: list[RdyLevel], rates: list[float], start: float, seconds: float) -> None:
    """Each at a steady rate of its own, messages of all in order of time."""
    arrivals = [
        (moment, level)
        for level, rate in zip(levels, rates, strict=True)
        for moment in steady(rate, start, seconds)
    ]
    settle_at = start
    for moment, level in sorted(arrivals, key=lambda arrival: arrival[0]):
        while settle_at <= moment:
            for one in levels:
                one.settle(settle_at)
            settle_at += SETTLE_EVERY
        level.note(moment, 1)


@pytest.mark.parametrize("connections", [2, 10, 100])
def test_the_limits_are_those_of_all_connections(connections: int) -> None:
    levels = several(connections)
    slow, fast = STREAM_BELOW * 0.6 / connections, STREAM_FROM * 1.5 / connections
    run_all(levels, [slow] * connections, 0.0, 20.0)
    assert not any(level.streaming for level in levels)
    run_all(levels, [fast] * connections, 20.0, 10.0)
    assert all(level.streaming for level in levels)
    run_all(levels, [slow] * connections, 30.0, 10.0)
    assert not any(level.streaming for level in levels)


def test_more_than_its_part_of_a_trickle_is_no_stream() -> None:
    levels = several(20)
    run_all(levels, [STREAM_BELOW * 0.8] + [1.0] * 19, 0.0, 20.0)
    assert not any(level.streaming for level in levels)


def test_a_stream_ends_when_all_together_are_none_any_more() -> None:
    levels = several(20)
    run_all(levels, [STREAM_FROM * 0.7] + [STREAM_FROM / 50] * 19, 0.0, 10.0)
    assert levels[0].streaming
    # Far above its twentieth, and all that there is.
    run_all(levels, [STREAM_BELOW * 0.8] + [0.1] * 19, 10.0, 20.0)
    assert not any(level.streaming for level in levels)


def test_a_quiet_one_beside_a_stream_stays_tight() -> None:
    levels = several(20)
    run_all(levels, [STREAM_FROM * 3] + [10.0] * 19, 0.0, 10.0)
    assert [level.streaming for level in levels] == [True] + [False] * 19


def test_half_the_rate_of_a_slow_network_is_a_stream_beside_idle_ones() -> None:
    levels = several(10)
    for level in levels:
        level.set_round_trip(0.1)
    # Tight, one of them can have ten a second.
    run_all(levels, [9.0] + [0.0] * 9, 0.0, 60.0)
    assert [level.streaming for level in levels] == [True] + [False] * 9


def test_the_last_connection_of_a_group_is_judged_alone() -> None:
    together = JointRate()
    first, second = adaptive(), adaptive()
    together.join(first)
    together.join(second)
    together.leave(second)
    run(first, steady(STREAM_FROM * 0.8, 0.0, 10.0), 10.0)
    assert not first.streaming
    run(first, steady(STREAM_FROM * 1.5, 10.0, 10.0), 20.0)
    assert first.streaming


def test_a_message_that_comes_during_the_decision_uses_up_the_credit() -> None:
    level = adaptive(share=1)
    received = 0
    level.note(1.0, 1)
    level.allow(1, received)
    assert level.credit == 0
    assert level.wanted(0) == 0
    level.note(2.0, 1)
    assert level.wanted(0) == 0
    level.allow(1, 2)
    assert level.wanted(0) == 1
