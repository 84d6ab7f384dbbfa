"""Answers of an auth server to the embedded nsqd: memory and time stay bounded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from gnsqsync.embedded.auth import ANSWER_LIMIT, Authenticator, AuthFailure
from gnsqsync.embedded.options import NsqdOptions
from tests.support.authserver import AuthServer, grant, rule


class Lines:
    """A log that keeps its errors."""

    def __init__(self) -> None:
        self.errors: list[str] = []

    def error(self, text: str, *args: object) -> None:
        self.errors.append(text % args)


@pytest.fixture
def auth_server() -> Iterator[AuthServer]:
    with AuthServer() as server:
        yield server


def query(server: AuthServer, lines: Lines) -> Any:
    """Ask the server for the rights of the secret ``s``."""
    options = NsqdOptions(auth_http_address=[server.address])
    log: Any = lines
    authenticator = Authenticator(options, log, time.time, lambda call: call())
    return authenticator.query("127.0.0.1", False, "", b"s")


def test_an_answer_grants_rights(auth_server: AuthServer) -> None:
    auth_server.replies["s"] = (200, grant(rule("t", ["c"], "subscribe")))
    rights = query(auth_server, Lines())
    assert rights.allows("t", "c") and not rights.allows("x", "c")


def test_an_answer_that_is_too_large_grants_none_and_is_told(auth_server: AuthServer) -> None:
    auth_server.replies["s"] = (200, grant(identity="x" * ANSWER_LIMIT))
    lines = Lines()
    with pytest.raises(AuthFailure):
        query(auth_server, lines)
    (line,) = lines.errors
    assert line.endswith(f"the answer is larger than {ANSWER_LIMIT} bytes")
