"""Envelopes opened for the handlers of tools, and messages that go on as they came."""

from __future__ import annotations

from typing import Any

import pytest

from gnsqsync import Message
from gnsqsync.commands.envelopes import OpenEnvelopes, of_headers
from gnsqsync.envelope import MAGIC, encode
from gnsqsync.reader.dead_letters import _as_it_came

# Bodies that are no envelope, or whose headers break a rule.
LOOKALIKES = [
    b"plain",
    b"\xff\xff",
    MAGIC,
    MAGIC + b"\0\5a\0b",
    MAGIC + b"\0\5hello world",
    MAGIC + b"\0\3a\0bcut"[:5],
    MAGIC + b"\0\3\xff\0bx",
]


def message(body: bytes) -> Message:
    responder: Any = None
    return Message(b"0123456789abcdef", body, 1, 0, responder)


def handled(body: bytes, opener: OpenEnvelopes) -> Message:
    seen: list[Message] = []
    opener.handle(message(body), seen.append, seen.append)
    return seen[0]


@pytest.mark.parametrize("headers", [{}, {"key": "1"}, {"a": "", "b": "\n"}])
@pytest.mark.parametrize("body", [b"x", b"\n\0", encode({"inner": "1"}, b"y")])
def test_headers_and_body_reach_the_handler(headers: dict[str, str], body: bytes) -> None:
    came = encode(headers, body)
    seen = handled(came, OpenEnvelopes())
    assert (seen.headers, seen.body) == (headers, body)
    assert _as_it_came(seen) == came


@pytest.mark.parametrize("body", LOOKALIKES)
def test_a_body_that_only_looks_like_an_envelope_stays_as_it_is(body: bytes) -> None:
    seen = handled(body, OpenEnvelopes())
    assert (seen.headers, seen.body) == ({}, body)
    assert _as_it_came(seen) == body


def test_the_first_opened_message_is_told_of() -> None:
    told: list[Message] = []
    opener = OpenEnvelopes(told.append)
    handled(b"plain", opener)
    assert told == []
    first = handled(encode({"a": "1"}, b"x"), opener)
    handled(encode({"a": "2"}, b"x"), opener)
    assert told == [first]


def once_by_header() -> None:
    """A handler that looks for the header ``key``."""


once_by_header._gnsqsync_once_by_header = True  # type: ignore[attr-defined]


def test_a_handler_that_needs_headers_gets_them() -> None:
    assert of_headers(once_by_header, headers=False, raw=False)["headers"] is True
    assert of_headers(once_by_header, headers=False, raw=True)["headers"] is False
    opened = of_headers(print, headers=False, raw=False)
    assert opened["headers"] is False
    assert [type(one) for one in opened["middleware"]] == [OpenEnvelopes]
