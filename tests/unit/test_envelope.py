"""Headers in front of a body: there and back, and what is none."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnsqsync import Message
from gnsqsync.envelope import MAGIC, MAX_BLOCK, MAX_HEADERS, decode, encode, encode_head, split
from gnsqsync.errors import ConfigError
from tests.support.texts import DOCS

characters = st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")
names = st.text(characters, min_size=1, max_size=60).filter(str.isprintable)
headers = st.dictionaries(names, st.text(characters, max_size=60), max_size=MAX_HEADERS)


@given(headers, st.binary(min_size=1))
def test_there_and_back(given: dict[str, str], body: bytes) -> None:
    assert decode(encode(given, body)) == (given, body)


@given(st.binary())
def test_a_body_without_magic_is_no_envelope(data: bytes) -> None:
    assert decode(data) is None or data.startswith(MAGIC)


@given(st.binary(max_size=300), st.binary(max_size=9))
def test_any_bytes_after_the_magic(block: bytes, body: bytes) -> None:
    found = decode(MAGIC + len(block).to_bytes(2) + block + body)
    if not body:
        assert found is None
    else:
        assert found is not None
        assert found[1] == body
        assert all(found[0]) and len(found[0]) <= MAX_HEADERS
        if found[0]:
            assert encode_head(found[0]).endswith(block) or not all(map(str.isprintable, found[0]))


@given(st.text(min_size=1), st.sampled_from(["utf-8", "utf-16-le", "utf-16-be", "utf-8-sig"]))
def test_no_text_begins_like_it(text: str, encoding: str) -> None:
    # Noncharacters are for nobody to send.
    if text[0] != "\uffff":
        assert not text.encode(encoding, "replace").startswith(MAGIC[:2])


@pytest.mark.parametrize(
    "block",
    [
        b"a",
        b"a\0",
        b"a\0b\0",
        b"\0b",
        b"a\0b\0a\0c",
        b"a\0b\0c",
        b"\xff\0b",
        b"a\0b" + b"\0c\0d" * 64,
    ],
)
def test_headers_that_break_a_rule_are_left_out(block: bytes) -> None:
    expected = {"a": ""} if block == b"a\0" else {}
    assert decode(MAGIC + len(block).to_bytes(2) + block + b"x") == (expected, b"x")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        MAGIC,
        MAGIC + b"\0",
        MAGIC + b"\0\0",
        MAGIC + b"\0\1x",
        MAGIC + b"\xff\xffx",
        MAGIC[:-1] + b"\2\0\0x",
    ],
)
def test_an_envelope_that_is_cut_short_is_a_body(data: bytes) -> None:
    assert split(data) is None


def test_limits() -> None:
    most = {"n" * 255: "x" * (MAX_BLOCK - 256)}
    assert decode(encode(most, b"x")) == (most, b"x")
    for wrong in ({"n" * 256: ""}, {"é" * 128: ""}, {"n": "x" * (MAX_BLOCK - 1)}):
        with pytest.raises(ConfigError):
            encode_head(wrong)


def test_a_message_parses_them_when_asked() -> None:
    message = Message(b"0" * 16, b"x", 1, 0, None)  # type: ignore[arg-type]
    assert message.headers == {}
    message._headers = b"a\0b"
    assert message.headers == {"a": "b"}
    assert message.headers is message.headers


def test_the_example_of_the_page() -> None:
    page = (DOCS / "protocol" / "envelope.rst").read_text(encoding="utf-8")
    (shown,) = re.findall(r"``((?:[0-9a-f]{2} ){3,}[0-9a-f]{2})``", page)
    assert bytes.fromhex(shown) == encode({"id": "7"}, b"{}")
