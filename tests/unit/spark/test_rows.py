"""Log entries and the columns made of them: what goes in comes out, in the schema Spark wants."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

from gnsqsync.errors import ConfigError  # noqa: E402
from gnsqsync.spark.rows import (  # noqa: E402
    ALL_COLUMNS,
    ALL_SCHEMA,
    SCHEMA,
    SPARK_SCHEMA,
    BadEntry,
    Entry,
    arrow_schema,
    check_columns,
    open_entry,
    open_head,
)

WHERE = SimpleNamespace(topic="orders", channel="spark", nsqd="127.0.0.1:4150")
PUBLISHED = 1_700_000_000_123_456_789


def row(number: int, **changes: Any) -> Any:
    fields = {
        "body": b"body %d" % number,
        "id": f"{number:016x}",
        "timestamp": PUBLISHED + number,
        "attempts": 1,
    }
    return SimpleNamespace(**{**fields, **changes})


def entry(*rows: Any, end: bool = False) -> Entry:
    return Entry.of(rows, [1_700_000_001_000_000] * len(rows), WHERE, end)


def test_all_columns_come_back() -> None:
    made = entry(row(1), row(2, attempts=65535, body=b"\xff\x00"))
    batch = open_entry(made.encode()).batch(ALL_SCHEMA.names)
    assert batch.schema.equals(ALL_SCHEMA, check_metadata=True)
    published = datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
    received = datetime(2023, 11, 14, 22, 13, 21, 0, UTC)
    assert batch.to_pylist() == [
        {
            "value": b"body 1",
            "topic": "orders",
            "channel": "spark",
            "id": "0000000000000001",
            "timestamp": published,
            "attempts": 1,
            "nsqd": "127.0.0.1:4150",
            "timestamp_ns": PUBLISHED + 1,
            "received_at": received,
        },
        {
            "value": b"\xff\x00",
            "topic": "orders",
            "channel": "spark",
            "id": "0000000000000002",
            "timestamp": published,
            "attempts": 65535,
            "nsqd": "127.0.0.1:4150",
            "timestamp_ns": PUBLISHED + 2,
            "received_at": received,
        },
    ]


def test_a_made_entry_is_the_read_one() -> None:
    made = entry(row(1), row(2), end=True)
    assert open_entry(made.encode()) == made


@pytest.mark.parametrize("columns", [["value"], ["nsqd", "id"], SCHEMA.names, ["received_at"], []])
def test_exactly_the_wished_columns_in_their_order(columns: list[str]) -> None:
    batch = entry(row(1), row(2)).batch(columns)
    assert batch.schema.equals(arrow_schema(columns), check_metadata=True)
    assert batch.schema.names == columns
    assert all(field.nullable for field in batch.schema)


def test_an_entry_without_rows() -> None:
    empty = open_entry(entry(end=True).encode())
    assert empty.rows == 0
    assert empty.end
    assert empty.batch(SCHEMA.names).schema == SCHEMA


@pytest.mark.parametrize("end", [True, False])
def test_an_entry_says_whether_it_is_the_last(end: bool) -> None:
    assert open_entry(entry(row(1), end=end).encode()).end is end


def test_bodies_are_compressed() -> None:
    made = entry(*(row(n, body=b"x" * 10_000) for n in range(10)))
    assert len(made.encode()) < 10_000 < 100_000 < made.nbytes


def test_a_broken_entry_of_the_log_is_reported() -> None:
    whole = entry(row(1)).encode()
    for broken in (b"", b"nothing of ours", whole[: len(whole) // 2]):
        with pytest.raises(BadEntry):
            open_entry(broken)


def test_an_entry_of_a_newer_version_is_told() -> None:
    schema = pa.schema([("value", pa.binary())], metadata={"format": "2"})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch([[b"x"]], schema=schema))
    with pytest.raises(BadEntry, match="format is b'2'"):
        open_entry(sink.getvalue().to_pybytes())


def test_the_ddl_names_the_same_columns() -> None:
    def names(ddl: str) -> list[str]:
        return [column.split()[0] for column in ddl.split(", ")]

    assert names(SPARK_SCHEMA) == SCHEMA.names
    assert names(ALL_COLUMNS) == ALL_SCHEMA.names


def test_columns_that_there_are_not() -> None:
    check_columns(ALL_SCHEMA.names)
    with pytest.raises(ConfigError, match="no column 'key'; it has value, topic"):
        check_columns(["value", "key"])
    with pytest.raises(ConfigError, match="names a column twice"):
        check_columns(["value", "value"])


def test_an_entry_says_why_the_nsqd_was_not_reached() -> None:
    made = Entry.of([], [], WHERE, True, "cannot connect: Zeitüberschreitung")
    assert open_entry(made.encode()).problem == "cannot connect: Zeitüberschreitung"
    assert open_entry(entry(row(1)).encode()).problem == ""


def test_an_entry_of_before_problems_were_noted() -> None:
    made = entry(row(1), end=True)
    with pa.ipc.open_stream(made.encode()) as reader:
        batch, about = reader.read_next_batch(), dict(reader.schema.metadata)
    for name in (b"problem", b"sealed", b"place", b"low", b"high"):
        del about[name]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema.with_metadata(about)) as writer:
        writer.write_batch(batch)
    assert open_entry(sink.getvalue().to_pybytes()) == made


def test_every_changed_byte_of_an_entry_is_seen() -> None:
    whole = entry(row(1), row(2)).encode()
    for at in range(len(whole)):
        changed = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
        with pytest.raises(BadEntry):
            open_entry(changed)
    for length in range(len(whole)):
        with pytest.raises(BadEntry):
            open_entry(whole[:length])


def test_an_entry_in_the_place_of_another_is_seen() -> None:
    data = entry(row(1)).encode("e=1/p=0/000000.arrow")
    assert open_entry(data, "e=1/p=0/000000.arrow").rows == 1
    with pytest.raises(BadEntry, match=r"it was written as e=1/p=0/000000\.arrow"):
        open_entry(data, "e=1/p=0/000001.arrow")


def test_a_head_tells_the_range_of_its_ids() -> None:
    head = open_head(entry(row(7), row(3), row(5)).encode())
    assert (head.low, head.high) == (f"{3:016x}", f"{7:016x}")
