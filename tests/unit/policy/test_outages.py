"""The default rule of the backoff: outages pause a Reader, poison messages do not."""

from __future__ import annotations

import math
import random
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gnsqsync.policy.backoff import Backoff, Phase
from gnsqsync.policy.evidence import ALMOST, ENOUGH, IN_A_ROW, MOST_KNOWN, Evidence
from gnsqsync.policy.requeue import JITTER, requeue_delay

# The failures of different messages that pause a Reader, with no success between.
FIRST = ENOUGH // 2 + 1


class Bench:
    """A Backoff, and messages that fail or succeed."""

    def __init__(self, whole: int = 1, **options: object) -> None:
        self.backoff = Backoff(rng=random.Random(1), **options)  # type: ignore[arg-type]
        self.backoff.whole = whole
        self.now = 1000.0
        self.keys = count()

    def fail(self, times: int = 1, tries: int = 1, every: float = 0.05) -> None:
        """Different messages."""
        for _ in range(times):
            self.now += every
            self.backoff.failed(next(self.keys), tries, self.now)

    def succeed(self, times: int = 1, every: float = 0.05) -> None:
        for _ in range(times):
            self.now += every
            self.backoff.evidence.successes += 1
            if self.backoff.level:
                self.backoff.succeeded(1, self.now)

    def pause(self) -> float:
        """Pause a Reader that is OPEN; the seconds."""
        assert self.backoff.phase is Phase.OPEN
        self.fail(FIRST)
        return self.left

    @property
    def left(self) -> float:
        assert self.backoff.phase is Phase.BLOCKED and self.backoff.resume_at is not None
        return self.backoff.resume_at - self.now

    def wait_out(self) -> None:
        assert self.backoff.resume_at is not None
        self.now = self.backoff.resume_at
        assert self.backoff.tick(self.now)
        assert self.backoff.phase is Phase.TESTING


def test_fifteen_different_messages_that_fail_pause_the_reader() -> None:
    bench = Bench()
    bench.fail(FIRST - 1)
    assert bench.backoff.phase is Phase.OPEN and not bench.backoff.level
    bench.fail()
    assert bench.backoff.phase is Phase.BLOCKED and bench.backoff.level == 1
    assert 1.6 <= bench.left <= 2.0
    assert bench.backoff.evidence.failures == FIRST
    assert bench.now - bench.backoff.evidence.since == pytest.approx(0.05 * (FIRST - 1))


def test_a_step_tells_the_pause_and_the_failures_that_led_to_it() -> None:
    bench = Bench(whole=8)
    bench.pause()
    step = bench.backoff.step(bench.now)
    assert step[:2] == (Phase.BLOCKED, 1)
    assert step.seconds == bench.left > 1.5
    assert step.is_new_climb
    assert step.failures == FIRST
    assert step.stretch == pytest.approx(0.05 * (FIRST - 1))
    # Half a second later the rest of the pause is told.
    assert bench.backoff.step(bench.now + 0.5).seconds == pytest.approx(step.seconds - 0.5)
    bench.wait_out()
    bench.fail()
    again = bench.backoff.step(bench.now)
    assert again[:2] == (Phase.BLOCKED, 2)
    assert not again.is_new_climb
    bench.wait_out()
    bench.succeed()
    grown = bench.backoff.step(bench.now)
    assert (grown.phase, grown.level, grown.seconds) == (Phase.GROWING, 2, 0.0)


def test_a_limit_of_0_ends_no_growth() -> None:
    """A group has lent the slot of the Reader to another."""
    bench = Bench(whole=8)
    bench.pause()
    bench.wait_out()
    bench.succeed()
    assert bench.backoff.limit == 2
    assert not bench.backoff.set_whole(0, bench.now)
    assert bench.backoff.phase is Phase.GROWING
    assert bench.backoff.set_whole(2, bench.now)
    assert bench.backoff.phase is Phase.OPEN


def test_one_message_that_fails_for_ever_is_no_outage() -> None:
    bench = Bench()
    for number in range(1000):
        bench.now += 0.05
        assert not bench.backoff.failed("poison", 1 + number, bench.now)
    assert bench.backoff.phase is Phase.OPEN


