"""The columns of the source, and the conversion of messages to the bytes of a log entry and back.

Knows Arrow only; must not know where entries are kept or how messages arrive.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from gnsqsync.errors import ConfigError

__all__ = [
    "ALL_COLUMNS",
    "ALL_SCHEMA",
    "SCHEMA",
    "SPARK_SCHEMA",
    "BadEntry",
    "Entry",
    "Head",
    "Row",
    "Where",
    "arrow_schema",
    "check_columns",
    "has_seal",
    "open_entry",
    "open_head",
    "seal",
]

_UTC_MICROS = pa.timestamp("us", tz="UTC")

# The Arrow form of SPARK_SCHEMA below. PySpark requires that the schema of a batch is equal to it.
SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("channel", pa.string()),
        ("id", pa.string()),
        ("timestamp", _UTC_MICROS),
        ("attempts", pa.int32()),
        ("nsqd", pa.string()),
    ]
)
ALL_SCHEMA = pa.schema([*SCHEMA, ("timestamp_ns", pa.int64()), ("received_at", _UTC_MICROS)])

SPARK_SCHEMA = (
    "value BINARY, topic STRING, channel STRING, id STRING, timestamp TIMESTAMP, attempts INT,"
    " nsqd STRING"
)
ALL_COLUMNS = f"{SPARK_SCHEMA}, timestamp_ns BIGINT, received_at TIMESTAMP"

# The version of the format of entries. A change of _STORED needs another one, because newer
# versions read old logs.
_FORMAT = b"1"
_STORED = pa.schema(
    [
        ("value", pa.binary()),
        ("id", pa.string()),
        ("timestamp_ns", pa.int64()),
        ("attempts", pa.int32()),
        ("received_at", _UTC_MICROS),
    ]
)


# The checksum at the end of a log file. Readers of Arrow streams stop before it, and so do older
# versions of this package.
_SEAL = re.compile(rb"gnsqsync-crc32:([0-9a-f]{8})")
# Length of the checksum with its name, in bytes.
_SEAL_BYTES = 23


class BadEntry(Exception):
    """The bytes are no log entry, an entry of a newer version, or an entry that was changed."""


def seal(data: bytes) -> bytes:
    """Return ``data`` with its checksum appended."""
    return b"%bgnsqsync-crc32:%08x" % (data, zlib.crc32(data))


def has_seal(data: bytes) -> bool:
    """Return True if the data ends with its checksum. Raises BadEntry if the checksum differs."""
    found = _SEAL.fullmatch(data[-_SEAL_BYTES:])
    if found is None:
        return False
    if zlib.crc32(memoryview(data)[:-_SEAL_BYTES]) != int(found[1], 16):
        raise BadEntry("its bytes are not those that were written: the checksum differs")
    return True


class Row(Protocol):
    """The fields of a message that an entry keeps."""

    @property
    def body(self) -> bytes: ...
    @property
    def id(self) -> str: ...
    @property
    def timestamp(self) -> int: ...
    @property
    def attempts(self) -> int: ...


class Where(Protocol):
    """The origin of the rows of a partition."""

    @property
    def topic(self) -> str: ...
    @property
    def channel(self) -> str: ...
    @property
    def nsqd(self) -> str: ...


def check_columns(columns: Sequence[str]) -> None:
    """Raise ConfigError unless each of ``columns`` is a column of the source, and named once."""
    for name in columns:
        if name not in ALL_SCHEMA.names:
            raise ConfigError(
                f"the nsq source has no column {name!r}; it has {', '.join(ALL_SCHEMA.names)}"
            )
    if len(set(columns)) != len(columns):
        raise ConfigError(f"the schema {', '.join(columns)} names a column twice")


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of batches with exactly these columns, in this order, all nullable."""
    return pa.schema([ALL_SCHEMA.field(name) for name in columns])


