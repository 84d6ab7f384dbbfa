"""When an nsqlookupd is asked again."""

from __future__ import annotations

import random

import pytest

from gnsqsync.policy.polls import EAGER_LONGEST, EAGER_SECONDS, RETRY_LONGEST, PollPauses

INTERVAL = 15.0
EAGER = [0.25, 0.5, 1.0, 2.0, 3.0, 3.0]


def pauses_of(
    answers: str,
    *,
    interval: float = INTERVAL,
    searching: bool = True,
    alone: bool = True,
    took: float = 0.0,
) -> list[float]:
    """Answers: L lists something, N nothing, F fails. ``took``: seconds between two of them."""
    pauses = PollPauses(random.Random(1))
    pauses.begin(0.0)
    now, found = 0.0, []
    for answer in answers:
        if answer == "F":
            pauses.failed()
        else:
            pauses.answered(now, listed=answer == "L")
        found.append(pauses.usual(now, interval, searching=searching, alone=alone))
        now += took
    return found


@pytest.mark.parametrize(
    ("answers", "about", "expected"),
    [
        ("LLL", {}, [15.0] * 3),
        ("NNNNNN", {}, EAGER),
        # Another nsqlookupd lists one.
        ("NNN", {"searching": False}, [15.0] * 3),
        ("FFFF", {}, [1.0, 2.0, 2.5, 2.5]),
        # Another nsqlookupd answers.
        ("FFFFFF", {"alone": False}, [1.0, 2.0, 4.0, 8.0, 15.0, 15.0]),
        ("FFNNL", {}, [1.0, 2.0, 0.25, 0.5, 15.0]),
        # The topic came to an end, and is looked for as at the start.
        ("LNNL", {"searching": True}, [15.0, 0.25, 0.5, 15.0]),
        ("NNNF", {}, [0.25, 0.5, 1.0, 1.0]),
        # Whoever gives a shorter interval gets it.
        ("NNNFF", {"interval": 0.1}, [0.1] * 5),
        ("NNNNNNL", {"interval": 3600.0}, [*EAGER, 3600.0]),
    ],
)
def test_the_table(answers: str, about: dict[str, float], expected: list[float]) -> None:
    assert pauses_of(answers, **about) == expected  # type: ignore[arg-type]


def test_a_search_is_eager_for_five_minutes() -> None:
    found = pauses_of("N" * 200, took=3.0)
    assert found[int(EAGER_SECONDS / 3) - 1] == EAGER_LONGEST
    assert found[int(EAGER_SECONDS / 3) :] == [INTERVAL] * 100


def test_nsqd_that_ends_after_hours_is_searched_for_five_minutes() -> None:
    found = pauses_of("L" * 1000 + "N" * 200, took=3.0)
    assert found[1000:1005] == EAGER[:5]
    assert found[1099] == EAGER_LONGEST and found[1100] == INTERVAL


def test_somebody_new_searches_as_at_the_start() -> None:
    pauses = PollPauses(random.Random(1))
    pauses.begin(0.0)
    pauses.answered(1000.0, listed=False)
    assert pauses.usual(1000.0, INTERVAL, searching=True, alone=True) == INTERVAL
    pauses.begin(1000.0)
    assert pauses.usual(1000.0, INTERVAL, searching=True, alone=True) == 0.25


@pytest.mark.parametrize("jitter", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("answers", ["L", "NNNNN", "FFF"])
def test_each_pause_is_moved_by_half_of_the_jitter_at_most(answers: str, jitter: float) -> None:
    pauses = PollPauses(random.Random(1))
    pauses.begin(0.0)
    for answer in answers:
        if answer == "F":
            pauses.failed()
        else:
            pauses.answered(0.0, listed=answer == "L")
    usual = pauses.usual(0.0, INTERVAL, searching=True, alone=True)
    drawn = [pauses.next(0.0, INTERVAL, jitter, searching=True, alone=True) for _ in range(500)]
    assert usual * (1 - jitter / 2) <= min(drawn) and max(drawn) <= usual * (1 + jitter / 2)
    if jitter:
        assert len(set(drawn)) == 500
        assert max(drawn) - min(drawn) > 0.9 * usual * jitter


def test_the_pauses_keep_what_the_pages_promise() -> None:
    jitter = 1 + 0.3 / 2
    # A new topic: the longest pause, and half a second to dial.
    assert EAGER_LONGEST * jitter + 0.5 < 4.0
    # The first nsqlookupd that returns: a question under way fails after 2 s.
    assert 2.0 + RETRY_LONGEST * jitter < 5.0
