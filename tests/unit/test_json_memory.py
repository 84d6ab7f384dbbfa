"""The memory of JSON once it is parsed, beside what is reckoned before."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from gnsqsync.errors import ProtocolError
from gnsqsync.http import json_memory
from gnsqsync.http.envelopes import http_error, payload
from gnsqsync.http.json_memory import MAX_MEMORY, TooLarge, memory_of, parse_json
from gnsqsync.http.nsqd_types import Stats

COUNT = 3000
CHANNEL = {"channel_name": "c", "depth": 12345, "message_count": 9_123_456, "clients": []}
WITH_CLIENT = {**CHANNEL, "clients": [{"client_id": "a", "hostname": "b"}]}


def repeated(item: str) -> bytes:
    return f"[{','.join([item] * COUNT)}]".encode()


CONTENTS = {
    "lists": repeated("[]"),
    "lists of one": repeated("[1]"),
    "lists of five": repeated("[1,1,1,1,1]"),
    "deep": repeated("[" * 50 + "]" * 50),
    "objects": repeated("{}"),
    "objects of one": repeated('{"a":1}'),
    "objects of six": repeated('{"a":1,"b":1,"c":1,"d":1,"e":1,"f":1}'),
    "objects of eleven": repeated("{" + ",".join(f'"{i:x}":1' for i in range(11)) + "}"),
    "numbers": repeated("300"),
    "fractions": repeated("1.5"),
    "large numbers": repeated("9" * 100),
    "texts": repeated('"ab"'),
    "two bytes": repeated('"\u0100x"'),
    "four bytes": repeated('"\U0001f600"'),
    "escapes": repeated(r'"\ud83d\ude00' + "a" * 100 + '"'),
    "one wide character": ('["' + "a" * 100_000 + '\U0001f600"]').encode(),
    "keys": ("{" + ",".join(f'"{i:x}":1' for i in range(COUNT)) + "}").encode(),
    "keys of many": ("[" + ",".join(f'{{"{i:x}":1}}' for i in range(COUNT)) + "]").encode(),
    "channels": json.dumps([CHANNEL] * COUNT).encode(),
}


def peak(content: bytes) -> int:
    """Bytes that a caller takes who gets ``content`` from a socket and parses it."""
    tracemalloc.start()
    try:
        received = bytes(bytearray(content))
        found = json.loads(received)
        del found
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", CONTENTS)
def test_the_sum_is_never_too_low(name: str) -> None:
    content = CONTENTS[name]
    assert memory_of(content) >= peak(content) - 20_000


def test_the_sum_counts_objects_made_from_the_text() -> None:
    topics = [{"topic_name": f"t{n}", "channels": [WITH_CLIENT] * 3} for n in range(300)]
    content = json.dumps({"topics": topics}).encode()
    tracemalloc.start()
    try:
        stats = Stats.parse(json.loads(content))
        used = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(stats.topics) == 300
    assert memory_of(content) >= used


def test_json_that_needs_too_much_memory_is_not_parsed() -> None:
    def never(content: bytes) -> None:
        raise AssertionError("it was parsed")

    content = b"[" + b"[]," * (MAX_MEMORY // 170) + b"[]]"
    assert len(content) < 3 * 1024 * 1024
    with pytest.raises(TooLarge, match="more than 128 MiB of memory"):
        parse_json(content, loads=never)
    with pytest.raises(ProtocolError, match="is too large: it would take more than 128 MiB"):
        payload(content, "http://h:1/stats")
    assert http_error(500, "Oops", content, "http://h:1/stats").code == "Oops"


def test_larger_objects_lower_the_number_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_memory, "MAX_MEMORY", 10_000)
    assert parse_json(b"[{},{},{}]") == [{}, {}, {}]
    with pytest.raises(TooLarge):
        parse_json(b"[{},{},{}]", per_object=4000)


def test_an_honest_answer_of_30_000_channels_is_read() -> None:
    latency = {"count": 0, "percentiles": None}
    channel = {
        "channel_name": "archive",
        "depth": 12345,
        "backend_depth": 0,
        "in_flight_count": 1234,
        "deferred_count": 0,
        "message_count": 9_123_456,
        "requeue_count": 1234,
        "timeout_count": 0,
        "client_count": 2,
        "clients": [],
        "paused": False,
        "e2e_processing_latency": latency,
    }
    content = json.dumps([channel] * 100, separators=(",", ":")).encode()
    assert memory_of(content) * 300 < MAX_MEMORY
    assert memory_of(content, 4000) * 100 < MAX_MEMORY


def test_a_list_of_nonsense_is_no_list_of_sentences() -> None:
    left_out: list[str] = []
    topics = [{"topic_name": "t", "channels": []}, *range(1002)]
    with pytest.raises(ProtocolError, match="more than 1000 entries of 'topics'"):
        Stats.parse({"topics": topics}, left_out.append)
    assert len(left_out) == 0
