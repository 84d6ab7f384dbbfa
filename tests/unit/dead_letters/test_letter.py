"""What a message tells as a dead letter, which ones are meant, and how they look as text."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gnsqsync.commands.letter_actions import (
    body_lines,
    filter_of,
    json_of,
    line_of,
    text_of,
)
from gnsqsync.dead_letters import DeadLetter, Filter
from gnsqsync.envelope import MAGIC, MAX_HEADERS, decode, encode
from gnsqsync.errors import ConfigError
from gnsqsync.message import Message

NOW = datetime(2026, 11, 24, 12, 0, tzinfo=UTC)
DEATH = {
    "deadtopic": "orders",
    "deadchannel": "billing",
    "deadnsqd": "10.0.0.1:4150",
    "deadid": "0123456789abcdef",
    "deadattempts": "5",
    "deadfirsttime": "2026-11-24T08:00:00.000+00:00",
    "deadtime": "2026-11-24T10:00:00.000+00:00",
    "deadreason": "ValueError: no price",
    "deaderror": "builtins.ValueError",
    "deadtext": "no price",
    "deadtraceback": "Traceback:\n  line 1",
    "deadhandler": "shop.jobs.charge",
}


class _Nsqd:
    nsqd_address = "10.0.0.2:4150"


def letter(headers: dict[str, str], body: bytes = b'{"n": 1}') -> DeadLetter:
    stamp = int((NOW - timedelta(hours=1)).timestamp() * 1e9)
    responder: Any = _Nsqd()
    message = Message(b"fedcba9876543210", body, 3, stamp, responder)
    if headers:
        message._headers = headers
    return DeadLetter.of(message)


@pytest.mark.parametrize(
    "body", [b"plain", MAGIC, MAGIC + b"\0\5hello world", encode({"key": "7"}, b"x")]
)
def test_a_letter_without_a_story_goes_back_as_it_came(body: bytes) -> None:
    found = letter({}, body)
    sent = decode(found.as_published())
    if found.headers:
        assert sent == ({"key": "7", "deadcount": "1"}, b"x")
    else:
        assert found.as_published() == found.body == body


def test_all_that_the_headers_say() -> None:
    found = letter({**DEATH, "traceparent": "00-1", "deadline": "soon"})
    assert (found.id, found.topic, found.channel) == ("0123456789abcdef", "orders", "billing")
    assert (found.attempts, found.deaths, found.delivered) == (5, 1, 3)
    assert found.time == NOW - timedelta(hours=2)
    assert found.first_time == NOW - timedelta(hours=4)
    assert found.headers == {"traceparent": "00-1", "deadline": "soon"}
    assert (found.nsqd, found.message_id) == ("10.0.0.2:4150", "fedcba9876543210")


def test_without_headers_it_has_an_id_and_a_time() -> None:
    found = letter({})
    assert (found.id, found.topic, found.reason) == ("fedcba9876543210", "", "")
    assert found.time == NOW - timedelta(hours=1)
    assert found.as_published() == b'{"n": 1}'


@pytest.mark.parametrize("text", ["", "x", "-1", "²", "9" * 5000, "2026-99-99"])
def test_headers_may_hold_anything(text: str) -> None:
    found = letter(dict.fromkeys([*DEATH, "deadcount"], text))
    assert found.attempts == 0 and found.deaths == 1
    assert found.time == NOW - timedelta(hours=1) and found.first_time is None


def test_a_letter_goes_back_as_it_was_with_a_count_of_its_deaths() -> None:
    again = decode(letter({**DEATH, "traceparent": "00-1"}).as_published())
    assert again == ({"traceparent": "00-1", "deadcount": "1"}, b'{"n": 1}')
    again = decode(letter({**DEATH, "traceparent": "00-1", "deadcount": "1"}).as_published())
    assert again == ({"traceparent": "00-1", "deadcount": "2"}, b'{"n": 1}')


def test_a_full_envelope_goes_back_without_the_count() -> None:
    own = {f"h{number}": "x" for number in range(MAX_HEADERS)}
    assert decode(letter(own).as_published()) == (own, b'{"n": 1}')


@pytest.mark.parametrize("name", ["two\nlines", "n" * 300])
def test_names_that_only_others_write_go_back_as_they_came(name: str) -> None:
    assert decode(letter({name: "x"}).as_published()) == ({name: "x"}, b'{"n": 1}')


def test_without_headers_of_its_own_just_the_body_goes_back() -> None:
    assert letter(DEATH).as_published() == b'{"n": 1}'
    hostile = MAGIC + b"\0\0x"
    opened = decode(letter(DEATH, hostile).as_published())
    assert opened is not None and opened[1] == hostile


@pytest.mark.parametrize(
    ("where", "is_meant"),
    [
        ({}, True),
        ({"reason": "NO PRICE"}, True),
        ({"reason": "builtins.value"}, True),
        ({"reason": "timeout"}, False),
        ({"older_than": 3600.0}, True),
        ({"older_than": 7201.0}, False),
        ({"newer_than": 7200.0}, True),
        ({"newer_than": 7199.0}, False),
        ({"ids": ["0123456789abcdef"]}, True),
        ({"ids": ["x", "fedcba9876543210"]}, True),
        ({"ids": ["x"]}, False),
        ({"topic": "orders", "channel": "billing"}, True),
        ({"topic": "order"}, False),
        ({"channel": "archive"}, False),
        ({"reason": "no price", "channel": "archive"}, False),
    ],
)
def test_letters_that_a_filter_matches(where: dict[str, Any], is_meant: bool) -> None:
    assert Filter(**where).matches(letter(DEATH), NOW) is is_meant


def test_a_wrong_filter_is_refused() -> None:
    with pytest.raises(ConfigError, match="older_than"):
        Filter(older_than=-1)
    with pytest.raises(ConfigError, match="give a list"):
        Filter(ids="0123")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("30m", 1800), ("1h30m", 5400), ("7d", 604800), ("0.5s", 0.5)]
)
def test_ages_as_people_write_them(text: str, seconds: float) -> None:
    assert filter_of({"older_than": text}).older_than == seconds


@pytest.mark.parametrize("text", ["", "x", "1w", "-1s", "1h x", "h"])
def test_a_wrong_age_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--newer-than"):
        filter_of({"newer_than": text})


def test_a_line_fits_and_obeys_nobody() -> None:
    line = line_of(letter({**DEATH, "deadreason": "a\x1b[31mb"}), None)
    assert line == "2026-11-24 10:00:00Z  0123456789abcdef    5  orders/billing  a\\x1b[31mb"
    assert line_of(letter(DEATH), 50) == "2026-11-24 10:00:00Z  0123456789abcdef    5  orde…"
    assert line_of(letter({}), None).endswith("  -  -  (no headers)")


def test_all_of_it_as_text() -> None:
    text = "\n".join(text_of(letter({**DEATH, "deadcount": "2", "traceparent": "00-\x1b"})))
    assert "came from  orders/billing at nsqd 10.0.0.1:4150" in text
    assert "for the 3. time" in text
    assert "headers\n  traceparent: 00-\\x1b" in text
    assert "traceback\n  Traceback:\n    line 1" in text
    assert 'body: 8 bytes, JSON\n  {\n    "n": 1\n  }' in text


def test_bodies() -> None:
    assert body_lines(b"two\nlines") == ("text", ["two", "lines"])
    assert body_lines(b"[" * 100_000)[0] == "text"
    assert body_lines(b"[" * 900 + b"]" * 900)[0] in ("JSON", "text")
    kind, lines = body_lines(b"\xff" * 2000)
    assert kind == "binary" and len(lines) == 33 and lines[-1] == "..."
    assert body_lines(b"a\x1b[31m")[0] == "binary"


def test_all_of_it_as_json() -> None:
    found = json.loads(json_of(letter({**DEATH, "a": "b"})))
    assert found["reason"] == "ValueError: no price" and found["headers"] == {"a": "b"}
    assert found["body"] == '{"n": 1}' and found["time"] == "2026-11-24T10:00:00+00:00"
    assert json.loads(json_of(letter(DEATH, b"\xff")))["body_base64"] == "/w=="
