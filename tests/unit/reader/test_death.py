"""Headers that tell why a message died: whatever the exception is, the letter can be written."""

from __future__ import annotations

from typing import Any

import pytest

from gnsqsync import Discard, Message, Reject, envelope
from gnsqsync.reader.death import DEATH_HEADERS, death_headers


class Mute(Exception):
    """An exception whose texts fail."""

    def __str__(self) -> str:
        raise GeneratorExit

    __repr__ = __str__


class Bare(Reject):
    """A subclass that calls no constructor."""

    def __init__(self) -> None:
        Exception.__init__(self)


class Nsqd:
    nsqd_address = "127.0.0.1:4150"
    topic = "orders"
    channel = "books"


ERRORS = [
    Mute(),
    ValueError("a\0b \udc80"),
    ValueError("\0" * 10**6),
    Reject("no\0price"),
    Reject(Mute()),  # type: ignore[arg-type]
    Reject(ValueError("it is an exception")),  # type: ignore[arg-type]
    Discard(7),  # type: ignore[arg-type]
    Bare(),
    BaseExceptionGroup("several", [Mute(), GeneratorExit()]),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_each_letter_has_its_story(error: BaseException) -> None:
    message = Message(b"0" * 16, b"body", 3, 0, Nsqd())  # type: ignore[arg-type]
    headers = death_headers(message, error, "shop.pack")
    opened: Any = envelope.decode(envelope.encode(headers, b"body"))
    assert opened == (headers, b"body")
    assert headers.keys() == {*DEATH_HEADERS}
    assert headers["deadreason"] and "\n" not in headers["deadreason"]
    assert headers["deaderror"].endswith(type(error).__name__)
