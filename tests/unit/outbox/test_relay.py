"""The relay over a table in memory: one bad row stops nothing else."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, cast

import pytest

from gnsqsync import Writer
from gnsqsync.errors import BadMessage, NotSent, OutcomeUnknown, Refused
from gnsqsync.outbox import relay as relay_module
from gnsqsync.outbox.outbox_rows import BadRows, Lag, Row, age, ahead
from gnsqsync.outbox.relay import Relay
from gnsqsync.writer.around import Around
from gnsqsync.writer.encoder import Encoder

NOW = datetime(2030, 1, 1, tzinfo=UTC)


class Publishing:
    """A Writer whose nsqd fails at a body with a word for it."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.encoder = Encoder(
            Around((), False),
            1000,
            lambda *values: b"",
            lambda topic, body, defer, timeout: self._publish_many(topic, [body], timeout),
            self._publish_many,
        )

    def _publish_many(self, topic: str, bodies: Sequence[bytes], timeout: float | None) -> None:
        for body in bodies:
            if body == b"silence":
                raise OutcomeUnknown("no answer")
            if body == b"refuse":
                raise Refused("no", BadMessage("E_BAD_MESSAGE"))
            if body == b"away":
                raise NotSent("away")
        self.sent += bodies


class Table:
    """A Store in memory."""

    name = "table"
    errors: ClassVar[tuple[type[Exception], ...]] = ()

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = {row.id: row for row in rows}
        self.retry_at = dict.fromkeys(self.rows, NOW)
        self.failed: dict[int, str] = {}
        self.writers: dict[str, Any] = {"default": Publishing()}
        self.healed: list[datetime] = []

    def add_due(self, now: datetime) -> int:
        return 0

    def heal(self, now: datetime) -> None:
        self.healed.append(now)

    @contextmanager
    def batch(self, limit: int, now: datetime, without: Collection[str]) -> Iterator[list[Row]]:
        due = [row for row in self.rows.values() if row.id not in self.failed]
        due = [row for row in due if self.retry_at[row.id] <= now and row.alias not in without]
        yield sorted(due, key=lambda row: (self.retry_at[row.id], row.id))[:limit]

    def delete(self, rows: Sequence[Row]) -> None:
        for row in rows:
            del self.rows[row.id]

    def note(self, rows: Sequence[Row], error: str) -> None: ...

    def refused(self, row: Row, error: str, retry_at: datetime | None) -> None:
        self.rows[row.id] = replace(row, attempts=row.attempts + 1)
        if retry_at is None:
            self.failed[row.id] = error
        else:
            self.retry_at[row.id] = retry_at

    def broken(self) -> Sequence[str]:
        return ()

    def lag(self) -> Lag:
        return Lag(len(self.rows), len(self.failed), 0.0)

    def writer(self, alias: str) -> Writer:
        return cast("Writer", self.writers[alias])

    def rest(self) -> None: ...


class Clock:
    """``datetime`` and ``time`` of the relay."""

    def __init__(self) -> None:
        self.time = NOW

    def now(self, zone: object) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return (self.time - NOW).total_seconds() + 1000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(relay_module, "datetime", clock)
    monkeypatch.setattr(relay_module, "time", clock)
    return clock


def row(id: int, body: Any = b"x", **changes: Any) -> Row:
    fields: dict[str, Any] = {"alias": "default", "topic": "t", "headers": None, "key": "k"}
    return Row(id=id, body=body, created_at=NOW, **{**fields, **changes})


def run(table: Table, clock: Clock, seconds: float) -> list[bytes]:
    relay = Relay(table, batch=4)
    for _ in range(int(seconds)):
        relay.move_batch()
        clock.time += timedelta(seconds=1)
    sent: list[bytes] = table.writers["default"].sent
    return sent


def test_rows_that_cannot_be_encoded_fail_and_the_others_go(clock: Clock) -> None:
    table = Table(
        [
            row(1, b""),
            row(2, topic="no good"),
            row(3, headers=["no", "dict"]),
            row(4, headers={"a": 5}),
            row(5, headers={}, key="\ud800"),
            row(6, b"good"),
        ]
    )
    assert run(table, clock, 2) == [b"good"]
    assert sorted(table.failed) == [1, 2, 3, 4, 5]
    assert "the body is empty" in table.failed[1]


@pytest.mark.parametrize("bad", [b"silence", b"refuse"])
def test_a_row_that_nsqd_does_not_take_lets_the_others_go(clock: Clock, bad: bytes) -> None:
    table = Table([row(1, bad), *(row(id, b"%d" % id) for id in range(2, 12))])
    assert run(table, clock, 60) == [b"%d" % id for id in range(2, 12)]
    assert list(table.rows) == [1]
    # Silence is never the end of a message.
    assert not table.failed


def test_an_entry_that_the_settings_do_not_have_holds_up_its_own_rows(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    table = Table([row(1, alias="gone"), row(2, b"good")])
    with caplog.at_level(logging.WARNING):
        assert run(table, clock, 5) == [b"good"]
    assert list(table.rows) == [1]
    assert not table.failed
    assert sum("publishing over 'gone' fails" in line for line in caplog.messages) == 1


def test_an_nsqd_that_is_away_uses_up_no_attempts(clock: Clock) -> None:
    table = Table([row(1, b"away"), row(2, b"after")])
    assert run(table, clock, 60) == []
    assert [one.attempts for one in table.rows.values()] == [0, 0]


def test_wrong_times_are_sought_each_minute_and_after_a_clock_jump(
    clock: Clock,
) -> None:
    table = Table([])
    relay = Relay(table)
    for second in (0, 1, 59, 60, 61, 30, 31):
        clock.time = NOW + timedelta(seconds=second)
        relay.move_batch()
    assert [(moment - NOW).total_seconds() for moment in table.healed] == [0, 60, 30]


def test_a_bad_row_is_one_error_that_names_it(caplog: pytest.LogCaptureFixture) -> None:
    rows = BadRows("a test of bad rows", (ValueError,))
    for _ in range(3):
        with rows.guard("message 'a'"):
            raise ValueError("no such zone")
    with pytest.raises(TypeError), rows.guard("message 'b'"):
        raise TypeError
    (line,) = caplog.messages
    assert "message 'a' cannot be worked out: no such zone" in line
    assert rows.sentences() == ["message 'a' cannot be worked out: no such zone"]
    with rows.guard("message 'a'"):
        """The row was mended."""
    assert rows.sentences() == []


def test_ages_and_clocks_that_differ() -> None:
    assert (age(None, NOW), age(NOW - timedelta(seconds=5), NOW)) == (0.0, 5.0)
    assert age(NOW + timedelta(seconds=5), NOW) == 0.0
    assert ahead(None, NOW) == ahead(NOW + timedelta(seconds=0.5), NOW) == []
    assert "600 s ahead of the clock of this machine" in ahead(NOW + timedelta(minutes=10), NOW)[0]
