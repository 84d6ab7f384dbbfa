"""The handshake, driven by scripted answers: each branch, with heartbeats in between."""

from __future__ import annotations

import json
import ssl
from typing import Any

import pytest

from gnsqsync.errors import (
    BadBody,
    ConfigError,
    IdentifyFailed,
    NegotiationFailed,
    ProtocolError,
    ServerError,
    SubFailed,
    Unauthorized,
)
from gnsqsync.options import ConnectionOptions
from gnsqsync.wire import commands
from gnsqsync.wire.frames import FRAME_ERROR, FRAME_RESPONSE, Reply
from gnsqsync.wire.handshake import Negotiated, Receive, Send, Step, Upgrade, handshake
from tests.support.scripted import NEGOTIATED

SERVER = "127.0.0.1:4150"
OK: Reply = (FRAME_RESPONSE, b"OK")
HEARTBEAT: Reply = (FRAME_RESPONSE, b"_heartbeat_")
AUTH_ANSWER = {"identity": "me", "identity_url": "", "permission_count": 1}
TLS = ssl.create_default_context()


def answer(**changes: Any) -> Reply:
    return FRAME_RESPONSE, json.dumps(NEGOTIATED | changes).encode()


def error(text: str) -> Reply:
    return FRAME_ERROR, text.encode()


def run(
    options: ConnectionOptions,
    replies: list[Reply],
    steps: list[Step] | None = None,
    **keywords: Any,
) -> Negotiated:
    """Drive a handshake with these replies; all of them must be asked for. Fills ``steps``."""
    steps = [] if steps is None else steps
    replies = list(replies)
    generator = handshake(options, server=SERVER, **keywords)
    reply: Reply | None = None
    try:
        while True:
            step = generator.send(reply)
            steps.append(step)
            reply = replies.pop(0) if isinstance(step, Receive) else None
    except StopIteration as stop:
        assert not replies, "replies that nobody asked for"
        assert isinstance(stop.value, Negotiated)
        return stop.value


def opening(options: ConnectionOptions) -> Send:
    return Send(b"  V2" + commands.identify(commands.identify_body(options)))


def without_receive(steps: list[Step]) -> list[Step]:
    return [step for step in steps if not isinstance(step, Receive)]


def test_plain_connection() -> None:
    options = ConnectionOptions()
    steps: list[Step] = []
    negotiated = run(options, [answer()], steps)
    assert steps == [opening(options), Receive("IDENTIFY")]
    assert negotiated == Negotiated(
        version="1.3.0",
        max_rdy_count=2500,
        msg_timeout=60.0,
        max_msg_timeout=900.0,
        tls=False,
        snappy=False,
        deflate=False,
        deflate_level=6,
        sample_rate=0,
        auth_required=False,
        output_buffer_size=16384,
        output_buffer_timeout=0.25,
        auth=None,
        auth_ignored=False,
    )


def test_subscribed_connection() -> None:
    options = ConnectionOptions()
    steps: list[Step] = []
    run(options, [answer(), OK], steps, topic="tt", channel="c")
    assert steps == [
        opening(options),
        Receive("IDENTIFY"),
        Send(b"SUB tt c\n"),
        Receive("SUB"),
    ]


def test_all_layers_auth_and_sub_in_their_order() -> None:
    options = ConnectionOptions(tls=TLS, snappy=True, auth_secret="secret")
    steps: list[Step] = []
    replies = [
        answer(tls_v1=True, snappy=True, auth_required=True),
        OK,
        OK,
        (FRAME_RESPONSE, json.dumps(AUTH_ANSWER).encode()),
        OK,
    ]
    negotiated = run(options, replies, steps, topic="tt", channel="c")
    assert steps == [
        opening(options),
        Receive("IDENTIFY"),
        Upgrade("tls"),
        Receive("the TLS upgrade"),
        Upgrade("snappy"),
        Receive("the Snappy upgrade"),
        Send(commands.auth(b"secret")),
        Receive("AUTH"),
        Send(b"SUB tt c\n"),
        Receive("SUB"),
    ]
    assert negotiated.tls and negotiated.snappy and negotiated.auth_required
    assert negotiated.auth == AUTH_ANSWER
    assert not negotiated.auth_ignored


