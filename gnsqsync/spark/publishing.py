"""The publisher of a partition: rows become messages, in batches by topic, confirmed by nsqd.

Knows Arrow and the client. Knows nothing of Spark, of tasks or of their retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from itertools import accumulate, islice
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from gnsqsync.errors import ConfigError, NotSent, OutcomeUnknown, PublishError, Refused
from gnsqsync.spark.sink_options import SinkOptions

__all__ = ["Columns", "PartitionPublisher"]

# Bytes of messages in batches that are not full, over all topics. Beyond it all are published.
_HELD_MAX = 16 << 20
# Number of rows that are made into columns at a time.
_ROWS = 1000
# Advice for refusals of nsqd, by error code.
_HINTS = {
    "E_BAD_MESSAGE": "set option 'maxMessageBytes' to nsqd's --max-msg-size",
    "E_BAD_BODY": "set option 'maxBatchBytes' to nsqd's --max-body-size or less",
    "E_INVALID": "set option 'maxDeferMs' to nsqd's --max-req-timeout",
    "E_UNAUTHORIZED": "set option 'nsq.auth_secret' to one that may publish to the topic",
    "E_AUTH_FIRST": "set option 'nsq.auth_secret'",
}


class Columns(NamedTuple):
    """The position of each column in a row; None if an option sets it, or without such a column."""

    value: int
    topic: int | None = None
    defer_ms: int | None = None


class _Deferred(NamedTuple):
    """A deferred message that was sent, and the Future of its outcome."""

    outcome: Future[None]
    topic: str
    body: bytes
    seconds: float


class _Waiting:
    """Messages of one topic that do not fill a batch yet."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.bytes = 0


