"""The table of messages in flight: when there is too much of them, and races for an answer."""

from __future__ import annotations

from typing import Any

import pytest

from gnsqsync import Message
from gnsqsync.connection import in_flight
from gnsqsync.connection.in_flight import MESSAGE_COST, InFlight
from gnsqsync.errors import ProtocolError
from gnsqsync.message import BEGUN, TIMED_OUT

LARGE = 1_000_000


def message(number: int, size: int = 0, **fields: Any) -> Message:
    responder: Any = None
    fields = {"attempts": 1, "timestamp": 0, "responder": responder, **fields}
    return Message(b"%016d" % number, bytes(size), **fields)


class Table(InFlight):
    """As the one who reads uses it."""

    count = 0

    def come(self, count: int, size: int, allowed: int) -> None:
        had = len(self)
        came = [message(self.count + n, size) for n in range(count)]
        self.count += count
        self.update((m._id, m) for m in came)
        if len(self) > allowed:
            self.check_ceiling(had, came, allowed, "nsqd:4150")


@pytest.fixture(autouse=True)
def low_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_flight, "MOST_BEYOND", 10 * LARGE)


def test_bodies_beyond_what_rdy_allowed() -> None:
    table = Table()
    table.come(3, LARGE, allowed=1)
    table.come(7, LARGE, allowed=1)
    with pytest.raises(ProtocolError) as caught:
        table.come(1, LARGE, allowed=1)
    assert "nsqd:4150 ignores RDY: it was allowed 1 unanswered messages" in str(caught.value)
    assert f"{10 * (LARGE + MESSAGE_COST)} bytes more came (11 messages in all)" in str(
        caught.value
    )
    assert "10000000 bytes may be on their way" in str(caught.value)


def test_messages_without_a_body_count_too() -> None:
    table = Table()
    most = 10 * LARGE // MESSAGE_COST
    table.come(most + 5, 0, allowed=5)
    with pytest.raises(ProtocolError, match=f"{most + 6} messages in all"):
        table.come(1, 0, allowed=5)


def test_allowed_messages_are_not_counted_at_any_size() -> None:
    table = Table()
    table.come(100, LARGE, allowed=100)
    # As much again may come, of what nsqd sends in the place of messages that timed out here.
    table.come(100, LARGE, allowed=100)
    with pytest.raises(ProtocolError):
        table.come(1, LARGE, allowed=100)


def test_the_count_begins_anew_after_a_moment_with_room() -> None:
    """RDY 0 has reached nsqd then: what is on its way from now on was allowed once more."""
    table = Table()
    for _ in range(20):
        table.come(3, LARGE, allowed=1)
        while len(table) > 1:
            table.popitem()


def test_an_answer_while_it_is_delivered_again_is_neither_lost_nor_stays() -> None:
    """Between any two steps of who reads, the handler of the first copy may answer."""

    class Meanwhile(InFlight):
        """``act`` happens before step number ``at`` that changes it."""

        at = 0
        act: Any = None

        def _step(self) -> None:
            self.at -= 1
            if self.at == 0:
                self.act()

        def __setitem__(self, key: Any, value: Message) -> None:
            self._step()
            super().__setitem__(key, value)

        def pop(self, *args: Any) -> Any:
            self._step()
            return super().pop(*args)

    for at in range(1, 6):
        table = Meanwhile()
        first, second = message(1), message(1, attempts=2)
        first._status = BEGUN
        InFlight.__setitem__(table, first._id, first)
        answered: list[bool] = []

        def act(table: Meanwhile = table, answered: list[bool] = answered) -> None:
            answered.append(table.take(first))  # noqa: B023
            first._status |= 4 if answered[-1] else 0  # noqa: B023

        table.at, table.act = at, act
        table.redelivered(second, 0.0)
        if not answered:
            table.at = 0
            act()
        left = list(table.values())
        # Answered with both copies; or the second one waits for a handler of its own.
        assert left in ([], [second]), at
        assert answered == [True] or left == [second], at
        assert left == [second] or second._status & TIMED_OUT, at
