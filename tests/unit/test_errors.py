"""Errors by nsqd's codes."""

from __future__ import annotations

import pytest

from gnsqsync import errors
from gnsqsync.errors import SERVER_ERRORS, NSQError, ServerError, server_error

# Every code of an error frame of nsqd (docs/protocol/errors#error-frames).
CODES = [
    "E_AUTH_DISABLED",
    "E_AUTH_ERROR",
    "E_AUTH_FAILED",
    "E_AUTH_FIRST",
    "E_BAD_BODY",
    "E_BAD_CHANNEL",
    "E_BAD_MESSAGE",
    "E_BAD_PROTOCOL",
    "E_BAD_TOPIC",
    "E_DPUB_FAILED",
    "E_FIN_FAILED",
    "E_IDENTIFY_FAILED",
    "E_INVALID",
    "E_MPUB_FAILED",
    "E_PUB_FAILED",
    "E_REQ_FAILED",
    "E_SUB_FAILED",
    "E_TOUCH_FAILED",
    "E_UNAUTHORIZED",
]


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_its_class(code: str) -> None:
    error = server_error(f"{code} some words".encode())
    assert type(error) is not ServerError
    assert (error.code, str(error)) == (code, f"{code} some words")
    assert error.fatal == (code not in ("E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"))
    assert type(error).__name__ in errors.__all__
    assert isinstance(error, NSQError)


def test_no_two_codes_share_a_class() -> None:
    assert set(SERVER_ERRORS) == set(CODES)
    assert len(set(SERVER_ERRORS.values())) == len(CODES)


@pytest.mark.parametrize("data", [b"E_NEW_ONE of the next nsqd", b"", b"\xff\xfe"])
def test_an_unknown_code_is_a_plain_server_error(data: bytes) -> None:
    assert type(server_error(data)) is ServerError
