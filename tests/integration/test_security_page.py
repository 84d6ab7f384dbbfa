"""The page on security against the tests and the code it speaks of."""

from __future__ import annotations

import re

import pytest

from gnsqsync import ConnectionOptions
from gnsqsync.connection import answer_queue, in_flight
from gnsqsync.embedded import command_stream, connection, listeners
from gnsqsync.embedded.options import NsqdOptions
from gnsqsync.http import json_memory, limits, transport
from gnsqsync.wire import handshake
from tests.fuzz.targets import TARGETS
from tests.support.claims import check_test_exists
from tests.support.texts import DOCS

PAGE = (DOCS / "guides" / "security.rst").read_text(encoding="utf-8")
NAMED = re.findall(r"``(tests/[^`]+::[^`]+)``", PAGE)
MEBI = 1024 * 1024


def test_there_are_claims() -> None:
    assert len(NAMED) > 20


@pytest.mark.parametrize("name", sorted(set(NAMED)))
def test_the_tests_exist(name: str) -> None:
    check_test_exists(name)


def test_the_limits_are_those_of_the_code() -> None:
    assert ConnectionOptions().max_frame_size == 16 * MEBI
    assert in_flight.MOST_BEYOND == 64 * MEBI
    assert in_flight.MESSAGE_COST == 500
    assert answer_queue._MOST_WAITING == 100_000
    assert transport.MAX_ANSWER == 32 * MEBI
    assert json_memory.MAX_MEMORY == 128 * MEBI
    assert handshake._MOST_JSON == 64 * 1024
    assert limits.SLOWEST_ANSWER == 10
    assert (NsqdOptions().max_body_size, NsqdOptions().max_msg_size) == (5 * MEBI, MEBI)
    assert command_stream._MAX_LINE == 16 * 1024
    assert command_stream._MAX_BACKLOG == MEBI
    assert listeners._MOST_CONNECTIONS == 10_000
    assert listeners._RESERVED_DESCRIPTORS == 64
    assert connection._MAGIC_TIMEOUT == 60
    assert connection._TLS_HANDSHAKE_TIMEOUT == 5


def test_the_figures_name_every_target() -> None:
    figures = PAGE.partition("Fuzzing\n---")[2]
    assert re.findall(r"^   ``(\w+)`` \|", figures, re.MULTILINE) == list(TARGETS)
