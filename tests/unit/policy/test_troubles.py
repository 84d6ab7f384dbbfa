"""Which troubles are told, and when: without a clock."""

from __future__ import annotations

from contextlib import nullcontext

from gnsqsync.policy.troubles import AT_ONCE, LONGEST_INTERVAL, MOST_PLACES, Troubles


class Timed(Troubles):
    def __init__(self) -> None:
        self.time = 0.0
        super().__init__(nullcontext(), lambda: self.time)

    def at(self, time: float) -> Timed:
        self.time = time
        return self


def test_an_outage_is_told_at_begin_at_growing_intervals_and_at_the_end() -> None:
    troubles = Timed()
    told = []
    for second in range(8000):
        tell = troubles.at(second).began("a", "away")
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
    over = troubles.at(8000).ended("a")
    assert over is not None
    assert (over.seconds, over.times) == (8000, 619)
    assert troubles.at(8001).ended("a") is None


def test_a_new_outage_is_told_at_once() -> None:
    troubles = Timed()
    for begin in (0.0, 10.0, 300.0):
        tell = troubles.at(begin).began("a", "away")
        assert tell is not None and tell.seconds == 0
        assert troubles.at(begin + 1).began("a", "away") is None
        over = troubles.at(begin + 5).ended("a")
        assert over is not None and over.seconds == 5


def test_a_recurring_trouble_is_told_a_few_times_then_at_intervals() -> None:
    troubles = Timed()
    begins, ends = [], []
    for second in range(0, 600, 2):
        if troubles.at(second).began("a", "away"):
            begins.append(second)
        if troubles.at(second + 1).ended("a"):
            ends.append(second + 1)
    assert begins[:AT_ONCE] == [0, 2, 4, 6, 8]
    assert begins[AT_ONCE:] == [68, 188, 428]
    # Whose begin was told, whose end is.
    assert ends == [begin + 1 for begin in begins]
    # Calm for long enough: at once again.
    assert troubles.at(5000).began("a", "away") is not None


def test_repeated_troubles_are_logged_a_few_times_and_then_with_a_count() -> None:
    troubles = Timed()
    told = []
    for number in range(100_000):
        tell = troubles.at(number / 1000).happened("a", "E_FIN_FAILED")
        if tell is not None:
            told.append((tell.times, tell.again))
    assert told == [(1, 0), (1, 0), (1, 0), (1, 0), (1, 60), (60_000, 120)]
    # What came behind the last line is counted in the next one, however late.
    tell = troubles.at(10_000).happened("a", "E_FIN_FAILED")
    assert tell is not None and tell.times == 100_000 - 60_005 + 1


def test_kinds_and_places_are_told_for_themselves() -> None:
    troubles = Timed()
    assert troubles.at(0).began("a", "away")
    assert troubles.at(1).began("a", "refused")
    assert troubles.at(2).began("b", "away")
    assert not troubles.at(3).began("a", "away")
    over = troubles.at(10).ended("a")
    # Both ended, since the first of them.
    assert over is not None and over.seconds == 10
    assert troubles.at(11).ended("a") is None
    assert troubles.at(12).ended("b")


def test_users_of_a_place_are_named() -> None:
    troubles = Timed()
    one, two, three = object(), object(), object()
    troubles.at(0).uses("a", one, "orders/shop")
    troubles.at(0).uses("a", two, "orders/mail")
    troubles.at(0).uses("b", three, "clicks/count")
    tell = troubles.at(0).began("a", "away")
    assert tell is not None and tell.users == ("orders/shop", "orders/mail")
    assert troubles.is_told(two)
    assert not troubles.is_told(three)
    troubles.leaves(one)
    over = troubles.at(1).ended("a")
    assert over is not None and over.users == ("orders/mail",)
    troubles.leaves(two, "a")
    troubles.leaves(two, "c")
    # Nobody uses it: what was wrong there is nobody's news.
    assert len(troubles._places) == 1
    assert troubles.at(2).ended("a") is None


def test_any_number_of_places_takes_bounded_memory_and_few_lines() -> None:
    troubles = Timed()
    told = sum(
        troubles.at(number / 1e6).began(("nsqd", number), "away") is not None
        for number in range(100_000)
    )
    assert MOST_PLACES <= told <= MOST_PLACES + AT_ONCE
    assert len(troubles._places) == MOST_PLACES + 1
    for number in range(100_000):
        troubles.at(1.0).ended(("nsqd", number))
    # Those that are over for long make room.
    assert troubles.at(10_000).began("new", "away")
    assert len(troubles._places) <= 3


def test_any_number_of_kinds_takes_bounded_memory() -> None:
    troubles = Timed()
    for number in range(10_000):
        troubles.at(0.0).happened("a", number)
    assert len(troubles._places["a"].troubles) <= 50
