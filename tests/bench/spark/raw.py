"""The floor on Spark: a source and a sink over bare sockets, run by the very tasks of ours.

Correct while nothing goes wrong: every frame is parsed, every message answered once, the same seven
columns come out. There is no log, no lookup, no recovery, and nothing is looked up twice. Runs on
Spark's workers; imports nothing of gnsqsync.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

from tests.bench.runners import rawnsq

FRAME = Struct(">iiqH16s")  # docs/protocol/commands#message-frame
RDY = 2500
ROWS_A_BATCH = 10_000
BODIES_AN_MPUB = 1000

COLUMNS = (
    "value binary, topic string, channel string, id string, timestamp timestamp, attempts int,"
    " nsqd string"
)
SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("channel", pa.string()),
        ("id", pa.string()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("attempts", pa.int32()),
        ("nsqd", pa.string()),
    ]
)


class RawSource(DataSource):
    """``format("raw")``; option ``plan``: a list of (nsqd, messages), one partition each."""

    @classmethod
    def name(cls) -> str:
        return "raw"

    def schema(self) -> str:
        return COLUMNS

    def streamReader(self, schema: object) -> RawReader:
        return RawReader(dict(self.options))

    def writer(self, schema: object, overwrite: bool) -> RawWriter:
        return RawWriter(dict(self.options))


@dataclass
class RawPartition(InputPartition):
    nsqd: str
    messages: int


class RawReader(DataSourceStreamReader):
    """One batch that takes everything that was planned."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def initialOffset(self) -> dict[str, Any]:
        return {"epoch": 0}

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, Any]:
        return {"epoch": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[RawPartition]:
        if start == end:
            return []
        return [RawPartition(nsqd, count) for nsqd, count in json.loads(self._options["plan"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RawPartition)
        return consume(
            partition.nsqd, self._options["topic"], self._options["channel"], partition.messages
        )


def consume(nsqd: str, topic: str, channel: str, messages: int) -> Iterator[pa.RecordBatch]:
    """Take and finish so many messages, and yield them."""
    host, _, port = nsqd.rpartition(":")
    with rawnsq.connect((host, int(port))) as sock:
        sock.sendall(f"SUB {topic} {channel}\n".encode())
        if rawnsq.read_answer(sock) != b"OK":
            raise rawnsq.Refused("SUB was not answered by OK")
        sock.sendall(b"RDY %d\n" % min(RDY, messages))
        rest, left, ending = b"", messages, messages <= RDY
        columns: tuple[list[Any], ...] = ([], [], [], [])
        values, ids, timestamps, attempts = columns
        while left:
            data = sock.recv(rawnsq.CHUNK)
            if not data:
                raise rawnsq.Refused("nsqd closed the connection")
            data = rest + data if rest else data
            position, done = 0, []
            last = len(data) - FRAME.size
            while position <= last:
                size, kind, timestamp, attempt, id = FRAME.unpack_from(data, position)
                after = position + 4 + size
                if after > len(data):
                    break
                if kind != rawnsq.FRAME_MESSAGE:
                    raise rawnsq.Refused(f"unexpected frame {data[position:after]!r}")
                values.append(data[position + 34 : after])
                ids.append(id)
                timestamps.append(timestamp // 1000)
                attempts.append(attempt)
                done.append(id)
                position = after
            rest = data[position:]
            if done:
                left -= len(done)
                answers = b"FIN " + b"\nFIN ".join(done) + b"\n"
                if not ending and left <= RDY:
                    # nsqd sends the last ones at once when they are as many as RDY allows.
                    ending = True
                    answers += b"RDY %d\n" % left
                sock.sendall(answers)
            if len(values) >= ROWS_A_BATCH:
                yield _batch(columns, topic, channel, nsqd)
        if values:
            yield _batch(columns, topic, channel, nsqd)
        # Only the answer to CLS says that nsqd has handled the FINs before it.
        sock.sendall(b"CLS\n")
        if rawnsq.read_answer(sock) != b"CLOSE_WAIT":
            raise rawnsq.Refused("CLS was not answered by CLOSE_WAIT")


def _batch(columns: Sequence[list[Any]], topic: str, channel: str, nsqd: str) -> pa.RecordBatch:
    values, ids, timestamps, attempts = columns
    count = len(values)
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(values, pa.binary()),
            pa.repeat(topic, count),
            pa.repeat(channel, count),
            pa.array(ids, pa.binary()).cast(pa.string()),
            pa.array(timestamps, pa.timestamp("us", "UTC")),
            pa.array(attempts, pa.int32()),
            pa.repeat(nsqd, count),
        ],
        schema=SCHEMA,
    )
    for column in columns:
        column.clear()
    return batch


class RawWriter(DataSourceArrowWriter):
    """MPUB after MPUB, each partition to the next of option ``nsqds``."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        nsqds = self._options["nsqds"].split(",")
        host, _, port = nsqds[context.partitionId() % len(nsqds)].rpartition(":")
        topic = self._options["topic"]
        waiting: list[bytes] = []
        with rawnsq.connect((host, int(port))) as sock:
            for batch in iterator:
                waiting.extend(batch.column("value").to_pylist())
                full = len(waiting) - len(waiting) % BODIES_AN_MPUB
                for begin in range(0, full, BODIES_AN_MPUB):
                    sock.sendall(rawnsq.mpub(topic, waiting[begin : begin + BODIES_AN_MPUB]))
                    rawnsq.read_ok(sock)
                del waiting[:full]
            if waiting:
                sock.sendall(rawnsq.mpub(topic, waiting))
                rawnsq.read_ok(sock)
        return WriterCommitMessage()