class PartitionPublisher:
    """Publishes the rows of one partition, at least once. A context manager, for one thread.

    ``partition``: publishing begins at nsqd number ``partition`` mod n. ``sent`` is called with the
    number of messages each time nsqd has confirmed some. A rate is kept by waiting in ``sent``.
    ``messages`` and ``bytes`` count confirmed messages.

    All rows given so far are confirmed only after ``flush()``. After an error some of the rows are
    published, and a second attempt publishes these twice.
    """

    def __init__(
        self,
        options: SinkOptions,
        columns: Columns,
        partition: int,
        sent: Callable[[int], object] | None = None,
    ) -> None:
        self._options = options
        self._columns = columns
        self._sent = sent
        self._writer = options.writer(partition)
        self._waiting: dict[str, _Waiting] = {}
        # Bytes of the bodies in ``_waiting``.
        self._held = 0
        # Deferred messages whose outcome has not been looked at, and the bytes of their bodies.
        self._deferred: list[_Deferred] = []
        self._deferred_bytes = 0
        self.messages: int = 0
        self.bytes: int = 0

    # -- rows in ---------------------------------------------------------------------------------

    def publish_batch(self, batch: pa.RecordBatch) -> None:
        """Publish the rows of a batch. Rows that do not fill an MPUB wait for more rows or a flush.

        Raises ConfigError for a row that cannot be a message, before any row of this batch is
        published. Raises PublishError as Writer.publish().
        """
        value, topic, defer_ms = self._columns
        self._publish(
            _as_binary(batch.column(value)),
            None if topic is None else batch.column(topic),
            None if defer_ms is None else batch.column(defer_ms),
        )

    def publish_rows(self, rows: Iterable[Sequence[Any]]) -> None:
        """Publish rows given as tuples, _ROWS at a time. Raises as ``publish_batch``."""
        value, topic, defer_ms = self._columns
        iterator = iter(rows)
        while chunk := list(islice(iterator, _ROWS)):
            self._publish(
                pa.array([row[value] for row in chunk], pa.binary()),
                None if topic is None else pa.array([row[topic] for row in chunk], pa.string()),
                None if defer_ms is None else pa.array([r[defer_ms] for r in chunk], pa.int64()),
            )

    def flush(self) -> None:
        """Publish all waiting rows, and wait until nsqd has confirmed all. Raises PublishError."""
        for topic in list(self._waiting):
            self._publish_waiting(topic, whole=True)
        self._settle()

    def _publish(self, values: pa.Array, topics: pa.Array | None, delays: pa.Array | None) -> None:
        if len(values) == 0:
            return
        self._check_values(values)
        if topics is None:
            assert self._options.topic is not None
        elif topics.null_count:
            raise ConfigError(
                "column 'topic' has a null; filter these rows out, or set option 'topic'"
            )
        if delays is not None and self._any_delay(delays):
            later = pc.fill_null(pc.greater(delays, 0), False)
            self._defer(
                values.filter(later).to_pylist(),
                None if topics is None else topics.filter(later).to_pylist(),
                delays.filter(later).to_pylist(),
            )
            now = pc.invert(later)
            values = values.filter(now)
            topics = None if topics is None else topics.filter(now)
        for topic, bodies in self._by_topic(values, topics):
            self._add(topic, bodies.to_pylist())

    # -- what a row may hold ---------------------------------------------------------------------

    def _check_values(self, values: pa.Array) -> None:
        if values.null_count:
            raise ConfigError("column 'value' has a null; filter these rows out: value IS NOT NULL")
        sizes = pc.min_max(pc.binary_length(values)).as_py()
        if sizes["min"] == 0:
            raise ConfigError(
                "column 'value' has an empty value, and NSQ has no empty messages; filter these"
                " rows out: length(value) > 0"
            )
        if sizes["max"] > self._options.max_message_bytes:
            raise ConfigError(
                f"column 'value' has a value of {sizes['max']} bytes, more than"
                f" 'maxMessageBytes' ({self._options.max_message_bytes}); set it and nsqd's"
                " --max-msg-size higher"
            )

    def _any_delay(self, delays: pa.Array) -> bool:
        """Return True if a row has a delay. Raises ConfigError for a delay out of range."""
        found = pc.min_max(delays).as_py()
        if found["min"] is None:
            return False
        if found["min"] < 0 or found["max"] > self._options.max_defer_ms:
            wrong = found["min"] if found["min"] < 0 else found["max"]
            raise ConfigError(
                f"column 'defer_ms' has {wrong}; allowed is 0 to 'maxDeferMs'"
                f" ({self._options.max_defer_ms}), set it and nsqd's --max-req-timeout higher"
            )
        return bool(found["max"] > 0)

    def _by_topic(
        self, values: pa.Array, topics: pa.Array | None
    ) -> Iterator[tuple[str, pa.Array]]:
        """Yield each topic with its values, in the order of the rows."""
        if topics is None:
            assert self._options.topic is not None
            yield self._options.topic, values
            return
        coded = topics.dictionary_encode()
        names = coded.dictionary.to_pylist()
        if len(names) == 1:
            yield names[0], values
            return
        # The sort is stable, so the order within a topic stays.
        order = pc.sort_indices(coded.indices)
        values = values.take(order)
        begin = 0
        for run in pc.value_counts(coded.indices.take(order)).to_pylist():
            yield names[run["values"]], values.slice(begin, run["counts"])
            begin += run["counts"]

    # -- batches out -----------------------------------------------------------------------------

    def _add(self, topic: str, bodies: list[bytes]) -> None:
        waiting = self._waiting.get(topic)
        if waiting is None:
            waiting = self._waiting[topic] = _Waiting()
        size = sum(map(len, bodies))
        waiting.bodies += bodies
        waiting.bytes += size
        self._held += size
        self._publish_waiting(topic, whole=False)
        if self._held > _HELD_MAX:
            self.flush()

    def _publish_waiting(self, topic: str, *, whole: bool) -> None:
        """Publish the full batches of a topic, and with ``whole`` also the last, smaller one."""
        waiting = self._waiting.pop(topic)
        bodies = waiting.bodies
        begin = 0
        while begin < len(bodies):
            batch = bodies[begin : begin + self._options.max_batch_messages]
            fitting = self._fitting(batch)
            is_full = fitting < len(batch) or len(batch) == self._options.max_batch_messages
            if not is_full and not whole:
                rest = self._waiting[topic] = _Waiting()
                rest.bodies, rest.bytes = batch, sum(map(len, batch))
                return
            self._send(topic, batch[:fitting])
            begin += fitting

    def _fitting(self, bodies: list[bytes]) -> int:
        """Return the number of ``bodies`` that fit into one MPUB; at least 1.

        An MPUB has a count of 4 bytes, and a size of 4 bytes before each body
        (docs/protocol/publishing#publish).
        """
        limit = self._options.max_batch_bytes - 4
        if sum(map(len, bodies)) + 4 * len(bodies) <= limit:
            return len(bodies)
        sizes = accumulate(len(body) + 4 for body in bodies)
        return max(1, sum(1 for size in sizes if size <= limit))

    def _send(self, topic: str, bodies: list[bytes]) -> None:
        try:
            if len(bodies) == 1:
                # nsqd does not apply --max-body-size to a PUB.
                self._writer.publish(topic, bodies[0])
            else:
                self._writer.publish_many(topic, bodies)
        except PublishError as error:
            raise _explained(error) from error
        size = sum(map(len, bodies))
        self._held -= size
        self._confirmed(len(bodies), size)

    def _confirmed(self, messages: int, size: int) -> None:
        self.messages += messages
        self.bytes += size
        if self._sent is not None:
            self._sent(messages)

    # -- deferred messages -----------------------------------------------------------------------

    def _defer(self, bodies: list[bytes], topics: list[str] | None, delays: list[int]) -> None:
        """Send a DPUB for each body, and wait for many answers together: DPUB has no batches."""
        options = self._options
        for number, (body, delay) in enumerate(zip(bodies, delays, strict=True)):
            topic = topics[number] if topics is not None else options.topic
            assert topic is not None
            try:
                outcome = self._writer.publish_async(topic, body, defer=delay / 1000)
            except PublishError as error:
                raise _explained(error) from error
            self._deferred.append(_Deferred(outcome, topic, body, delay / 1000))
            self._deferred_bytes += len(body)
            if (
                len(self._deferred) >= options.max_batch_messages
                or self._deferred_bytes >= options.max_batch_bytes
            ):
                self._settle()

    def _settle(self) -> None:
        """Wait for the answers. Publish a message without an answer again, to any nsqd."""
        deferred, self._deferred = self._deferred, []
        size, self._deferred_bytes = self._deferred_bytes, 0
        for message in deferred:
            error = message.outcome.exception()
            try:
                if isinstance(error, (NotSent, OutcomeUnknown)):
                    self._writer.publish(message.topic, message.body, defer=message.seconds)
                elif error is not None:
                    raise error
            except PublishError as failure:
                raise _explained(failure) from failure
        if deferred:
            self._confirmed(len(deferred), size)

    # -- lifecycle -------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections. The outcome of rows that were not flushed is unknown."""
        self._writer.close()

    def __enter__(self) -> PartitionPublisher:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _as_binary(values: pa.Array) -> pa.Array:
    """Return text as its UTF-8 bytes, without a copy; other values unchanged."""
    if pa.types.is_string(values.type):
        return values.cast(pa.binary())
    if pa.types.is_large_string(values.type):
        return values.cast(pa.large_binary())
    return values


def _explained(error: PublishError) -> PublishError:
    """Return the same error, with advice on the option to set."""
    if isinstance(error, Refused) and error.code in _HINTS:
        return Refused(f"{error}; {_HINTS[error.code]}", error.error)
    if isinstance(error, NotSent):
        return NotSent(
            f"{error}; the executors must reach the nsqds: set option 'nsqdTcpAddresses' to"
            " addresses that they know, or 'publishTimeoutMs' higher",
            error.causes,
        )
    return error