def test_the_secret_does_not_show() -> None:
    assert "secret" not in repr(Send(commands.auth(b"secret")))


@pytest.mark.parametrize(
    ("asked", "answered", "used"), [(6, 6, 6), (9, 6, 6), (3, 6, 3), (9, 1, 1)]
)
def test_deflate_level(asked: int, answered: int, used: int) -> None:
    options = ConnectionOptions(deflate=True, deflate_level=asked)
    steps: list[Step] = []
    negotiated = run(options, [answer(deflate=True, deflate_level=answered), OK], steps)
    assert without_receive(steps)[1:] == [Upgrade("deflate", used)]
    assert negotiated.deflate and negotiated.deflate_level == answered


def test_heartbeats_are_answered_with_nop() -> None:
    options = ConnectionOptions(auth_secret="secret")
    steps: list[Step] = []
    replies = [
        HEARTBEAT,
        answer(auth_required=True),
        HEARTBEAT,
        HEARTBEAT,
        (FRAME_RESPONSE, b"{}"),
        HEARTBEAT,
        OK,
    ]
    run(options, replies, steps, topic="t", channel="c")
    nop = Send(commands.NOP)
    assert without_receive(steps) == [
        opening(options),
        nop,
        Send(commands.auth(b"secret")),
        nop,
        nop,
        Send(b"SUB t c\n"),
        nop,
    ]


@pytest.mark.parametrize("layers", [("tls",), ("snappy",), ("deflate",), ("tls", "snappy")])
def test_heartbeats_go_unanswered_while_a_layer_may_change(layers: tuple[str, ...]) -> None:
    # nsqd would throw the NOP away, or take it for bytes of the next layer
    # (docs/protocol/handshake#upgrades).
    wanted: dict[str, Any] = {name: TLS if name == "tls" else True for name in layers}
    given = {"tls_v1" if name == "tls" else name: True for name in layers}
    options = ConnectionOptions(**wanted)
    steps: list[Step] = []
    replies = [HEARTBEAT, answer(**given)]
    for _ in layers:
        replies += [HEARTBEAT, OK]
    run(options, [*replies, HEARTBEAT, OK], steps, topic="t", channel="c")
    sends = [step for step in steps if isinstance(step, Send)]
    assert sends == [opening(options), Send(b"SUB t c\n"), Send(commands.NOP)]


@pytest.mark.parametrize(
    ("options", "changes", "text"),
    [
        (
            {"tls": TLS},
            {},
            "nsqd at 127.0.0.1:4150 does not offer TLS (tls_v1 false in its answer);"
            " start it with --tls-cert and --tls-key, or leave tls off",
        ),
        (
            {"snappy": True},
            {},
            "nsqd at 127.0.0.1:4150 does not offer Snappy (snappy false in its answer);"
            " start it without --snappy=false, or leave snappy off",
        ),
        (
            {"deflate": True},
            {},
            "nsqd at 127.0.0.1:4150 does not offer DEFLATE (deflate false in its answer);"
            " start it without --deflate=false, or leave deflate off",
        ),
        (
            {},
            {"auth_required": True},
            "nsqd at 127.0.0.1:4150 requires AUTH and there is no secret; set auth_secret",
        ),
    ],
)
def test_required_means_required(
    options: dict[str, Any], changes: dict[str, Any], text: str
) -> None:
    given = ConnectionOptions(**options)
    steps: list[Step] = []
    with pytest.raises(NegotiationFailed) as caught:
        run(given, [answer(**changes)], steps, topic="t", channel="c")
    assert str(caught.value) == text
    assert steps == [opening(given), Receive("IDENTIFY")]  # nothing was sent after it


