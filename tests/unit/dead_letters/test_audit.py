"""The record of what was done to dead letters."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gnsqsync.commands.letter_actions import line_of
from gnsqsync.dead_letters import DeadLetter
from gnsqsync.dead_letters.audit import Audit


def letter(id: str, time: datetime = datetime(2026, 11, 24, 10, tzinfo=UTC)) -> DeadLetter:
    return DeadLetter(id=id, time=time, headers={}, body=b"", nsqd="n:1", message_id=id)


def test_a_line_says_who_and_which(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "gnsqsync.dead_letters"):
        audit = Audit("orders.dead", "ann")
        audit.write()
        audit.note(letter("a"))
        audit.note(letter("b"), "orders")
        audit.note(letter("c"))
        audit.write()
        audit.write()
    assert [(each.levelname, each.message) for each in caplog.records] == [
        ("WARNING", "2 dead letters of orders.dead purged by ann: a, c"),
        ("INFO", "1 dead letter of orders.dead sent back to orders by ann: b"),
    ]


def test_a_long_purge_is_recorded_while_it_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit("orders.dead", "ann")
    for number in range(250):
        audit.note(letter(str(number)))
    assert [each.message.partition(" ")[0] for each in caplog.records] == ["100", "100"]
    audit.write()
    assert caplog.records[-1].message.startswith("50 dead letters")
    named = {id for each in caplog.records for id in each.message.rpartition(": ")[2].split(", ")}
    assert named == {str(number) for number in range(250)}


def test_times_have_their_zone() -> None:
    """Another program may have written the time of its own zone."""
    here = datetime.fromisoformat("2026-11-24T10:00:00+02:00")
    assert line_of(letter("a", here), None).startswith("2026-11-24 08:00:00Z  a")