@dataclass(frozen=True)
class Entry:
    """A log entry: its rows and their origin.

    ``end``: True in the last entry of a partition. ``problem``: the error if the task did not reach
    the nsqd, else empty. ``tally``: counts of the whole partition, in its last entry.
    """

    stored: pa.RecordBatch
    topic: str
    channel: str
    nsqd: str
    end: bool
    problem: str = ""
    tally: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        received_at: Sequence[int],
        where: Where,
        end: bool,
        problem: str = "",
    ) -> Entry:
        """Return messages as an entry. ``received_at``: microseconds since 1970 of each message."""
        columns = [
            pa.array([row.body for row in rows], pa.binary()),
            pa.array([row.id for row in rows], pa.string()),
            pa.array([row.timestamp for row in rows], pa.int64()),
            pa.array([row.attempts for row in rows], pa.int32()),
            pa.array(received_at, _UTC_MICROS),
        ]
        stored = pa.RecordBatch.from_arrays(columns, schema=_STORED)
        return cls(stored, where.topic, where.channel, where.nsqd, end, problem)

    def encode(self, place: str = "") -> bytes:
        """Return the entry as an Arrow IPC stream with a checksum, its buffers compressed with LZ4.

        ``place``: the name under which the log will keep the entry.
        """
        low, high = self._id_range()
        about = {
            b"format": _FORMAT,
            b"topic": self.topic.encode(),
            b"channel": self.channel.encode(),
            b"nsqd": self.nsqd.encode(),
            b"end": b"1" if self.end else b"0",
            b"problem": self.problem.encode(),
            b"tally": json.dumps(self.tally).encode(),
            b"place": place.encode(),
            b"low": low.encode(),
            b"high": high.encode(),
            b"sealed": b"1",
        }
        sink = pa.BufferOutputStream()
        # Compression on one thread: an entry is small, and more threads cost more than they save.
        options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
        with pa.ipc.new_stream(sink, _STORED.with_metadata(about), options=options) as writer:
            writer.write_batch(self.stored)
        return seal(bytes(sink.getvalue()))

    def _id_range(self) -> tuple[str, str]:
        """Return the lowest and the highest message id; both are empty without rows."""
        found = pc.min_max(self.ids).as_py()
        return found["min"] or "", found["max"] or ""

    @property
    def rows(self) -> int:
        return int(self.stored.num_rows)

    @property
    def redelivered(self) -> int:
        """Number of rows that nsqd had delivered before."""
        return int(pc.sum(pc.greater(self.stored.column("attempts"), 1)).as_py() or 0)

    @property
    def nbytes(self) -> int:
        """Memory of the rows, in bytes."""
        return int(self.stored.nbytes)

    @property
    def ids(self) -> pa.StringArray:
        """The message ids, unique per nsqd and topic (docs/protocol/publishing#ids)."""
        return self.stored.column("id")

    def batch(self, columns: Sequence[str]) -> pa.RecordBatch:
        """Return the rows with exactly ``columns``, in the schema of ``arrow_schema``."""
        schema = arrow_schema(columns)
        return pa.RecordBatch.from_arrays([self._column(name) for name in columns], schema=schema)

    def _column(self, name: str) -> pa.Array:
        if name == "timestamp":
            return pc.divide(self.stored.column("timestamp_ns"), 1000).cast(_UTC_MICROS)
        if name in ("topic", "channel", "nsqd"):
            return pa.repeat(pa.scalar(getattr(self, name), pa.string()), self.rows)
        return self.stored.column(name)


@dataclass(frozen=True)
class Head:
    """An entry without its rows, with the fields of Entry.

    ``low`` and ``high``: the lowest and the highest message id, empty without rows. Both are None
    in entries of older versions.
    """

    end: bool
    problem: str
    tally: Mapping[str, float]
    topic: str = ""
    channel: str = ""
    nsqd: str = ""
    low: str | None = None
    high: str | None = None


def open_entry(data: bytes, place: str = "") -> Entry:
    """Return the entry from bytes of ``Entry.encode``.

    ``place``: the name of the entry. Raises BadEntry with the reason, for example if the entry was
    written under another name. Entries of older versions have neither a checksum nor a place.
    """
    sealed = has_seal(data)
    try:
        with pa.ipc.open_stream(data) as reader:
            about = _about(reader)
            stored = reader.read_next_batch()
    except (pa.ArrowException, StopIteration, OSError) as error:
        raise BadEntry(f"it is no Arrow IPC stream: {error}") from error
    if not sealed and about.get(b"sealed"):
        raise BadEntry("its end is cut off: the checksum is missing")
    written = about.get(b"place", b"").decode()
    if place and written not in ("", place):
        raise BadEntry(f"it was written as {written}")
    head = _head(about)
    return Entry(stored, head.topic, head.channel, head.nsqd, head.end, head.problem, head.tally)


def open_head(data: bytes) -> Head:
    """Return the head of an entry from its first few thousand bytes. Raises BadEntry."""
    try:
        with pa.ipc.open_stream(data) as reader:
            return _head(_about(reader))
    except (pa.ArrowException, StopIteration, OSError) as error:
        raise BadEntry(f"it is no Arrow IPC stream: {error}") from error


def _about(reader: pa.RecordBatchStreamReader) -> Mapping[bytes, bytes]:
    about: Mapping[bytes, bytes] = reader.schema.metadata or {}
    if about.get(b"format") != _FORMAT:
        raise BadEntry(f"its format is {about.get(b'format')!r}, not {_FORMAT!r}")
    return about


def _head(about: Mapping[bytes, bytes]) -> Head:
    try:
        # Entries of older versions have neither a problem nor a tally.
        return Head(
            end=about[b"end"] == b"1",
            problem=about.get(b"problem", b"").decode(),
            tally=json.loads(about.get(b"tally", b"{}")),
            topic=about[b"topic"].decode(),
            channel=about[b"channel"].decode(),
            nsqd=about[b"nsqd"].decode(),
            low=about[b"low"].decode() if b"low" in about else None,
            high=about[b"high"].decode() if b"high" in about else None,
        )
    except (KeyError, ValueError) as error:
        raise BadEntry(f"its head cannot be read: {error!r}") from error
