"""Which troubles are told, and when: without a clock."""

from __future__ import annotations

from gnsqsync.policy.troubles import AT_ONCE, LONGEST_INTERVAL, MOST_PLACES, Troubles


def test_an_outage_is_told_at_its_begin_at_growing_intervals_and_at_its_end() -> None:
    troubles = Troubles()
    told = []
    for second in range(8000):
        tell = troubles.began("a", "away", second)
        if tell is not None:
            told.append((second, tell.seconds, tell.times, tell.again))
    assert told == [
        (0, 0, 1, 60),
        (60, 60, 60, 120),
        (180, 180, 120, 240),
        (420, 420, 240, 480),
        (900, 900, 480, 960),
        (1860, 1860, 960, 1920),
        (3780, 3780, 1920, 3600),
        (7380, 7380, 3600, 3600),
    ]
    assert LONGEST_INTERVAL == 3600
    over = troubles.ended("a", 8000)
    assert over is not None
    assert (over.seconds, over.times) == (8000, 619)
    assert troubles.ended("a", 8001) is None


def test_a_new_outage_is_told_at_once() -> None:
    troubles = Troubles()
    for begin in (0.0, 10.0, 300.0):
        tell = troubles.began("a", "away", begin)
        assert tell is not None and tell.seconds == 0
        assert troubles.began("a", "away", begin + 1) is None
        over = troubles.ended("a", begin + 5)
        assert over is not None and over.seconds == 5


def test_one_that_comes_and_goes_is_told_a_few_times_and_then_at_intervals() -> None:
    troubles = Troubles()
    begins, ends = [], []
    for second in range(0, 600, 2):
        if troubles.began("a", "away", second):
            begins.append(second)
        if troubles.ended("a", second + 1):
            ends.append(second + 1)
    assert begins[:AT_ONCE] == [0, 2, 4, 6, 8]
    assert begins[AT_ONCE:] == [68, 188, 428]
    # Whose begin was told, whose end is.
    assert ends == [begin + 1 for begin in begins]
    # Calm for long enough: at once again.
    assert troubles.began("a", "away", 5000) is not None


def test_what_does_not_last_is_told_a_few_times_and_then_with_a_count() -> None:
    troubles = Troubles()
    told = []
    for number in range(100_000):
        tell = troubles.happened("a", "E_FIN_FAILED", number / 1000)
        if tell is not None:
            told.append((tell.times, tell.again))
    assert told == [(1, 0), (1, 0), (1, 0), (1, 0), (1, 60), (60_000, 120)]
    # What came behind the last line is counted in the next one, however late.
    tell = troubles.happened("a", "E_FIN_FAILED", 10_000)
    assert tell is not None and tell.times == 100_000 - 60_005 + 1


def test_kinds_and_places_are_told_for_themselves() -> None:
    troubles = Troubles()
    assert troubles.began("a", "away", 0)
    assert troubles.began("a", "refused", 1)
    assert troubles.began("b", "away", 2)
    assert not troubles.began("a", "away", 3)
    over = troubles.ended("a", 10)
    # Both ended, since the first of them.
    assert over is not None and over.seconds == 10
    assert troubles.ended("a", 11) is None
    assert troubles.ended("b", 12)


def test_who_uses_a_place_is_named() -> None:
    troubles = Troubles()
    one, two, three = object(), object(), object()
    troubles.uses("a", one, "orders/shop", 0)
    troubles.uses("a", two, "orders/mail", 0)
    troubles.uses("b", three, "clicks/count", 0)
    tell = troubles.began("a", "away", 0)
    assert tell is not None and tell.users == ("orders/shop", "orders/mail")
    assert troubles.is_told(two)
    assert not troubles.is_told(three)
    troubles.leaves(one)
    over = troubles.ended("a", 1)
    assert over is not None and over.users == ("orders/mail",)
    troubles.leaves(two, "a")
    troubles.leaves(two, "c")
    # Nobody uses it: what was wrong there is nobody's news.
    assert len(troubles) == 1
    assert troubles.ended("a", 2) is None


def test_any_number_of_places_takes_bounded_memory_and_few_lines() -> None:
    troubles = Troubles()
    told = sum(
        troubles.began(("nsqd", number), "away", number / 1e6) is not None
        for number in range(100_000)
    )
    assert MOST_PLACES <= told <= MOST_PLACES + AT_ONCE
    assert len(troubles) == MOST_PLACES + 1
    for number in range(100_000):
        troubles.ended(("nsqd", number), 1.0)
    # Those that are over for long make room.
    assert troubles.began("new", "away", 10_000)
    assert len(troubles) <= 3


def test_any_number_of_kinds_takes_bounded_memory() -> None:
    troubles = Troubles()
    for number in range(10_000):
        troubles.happened("a", number, 0.0)
    assert len(troubles._places["a"].troubles) <= 50