def test_four_in_a_row_do_not_pause_however_often_they_fail() -> None:
    bench = Bench()
    for tries in range(1, 200):
        for key in range(4):
            bench.now += 0.1
            bench.backoff.failed(key, tries, bench.now)
    assert bench.backoff.phase is Phase.OPEN


def test_slow_failures_never_pause() -> None:
    """A pause would help nothing at a message in an hour, or at 14 in a minute."""
    for seconds in (3600.0, 60.0 / (FIRST - 1)):
        bench = Bench()
        bench.fail(1000, every=seconds)
        assert bench.backoff.phase is Phase.OPEN
    bench.fail(100, every=60.0 / (FIRST + 3))
    assert bench.backoff.phase is Phase.BLOCKED


@pytest.mark.parametrize("share", [0.02, 0.1, 0.2])
def test_poison_among_healthy_messages_does_not_pause(share: float) -> None:
    """Each poison message fails five times here."""
    for seed in range(20):
        rng = random.Random(seed)
        bench = Bench()
        for _ in range(5000):
            if rng.random() >= share:
                bench.succeed()
            elif rng.random() < 0.2:
                bench.fail()
            else:
                bench.backoff.failed("known", 3, bench.now)
            assert bench.backoff.phase is Phase.OPEN, seed


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_a_process_that_starts_beside_poison_does_not_pause(share: float) -> None:
    """Each poison message fails for the second to the fifth time, and has not failed here."""
    for seed in range(20):
        rng = random.Random(seed)
        bench = Bench()
        for _ in range(5000):
            draw = rng.random() * (1 + 4 * share)
            if draw < 1 - share:
                bench.succeed()
            else:
                bench.fail(tries=1 if draw < 1 else 3)
            assert bench.backoff.phase is Phase.OPEN, seed


@pytest.mark.parametrize("share", [0.4, 0.5, 0.7, 1.0])
def test_a_downstream_that_often_fails_pauses(share: float) -> None:
    for seed in range(20):
        rng = random.Random(seed)
        bench = Bench()
        calls = 0
        while bench.backoff.phase is Phase.OPEN:
            bench.fail() if rng.random() < share else bench.succeed()
            calls += 1
            assert calls < 3000, seed


def test_half_of_failures_never_stop_for_good() -> None:
    """Each hour has successes, and between two pauses few messages fail."""
    for seed in range(10):
        rng = random.Random(seed)
        bench = Bench(whole=10)
        successes = pauses = failures = 0
        begun = bench.now
        while bench.now < begun + 3600:
            if bench.backoff.phase is Phase.BLOCKED:
                pauses += 1
                bench.wait_out()
            elif rng.random() < 0.5:
                failures += 1
                bench.fail()
            else:
                successes += 1
                bench.succeed()
        assert successes > 100
        assert pauses > 100
        assert failures < 5 * pauses


def test_pauses_of_an_outage_grow_to_25_seconds_less_a_fifth() -> None:
    bench = Bench()
    pauses = [bench.pause()]
    for _ in range(30):
        bench.wait_out()
        bench.fail()
        pauses.append(bench.left)
    for pause, full in zip(pauses, (2, 4, 8, 16, *[25] * 27), strict=True):
        assert 0.8 * full - 1e-6 <= pause <= full + 1e-6
    assert len(set(pauses)) == len(pauses)
    assert bench.backoff.level == 5


def test_a_success_in_a_test_lets_the_limit_double() -> None:
    bench = Bench(whole=100)
    bench.pause()
    bench.wait_out()
    assert bench.backoff.limit is None
    limits = []
    bench.succeed()
    while bench.backoff.phase is Phase.GROWING:
        limits.append(bench.backoff.limit)
        bench.succeed()
    assert limits == [2, 4, 8, 16, 32, 64]
    assert (bench.backoff.phase, bench.backoff.level) == (Phase.OPEN, 0)
    assert bench.backoff.limit is None and bench.backoff.next_at is None


def test_one_message_at_a_time_has_nothing_to_grow() -> None:
    bench = Bench(whole=1)
    bench.pause()
    bench.wait_out()
    bench.succeed()
    assert bench.backoff.phase is Phase.OPEN


