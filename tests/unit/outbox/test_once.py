"""The key of a message that is handled once: from its envelope, or from a user's function."""

from __future__ import annotations

from typing import Any

import pytest

from gnsqsync import Message, Reject, Requeue
from gnsqsync.outbox.once import key_of


def message(body: bytes) -> Any:
    return Message(b"0" * 16, body, 1, 0, None)  # type: ignore[arg-type]


def key(message: Message) -> Any:
    return message.json()["order"]


def test_the_function_tells_the_key() -> None:
    assert key_of(message(b'{"order": "7"}'), key) == "7"


@pytest.mark.parametrize(
    "body", [b"", b"\xff", b"{}", b"[]", b"null", b'{"order": 7}', b'{"order": ""}', b"[" * 100_000]
)
def test_a_body_without_a_key_is_rejected(body: bytes) -> None:
    """No attempt would give it one."""
    with pytest.raises(Reject, match="key"):
        key_of(message(body), key)


class DatabaseError(Exception):
    """Stands for Django's exception of that name."""


@pytest.mark.parametrize("error", [OSError("away"), DatabaseError(), Requeue(5)])
def test_another_attempt_may_find_the_key(error: Exception) -> None:
    def ask(message: Message) -> str:
        raise error

    with pytest.raises(type(error)):
        key_of(message(b"x"), ask)
