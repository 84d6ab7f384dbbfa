"""The server side of TCP V2 without a socket: bytes in, frames out.

What nsqd answers is checked against the real one in tests/conformance; here stands what depends
on how the bytes are cut, and what a client cannot see.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnsqsync.embedded.auth import AuthFailure, Authorization
from gnsqsync.embedded.bodies import MpubBody
from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.identify import Fatal
from gnsqsync.embedded.numbers import parse_base10
from gnsqsync.embedded.options import NsqdOptions
from gnsqsync.embedded.session import Peer, Session
from gnsqsync.wire import commands
from gnsqsync.wire.frames import FrameDecoder

PERMISSION = {"topic": "^t", "channels": [".*"], "permissions": ["publish", "subscribe"]}


class Pair:
    """A session, its broker, and a decoder at the other end."""

    def __init__(self, query_auth: Any = None, **options: Any) -> None:
        self.seconds = 0.0
        self.broker = Broker(NsqdOptions(**options), now=lambda: self.seconds)
        self.outputs = 0
        self.session = Session(
            self.broker,
            Peer("10.0.0.1", "10.0.0.1:5"),
            query_auth=query_auth,
            on_output=self._count,
        )
        self.decoder = FrameDecoder(None, 1 << 24)  # type: ignore[arg-type]

    def _count(self) -> None:
        self.outputs += 1

    def talk(self, data: bytes) -> list[bytes]:
        """The replies to `data`; messages are written as b"<body>"."""
        self.session.receive(data)
        self.broker.schedule.settle()
        messages, replies = self.decoder.feed(self.session.take_output())
        assert self.decoder.broken is None
        return [text for _, text in replies] + [b"<%s>" % message.body for message in messages]


def identify(**fields: Any) -> bytes:
    return commands.identify(fields)


def rest_of(broker: Broker, topic: str = "t") -> list[bytes]:
    return [message.body for message in broker.topics[topic].queue]


# -- cutting -------------------------------------------------------------------------------------

STREAM = (
    identify(client_id="me", msg_timeout=2000)
    + commands.pub("t", b"one\nNOP\n")
    + b"NOP\r\n"
    + commands.mpub("t", [b"two", b"\n", b"three" * 100])
    + b"MPUB t\n"  # the total is wrong, which nsqd does not notice
    + struct.pack(">iii4s", 7, 1, 4, b"four")
    + commands.dpub("t", 0, b"five")
    + b"SUB t c\nRDY 10\n"
    + b"FIN 0000000000000000\n"
    + commands.pub("other", b"x")
    + b"BAD\n"
    + commands.pub("t", b"never read")
)
ANSWERS = [
    b"OK",
    b"OK",
    b"OK",
    b"OK",
    b"OK",
    b"OK",
    b"E_FIN_FAILED FIN 0000000000000000 failed ID not in flight",
    b"OK",
    b"E_INVALID invalid command BAD",
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_any_cut_of_the_stream_gives_the_same(size: int) -> None:
    pair = Pair()
    answers: list[bytes] = []
    for start in range(0, len(STREAM), size):
        answers += pair.talk(STREAM[start : start + size])
    replies = [answer for answer in answers if not answer.startswith(b"<")]
    assert replies == ANSWERS
    assert pair.session.closed
    assert pair.session.pub_counts == {"t": 6, "other": 1}
    assert pair.broker.topics["t"].message_count == 6
    assert rest_of(pair.broker, "other") == [b"x"]


@pytest.mark.parametrize("stop", range(len(STREAM)))
def test_an_end_anywhere_harms_nothing(stop: int) -> None:
    pair = Pair()
    pair.talk(STREAM[:stop])
    pair.session.input_ended()
    assert pair.session.closed
    channels = pair.broker.topics["t"].channels if "t" in pair.broker.topics else {}
    assert all(not channel.consumers for channel in channels.values())


def test_a_large_body_in_pieces_is_joined_once() -> None:
    pair = Pair()
    body = bytes(range(256)) * 4096
    data = commands.pub("t", body)
    for start in range(0, len(data), 1000):
        pair.session.receive(data[start : start + 1000])
    assert rest_of(pair.broker) == [body]


def test_a_line_must_fit_the_buffer() -> None:
    pair = Pair()
    assert pair.talk(b"x" * 16383 + b"\n") == [b"E_INVALID invalid command " + b"x" * 16383]
    pair = Pair()
    assert pair.talk(b"x" * 16384) == []
    assert pair.session.closed


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"PUB t\n", b"E_BAD_MESSAGE PUB failed to read message body size"),
        (b"PUB t\n\0\0\0\5ab", b"E_BAD_MESSAGE PUB failed to read message body"),
        (b"MPUB t\n\0", b"E_BAD_BODY MPUB failed to read body size"),
        (b"MPUB t\n\0\0\0\x0a", b"E_BAD_BODY MPUB failed to read message count"),
        (
            b"MPUB t\n\0\0\0\x0a\0\0\0\2\0\0\0\1a\0",
            b"E_BAD_MESSAGE MPUB failed to read message(1) body size",
        ),
        (
            b"MPUB t\n\0\0\0\x0a\0\0\0\1\0\0\0\5a",
            b"E_BAD_MESSAGE MPUB failed to read message body",
        ),
        (b"IDENTIFY\n\0\0", b"E_BAD_BODY IDENTIFY failed to read body size"),
        (b"AUTH\n\0\0\0\2a", b"E_BAD_BODY AUTH failed to read body"),
    ],
)
def test_the_end_inside_a_body_is_reported(sent: bytes, answer: bytes) -> None:
    pair = Pair()
    assert pair.talk(sent) == []
    pair.session.input_ended()
    assert pair.talk(b"") == [answer]
    assert "t" not in pair.broker.topics or rest_of(pair.broker) == []


def test_the_end_between_commands_is_silent() -> None:
    pair = Pair()
    assert pair.talk(commands.pub("t", b"x") + b"NO") == [b"OK"]
    pair.session.input_ended()
    assert pair.talk(b"") == []


def test_the_deadline_counts_commands() -> None:
    pair = Pair()
    data = commands.mpub("t", [b"a", b"b"])
    pair.talk(b"NOP\n" + data[:-1])
    assert pair.session.commands == 1
    pair.talk(data[-1:])
    assert pair.session.commands == 2


# -- numbers and IDENTIFY ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("digits", "value"),
    [
        (b"", 0),
        (b"007", 7),
        (b"-1", None),
        (b"1.0", None),
        ("٣".encode(), None),
        (b"18446744073709551617", 1),
        (b"1" + b"0" * 9000, 0),
    ],
)
def test_nsqds_number_parser(digits: bytes, value: int | None) -> None:
    assert parse_base10(digits) == value


def test_the_answer_to_identify_has_its_keys_in_order() -> None:
    pair = Pair()
    (answer,) = pair.talk(identify(feature_negotiation=True, sample_rate=5, user_agent="<&>"))
    assert answer.startswith(b'{"max_rdy_count":2500,"version":"1.3.0","max_msg_timeout":900000,')
    assert list(json.loads(answer)) == [
        "max_rdy_count",
        "version",
        "max_msg_timeout",
        "msg_timeout",
        "tls_v1",
        "deflate",
        "deflate_level",
        "max_deflate_level",
        "snappy",
        "sample_rate",
        "auth_required",
        "output_buffer_size",
        "output_buffer_timeout",
    ]


def test_only_the_first_identify_reaches_deliveries() -> None:
    """See docs/protocol/handshake#identify-twice."""
    pair = Pair()
    pair.talk(identify(msg_timeout=1000, heartbeat_interval=2000, sample_rate=7))
    pair.talk(identify(msg_timeout=5000, heartbeat_interval=3000))
    session = pair.session
    assert (session.delivery_timeout, session.msg_timeout) == (1.0, 5.0)
    assert (session.heartbeat_period, session.settings.heartbeat_interval) == (2.0, 3.0)
    assert (session.sample_rate, session.settings.sample_rate) == (7, 0)