@pytest.mark.parametrize(
    ("option", "key"), [({"snappy": True}, "tls_v1"), ({"tls": TLS}, "snappy")]
)
def test_the_secret_stays_here_when_a_layer_is_declined(option: dict[str, Any], key: str) -> None:
    asked: list[int] = []

    def secret() -> str:
        asked.append(1)
        return "secret"

    steps: list[Step] = []
    options = ConnectionOptions(auth_secret=secret, **option)
    with pytest.raises(NegotiationFailed):
        run(options, [answer(auth_required=True)], steps)
    assert not asked
    assert without_receive(steps) == [opening(options)]


@pytest.mark.parametrize("key", ["tls_v1", "snappy", "deflate"])
def test_a_layer_nobody_asked_for(key: str) -> None:
    with pytest.raises(ProtocolError, match=rf"\({key} true\) without being asked"):
        run(ConnectionOptions(), [answer(**{key: True})])


def test_a_secret_nobody_asks_for_is_not_sent() -> None:
    def secret() -> str:
        raise AssertionError("asked for the secret")

    for given in ("secret", secret):
        steps: list[Step] = []
        options = ConnectionOptions(auth_secret=given)
        negotiated = run(options, [answer()], steps)
        assert negotiated.auth_ignored and negotiated.auth is None
        assert without_receive(steps) == [opening(options)]


def test_a_callable_secret_is_asked_at_each_handshake() -> None:
    secrets = iter([b"first", b"second"])
    options = ConnectionOptions(auth_secret=lambda: next(secrets))
    for expected in (b"first", b"second"):
        steps: list[Step] = []
        run(options, [answer(auth_required=True), (FRAME_RESPONSE, b"{}")], steps)
        assert Send(commands.auth(expected)) in steps


