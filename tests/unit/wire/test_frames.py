"""FrameDecoder: every cut of a stream gives the same frames, and nothing hostile gets through."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gnsqsync.errors import ProtocolError
from gnsqsync.message import Message
from gnsqsync.wire import frames
from gnsqsync.wire.frames import FrameDecoder, Reply
from tests.unit.wire.encoding import encode_message

MAX = 16 * 1024 * 1024
ID = b"18a203f27f269000"
VECTOR = bytes.fromhex(
    "00000023 00000002 18e9c9ccc4c275e8 0001 31386132303366323766323639303030 68656c6c6f"
)

Fields = tuple[int, int, bytes, bytes]


class NoResponder:
    """A decoder only passes it on."""

    nsqd_address = "127.0.0.1:4150"
    msg_timeout = 60.0
    max_msg_timeout = 900.0
    is_closed = False

    def is_in_flight(self, message: Message) -> bool:
        raise NotImplementedError

    finish = requeue = touch = is_in_flight


RESPONDER = NoResponder()


def decoder(max_frame_size: int = MAX) -> FrameDecoder:
    return FrameDecoder(RESPONDER, max_frame_size)


def fields(message: Message) -> Fields:
    return message.timestamp, message.attempts, message._id, message.body


def feed_all(target: FrameDecoder, chunks: list[bytes]) -> tuple[list[Fields], list[Reply]]:
    messages: list[Fields] = []
    replies: list[Reply] = []
    for chunk in chunks:
        new_messages, new_replies = target.feed(chunk)
        messages += map(fields, new_messages)
        replies += new_replies
    return messages, replies


def cut(stream: bytes, points: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(point, len(stream)) for point in points), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


ids = st.binary(min_size=16, max_size=16)
message_fields = st.tuples(
    st.integers(-(2**63), 2**63 - 1), st.integers(0, 65535), ids, st.binary(max_size=50)
)
replies = st.tuples(
    st.sampled_from([frames.FRAME_RESPONSE, frames.FRAME_ERROR]), st.binary(max_size=50)
)
streams = st.lists(st.one_of(message_fields, replies), max_size=6)


def encode(frame: Fields | Reply) -> bytes:
    if len(frame) == 4:
        return encode_message(*frame)
    kind, data = frame
    return frames.encode_error(data) if kind else frames.encode_response(data)


def test_vectors() -> None:
    assert frames.encode_response(b"OK") == bytes.fromhex("00000006 00000000 4f4b")
    heartbeat = bytes.fromhex("0000000f 00000000 5f6865617274626561745f")
    assert frames.encode_response(b"_heartbeat_") == heartbeat
    assert frames.encode_error(b"E_BAD_TOPIC x")[:8] == bytes.fromhex("00000011 00000001")
    timestamp = 0x18E9C9CCC4C275E8
    assert encode_message(timestamp, 1, ID, b"hello") == VECTOR
    messages, found = decoder().feed(heartbeat + VECTOR, received_at=12.5)
    assert found == [(frames.FRAME_RESPONSE, b"_heartbeat_")]
    (message,) = messages
    assert fields(message) == (timestamp, 1, ID, b"hello")
    assert message.id == "18a203f27f269000"
    assert message._responder is RESPONDER
    assert message._received_at == message._touched_at == 12.5


def test_attempts_are_unsigned() -> None:
    (message,), _ = decoder().feed(encode_message(0, 65535, ID, b"x"))
    assert message.attempts == 65535


def test_a_message_is_as_its_constructor_makes_it() -> None:
    """The decoder makes it without a call of it."""
    [message], _ = decoder().feed(encode_message(5, 2, ID, b"body"), 7.0)
    made = Message(ID, b"body", 2, 5, RESPONDER, 7.0)
    for name in set(Message.__slots__) - {"__weakref__", "_headers"}:
        assert getattr(message, name) == getattr(made, name), name


@given(streams, st.lists(st.integers(0, 400), max_size=12))
def test_any_cut_gives_the_same_frames(sent: list[Fields | Reply], points: list[int]) -> None:
    stream = b"".join(map(encode, sent))
    target = decoder()
    messages, found = feed_all(target, cut(stream, points))
    assert messages == [frame for frame in sent if len(frame) == 4]
    assert found == [frame for frame in sent if len(frame) == 2]
    assert target.broken is None
    assert target.take_rest() == b""


@settings(max_examples=25)
@given(streams, st.binary(max_size=3))
def test_every_cut_in_two_gives_the_same_frames(sent: list[Fields | Reply], rest: bytes) -> None:
    rest = b"\0\0\0"[: len(rest)]
    stream = b"".join(map(encode, sent)) + rest
    expected = (
        [frame for frame in sent if len(frame) == 4],
        [frame for frame in sent if len(frame) == 2],
    )
    for at in range(len(stream) + 1):
        target = decoder()
        assert feed_all(target, [stream[:at], stream[at:]]) == expected
        assert target.broken is None
        assert target.take_rest() == rest
    assert feed_all(decoder(), [bytes([byte]) for byte in stream]) == expected


def slow_decode(stream: bytes, max_size: int) -> tuple[list[Fields], list[Reply], bool]:
    """The rules of docs/protocol/commands#frame-layout and docs/protocol/commands#message-frame
    without a thought of speed."""
    messages: list[Fields] = []
    found: list[Reply] = []
    while len(stream) >= 4:
        (size,) = struct.unpack(">i", stream[:4])
        if stream[:4] == b"HTTP" or size < 4 or size > max_size:
            return messages, found, True
        if len(stream) < 8:
            break
        (kind,) = struct.unpack(">i", stream[4:8])
        if kind not in (0, 1, 2) or (kind == 2 and size < 30):
            return messages, found, True
        if len(stream) < 4 + size:
            break
        data, stream = stream[8 : 4 + size], stream[4 + size :]
        if kind == 2:
            timestamp, attempts, id = struct.unpack(">qH16s", data[:26])
            messages.append((timestamp, attempts, id, data[26:]))
        else:
            found.append((kind, data))
    return messages, found, False


odd_frames = st.builds(
    lambda size, kind, data: struct.pack(">ii", size, kind) + data,
    st.one_of(st.integers(-2, 60), st.integers(-(2**31), 2**31 - 1)),
    st.one_of(st.integers(-1, 4), st.integers(-(2**31), 2**31 - 1)),
    st.binary(max_size=60),
)


@settings(max_examples=200)
@given(
    st.lists(st.one_of(message_fields.map(encode), replies.map(encode), odd_frames), max_size=5),
    st.binary(max_size=20),
    st.lists(st.integers(0, 400), max_size=12),
)
@example([encode_message(0, 1, ID, b"x" * 171)], b"", [])  # one byte above the maximum
@example([encode_message(0, 1, ID, b"x" * 170)], b"", [])
@example([], b"HTTP", [1, 2])
@example([VECTOR], struct.pack(">ii", 29, 2) + bytes(25), [60])
def test_hostile_streams_end_at_the_same_frame_however_cut(
    parts: list[bytes], tail: bytes, points: list[int]
) -> None:
    stream = b"".join(parts) + tail
    target = decoder(max_frame_size=200)
    messages, found = feed_all(target, cut(stream, points))
    broken = isinstance(target.broken, ProtocolError)
    assert (messages, found, broken) == slow_decode(stream, 200)


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (struct.pack(">i", 3), "frame size 3 is not within 4 to"),
        (struct.pack(">i", -1), "frame size -1 is not within"),
        (struct.pack(">i", MAX + 1), "max_frame_size"),
        (struct.pack(">ii", 29, 2), "message frame of size 29 is shorter"),
        (struct.pack(">ii", 6, 3), "frame type 3 is not known"),
        (struct.pack(">ii", 6, -1), "frame type -1 is not known"),
        (b"HTTP/1.1 400 Bad Request\r\n", "HTTP port; use nsqd's TCP port"),
        (b"\x15\x03\x01\0\x02\x02\x16", "HTTPS port"),
        (struct.pack(">i", 14) + b"E_BAD_PROTOCOL", "nsqlookupd's TCP port"),
    ],
)
def test_streams_that_break_the_rules(stream: bytes, text: str) -> None:
    target = decoder()
    messages, found = target.feed(VECTOR + frames.encode_response(b"OK") + stream)
    assert len(messages) == 1 and found == [(0, b"OK")]
    assert isinstance(target.broken, ProtocolError)
    assert text in str(target.broken)
    assert target.feed(VECTOR) == ([], [])  # too late


def test_http_is_seen_even_when_its_size_would_be_allowed() -> None:
    target = decoder(max_frame_size=2**31 - 1)
    target.feed(b"HTTP")
    assert "HTTP port" in str(target.broken)


OK = bytes.fromhex("00000006 00000000") + b"OK"


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (OK, 1),
        (OK * 7, 7),
        (b"", 0),
        (OK[:-1], 0),
        (OK + b"\0", 0),
        (OK * 2 + bytes.fromhex("0000000600000001") + b"E_", 0),
    ],
)
def test_frames_of_ok_alone_are_counted_without_decoding(data: bytes, count: int) -> None:
    target = decoder()
    assert target.count_oks(data) == count


def test_frames_of_ok_behind_part_of_a_frame_or_a_break_go_to_feed() -> None:
    target = decoder()
    target.feed(OK[:4])
    assert target.count_oks(OK) == 0
    _, replies = target.feed(OK[4:] + OK)
    assert replies == [(0, b"OK")] * 2
    assert target.count_oks(OK) == 1
    target.feed(b"HTTP/1.1 400 Bad Request")
    assert target.broken is not None
    assert target.count_oks(OK) == 0


def test_rest_goes_to_the_next_layer() -> None:
    # What a Snappy nsqd sends in one segment: the answer in clear, then the compressed OK.
    compressed = bytes.fromhex("ff060000734e61507059010e000026982bcf00000006000000004f4b")
    for at in range(len(compressed) + 1):
        target = decoder()
        _, found = target.feed(frames.encode_response(b"{}") + compressed[:at])
        assert found == [(0, b"{}")]
        assert target.take_rest() == compressed[:at]
        assert target.broken is None
        assert target.take_rest() == b""
        assert target.feed(frames.encode_response(b"OK")) == ([], [(0, b"OK")])


def test_a_large_frame_is_kept_in_parts_until_it_is_whole() -> None:
    body = bytes(range(256)) * (5 * 1024 * 4)
    stream = VECTOR + encode_message(7, 1, ID, body) + VECTOR
    chunks = [stream[at : at + 4000] for at in range(0, len(stream), 4000)]
    target = decoder()
    for chunk in chunks[:-1]:
        messages, _ = target.feed(chunk)
        assert len(messages) == (chunk is chunks[0])
    # Nothing was joined on the way: each part is the very object that was fed.
    kept = target._pieces.kept
    assert all(part is chunk for part, chunk in zip(kept[1:], chunks[1:-1], strict=True))
    messages, _ = target.feed(chunks[-1])
    assert [len(message.body) for message in messages] == [5 * 1024 * 1024, 5]
    assert messages[0].body == body


def test_hostile_input_does_not_pile_up() -> None:
    target = decoder(max_frame_size=10_000)
    junk = b"\xff" * 1000
    for _ in range(1000):
        assert target.feed(junk) == ([], [])
    assert len(target.take_rest()) <= len(junk)

    target = decoder(max_frame_size=10_000)
    target.feed(struct.pack(">ii", 10_000, 0))  # promises as much as is allowed
    for _ in range(1000):
        target.feed(junk)
        target.feed(b"")
    assert target.broken is not None
    assert len(target.take_rest()) <= 10_000 + len(junk)


def test_bodies_do_not_pin_the_chunk() -> None:
    chunk = VECTOR * 3
    messages, _ = decoder().feed(chunk)
    assert all(type(message.body) is bytes for message in messages)
    assert [message.body for message in messages] == [b"hello"] * 3
