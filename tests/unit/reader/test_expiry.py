"""Messages that are older than ``max_age``: discarded, rejected, or given to a function."""

from __future__ import annotations

import pytest

from gnsqsync import Message
from gnsqsync.message import Discard, Reject
from gnsqsync.reader import expiry

NOW = 1_700_000_000.0


def message(age: float) -> Message:
    return Message(b"0" * 16, b"x", 1, int((NOW - age) * 1e9), None)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnsqsync.reader.expiry.time.time", lambda: NOW)


def test_a_young_message_is_handled() -> None:
    assert expiry.unless_expired(lambda _: "handled", 60.0, "discard")(message(59)) == "handled"


@pytest.mark.parametrize(("on_expired", "error"), [("discard", Discard), ("dead_letter", Reject)])
def test_an_old_one_says_its_age(on_expired: str, error: type[Exception]) -> None:
    call = expiry.unless_expired(lambda _: "handled", 60.0, on_expired)  # type: ignore[arg-type]
    with pytest.raises(error, match=r"it is 90\.0 s old, and max_age is 60 s"):
        call(message(90))


def test_a_function_gets_the_old_one() -> None:
    call = expiry.unless_expired(lambda _: "handled", 60.0, lambda old: old.body)
    assert call(message(90)) == b"x"