def test_a_callable_without_a_secret() -> None:
    options = ConnectionOptions(auth_secret=lambda: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(NegotiationFailed, match="set auth_secret"):
        run(options, [answer(auth_required=True)])


def test_an_nsqd_that_does_not_negotiate() -> None:
    for options in (ConnectionOptions(), ConnectionOptions(tls=TLS)):
        with pytest.raises(NegotiationFailed, match=r"127\.0\.0\.1:4150 answers OK to IDENTIFY"):
            run(options, [OK])


def test_missing_keys_mean_the_defaults_of_nsqd() -> None:
    assert run(ConnectionOptions(), [(FRAME_RESPONSE, b"{}")]) == run(
        ConnectionOptions(), [answer(version="")]
    )
    negotiated = run(ConnectionOptions(msg_timeout=5), [(FRAME_RESPONSE, b"{}")])
    assert negotiated.msg_timeout == 5.0


def test_values_of_the_answer() -> None:
    changes = {
        "max_rdy_count": 7,
        "msg_timeout": 1500,
        "max_msg_timeout": 3000,
        "sample_rate": 42,
        "output_buffer_size": 1,
        "output_buffer_timeout": 0,
        "something_new": {"a": [1]},
    }
    negotiated = run(ConnectionOptions(), [answer(**changes)])
    assert negotiated.max_rdy_count == 7
    assert (negotiated.msg_timeout, negotiated.max_msg_timeout) == (1.5, 3.0)
    assert negotiated.sample_rate == 42
    assert (negotiated.output_buffer_size, negotiated.output_buffer_timeout) == (1, 0.0)


INTEGERS = [
    "max_rdy_count",
    "msg_timeout",
    "max_msg_timeout",
    "deflate_level",
    "sample_rate",
    "output_buffer_size",
    "output_buffer_timeout",
]
WRONG: list[tuple[str, Any]] = [
    *((key, wrong) for key in INTEGERS for wrong in (1.5, "1", True, -1, 10**400, [[]])),
    *(
        (key, wrong)
        for key in ("tls_v1", "snappy", "deflate", "auth_required")
        for wrong in (0, 1, "true", {})
    ),
    *(("version", wrong) for wrong in (1, ["1.3.0"])),
]


@pytest.mark.parametrize(("key", "wrong"), WRONG, ids=lambda value: repr(value)[:20])
def test_wrong_types_in_the_answer(key: str, wrong: Any) -> None:
    with pytest.raises(ProtocolError, match=rf"answered IDENTIFY: '{key}' is .* expected"):
        run(ConnectionOptions(), [answer(**{key: wrong})])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"3",
        b'"OK"',
        b"CLOSE_WAIT",
        b"{",
        b"{} x",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"max_rdy_count": ' + b"9" * 10_000 + b"}",
    ],
    ids=lambda data: repr(data[:12]),
)
def test_answers_that_make_no_sense(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        run(ConnectionOptions(), [(FRAME_RESPONSE, data)])
    assert len(str(caught.value)) < 600
    if not data.startswith(b"{") or data == b"{":
        options = ConnectionOptions(auth_secret="secret")
        with pytest.raises(ProtocolError, match="to AUTH; a JSON object was due"):
            run(options, [answer(auth_required=True), (FRAME_RESPONSE, data)])


@pytest.mark.parametrize("data", [b"", b"ok", b"{}", b"CLOSE_WAIT"])
def test_something_else_where_ok_was_due(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="to SUB; OK was due"):
        run(ConnectionOptions(), [answer(), (FRAME_RESPONSE, data)], topic="t", channel="c")
    with pytest.raises(ProtocolError, match="to the Snappy upgrade; OK was due"):
        run(ConnectionOptions(snappy=True), [answer(snappy=True), (FRAME_RESPONSE, data)])
    with pytest.raises(ProtocolError, match="to the DEFLATE upgrade; OK was due"):
        run(ConnectionOptions(deflate=True), [answer(deflate=True), (FRAME_RESPONSE, data)])
    with pytest.raises(ProtocolError, match="to the TLS upgrade; OK was due"):
        run(ConnectionOptions(tls=TLS), [answer(tls_v1=True), (FRAME_RESPONSE, data)])


@pytest.mark.parametrize(
    ("replies", "expected", "text"),
    [
        (
            [error("E_BAD_BODY IDENTIFY msg timeout (900001) is invalid")],
            BadBody,
            "E_BAD_BODY IDENTIFY msg timeout (900001) is invalid",
        ),
        ([HEARTBEAT, error("E_BAD_PROTOCOL")], ServerError, "E_BAD_PROTOCOL"),
        (
            [
                answer(auth_required=True),
                HEARTBEAT,
                error("E_UNAUTHORIZED AUTH no authorizations found"),
            ],
            Unauthorized,
            "E_UNAUTHORIZED AUTH no authorizations found",
        ),
        (
            [answer(), HEARTBEAT, error("E_SUB_FAILED SUB failed exiting")],
            SubFailed,
            "E_SUB_FAILED SUB failed exiting",
        ),
    ],
)
def test_error_frames(replies: list[Reply], expected: type[ServerError], text: str) -> None:
    with pytest.raises(expected) as caught:
        run(ConnectionOptions(auth_secret="s"), replies, topic="t", channel="c")
    assert str(caught.value) == text


@pytest.mark.parametrize("name", ["snappy", "deflate"])
def test_error_frame_at_an_upgrade(name: str) -> None:
    options = ConnectionOptions(**{name: True})
    replies = [answer(**{name: True}), HEARTBEAT, error("E_IDENTIFY_FAILED IDENTIFY failed x")]
    with pytest.raises(IdentifyFailed, match="IDENTIFY failed x"):
        run(options, replies)


@pytest.mark.parametrize("channel", [None, "", "a b"])
def test_sub_needs_a_channel(channel: str | None) -> None:
    with pytest.raises(ConfigError, match="channel"):
        run(ConnectionOptions(), [answer()], topic="t", channel=channel)


def test_a_driver_that_forgets_the_reply() -> None:
    generator = handshake(ConnectionOptions())
    assert isinstance(next(generator), Send)
    assert isinstance(next(generator), Receive)
    with pytest.raises(TypeError, match="after a Receive"):
        next(generator)