def test_growth_ends_after_five_seconds_and_with_a_lower_limit() -> None:
    for ends in ("time", "limit"):
        bench = Bench(whole=1000)
        bench.pause()
        bench.wait_out()
        bench.succeed()
        assert bench.backoff.phase is Phase.GROWING
        assert bench.backoff.next_at == pytest.approx(bench.now + 5.0)
        assert not bench.backoff.tick(bench.now + 4.9)
        if ends == "time":
            assert bench.backoff.tick(bench.now + 5.0)
        else:
            assert not bench.backoff.set_whole(50, bench.now)
            assert bench.backoff.set_whole(2, bench.now)
        assert bench.backoff.phase is Phase.OPEN


def test_one_failure_more_pauses_again_a_level_higher() -> None:
    for whole in (1, 100):
        bench = Bench(whole=whole)
        bench.pause()
        assert bench.backoff.is_new_climb
        bench.wait_out()
        bench.succeed()
        bench.fail()
        assert (bench.backoff.phase, bench.backoff.level) == (Phase.BLOCKED, 2)
        assert not bench.backoff.is_new_climb


def test_successes_after_a_test_weigh_against_the_next_failure() -> None:
    bench = Bench(whole=100)
    bench.pause()
    bench.wait_out()
    bench.succeed(3)
    bench.fail()
    assert bench.backoff.phase is Phase.GROWING


def _third_level(bench: Bench) -> None:
    """Lead a Reader into a third pause and out of it."""
    bench.pause()
    for _ in range(2):
        bench.wait_out()
        bench.fail()
    assert bench.backoff.level == 3
    bench.wait_out()
    bench.succeed()
    assert bench.backoff.phase is Phase.OPEN


@pytest.mark.parametrize(
    ("successes", "seconds", "level"), [(26, 0.0, 4), (27, 0.0, 1), (0, 53.0, 4), (0, 54.0, 1)]
)
def test_an_outage_is_over_when_successes_or_time_have_taken_its_count(
    successes: int, seconds: float, level: int
) -> None:
    bench = Bench()
    _third_level(bench)
    bench.succeed(successes, every=0.0)
    bench.now += seconds
    bench.fail(FIRST, every=0.0)
    assert (bench.backoff.level, bench.backoff.is_new_climb) == (level, level == 1)


@pytest.mark.parametrize(("seconds", "enough"), [(0.0, 8), (29.0, 8), (31.0, FIRST)])
def test_soon_after_a_pause_eight_failures_in_a_row_are_enough(seconds: float, enough: int) -> None:
    bench = Bench()
    _third_level(bench)
    bench.succeed(100, every=seconds / 100)
    bench.fail(enough - 1, every=0.001)
    assert bench.backoff.phase is Phase.OPEN
    bench.fail(every=0.001)
    assert (bench.backoff.phase, bench.backoff.level) == (Phase.BLOCKED, 1)
    assert bench.backoff.evidence.failures == enough
    assert bench.now - bench.backoff.evidence.since < 0.1


def test_a_database_that_flaps_is_left_alone_for_seconds_each_time() -> None:
    """A long pause would miss the times in which it works."""
    bench = Bench()
    bench.pause()
    for _ in range(10):
        assert bench.backoff.level == 1
        bench.wait_out()
        bench.fail()
        assert bench.left <= 4.0
        bench.wait_out()
        bench.succeed(100)
        bench.fail(8)


def test_a_level_stays_at_the_ceiling_over_a_short_recovery() -> None:
    bench = Bench()
    bench.pause()
    for _ in range(100):
        bench.wait_out()
        bench.succeed()
        bench.fail()
    assert bench.backoff.level == 5


def test_in_a_test_a_known_failure_repeats_the_pause() -> None:
    bench = Bench()
    bench.pause()
    bench.wait_out()
    assert bench.backoff.failed(0, 2, bench.now)
    assert (bench.backoff.phase, bench.backoff.level) == (Phase.BLOCKED, 1)
    bench.wait_out()
    # Another consumer has failed on it, or it has waited for the end of a pause there.
    bench.fail(tries=3)
    assert bench.backoff.level == 2
    bench.wait_out()
    assert bench.backoff.no_verdict(bench.now)
    assert (bench.backoff.phase, bench.backoff.level) == (Phase.BLOCKED, 2)


def test_verdicts_in_a_pause_change_nothing_but_what_is_known() -> None:
    bench = Bench()
    bench.pause()
    resume_at = bench.backoff.resume_at
    assert not bench.backoff.failed("late", 1, bench.now)
    assert not bench.backoff.succeeded(3, bench.now)
    assert (bench.backoff.level, bench.backoff.resume_at) == (1, resume_at)
    bench.wait_out()
    assert bench.backoff.failed("late", 2, bench.now)
    assert bench.backoff.level == 1


