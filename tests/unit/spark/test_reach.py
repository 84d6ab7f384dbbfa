"""What a run with an end makes of whom it reached: success, a warning or an error; no nsqd."""

from __future__ import annotations

import logging

import pytest

from gnsqsync.errors import ConnectionLost
from gnsqsync.spark.depths import Backlog
from gnsqsync.spark.plan import Source
from gnsqsync.spark.reach import NothingRead, Progress, Reach

A, B = Source("a:4150", "orders"), Source("b:4150", "orders")
REFUSED = "cannot connect: Connection refused"


def judged(reach: Reach) -> str:
    """The error's text."""
    with pytest.raises(ConnectionLost) as caught:
        reach.judge()
    return str(caught.value)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_an_empty_queue_is_a_success(caplog: pytest.LogCaptureFixture) -> None:
    Reach({}, {}, "all").judge()
    Reach({A: 0, B: 0}, {}, "all").judge()
    assert not warned(caplog)


def test_a_reached_nsqd_need_not_have_had_messages(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another consumer was faster."""
    reach = Reach({A: 5}, {}, "all")
    reach.met(A, "")
    reach.judge()
    assert not warned(caplog)


def test_nobody_reached_is_an_error_that_names_all() -> None:
    reach = Reach({A: 1200, B: 1}, {"c:4150": "GET /stats: timed out"}, "all")
    reach.met(A, REFUSED)
    reach.met(B, "nsqd wants TLS")
    text = judged(reach)
    assert text.startswith("nothing was read, as none of the nsqds with waiting messages")
    assert f"nsqd a:4150, where 1,200 messages wait: {REFUSED}; " in text
    assert "nsqd b:4150, where 1 message waits: nsqd wants TLS; " in text
    assert "nsqd c:4150, where nobody knows what waits" in text
    assert "GET /stats: timed out" in text


def test_the_topics_of_an_nsqd_are_told_together() -> None:
    other = Source("a:4150", "payments")
    reach = Reach({A: 5, other: 6}, {}, "all")
    for source in (A, other):
        reach.met(source, REFUSED)
    assert judged(reach).count("a:4150") == 1
    assert "11 messages wait" in judged(reach)


def test_nothing_read_while_one_could_not_be_asked_is_an_error() -> None:
    text = judged(Reach({A: 0}, {"b:4150": REFUSED}, "all"))
    assert text.startswith("nothing was read, as not every nsqd could be asked what waits")
    assert (
        f"nsqd b:4150, where nobody knows what waits, as its HTTP API does not answer: {REFUSED}"
        in (text)
    )


def test_some_reached_is_a_success_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    reach = Reach({A: 5, B: 7}, {"c:4150": "timed out"}, "all")
    reach.met(A, "")
    reach.met(B, REFUSED)
    reach.judge()
    # Spark may ask again while another source of the query has messages.
    reach.judge()
    (text,) = warned(caplog)
    assert text.startswith("part of what waits was not read: nsqd b:4150, where 7 messages wait")
    assert "nsqd c:4150" in text
    assert "a:4150" not in text


def test_one_connection_of_several_is_enough() -> None:
    for problems in (("", REFUSED), (REFUSED, "")):
        reach = Reach({A: 5}, {}, "all")
        for problem in problems:
            reach.met(A, problem)
        assert reach.missed == []
        reach.judge()


def test_a_task_that_was_not_needed_tells_nothing() -> None:
    """As behind a sink that looks at the first row only."""
    reach = Reach({A: 5}, {}, "all")
    reach.judge()  # raises where something was missed
    assert reach.missed == []


def test_the_error_is_one_line() -> None:
    reach = Reach({A: 5}, {}, "all")
    reach.met(A, "first\n  second")
    assert "first second" in judged(reach)
    assert "\n" not in judged(reach)


def test_any_that_was_not_reached_is_an_error_where_that_is_asked_for() -> None:
    reach = Reach({A: 5, B: 7}, {}, "any")
    reach.met(A, "")
    reach.met(B, REFUSED)
    text = judged(reach)
    assert text.startswith(
        f"part of what waits was not read: nsqd b:4150, where 7 messages wait: {REFUSED}"
    )
    assert text.endswith("(option 'failOnUnreachable' is 'any')")
    assert "nsqd c:4150" in judged(Reach({A: 0}, {"c:4150": "timed out"}, "any"))


def test_nobody_reached_is_a_warning_where_that_is_asked_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reach = Reach({A: 5}, {"c:4150": "timed out"}, "never")
    reach.met(A, REFUSED)
    reach.judge()
    (text,) = warned(caplog)
    assert text.startswith("nothing was read, as none of the nsqds with waiting messages")
    assert f"nsqd a:4150, where 5 messages wait: {REFUSED}; nsqd c:4150" in text


# -- whether anything was read -------------------------------------------------------------------

FREE, PAUSED, IN_FLIGHT = Backlog(7, 0, 0), Backlog(0, 0, 0, behind_pause=7), Backlog(0, 7, 0)


@pytest.mark.parametrize(
    ("before", "took", "after"),
    [
        # Read something; read nothing, as there was nothing; others were faster, or hold it.
        ({A: FREE}, [3], {A: FREE}),
        ({A: FREE, B: FREE}, [0, 1], {A: FREE, B: FREE}),
        ({A: Backlog(0, 0, 0)}, [], {A: Backlog(0, 0, 0)}),
        ({A: Backlog(0, 0, 0)}, [], {A: FREE}),
        ({A: FREE}, [0], {A: Backlog(0, 0, 0)}),
        ({A: FREE}, [0], {A: IN_FLIGHT}),
        ({A: IN_FLIGHT}, [], {A: IN_FLIGHT}),
        # Spark did not ask for the rows; nobody knows what waits.
        ({A: FREE}, [None], {A: FREE}),
        ({A: FREE}, [0], {A: None}),
        ({A: None}, [], {A: FREE}),
    ],
)
def test_a_run_that_took_what_it_could_is_a_success(
    before: dict[Source, Backlog | None],
    took: list[float | None],
    after: dict[Source, Backlog | None],
) -> None:
    progress = Progress("ch", before)
    for messages in took:
        progress.took(messages)
    progress.judge(after)


def test_a_run_that_took_nothing_of_what_waited_is_an_error() -> None:
    progress = Progress("ch", {A: FREE, B: FREE})
    progress.took(0)
    with pytest.raises(NothingRead) as caught:
        progress.judge({A: Backlog(1200, 3, 0), B: Backlog(0, 9, 0)})
    text = str(caught.value)
    assert "nothing was read of channel 'ch'" in text
    assert "at the start (7) and at the end of this run (1,200 of orders on nsqd a:4150)" in text
    assert "look for other consumers" in text


def test_a_paused_channel_is_named() -> None:
    with pytest.raises(NothingRead, match=r"7 of orders on nsqd a:4150 \(paused\)\).* unpause it"):
        Progress("ch", {A: PAUSED}).judge({A: PAUSED})


def test_an_unreached_nsqd_is_left_out_of_the_judgement() -> None:
    Progress("ch", {A: FREE}).judge({A: FREE}, left_out=[A])
