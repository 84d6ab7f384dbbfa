"""A row whose publish was not confirmed keeps that mark until it is gone."""

from __future__ import annotations

from datetime import UTC, datetime

from gnsqsync.errors import NotSent, OutcomeUnknown, TooFewCopies
from gnsqsync.outbox.in_doubt import IN_DOUBT, error_text, texts
from gnsqsync.outbox.outbox_rows import Row


def row(id: int, *, in_doubt: bool) -> Row:
    return Row(id, "default", "t", b"x", datetime.now(UTC), None, "k", in_doubt=in_doubt)


def test_an_outcome_that_is_unknown_is_marked() -> None:
    assert error_text(OutcomeUnknown("no answer")) == f"{IN_DOUBT}no answer"
    assert error_text(TooFewCopies("one of two")).startswith(IN_DOUBT)
    assert error_text(NotSent("no nsqd")) == "no nsqd"


def test_a_later_failure_does_not_end_the_doubt() -> None:
    sure, doubtful = row(1, in_doubt=False), row(2, in_doubt=True)
    assert list(texts([sure, doubtful], "no nsqd")) == [
        ("no nsqd", [sure]),
        (f"{IN_DOUBT}no nsqd", [doubtful]),
    ]
    assert list(texts([sure, doubtful], f"{IN_DOUBT}x")) == [(f"{IN_DOUBT}x", [sure, doubtful])]
    assert list(texts([], "no nsqd")) == []
