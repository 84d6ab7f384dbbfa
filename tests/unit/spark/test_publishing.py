"""The sink below Spark: options, which rows make which batch, what an error says."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pa = pytest.importorskip("pyarrow")

from gnsqsync.errors import (  # noqa: E402
    ConfigError,
    ConnectionLost,
    NotSent,
    OutcomeUnknown,
    PublishError,
    Refused,
    server_error,
)
from gnsqsync.http.clients import Node  # noqa: E402
from gnsqsync.spark import sink_options  # noqa: E402
from gnsqsync.spark.publishing import Columns, PartitionPublisher  # noqa: E402
from gnsqsync.spark.sink_options import SinkOptions  # noqa: E402

VALUE = Columns(0)
NSQD = {"nsqdTcpAddresses": "127.0.0.1:4150"}


class Recorder:
    """In the place of a Writer: what was published, and errors to raise instead."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[bytes]]] = []
        self.deferred: list[tuple[str, bytes, float]] = []
        self.singles: list[tuple[str, bytes, float | None]] = []
        self.errors: list[PublishError] = []
        self.outcomes: list[PublishError | None] = []
        self.closed = False

    def publish(self, topic: str, body: bytes, *, defer: float | None = None) -> None:
        self._fail()
        self.singles.append((topic, body, defer))

    def publish_many(self, topic: str, bodies: Sequence[bytes]) -> None:
        self._fail()
        self.calls.append((topic, list(bodies)))

    def publish_async(self, topic: str, body: bytes, *, defer: float) -> Future[None]:
        self.deferred.append((topic, body, defer))
        future: Future[None] = Future()
        error = self.outcomes.pop(0) if self.outcomes else None
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        return future

    def close(self) -> None:
        self.closed = True

    def _fail(self) -> None:
        if self.errors:
            raise self.errors.pop(0)

    def published(self, topic: str) -> list[bytes]:
        return [body for name, bodies in self.calls if name == topic for body in bodies]


class Recording(SinkOptions):
    """Options that give a Recorder for a Writer."""

    recorder: Recorder

    def writer(self, partition: int) -> Any:
        return self.recorder


def publisher(
    columns: Columns = VALUE, sent: Any = None, **options: Any
) -> tuple[PartitionPublisher, Recorder]:
    options.setdefault("topic", "t" if columns.topic is None else None)
    recording = Recording(nsqds=("127.0.0.1:4150",), **options)
    recorder = Recorder()
    object.__setattr__(recording, "recorder", recorder)
    return PartitionPublisher(recording, columns, 0, sent), recorder


def batch(*columns: Any) -> Any:
    arrays = [column if isinstance(column, pa.Array) else pa.array(column) for column in columns]
    return pa.record_batch(arrays, [f"c{number}" for number in range(len(arrays))])


# -- batches -------------------------------------------------------------------------------------


def test_full_batches_leave_at_once_and_the_rest_with_flush() -> None:
    sink, nsqd = publisher(max_batch_messages=3)
    sink.publish_batch(batch([b"1", b"2"]))
    assert nsqd.calls == []
    sink.publish_batch(batch([b"3", b"4", b"5", b"6", b"7", b"8"]))
    assert nsqd.calls == [("t", [b"1", b"2", b"3"]), ("t", [b"4", b"5", b"6"])]
    assert (sink.messages, sink.bytes) == (6, 6)
    sink.flush()
    assert nsqd.calls[2:] == [("t", [b"7", b"8"])]
    assert (sink.messages, sink.bytes) == (8, 8)
    sink.flush()
    assert len(nsqd.calls) == 3


def test_a_batch_is_cut_by_bytes_with_the_sizes_counted() -> None:
    # 4 bytes of count, and for each message 4 of size and 96 of body.
    sink, nsqd = publisher(max_batch_bytes=1024)
    sink.publish_batch(batch([b"x" * 96] * 10))
    assert nsqd.calls == []
    sink.publish_batch(batch([b"x" * 96] * 11))
    assert [len(bodies) for _, bodies in nsqd.calls] == [10, 10]
    sink.flush()
    assert nsqd.singles == [("t", b"x" * 96, None)]
    assert sink.messages == 21


