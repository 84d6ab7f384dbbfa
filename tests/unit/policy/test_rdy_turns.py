"""The states of a turn and the length of a look, without an allocator."""

from __future__ import annotations

import itertools

import pytest

from gnsqsync.policy.rdy_turns import (
    FIRST_LOOK,
    LONGEST_LOOK,
    LONGEST_REST,
    MOST_MESSAGES,
    PEEK,
    TURN_SECONDS,
    Looks,
    Turn,
    TurnState,
)

WAITS, LOOKS, OPEN = TurnState.WAITS, TurnState.LOOKS, TurnState.OPEN


def turn(state: TurnState) -> Turn:
    """A turn in this state; ten messages came before it."""
    new = Turn()
    if state is not WAITS:
        new.begin(0.0, 10, 0, 1, raised=True)
    if state is OPEN:
        new.observe(0.0, 11, 1)
    assert new.state is state
    return new


@pytest.mark.parametrize(
    ("state", "received", "in_flight", "following", "ends"),
    [
        (WAITS, 10, 0, WAITS, False),
        (WAITS, 11, 1, WAITS, False),  # it came in spite of RDY 0
        (LOOKS, 10, 0, LOOKS, False),
        (LOOKS, 11, 1, OPEN, False),
        (LOOKS, 10, 1, OPEN, False),  # seen in the table, and not counted yet
        (LOOKS, 11, 0, WAITS, True),  # it came and was answered in between
        (OPEN, 11, 1, OPEN, False),
        (OPEN, 11, 0, WAITS, True),
        (OPEN, 12, 1, WAITS, True),  # the first one timed out
        (OPEN, 12, 2, WAITS, True),
    ],
)
def test_arrivals_and_answers_move_a_turn(
    state: TurnState, received: int, in_flight: int, following: TurnState, ends: bool
) -> None:
    at = turn(state)
    assert at.observe(0.0, received, in_flight) is ends
    assert at.state is following


def test_a_turn_that_begins_with_open_messages_ends_when_all_are_answered() -> None:
    at = Turn()
    at.begin(0.0, 10, 2, 1, raised=True)
    assert at.state is OPEN
    assert not at.observe(0.0, 10, 1)
    assert at.observe(0.0, 10, 0)


@pytest.mark.parametrize("state", [LOOKS, OPEN])
def test_a_turn_that_is_taken_away_is_no_look_without_a_message(state: TurnState) -> None:
    at = turn(state)
    at.stop()
    assert at.state is WAITS
    assert at.had_message and not at.rests_until


def test_rests_double_up_to_a_limit_and_a_message_ends_them() -> None:
    at, now = Turn(), 100.0
    at.begin(now, 10, 0, 1, raised=True)
    at.lose(now, nodes=3)
    assert not at.rests_until
    rests = []
    for _ in range(40):
        at.begin(now, 10, 0, 1, raised=True)
        at.lose(now, nodes=3)
        rests.append(at.rests_until - now)
    assert not at.had_message
    for shorter, longer in itertools.pairwise(rests):
        assert longer == pytest.approx(min(2 * shorter, 3 * LONGEST_REST))
    at.begin(now, 10, 0, 1, raised=True)
    at.observe(now, 11, 1)
    assert at.had_message and not at.rests_until


def full_turns(count: int, seconds: float) -> list[int]:
    """Take turns that use all their messages, each of which takes ``seconds``. Return how many."""
    at, now, received, lengths = Turn(), 100.0, 10, []
    for _ in range(count):
        at.begin(now, received, 0, MOST_MESSAGES, raised=True)
        lengths.append(at.messages)
        for left in reversed(range(at.messages)):
            received += 1
            assert not at.observe(now, received, 1)
            now += seconds
            assert at.left(received) == left
            assert at.observe(now, received, 0) is (left == 0)
    return lengths


def test_turns_of_an_nsqd_with_a_backlog_grow_to_a_limit() -> None:
    assert full_turns(9, 0.0001) == [1, 1, 1, 2, 4, 8, 16, 32, 32]


@pytest.mark.parametrize(("seconds", "longest"), [(0.004, 6), (0.02, 1), (60.0, 1)])
def test_a_turn_lasts_no_longer_than_its_time_by_the_speed_of_the_last_one(
    seconds: float, longest: int
) -> None:
    assert max(full_turns(12, seconds)) == longest
    assert longest * seconds <= max(TURN_SECONDS, seconds)


def test_a_turn_that_runs_out_of_messages_makes_the_next_one_short() -> None:
    at, received = Turn(), 0
    while at.messages < 4:
        at.begin(1.0, received, 0, MOST_MESSAGES, raised=True)
        received += at.messages
        at.observe(1.0, received, 0)
    at.begin(2.0, received, 0, MOST_MESSAGES, raised=True)
    assert not at.observe(2.5, received + 1, 0)
    assert (at.state, at.looks_since) == (LOOKS, 2.5)
    assert not at.lose(3.0, nodes=3), "a message came in this turn"
    assert at.had_message and not at.rests_until
    at.begin(4.0, received + 1, 0, MOST_MESSAGES, raised=True)
    assert at.messages == 1


def test_looks_grow_after_whole_rounds_and_a_message_makes_them_short() -> None:
    looks = Looks(10.0)
    lengths = [looks.seconds(1, is_wanted=False)]
    for _ in range(20):
        for _ in range(4):
            assert looks.seconds(1, is_wanted=False) == lengths[-1]
            looks.ended_empty(4)
        lengths.append(looks.seconds(1, is_wanted=False))
    assert lengths[0] == FIRST_LOOK and lengths[-1] == LONGEST_LOOK
    assert all(a < b or b == LONGEST_LOOK for a, b in itertools.pairwise(lengths))
    looks.found()
    assert looks.seconds(1, is_wanted=False) == FIRST_LOOK


def test_a_message_begins_the_round_anew() -> None:
    looks = Looks(10.0)
    for _ in range(10):
        looks.ended_empty(2)
        looks.found()
    assert looks.seconds(1, is_wanted=False) == FIRST_LOOK


def test_a_look_is_short_while_a_full_nsqd_waits_and_has_the_users_bound() -> None:
    looks = Looks(0.1)
    for _ in range(40):
        looks.ended_empty(1)
    assert looks.seconds(1, is_wanted=False) == 0.1
    assert looks.seconds(5, is_wanted=True) == PEEK
