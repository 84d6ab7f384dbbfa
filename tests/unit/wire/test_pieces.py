"""Pieces: what is kept of something that arrives bit by bit, and when it is whole."""

from __future__ import annotations

from gnsqsync.wire.pieces import Pieces


def test_pieces_are_whole_when_all_bytes_are_there() -> None:
    pieces = Pieces()
    pieces.begin(b"ab")
    pieces.need = 5
    assert pieces.add(b"cd") is None
    assert pieces.add(b"efg") == b"abcdefg"
    assert pieces.kept == []
    pieces.begin(b"h")
    assert (pieces.have, pieces.take(), pieces.take()) == (1, b"h", b"")


def test_a_peer_that_drips_fills_no_list() -> None:
    data = bytes(range(256)) * 40
    pieces = Pieces()
    pieces.begin(data[:1])
    pieces.need = len(data)
    for at in range(1, len(data) - 1):
        assert pieces.add(data[at : at + 1]) is None
    assert len(pieces.kept) == 10
    assert pieces.add(data[-1:]) == data