def test_upgrades_wait_for_the_owner_and_drop_what_was_read_ahead() -> None:
    pair = Pair()
    fields = {"feature_negotiation": True, "snappy": True}
    pair.talk(identify(**fields) + b"FOO\n")
    assert pair.session.upgrades == [("snappy", 0)]
    pair.session.heartbeat()
    assert pair.session.take_output() == b""
    pair.session.layer_ready("snappy")
    assert pair.talk(b"NOP\n") == [b"OK"]
    assert pair.session.snappy


def test_a_failed_handshake_is_reported() -> None:
    pair = Pair()
    pair.session.upgrade_failed("EOF")
    assert pair.talk(b"") == [b"E_IDENTIFY_FAILED IDENTIFY failed EOF"]
    assert pair.session.closed


# -- consuming -----------------------------------------------------------------------------------


def test_a_batch_of_commands_wakes_the_owner_once() -> None:
    pair = Pair()
    pair.session.receive(b"SUB t c\nRDY 100\n" + commands.pub("t", b"x") * 50)
    pair.broker.schedule.settle()
    assert pair.outputs == 1
    messages, replies = pair.decoder.feed(pair.session.take_output())
    assert (len(messages), len(replies)) == (50, 51)
    assert {message.attempts for message in messages} == {1}


def test_a_slow_reader_gets_no_more_until_its_backlog_shrinks() -> None:
    pair = Pair()
    pair.talk(b"SUB t c\nRDY 2500\n")
    bodies = [bytes(100_000)] * 30
    pair.broker.topics["t"].publish(bodies)
    pair.broker.schedule.settle()
    channel = pair.broker.topics["t"].channels["c"]
    assert pair.session.is_backlogged
    assert 0 < channel.depth < 30
    pair.session.unsent = len(pair.session.take_output())
    pair.broker.schedule.settle()
    waiting = channel.depth
    pair.session.unsent = 0
    pair.session.wake_channel()
    pair.broker.schedule.settle()
    assert channel.depth < waiting


