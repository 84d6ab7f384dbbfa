"""Figures of both rules of the backoff in the same troubles.

``python -m tests.support.pause_figures`` prints them all.
"""

from __future__ import annotations

from functools import cache

import pytest

from gnsqsync.policy.backoff import Rule
from tests.support.pause_figures import RATE, TROUBLES, Run, lines, run

# Upper bound of a healthy message's wait, in seconds, for 99 % of them.
QUICK = 0.1


@cache
def ours(name: str) -> Run:
    return run(TROUBLES[name], Rule.OUTAGES)


@cache
def guides(name: str) -> Run:
    return run(TROUBLES[name], Rule.EVERY_FAILURE)


@pytest.mark.parametrize("name", ["poison of 2 %", "poison of 20 %"])
def test_poison_makes_nobody_wait(name: str) -> None:
    assert ours(name).wait(0.99) <= QUICK
    assert not ours(name).pauses
    assert guides(name).wait(0.99) > 60.0


def test_four_in_a_row_make_nobody_wait() -> None:
    assert ours("four in a row").wait(1.0) < 5.0
    assert guides("four in a row").wait(0.5) > 30.0


def test_a_long_outage_costs_a_call_a_pause_and_ends_within_30_seconds() -> None:
    one = ours("outage of ten minutes")
    assert one.most_calls_between_pauses() == 1
    assert 20.0 < one.longest_pause <= 25.0
    assert one.back_after(630.0) <= 30.0
    # A single message of the 45 fails a second time.
    assert one.failures() <= 15 + len(one.pauses)
    # The last one may be under way.
    assert one.successes() >= 700 * RATE - 1
    assert guides("outage of ten minutes").back_after(630.0) > 100.0


def test_poison_after_an_outage_makes_nobody_wait_for_long() -> None:
    """Eight in a row are a pause then. A pause must not bring the next one by that."""
    one = ours("poison of 20 %, after an outage")
    assert one.back_after(90.0) <= 45.0
    assert [at for at, _ in one.pauses if at > 180.0] == []


@pytest.mark.parametrize("period", [5, 10])
def test_a_flapping_database_is_used_while_it_works(period: int) -> None:
    name = f"flapping, {period} s"
    one, before = ours(name), guides(name)
    assert one.longest_stop <= 1.1 * before.longest_stop
    assert one.wait(0.5) < before.wait(0.5)
    # Fewer than 15 to begin with, 8 later, and the tests of two pauses.
    flaps = 300 / (2 * period)
    assert one.failures() <= 15 + flaps * (8 + 3)


def test_a_downstream_that_fails_half_of_the_time_costs_no_more_attempts() -> None:
    """Pauses of 25 s ask more often than pauses of 128 s, so more is handled, too."""
    one, before = ours("half fails, an hour"), guides("half fails, an hour")
    assert one.failures() / one.successes() <= before.failures() / before.successes()
    assert one.successes() > 3 * before.successes()
    # About four failures a pause, the test among them.
    assert one.failures() < 30 + 2.5 * len(one.pauses)
    for begin in range(0, 3600, 600):
        assert one.successes(begin, begin + 600) > 10


def test_a_message_an_hour_pauses_nobody() -> None:
    assert not ours("a message an hour fails").pauses
    assert len(guides("a message an hour fails").pauses) == 40


def test_a_burst_of_poison_costs_nothing_up_to_14_messages() -> None:
    assert ours("burst of 10 poison messages").wait(1.0) < QUICK
    assert ours("burst of 20 poison messages").longest_stop < 90.0
    assert guides("burst of 20 poison messages").longest_stop > 280.0


def test_200_poison_messages_of_one_burst_are_an_outage_by_both_rules() -> None:
    """Each costs a test. The pauses of the guide's rule are five times as long."""
    one, before = (rule("burst of 200 poison messages") for rule in (ours, guides))
    assert len(one.pauses) == 200 - 14
    assert 3600.0 < one.longest_stop < 186 * 25.0
    assert before.longest_stop > 5 * one.longest_stop


def test_the_table_has_a_line_for_each_rule() -> None:
    head, *table = lines([TROUBLES["four in a row"]])
    assert [line[:2] for line in table] == [["four in a row", "every_failure"], ["", "outages"]]
    assert {len(line) for line in table} == {len(head)}
