"""The part of a Store that is the same for every database library, and the values of its rows.

Knows which rows are read and changed, and when. A subclass knows the library and its statements.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from gnsqsync.outbox.due import AT_ONCE
from gnsqsync.outbox.in_doubt import IN_DOUBT, texts
from gnsqsync.outbox.outbox_rows import Row
from gnsqsync.writer.encoder import Prepared

__all__ = ["TableStore", "due_again", "new_row", "row_of"]

log: logging.Logger = logging.getLogger("gnsqsync.outbox")


# Errors of reading a broken row. Broken JSON raises ValueError.
_UNREADABLE = (ValueError, TypeError, OverflowError)


class TableStore(ABC):
    """A Store without its queries and statements. ``due``: a query for rows, of the subclass.

    Args:
        name: The name of the outbox in log lines.
        one_by_one: Rows are changed one by one. MariaDB may read the whole table to find several
            ids, and so wait for rows of another relay that waits for rows of this one. That
            deadlock would come after both have published.
    """

    def __init__(self, name: str, *, one_by_one: bool) -> None:
        self.name: str = name
        self._one_by_one = one_by_one
        # ``_backlog``: the last batch was full. ``_timed``: it had only messages with a time.
        self._backlog = self._timed = False

    # Statements of the subclass, on the rows of a query and on rows by their ids.

    @abstractmethod
    def _rows(self, due: Any) -> Sequence[Row]: ...

    @abstractmethod
    def _ids(self, due: Any) -> Sequence[int]: ...

    @abstractmethod
    def _one(self, due: Any, id: int) -> Row: ...

    @abstractmethod
    def _remove(self, ids: Sequence[int]) -> None: ...

    @abstractmethod
    def _change(self, ids: Sequence[int], **changes: Any) -> None: ...

    def _take(self, due: Any, with_time: Any, limit: int) -> Sequence[Row]:
        """Return the first due rows.

        Messages without a time sort first. In a backlog every second batch therefore has only
        messages with a time.
        """
        self._timed = self._backlog and not self._timed
        rows = self._read(with_time) if self._timed else []
        rows = rows or self._read(due)
        self._backlog = len(rows) >= limit
        return rows

    def _read(self, due: Any) -> Sequence[Row]:
        """Return all rows. If a row cannot be read, refuse it and return the others."""
        try:
            return self._rows(due)
        except _UNREADABLE:
            rows: list[Row] = []
            for id in self._ids(due):
                try:
                    rows.append(self._one(due, id))
                except _UNREADABLE as error:
                    self._unreadable(id, error)
            return rows

    def _unreadable(self, id: int, error: Exception) -> None:
        log.error(
            "outbox of %s: #%d cannot be read: %s; it stays there as failed", self.name, id, error
        )
        self._change([id], last_error=f"cannot be read: {error}", failed_at=datetime.now(UTC))

    def delete(self, rows: Sequence[Row]) -> None:
        for ids in self._parts(rows):
            self._remove(ids)

    def note(self, rows: Sequence[Row], error: str) -> None:
        for text, some in texts(rows, error):
            for ids in self._parts(some):
                self._change(ids, last_error=text)

    def refused(self, row: Row, error: str, retry_at: datetime | None) -> None:
        has_failed = retry_at is None
        when = {"failed_at": datetime.now(UTC)} if has_failed else {"retry_at": retry_at}
        ((text, _),) = texts([row], error)
        self._change([row.id], last_error=text, attempts=row.attempts + 1, **when)

    def _parts(self, rows: Iterable[Row]) -> Iterator[Sequence[int]]:
        """Yield the ids of the rows in as few parts as the database allows."""
        ids = [row.id for row in rows]
        if self._one_by_one:
            yield from ([id] for id in ids)
        else:
            yield ids


def row_of(found: Any, alias: str) -> Row:
    """Return the row that a library's object has in its attributes."""
    return Row(
        id=found.id,
        alias=alias,
        topic=found.topic,
        body=bytes(found.body),
        created_at=found.created_at,
        headers=found.headers,
        key=found.key,
        attempts=found.attempts,
        in_doubt=found.last_error.startswith(IN_DOUBT),
    )


def new_row(message: Prepared, due: datetime | None, written: datetime) -> dict[str, Any]:
    """Return the values of a new row, but for the columns that only one library's table has.

    Args:
        message: The message.
        due: Time of the publish. None: at once.
        written: The time of this moment.
    """
    return {
        "topic": message.topic,
        "body": message.body,
        "headers": message.headers,
        "key": message.key,
        "created_at": written,
        "retry_at": due or AT_ONCE,
    }


def due_again(at: datetime = AT_ONCE) -> dict[str, Any]:
    """Return the changes by which a row, also a failed one, is due at a time, as if it were new."""
    return {"retry_at": at, "failed_at": None, "attempts": 0}