def test_nothing_is_delivered_after_cls() -> None:
    pair = Pair()
    pair.talk(b"SUB t c\nRDY 5\n")
    assert pair.talk(b"CLS\nRDY 9\n" + commands.pub("t", b"x")) == [b"CLOSE_WAIT", b"OK"]
    assert pair.broker.topics["t"].channels["c"].depth == 1


def test_a_deleted_channel_ends_the_session_without_a_frame() -> None:
    pair = Pair()
    pair.talk(b"SUB t c\n")
    pair.session.heartbeat()
    pair.broker.delete_channel("t", "c")
    assert pair.session.closed
    assert pair.session.take_output() == b""
    assert pair.talk(b"FIN 0000000000000000\n") == []


def test_closing_leaves_the_channel() -> None:
    pair = Pair()
    pair.talk(b"SUB t c#ephemeral\n")
    pair.session.close()
    assert pair.broker.topics["t"].channels == {}


def test_tls_required_comes_before_everything_but_identify() -> None:
    for line, command in [(b"FOO\n", b"FOO"), (b"\n", b""), (b"PUB\n", b"PUB"), (b"NOP\n", b"NOP")]:
        pair = Pair(tls_required="true")
        assert pair.talk(identify()) == [b"OK"]
        text = b"E_INVALID cannot %s in current state (TLS required)" % command
        assert pair.talk(line) == [text]


# -- AUTH ----------------------------------------------------------------------------------------

Answer = dict[str, Any] | None