def test_redelivered_messages_are_evidence_while_none_succeeds() -> None:
    """Such messages may be on their last try, and must not run into the dead letters."""
    bench = Bench()
    bench.fail(FIRST - 1, tries=5)
    bench.succeed()
    bench.fail(FIRST - 1, tries=5)
    assert bench.backoff.phase is Phase.OPEN
    bench.fail(tries=5)
    assert bench.backoff.phase is Phase.BLOCKED
    assert bench.backoff.evidence.failures >= FIRST


def test_excused_failures_are_no_evidence_and_use_a_test_up() -> None:
    bench = Bench()
    for _ in range(100):
        assert not bench.backoff.failed(next(bench.keys), 1, bench.now, counts=False)
    bench.pause()
    bench.wait_out()
    assert bench.backoff.failed(next(bench.keys), 1, bench.now, counts=False)
    assert (bench.backoff.phase, bench.backoff.level) == (Phase.BLOCKED, 1)


def test_max_duration_0_switches_it_off() -> None:
    bench = Bench(max_duration=0)
    bench.fail(1000)
    assert bench.backoff.phase is Phase.OPEN
    assert bench.backoff.evidence.in_a_row == 1000


def test_full_jitter_and_functions_have_no_other_chance() -> None:
    bench = Bench(strategy=lambda level: 3.0 * level)
    assert bench.pause() == pytest.approx(3.0)
    pauses = set()
    for seed in range(200):
        backoff = Backoff(strategy="full_jitter", rng=random.Random(seed))
        for key in range(FIRST):
            backoff.failed(key, 1, 5.0)
        assert backoff.resume_at is not None
        pauses.add(backoff.resume_at - 5.0)
    assert min(pauses) < 0.2 and max(pauses) > 1.8


def test_the_number_of_known_messages_is_bounded_and_the_oldest_goes_first() -> None:
    evidence = Evidence()
    for key in range(MOST_KNOWN):
        evidence.failed(key, 1, 0.0)
    # A further failure makes it the newest.
    assert evidence.failed(0, 2, 0.0) == (False, False)
    evidence.failed("one more", 1, 0.0)
    assert evidence.failed(0, 3, 0.0)[0] is False
    assert evidence.failed(2, 2, 0.0)[0] is False
    assert evidence.failed(1, 2, 0.0)[0] is True
    assert len(evidence._failed) == MOST_KNOWN


def test_in_a_row_counts_different_messages_until_a_success() -> None:
    evidence = Evidence()
    for key in (1, 1, 2, 3, 3, 2, 4):
        evidence.failed(key, 1, 0.0)
    assert evidence.in_a_row == 4
    evidence.successes += 1
    evidence.failed(5, 1, 0.0)
    assert evidence.in_a_row == 1 < IN_A_ROW


def test_a_requeue_delay_is_up_to_a_tenth_longer_by_chance() -> None:
    delays = [requeue_delay(b"%016x" % number, 2, 90.0, 900.0) for number in range(1000)]
    assert all(180.0 <= delay <= 180.0 * (1 + JITTER) for delay in delays)
    # Ten parts of the tenth, each with about a tenth of the messages.
    parts = [0] * 10
    for delay in delays:
        parts[math.floor((delay / 180.0 - 1) * 100)] += 1
    assert min(parts) > 60
    assert requeue_delay(b"%016x" % 7, 2, 90.0, 900.0) == delays[7]
    assert requeue_delay(b"%016x" % 7, 0, 90.0, 900.0) == 0.0
    assert 900.0 <= requeue_delay(b"%016x" % 7, 60, 90.0, 900.0) <= 990.0