def test_a_message_above_the_batch_size_goes_alone() -> None:
    sink, nsqd = publisher(max_batch_bytes=1024)
    sink.publish_batch(batch([b"a", b"b" * 5000, b"c", b"d"]))
    sink.flush()
    assert nsqd.singles == [("t", b"a", None), ("t", b"b" * 5000, None)]
    assert nsqd.calls == [("t", [b"c", b"d"])]


def test_topics_are_apart_and_each_keeps_its_order() -> None:
    sink, nsqd = publisher(Columns(1, 0), max_batch_messages=100)
    rows = [(f"t{number % 7}", f"{number:04}") for number in range(1000)]
    for begin in range(0, 1000, 90):
        part = rows[begin : begin + 90]
        sink.publish_batch(batch([topic for topic, _ in part], [value for _, value in part]))
    sink.flush()
    for topic in {topic for topic, _ in rows}:
        wanted = [value.encode() for name, value in rows if name == topic]
        assert nsqd.published(topic) == wanted
    assert all(len(bodies) == 100 for _, bodies in nsqd.calls[:7])
    assert sink.messages == 1000


def test_many_topics_do_not_pile_up() -> None:
    sink, nsqd = publisher(Columns(1, 0))
    body = b"x" * (1 << 19)
    for number in range(34):
        sink.publish_batch(batch([f"t{number}"], [body]))
    # 33 of half a MiB are more than the 16 MiB that are held.
    assert len(nsqd.singles) == 33


@pytest.mark.parametrize("kind", ["string", "large_string", "binary", "large_binary"])
def test_text_and_bytes(kind: str) -> None:
    sink, nsqd = publisher()
    values = ["grün", "b"] if "string" in kind else ["grün".encode(), b"b"]
    sink.publish_batch(batch(pa.array(values, getattr(pa, kind)())))
    sink.flush()
    assert nsqd.calls == [("t", ["grün".encode(), b"b"])]


def test_a_sliced_batch_gives_its_own_rows() -> None:
    sink, nsqd = publisher()
    sink.publish_batch(batch(["a", "b", "c", "d"]).slice(1, 2))
    sink.flush()
    assert nsqd.calls == [("t", [b"b", b"c"])]


def test_an_empty_batch_is_nothing() -> None:
    sink, nsqd = publisher(Columns(0, 1, 2))
    sink.publish_batch(
        batch(pa.array([], pa.binary()), pa.array([], pa.string()), pa.array([], pa.int64()))
    )
    sink.flush()
    assert (nsqd.calls, nsqd.singles, sink.messages) == ([], [], 0)


@pytest.mark.parametrize("value", ["text", b"bytes", bytearray(b"array")])
def test_rows(value: Any) -> None:
    sink, nsqd = publisher(Columns(2, 0, 1), max_batch_messages=10)
    wanted = value.encode() if isinstance(value, str) else bytes(value)
    sink.publish_rows(("t", 1500 if number == 7 else None, value) for number in range(2001))
    sink.flush()
    assert nsqd.published("t") == [wanted] * 2000
    assert nsqd.deferred == [("t", wanted, 1.5)]
    assert sink.messages == 2001


def test_the_rate_limit_hears_of_each_batch() -> None:
    heard: list[int] = []
    sink, _ = publisher(sent=heard.append, max_batch_messages=4)
    sink.publish_batch(batch([b"x"] * 10))
    assert heard == [4, 4]
    sink.flush()
    assert heard == [4, 4, 2]


# -- rows that cannot be messages ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (([b"a", None], ["t", "t"], [0, 0]), "'value' has a null"),
        (([b"a", b""], ["t", "t"], [0, 0]), "'value' has an empty value"),
        (([b"a", b"x" * 101], ["t", "t"], [0, 0]), "101 bytes, more than 'maxMessageBytes' (100)"),
        (([b"a", b"b"], ["t", None], [0, 0]), "'topic' has a null"),
        (([b"a", b"b"], ["t", "t"], [0, -5]), "'defer_ms' has -5"),
        (([b"a", b"b"], ["t", "t"], [0, 3_600_001]), "'defer_ms' has 3600001"),
    ],
)
def test_a_bad_row_ends_it_before_anything_of_the_batch_leaves(columns: Any, text: str) -> None:
    sink, nsqd = publisher(Columns(0, 1, 2), max_batch_messages=1, max_message_bytes=100)
    with pytest.raises(ConfigError) as caught:
        sink.publish_batch(batch(*columns))
    assert text in str(caught.value)
    assert (nsqd.calls, nsqd.singles, nsqd.deferred) == ([], [], [])