class AuthServer:
    """Gives its answers in turn; None is a failure."""

    def __init__(self, clock: Callable[[], float], *answers: Answer) -> None:
        self.clock = clock
        self.answers: Iterator[Answer] = iter(answers)
        self.asked: list[tuple[str, bool, str, bytes]] = []

    def __call__(self, *question: Any) -> Authorization:
        self.asked.append(question)
        answer = next(self.answers)
        if answer is None:
            raise AuthFailure("down")
        return Authorization.parse(answer, self.clock())


def with_auth(*answers: Answer) -> tuple[Pair, AuthServer]:
    pair: Pair
    server = AuthServer(lambda: pair.seconds, *answers)
    pair = Pair(query_auth=server)
    return pair, server


def test_rights_are_asked_for_again_when_they_have_run_out() -> None:
    allowed = {"ttl": 10, "identity": "me", "authorizations": [PERMISSION]}
    pair, server = with_auth(allowed, allowed, {"ttl": 1, "authorizations": [{}]})
    assert pair.talk(commands.auth(b"s")) == [
        b'{"identity":"me","identity_url":"","permission_count":1}'
    ]
    assert pair.talk(commands.pub("t", b"x")) == [b"OK"]
    pair.seconds = 9.9
    pair.talk(commands.pub("t", b"x"))
    assert len(server.asked) == 1
    pair.seconds = 10.0
    assert pair.talk(commands.pub("t", b"x")) == [b"OK"]
    assert server.asked[1] == ("10.0.0.1", False, "", b"s")
    pair.seconds = 20.0
    assert pair.talk(b"SUB t c\n") == [b'E_UNAUTHORIZED AUTH failed for SUB on "t" "c"']


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (commands.pub("t", b"x"), b"E_AUTH_FIRST AUTH required before PUB"),
        (commands.mpub("t", [b"x"]), b"E_AUTH_FIRST AUTH required before MPUB"),
        (commands.auth(b"s") * 2, b"E_INVALID AUTH already set"),
        (
            commands.auth(b"s") + commands.pub("x", b"x"),
            b'E_UNAUTHORIZED AUTH failed for PUB on "x" ""',
        ),
    ],
)
def test_commands_that_auth_refuses(data: bytes, answer: bytes) -> None:
    pair, _ = with_auth({"ttl": 10, "authorizations": [PERMISSION]})
    assert pair.talk(data)[-1] == answer
    assert pair.session.closed


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {"ttl": 0},
        {"ttl": 1.5},
        {"ttl": 1, "identity": 5},
        {"ttl": 1, "authorizations": {}},
        {"ttl": 1, "authorizations": [{**PERMISSION, "permissions": ["admin"]}]},
        {"ttl": 1, "authorizations": [{**PERMISSION, "topic": "("}]},
        {"ttl": 1, "authorizations": [{**PERMISSION, "channels": [1]}]},
    ],
)
def test_rejected_answers_of_auth_servers(answer: Answer) -> None:
    pair, _ = with_auth(answer)
    assert pair.talk(commands.auth(b"s")) == [b"E_AUTH_FAILED AUTH failed"]


def test_patterns_are_searched_and_a_publish_needs_the_empty_channel() -> None:
    entry = {"topic": "rder", "channels": ["^c$"], "permissions": ["publish", "subscribe"]}
    rights = Authorization.parse({"ttl": 1, "authorizations": [entry]}, 0.0)
    assert rights.allows("orders", "c")
    assert not rights.allows("orders", "cc")
    assert not rights.allows("orders", "")
    entry["channels"] = [".*"]
    rights = Authorization.parse({"ttl": 1, "authorizations": [entry]}, 0.0)
    assert rights.allows("orders", "")


# -- MPUB bodies ---------------------------------------------------------------------------------


def test_the_count_of_mpub_is_bounded_by_the_body_size() -> None:
    body = MpubBody(1000, 5000)
    with pytest.raises(Fatal, match="MPUB invalid message count 1000"):
        body.read(struct.pack(">i", 1000), 0)
    assert MpubBody(1000, 5000).read(struct.pack(">i", 999), 0) == 4
