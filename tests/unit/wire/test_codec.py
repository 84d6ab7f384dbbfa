"""DEFLATE and Snappy: nsqd's own bytes, every cut of a stream, and broken streams."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import zlib
from collections.abc import Callable

import pytest
import snappy
from hypothesis import given, settings
from hypothesis import strategies as st

from gnsqsync.errors import ProtocolError
from gnsqsync.wire import frames
from gnsqsync.wire.codec import DeflateLayer, Layer, SnappyLayer

OK = frames.encode_response(b"OK")
IDENTIFIER = bytes.fromhex("ff060000734e61507059")
SNAPPY_OK = bytes.fromhex("ff060000734e61507059 01 0e0000 26982bcf 00000006000000004f4b")
DEFLATE_OK = bytes.fromhex("6260606063606060f0f706000000ffff000000ffff")

LAYERS: list[Callable[[], Layer]] = [SnappyLayer, lambda: DeflateLayer(6), lambda: DeflateLayer(1)]
layers = pytest.mark.parametrize("make", LAYERS, ids=["snappy", "deflate6", "deflate1"])
blocks = st.lists(
    st.one_of(
        st.binary(max_size=60),
        st.integers(1, 200_000).map(lambda size: (b"gnsqsync" * 25_000)[:size]),
    ),
    max_size=5,
)


def decode_all(layer: Layer, chunks: list[bytes]) -> bytes:
    decoded = []
    for chunk in chunks:
        decoded.append(layer.decode(chunk))
        while layer.pending:
            decoded.append(layer.decode(b""))
    return b"".join(decoded)


def cut(stream: bytes, points: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(point, len(stream)) for point in points), len(stream)]
    return [stream[a:b] for a, b in itertools.pairwise(edges)]


def crc(data: bytes) -> bytes:
    """The masked CRC of ``data``, taken from what the compressor says of it."""
    chunk = snappy.StreamCompressor().add_chunk(data)
    return bytes(chunk[len(IDENTIFIER) + 4 :][:4])


def test_snappy_vector() -> None:
    assert SnappyLayer().decode(SNAPPY_OK) == OK
    assert SnappyLayer().encode(OK) == SNAPPY_OK


def test_deflate_vector() -> None:
    assert DeflateLayer(6).decode(DEFLATE_OK) == OK
    # zlib may choose other blocks than Go; what counts is the sync flush at the end.
    assert DeflateLayer(6).encode(OK).endswith(b"\0\0\xff\xff")


@layers
@pytest.mark.parametrize("step", [1, 2, 3, 5])
def test_vectors_in_small_steps(make: Callable[[], Layer], step: int) -> None:
    vector = SNAPPY_OK if make is SnappyLayer else DEFLATE_OK
    layer = make()
    chunks = [vector[at : at + step] for at in range(0, len(vector), step)]
    decoded = [layer.decode(chunk) for chunk in chunks]
    assert b"".join(decoded) == OK
    assert b"" in decoded  # that is not EOF
    assert not layer.eof
    assert layer.decode(layer.encode(b"") or b"") == b""


@layers
@settings(max_examples=40)
@given(sent=blocks, points=st.lists(st.integers(0, 3000), max_size=8))
def test_any_cut_decodes_to_the_same(
    make: Callable[[], Layer], sent: list[bytes], points: list[int]
) -> None:
    client, server = make(), make()
    encoded = b"".join(map(client.encode, sent))
    assert decode_all(server, cut(encoded, points)) == b"".join(sent)
    assert decode_all(client, [server.encode(block) for block in sent]) == b"".join(sent)


@layers
def test_each_encode_can_be_decoded_at_once(make: Callable[[], Layer]) -> None:
    client, server = make(), make()
    for block in (b"NOP\n", b"x" * 100_000, os.urandom(70_000), b"a"):
        assert server.decode(client.encode(block)) == block


@layers
@pytest.mark.parametrize("body", [os.urandom(5 * 1024 * 1024), bytes(5 * 1024 * 1024)])
def test_five_megabytes(make: Callable[[], Layer], body: bytes) -> None:
    client, server = make(), make()
    encoded = client.encode(body)
    decoded = decode_all(server, [encoded[at : at + 4096] for at in range(0, len(encoded), 4096)])
    assert decoded == body


@layers
@given(junk=st.binary(max_size=300), points=st.lists(st.integers(0, 300), max_size=5))
def test_junk_raises_nothing_but_protocol_error(
    make: Callable[[], Layer], junk: bytes, points: list[int]
) -> None:
    for start in (b"", make().encode(b"good")):
        layer = make()
        try:
            decode_all(layer, cut(start + junk, points))
        except ProtocolError:
            pass


@given(
    kind=st.sampled_from([0x00, 0x01, 0x02, 0x7F, 0x80, 0xFE, 0xFF]),
    size=st.one_of(st.integers(0, 40), st.integers(0, 2**24 - 1)),
    junk=st.binary(max_size=60),
)
def test_junk_in_snappy_chunks(kind: int, size: int, junk: bytes) -> None:
    layer = SnappyLayer()
    try:
        layer.decode(IDENTIFIER + bytes([kind]) + size.to_bytes(3, "little") + junk)
    except ProtocolError:
        pass


@pytest.mark.parametrize(
    ("stream", "text"),
    [
        (SNAPPY_OK[10:], "does not start with its identifier"),
        (b"\xff\x06\0\0sNaPpX", "does not start with its identifier"),
        (b"\0", "does not start with its identifier"),
        (SNAPPY_OK[:15] + b"\0" + SNAPPY_OK[16:], "is broken"),  # CRC
        (SNAPPY_OK[:-1] + b"L", "is broken"),  # data
        (IDENTIFIER + b"\xff\x06\0\0sNaPpX", "is broken"),
        (IDENTIFIER + b"\x00\x02\0\0ab", "is broken"),  # no room for a CRC
        (IDENTIFIER + b"\x00\x08\0\0abcd\xff\xff\xff\xff", "is broken"),
        (IDENTIFIER + b"\x02\x00\0\0", "unknown type 0x02"),
        (IDENTIFIER + b"\x7f", None),  # its size is missing
        (IDENTIFIER + b"\x7f\x00\0\0", "unknown type 0x7f"),
        (IDENTIFIER + b"\x01" + (65541).to_bytes(3, "little"), "chunk of 65541 bytes"),
        (IDENTIFIER + b"\x00\xff\xff\xff", "chunk of 16777215 bytes"),
        (IDENTIFIER + b"\xff\x07\0\0", "chunk of 7 bytes"),
    ],
)
def test_broken_snappy(stream: bytes, text: str | None) -> None:
    for chunks in ([stream], [bytes([byte]) for byte in stream]):
        layer = SnappyLayer()
        if text is None:
            assert decode_all(layer, chunks) == b""
        else:
            with pytest.raises(ProtocolError, match=text):
                decode_all(layer, chunks)


def test_snappy_identifier_may_be_repeated() -> None:
    # pynsq sends it before every command (docs/protocol/handshake#snappy).
    stream = SNAPPY_OK * 2 + SNAPPY_OK[10:] + IDENTIFIER * 3 + SNAPPY_OK
    for step in (1, 3, len(stream)):
        chunks = [stream[at : at + step] for at in range(0, len(stream), step)]
        assert decode_all(SnappyLayer(), chunks) == OK * 4


@settings(max_examples=30)
@given(st.integers(0, 200_000), st.sampled_from([0x80, 0xFE]), st.lists(st.integers(0, 999)))
def test_snappy_skips_what_may_be_skipped(size: int, kind: int, points: list[int]) -> None:
    skipped = bytes([kind]) + size.to_bytes(3, "little") + bytes(size)
    stream = IDENTIFIER + skipped + SNAPPY_OK[10:] + skipped * 2 + SNAPPY_OK
    layer = SnappyLayer()
    assert decode_all(layer, cut(stream, points)) == OK * 2


def test_snappy_holds_back_no_more_than_a_chunk() -> None:
    layer = SnappyLayer()
    layer.decode(IDENTIFIER + b"\xfe\xff\xff\xff")
    for _ in range(100):
        layer.decode(bytes(100_000))
    assert layer._pieces.kept == []
    full = b"y" * 65536
    stream = b"\x01" + (65540).to_bytes(3, "little") + crc(full) + full
    layer = SnappyLayer()
    assert decode_all(layer, [IDENTIFIER, stream[:30_000], stream[30_000:]]) == full


def test_deflate_with_a_final_block_is_at_its_end() -> None:
    # gnsq closes with Z_FINISH (docs/protocol/handshake#deflate).
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
    stream = compressor.compress(OK) + compressor.flush(zlib.Z_FINISH)
    layer = DeflateLayer(6)
    assert not layer.eof
    assert layer.decode(stream + b"whatever") == OK
    assert layer.eof
    assert layer.decode(b"more") == b""
    assert not SnappyLayer().eof


def test_deflate_with_a_zlib_header_is_broken() -> None:
    with pytest.raises(ProtocolError, match="DEFLATE stream is broken"):
        DeflateLayer(6).decode(zlib.compress(OK * 100))


def test_snappy_is_imported_by_the_first_layer_only() -> None:
    code = (
        "import sys; from gnsqsync.wire import codec, handshake, tls\n"
        "assert 'snappy' not in sys.modules; codec.SnappyLayer(); assert 'snappy' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_deflate_keeps_its_dictionary_over_a_flush() -> None:
    layer = DeflateLayer(6)
    block = os.urandom(500)
    assert len(layer.encode(block)) > 500
    assert len(layer.encode(block)) < 50


def test_parts_of_a_snappy_chunk_are_kept_as_they_arrived() -> None:
    data = os.urandom(60_000)
    stream = SnappyLayer().encode(data)
    chunks = [stream[at : at + 2000] for at in range(0, len(stream), 2000)]
    layer = SnappyLayer()
    assert decode_all(layer, chunks[:-1]) == b""
    # Nothing was joined on the way: each part is the very object that was fed.
    kept = layer._pieces.kept
    assert all(part is chunk for part, chunk in zip(kept[1:], chunks[1:-1], strict=True))
    assert layer.decode(chunks[-1]) == data