def test_nulls_only() -> None:
    sink, _ = publisher()
    with pytest.raises(ConfigError, match="'value' has a null"):
        sink.publish_batch(batch(pa.array([None, None], pa.binary())))


# -- deferred messages -----------------------------------------------------------------------------


def test_deferred_rows_are_sent_one_by_one_and_the_others_in_batches() -> None:
    sink, nsqd = publisher(Columns(0, 1, 2))
    sink.publish_batch(
        batch([b"1", b"2", b"3", b"4"], ["a", "b", "a", "a"], pa.array([None, 250, 0, 1]))
    )
    assert sink.messages == 0
    sink.flush()
    assert nsqd.deferred == [("b", b"2", 0.25), ("a", b"4", 0.001)]
    assert nsqd.calls == [("a", [b"1", b"3"])]
    assert sink.messages == 4


@pytest.mark.parametrize("limit", [{"max_batch_messages": 2}, {"max_batch_bytes": 1024}])
def test_deferred_messages_under_way_are_bounded(limit: dict[str, int]) -> None:
    heard: list[int] = []
    sink, _ = publisher(Columns(0, None, 1), sent=heard.append, **limit)
    sink.publish_batch(batch([b"x" * 512] * 5, [9] * 5))
    assert heard == [2, 2]
    sink.flush()
    assert heard == [2, 2, 1]


def test_a_deferred_message_without_an_answer_is_published_again() -> None:
    sink, nsqd = publisher(Columns(0, None, 1))
    nsqd.outcomes = [None, OutcomeUnknown("gone"), NotSent("gone")]
    sink.publish_batch(batch([b"1", b"2", b"3"], [9, 9, 9]))
    sink.flush()
    assert nsqd.singles == [("t", b"2", 0.009), ("t", b"3", 0.009)]
    assert sink.messages == 3


def test_a_deferred_message_that_is_refused_is_an_error_with_what_to_set() -> None:
    sink, nsqd = publisher(Columns(0, None, 1))
    refused = server_error(b"E_INVALID DPUB timeout 9 out of range 0-1")
    nsqd.outcomes = [Refused(str(refused), refused)]
    sink.publish_batch(batch([b"1"], [9]))
    with pytest.raises(Refused, match="set option 'maxDeferMs'"):
        sink.flush()
    assert sink.messages == 0


# -- errors ----------------------------------------------------------------------------------------


def test_unconfirmed_rows_are_not_counted() -> None:
    sink, nsqd = publisher(max_batch_messages=2)
    sink.publish_batch(batch([b"1", b"2"]))
    nsqd.errors = [OutcomeUnknown("no answer")]
    with pytest.raises(OutcomeUnknown, match="no answer"):
        sink.publish_batch(batch([b"3", b"4"]))
    assert sink.messages == 2


def test_an_nsqd_out_of_reach_says_what_to_set() -> None:
    sink, nsqd = publisher()
    nsqd.errors = [NotSent("no nsqd could be reached")]
    sink.publish_batch(batch([b"1"]))
    with pytest.raises(NotSent, match=r"reached; .* set option 'nsqdTcpAddresses'"):
        sink.flush()


def test_leaving_it_closes_the_writer() -> None:
    sink, nsqd = publisher()
    with pytest.raises(ZeroDivisionError):
        with sink:
            1 / 0
    assert nsqd.closed


# -- options ---------------------------------------------------------------------------------------