class Machine(RuleBasedStateMachine):
    """Any history, beside the five lines of the rule written another way."""

    @initialize(whole=st.sampled_from([1, 2, 7, 2500]), seed=st.integers(0, 9))
    def begin(self, whole: int, seed: int) -> None:
        self.backoff = Backoff(rng=random.Random(seed))
        self.backoff.whole = self.whole = whole
        self.now = 100.0
        self.fresh = count()
        self.failed: list[int] = []
        # Each counted outcome: when, and what it adds.
        self.count = 0.0
        self.counted_at = self.now
        self.last_level = 0
        self.is_over = True
        # The same without the successes; each success lets it begin anew.
        self.row = 0.0
        self.wary_until = 0.0
        self.succeeded = False

    def _leak(self) -> None:
        leak = (self.now - self.counted_at) * 0.5
        self.count = max(0.0, self.count - leak)
        self.row = max(0.0, self.row - leak)
        self.counted_at = self.now
        self.is_over = self.is_over or not self.count

    def _count_before_a_failure(self) -> None:
        self._leak()
        if self.succeeded:
            self.row = 14.0 if self.now < self.wary_until else 0.0
            self.succeeded = False

    def _expect(self, phase: Phase, level: int) -> None:
        assert (self.backoff.phase, self.backoff.level) == (phase, level)

    @rule(seconds=st.sampled_from([0.0, 0.01, 0.2, 1.5, 6.0, 30.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        before, at = self.backoff.phase, self.backoff.next_at
        level = self.backoff.level
        changed = self.backoff.tick(self.now)
        assert changed == (at is not None and at <= self.now)
        if changed and before is Phase.BLOCKED:
            self._expect(Phase.TESTING, level)
        elif changed:
            self._opened(level)

    def _opened(self, level: int) -> None:
        self._expect(Phase.OPEN, 0)
        self.last_level = level

    def _fresh_failure(self, times: int) -> None:
        for _ in range(times):
            phase, level = self.backoff.phase, self.backoff.level
            key = next(self.fresh)
            self.failed.append(key)
            self.backoff.failed(key, 1, self.now)
            self._count_before_a_failure()
            self.count += 2
            self.row += 2
            if phase is Phase.TESTING:
                self._expect(Phase.BLOCKED, min(level + 1, 5))
            elif phase is Phase.BLOCKED:
                self._expect(phase, level)
            else:
                if max(self.count, self.row) > 28:
                    if phase is Phase.OPEN:
                        level = 0 if self.is_over else self.last_level
                    self._expect(Phase.BLOCKED, min(level + 1, 5))
                else:
                    self._expect(phase, level)

    @rule(times=st.integers(1, 16))
    def new_messages_fail(self, times: int) -> None:
        self._fresh_failure(times)

    @precondition(lambda self: self.failed)
    @rule(data=st.data())
    def a_message_fails_again(self, data: st.DataObject) -> None:
        phase, level = self.backoff.phase, self.backoff.level
        self._count_before_a_failure()
        self.backoff.failed(data.draw(st.sampled_from(self.failed)), 2, self.now)
        self._expect(Phase.BLOCKED if phase is Phase.TESTING else phase, level)

    @rule(times=st.integers(1, 40))
    def messages_succeed(self, times: int) -> None:
        phase, level, limit = self.backoff.phase, self.backoff.level, self.backoff.limit
        self.backoff.evidence.successes += times
        if level:
            self.backoff.succeeded(times, self.now)
        self.count = max(0.0, self.count - times)
        self.succeeded = True
        self._leak()
        if phase is Phase.TESTING:
            self.count = self.row = float(ALMOST)
            limit = 2
            self.is_over, self.wary_until, self.succeeded = False, self.now + 30.0, False
        elif phase is Phase.GROWING:
            assert limit is not None
            limit *= 2**times
        if phase in (Phase.TESTING, Phase.GROWING):
            assert limit is not None
            if limit >= self.whole:
                self._opened(level)
            else:
                self._expect(Phase.GROWING, level)
                assert self.backoff.limit == limit
        else:
            self._expect(phase, level)

    @invariant()
    def states_mean_what_they_say(self) -> None:
        if not hasattr(self, "backoff"):
            return
        backoff = self.backoff
        assert (backoff.phase is Phase.OPEN) == (backoff.level == 0)
        assert (backoff.phase is Phase.BLOCKED) == (backoff.resume_at is not None)
        assert (backoff.phase is Phase.GROWING) == (backoff.limit is not None)
        # A pause and a growth end; a test waits for a message.
        if backoff.phase in (Phase.BLOCKED, Phase.GROWING):
            assert backoff.next_at is not None and backoff.next_at <= self.now + 25.0
        else:
            assert backoff.next_at is None


TestAnyHistory = Machine.TestCase
TestAnyHistory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
