"""The rows that a store reads and changes, without a database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from gnsqsync.outbox.due import AT_ONCE
from gnsqsync.outbox.in_doubt import IN_DOUBT
from gnsqsync.outbox.outbox_rows import Row
from gnsqsync.outbox.table_store import TableStore, due_again, new_row, row_of
from gnsqsync.writer.encoder import Prepared

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def row(id: int, in_doubt: bool = False) -> Row:
    return Row(id, "default", "t", b"x", NOW, None, "key", 3, in_doubt)


class Table(TableStore):
    """A table whose queries are lists of ids. Rows in ``broken`` cannot be read."""

    def __init__(self, *, broken: Sequence[int] = (), one_by_one: bool = False) -> None:
        super().__init__("a test", one_by_one=one_by_one)
        self.broken = broken
        self.removed: list[list[int]] = []
        self.changed: list[tuple[list[int], dict[str, Any]]] = []

    def take(self, due: Sequence[int], with_time: Sequence[int], limit: int) -> list[int]:
        return [found.id for found in self._take(due[:limit], with_time[:limit], limit)]

    def _rows(self, due: Any) -> Sequence[Row]:
        return [self._one(due, id) for id in due]

    def _ids(self, due: Any) -> Sequence[int]:
        return list(due)

    def _one(self, due: Any, id: int) -> Row:
        if id in self.broken:
            raise ValueError("no JSON")
        return row(id)

    def _remove(self, ids: Sequence[int]) -> None:
        self.removed.append(list(ids))

    def _change(self, ids: Sequence[int], **changes: Any) -> None:
        self.changed.append((list(ids), changes))


def test_in_a_backlog_every_second_batch_has_a_time() -> None:
    table = Table()
    assert [table.take([1, 2, 3, 9], [9], 2) for _ in range(4)] == [[1, 2], [9]] * 2
    # Without a message that has a time, each batch has the first rows.
    assert [table.take([1, 2, 3], [], 2) for _ in range(3)] == [[1, 2]] * 3


def test_a_row_that_cannot_be_read_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    table = Table(broken=[2])
    assert table.take([1, 2, 3], [], 9) == [1, 3]
    ((ids, changes),) = table.changed
    assert (ids, changes["last_error"]) == ([2], "cannot be read: no JSON")
    assert changes["failed_at"].utcoffset() is not None
    assert caplog.messages == [
        "outbox of a test: #2 cannot be read: no JSON; it stays there as failed"
    ]


@pytest.mark.parametrize(
    ("one_by_one", "parts"), [(False, [[1, 2]]), (True, [[1], [2]])], ids=["together", "one by one"]
)
def test_rows_are_changed_in_as_few_statements_as_may_be(
    one_by_one: bool, parts: list[list[int]]
) -> None:
    table = Table(one_by_one=one_by_one)
    table.delete([row(1), row(2)])
    assert table.removed == parts
    table.note([row(1), row(2)], "nsqd is away")
    assert table.changed == [(ids, {"last_error": "nsqd is away"}) for ids in parts]


def test_a_refusal_counts_and_keeps_the_mark_of_doubt() -> None:
    table = Table()
    table.refused(row(1), "E_BAD", NOW)
    table.refused(row(2, in_doubt=True), "E_BAD", None)
    (again, gone) = table.changed
    assert again == ([1], {"last_error": "E_BAD", "attempts": 4, "retry_at": NOW})
    assert gone[0] == [2]
    assert gone[1]["last_error"] == f"{IN_DOUBT}E_BAD"
    assert gone[1].keys() == {"last_error", "attempts", "failed_at"}


def test_a_row_of_attributes() -> None:
    class Found:
        id, topic, body, created_at, headers, key = 1, "t", memoryview(b"x"), NOW, None, "key"
        attempts, last_error = 3, f"{IN_DOUBT}no answer"

    assert row_of(Found, "default") == row(1, in_doubt=True)


def test_a_new_row_is_due_at_its_time_or_at_once() -> None:
    message = Prepared("t", b"x", None, "key")
    later = NOW.replace(year=2027)
    assert new_row(message, later, NOW)["retry_at"] == later
    assert new_row(message, None, NOW) == {
        "topic": "t",
        "body": b"x",
        "headers": None,
        "key": "key",
        "created_at": NOW,
        "retry_at": AT_ONCE,
    }


def test_a_row_that_is_due_again_has_all_its_attempts_before_it() -> None:
    assert due_again(NOW) == {"retry_at": NOW, "failed_at": None, "attempts": 0}
    assert due_again()["retry_at"] == AT_ONCE