def test_options() -> None:
    options = SinkOptions.parse(
        {
            "NSQDtcpaddresses": "a:1, b:2,a:1",
            "topic": "orders",
            "maxBatchMessages": "50",
            "maxBatchBytes": "2048",
            "maxMessageBytes": "4096",
            "maxDeferMs": "1000",
            "publishTimeoutMs": "1500",
            "nsq.deflate": "true",
            "nsq.auth_secret": "hush",
            "checkpointLocation": "/x",
        }
    )
    assert options == SinkOptions(
        nsqds=("a:1", "b:2"),
        topic="orders",
        max_batch_messages=50,
        max_batch_bytes=2048,
        max_message_bytes=4096,
        max_defer_ms=1000,
        publish_timeout=1.5,
        connection={"deflate": True, "auth_secret": "hush"},
    )
    assert "hush" not in repr(options)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "t"}, "option 'nsqdTcpAddresses' is missing"),
        ({"nsqdTcpAddresses": " , "}, "option 'nsqdTcpAddresses' is missing"),
        ({**NSQD, "lookupdHttpAddresses": "b:1"}, "both set"),
        ({"nsqdTcpAddresses": "http://a:4151"}, "is a URL"),
        ({**NSQD, "topic": "no spaces"}, "topic name 'no spaces' is not valid"),
        ({**NSQD, "maxBatchMessages": "0"}, "'maxBatchMessages' is 0; allowed is 1 or more"),
        ({**NSQD, "maxBatchBytes": "1MB"}, "'maxBatchBytes' is '1MB'; it must be a whole number"),
        ({**NSQD, "publishTimeoutMs": "0"}, "'publishTimeoutMs' is 0"),
        ({**NSQD, "nsq.tsl": "true"}, "did you mean 'nsq.tls'?"),
        ({**NSQD, "nsq.tls_ca_file": "/no/such"}, "is not a file"),
        ({**NSQD, "maxBatchMessage": "5"}, "did you mean 'maxBatchMessages'?"),
        ({**NSQD, "path": "/tmp/x"}, "option 'path' is not possible"),
        ({**NSQD, "kafka.bootstrap.servers": "k:1"}, "is Kafka's"),
    ],
)
def test_a_wrong_option_is_one_sentence(options: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        SinkOptions.parse(options)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("partition", "order"), [(0, "a:1, b:2, c:3"), (1, "b:2, c:3, a:1"), (5, "c:3, a:1, b:2")]
)
def test_each_partition_begins_elsewhere(partition: int, order: str) -> None:
    writer = SinkOptions(nsqds=("a:1", "b:2", "c:3")).writer(partition)
    assert repr(writer) == f"<Writer to {order}>"


class Lookupd:
    """In the place of LookupdHTTP: answers by the address, the first one at a time."""

    answers: ClassVar[dict[str, list[Any]]] = {}

    def __init__(self, address: str, **options: Any) -> None:
        self._address = address

    def nodes(self) -> tuple[Node, ...]:
        answers = self.answers[self._address]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        return tuple(Node.parse({"broadcast_address": h, "tcp_port": p}) for h, p in answer)

    def close(self) -> None:
        pass


DOWN = ConnectionLost("http://l1:4161: connection refused")


@pytest.mark.parametrize(
    ("answers", "patience", "nsqds"),
    [
        ({"l1": [[("b", 2), ("a", 1)]], "l2": [[("a", 1), ("c", 3)]]}, 0, "a:1 b:2 c:3"),
        ({"l1": [DOWN], "l2": [[("a", 1)]]}, 0, "a:1"),
        ({"l1": [DOWN, [("a", 1)]], "l2": [DOWN]}, 60, "a:1"),
    ],
)
def test_nsqlookupds_say_where(
    monkeypatch: pytest.MonkeyPatch, answers: Any, patience: float, nsqds: str
) -> None:
    monkeypatch.setattr(sink_options, "LookupdHTTP", Lookupd)
    monkeypatch.setattr(Lookupd, "answers", answers)
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: None)
    monkeypatch.setattr(sink_options, "time", clock)
    options = SinkOptions.parse({"lookupdHttpAddresses": "l1,l2"}, patience=patience)
    assert options.nsqds == tuple(nsqds.split())


@pytest.mark.parametrize(
    ("answers", "text"),
    [
        ([DOWN], "cannot find the nsqds: http://l1:4161: connection refused; set option"),
        ([[]], "the nsqlookupds l1 know no nsqd: start nsqd with"),
    ],
)
def test_nsqlookupds_that_say_nothing(
    monkeypatch: pytest.MonkeyPatch, answers: Any, text: str
) -> None:
    monkeypatch.setattr(sink_options, "LookupdHTTP", Lookupd)
    monkeypatch.setattr(Lookupd, "answers", {"l1": answers})
    with pytest.raises(ConfigError) as caught:
        SinkOptions.parse({"lookupdHttpAddresses": "l1"})
    assert text in str(caught.value)
