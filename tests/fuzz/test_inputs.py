"""The committed corpus, and inputs made of it, through every target; the same ones each time.

Files called found-* were findings: they are the regression tests of what was mended.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gnsqsync.embedded.command_stream import CommandStream
from gnsqsync.http.envelopes import payload
from gnsqsync.wire.codec import DeflateLayer
from gnsqsync.wire.frames import FrameDecoder, encode_response
from tests.fuzz.harness import CORPUS, inputs
from tests.fuzz.peers import TARGETS as PEER_TARGETS
from tests.fuzz.peers import http_json, opening, raw_server
from tests.fuzz.targets import TARGETS
from tests.support.marks import few_and_many

MEBI = 1024 * 1024
# Always the same examples: a red build must be somebody's fault.
FIXED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=40,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """The one server that a target shares between its inputs."""
    server = raw_server()
    yield
    server.close()
    raw_server.cache_clear()


def test_every_target_has_a_corpus_and_no_other_has() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == set(TARGETS)
    assert all(inputs(name) for name in TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus(name: str) -> None:
    for path in inputs(name):
        TARGETS[name].run(path.read_bytes())


def mutants(name: str) -> st.SearchStrategy[bytes]:
    """Inputs of the corpus with something put in, left out or taken from each other."""
    known = st.sampled_from([path.read_bytes()[:4000] for path in inputs(name)])
    words = st.sampled_from(TARGETS[name].words or (b"",))
    noise = st.one_of(st.binary(max_size=8), words)

    def mix(first: bytes, second: bytes, at: float, upto: float, new: bytes) -> bytes:
        start = int(at * len(first))
        return first[:start] + new + second[int(upto * len(second)) :]

    share = st.floats(0, 1, exclude_max=True)
    return st.builds(mix, known, known, share, share, noise)


@few_and_many(10, 40)
@pytest.mark.parametrize("name", TARGETS)
def test_mutants_of_the_corpus(name: str, count: int) -> None:
    @settings(FIXED, max_examples=count)
    @given(mutants(name))
    def run(data: bytes) -> None:
        TARGETS[name].run(data)

    run()


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(2**63), 65536, -1]),
    st.floats(),
    st.text(max_size=10),
)
KEYS = sorted(
    {
        word.decode().strip('":')
        for name in ("opening", "http_json")
        for word in PEER_TARGETS[name].words
        if word.endswith(b'":')
    }
)
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    ),
    max_leaves=12,
)


@few_and_many(60, 300)
def test_json_of_any_shape(count: int) -> None:
    @settings(FIXED, max_examples=count)
    @given(st.integers(0, 7), documents)
    def run(kind: int, document: Any) -> None:
        http_json(bytes([kind]) + json.dumps(document).encode())

    run()


@few_and_many(60, 300)
def test_identify_answers_of_any_shape(count: int) -> None:
    @settings(FIXED, max_examples=count)
    @given(st.integers(0, 5), st.dictionaries(st.sampled_from(KEYS), scalars, max_size=8))
    def run(options: int, answer: dict[str, Any]) -> None:
        frame = encode_response(json.dumps(answer).encode())
        opening(bytes([0, options]) + frame + encode_response(b"OK"))

    run()


def peak(run: Callable[[], object]) -> int:
    """How many bytes were allocated at once while ``run`` ran."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        run()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def deflated(data: bytes) -> bytes:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)


def test_a_bomb_in_deflate_takes_a_few_mebibytes() -> None:
    bomb = deflated(bytes(64 * MEBI))
    assert len(bomb) < 70_000
    decoder = FrameDecoder(None, MEBI)  # type: ignore[arg-type]
    layer = DeflateLayer(6)

    def decode() -> None:
        decoder.feed(layer.decode(bomb))
        assert layer.pending
        # Zeros are no frame. Whoever reads on has it in pieces of the same size.
        assert decoder.broken is not None
        total = MEBI
        while layer.pending:
            total += len(layer.decode(b""))
        assert total == 64 * MEBI

    assert peak(decode) < 8 * MEBI


@few_and_many(MEBI // 16, MEBI // 4)
@pytest.mark.parametrize("size", [1, 2, 50])
def test_a_frame_that_drips_takes_its_size(size: int, count: int) -> None:
    """The frame has ``count`` bytes."""
    decoder = FrameDecoder(None, MEBI)  # type: ignore[arg-type]
    frame = encode_response(bytes(count))

    def drip() -> None:
        for at in range(0, len(frame) - size, size):
            decoder.feed(frame[at : at + size])

    assert peak(drip) < 4 * count


@few_and_many(MEBI // 32, MEBI // 8)
def test_a_command_that_drips_takes_its_size(count: int) -> None:
    """The command comes in ``count`` pieces of two bytes."""
    stream = CommandStream({b"BODY": lambda words, data, offset: -(offset + MEBI)}, lambda: None)

    def drip() -> None:
        stream.receive(b"BODY\n")
        for _ in range(count):
            stream.receive(b"ab")

    assert peak(drip) < 8 * count
    assert not stream.closed


def test_deep_nesting_costs_no_stack() -> None:
    for text in (b"[" * 100_000, b'{"a":' * 100_000):
        with pytest.raises(Exception, match="not JSON"):
            payload(text, "http://x")


def test_the_program_lists_its_targets() -> None:
    out = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--list"], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split()[0] for line in out.splitlines()] == list(TARGETS)
