"""A connection attempt against nsqds that fall silent, drip, lie or vanish at each of its steps."""

from __future__ import annotations

import itertools
import json
import re
import socket
import threading
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import snappy

from gnsqsync.addresses import Address
from gnsqsync.connection.opening import Opening
from gnsqsync.connection.publishing import PublishingConnection
from gnsqsync.connection.stream import Stream
from gnsqsync.errors import (
    AuthFailed,
    BadBody,
    BadTopic,
    ClosedError,
    ConnectionLost,
    NSQError,
    ProtocolError,
    SubFailed,
)
from gnsqsync.options import ConnectionOptions
from gnsqsync.runtime import choose
from gnsqsync.wire.frames import FrameDecoder
from gnsqsync.wire.handshake import Negotiated
from tests.support import scripted
from tests.support.ground import black_hole
from tests.support.scripted import (
    NEGOTIATED,
    RESPONSE,
    Command,
    Hook,
    ScriptedNsqd,
    automatic,
    frame,
    message_frame,
)
from tests.support.worlds import World

HEARTBEAT = frame(RESPONSE, b"_heartbeat_")
# Long past anything that has to end "in time", and short of what a test may take.
SLACK = 10.0


class Nobody:
    """Takes the messages of a decoder that must not produce any."""

    nsqd_address = "nobody"


def opening(
    world: World, nsqd: ScriptedNsqd, *, subscribe: bool = True, **options: Any
) -> tuple[Opening, ConnectionOptions]:
    chosen = ConnectionOptions(**options)
    attempt = Opening(
        Address(*nsqd.address),
        chosen,
        choose(world.runtime),
        FrameDecoder(Nobody(), chosen.max_frame_size),  # type: ignore[arg-type]
        topic="t" if subscribe else None,
        channel="ch" if subscribe else None,
    )
    return attempt, chosen


def run(
    world: World, nsqd: ScriptedNsqd, timeout: float = 10.0, **options: Any
) -> tuple[Opening, Negotiated]:
    """Open it to the end and close it."""
    attempt, _ = opening(world, nsqd, **options)
    streams: list[Stream] = []
    negotiated = attempt.run(streams.append, timeout)
    streams[0].close()
    return attempt, negotiated


def failure(world: World, nsqd: ScriptedNsqd, timeout: float = 10.0, **options: Any) -> NSQError:
    """How opening it failed; that it took less than the time allowed is part of the check."""
    attempt, _ = opening(world, nsqd, **options)
    started = attempt.runtime.now()
    with pytest.raises(NSQError) as caught:
        attempt.run(lambda stream: None, timeout)
    assert attempt.runtime.now() - started < (timeout if timeout > 1 else timeout + SLACK)
    return caught.value


def nothing(connection: scripted.Connection, command: Command) -> None:
    """A hook that answers nothing."""


def identify_answer(**changes: Any) -> bytes:
    return frame(RESPONSE, json.dumps({**NEGOTIATED, **changes}).encode())


def deflated(data: bytes) -> bytes:
    compressor = zlib.compressobj(6, zlib.DEFLATED, -15)
    return compressor.compress(data) + compressor.flush(zlib.Z_SYNC_FLUSH)


# What each step is called in the texts, the command that it answers, and what makes it happen.
STEPS: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "identify": ("waiting for the answer to IDENTIFY", "IDENTIFY", {}, {}),
    "auth": (
        "waiting for the answer to AUTH",
        "AUTH",
        {"auth_required": True},
        {"auth_secret": "secret"},
    ),
    "sub": ("waiting for the answer to SUB", "SUB", {}, {}),
}
UPGRADES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "tls": ("switching to tls", {"tls_v1": True}, {"tls": True}),
    "snappy": (
        "waiting for the answer to the Snappy upgrade",
        {"snappy": True},
        {"snappy": True},
    ),
    "deflate": (
        "waiting for the answer to the DEFLATE upgrade",
        {"deflate": True},
        {"deflate": True},
    ),
}


def step_of(name: str, at_step: Hook) -> tuple[str, scripted.Step, dict[str, Any]]:
    """The text of a step, a script that does ``at_step`` there, and the client's options."""
    if name in STEPS:
        text, command, changes, options = STEPS[name]
        return text, automatic(hooks={command: at_step}, **changes), options
    text, changes, options = UPGRADES[name]

    def answer_and_act(connection: scripted.Connection, command: Command) -> None:
        connection.answer(command, **changes)
        at_step(connection, command)

    # Behind an upgrade the scripted nsqd could not read what comes.
    def step(connection: scripted.Connection) -> None:
        answer_and_act(connection, connection.receive())
        while connection.socket.recv(65536):
            pass
        raise scripted.Ended

    return text, step, options


EVERY_STEP = pytest.mark.parametrize("name", [*STEPS, *UPGRADES])


@EVERY_STEP
def test_silence(world: World, name: str) -> None:
    text, script, options = step_of(name, nothing)
    with ScriptedNsqd([script]) as nsqd:
        error = failure(world, nsqd, 0.15, **options)
    assert isinstance(error, ConnectionLost)
    assert f"did not finish the handshake within 0.15 s; it ended while {text}" in str(error)
    assert str(Address(*nsqd.address)) in str(error)


@EVERY_STEP
def test_bytes_that_drip_for_ever_do_not_move_the_deadline(world: World, name: str) -> None:
    def drip(connection: scripted.Connection, command: Command) -> None:
        # The head of something long, then byte after byte of it.
        endless = b"\x00"
        if name == "tls":
            connection.send(b"\x16\x03\x03\x3f\x00")
        elif name == "snappy":
            connection.send(b"\xff\x06\x00\x00sNaPpY\x01\x00\xff\x00")
        elif name == "deflate":
            # Empty blocks, which decode to nothing.
            endless = b"\x00\x00\x00\xff\xff"
        else:
            connection.send((10_000_000).to_bytes(4, "big") + bytes(4))
        for byte in itertools.cycle(endless):
            connection.send(bytes([byte]))
            connection.owner.sleep(0.005)

    text, script, options = step_of(name, drip)
    with ScriptedNsqd([script]) as nsqd:
        error = failure(world, nsqd, 0.15, **options)
    assert isinstance(error, ConnectionLost)
    assert f"it ended while {text}" in str(error)


def test_heartbeats_for_ever_do_not_move_the_deadline(world: World) -> None:
    def beat(connection: scripted.Connection, command: Command) -> None:
        while True:
            connection.send(HEARTBEAT)
            connection.owner.sleep(0.005)

    with ScriptedNsqd([automatic(hooks={"SUB": beat})]) as nsqd:
        error = failure(world, nsqd, 0.15)
    assert "it ended while waiting for the answer to SUB" in str(error)


@EVERY_STEP
@pytest.mark.parametrize("end", [scripted.close(), scripted.reset()], ids=["FIN", "RST"])
def test_the_end_of_the_connection(world: World, name: str, end: scripted.Step) -> None:
    text, script, options = step_of(name, lambda connection, command: end(connection))
    with ScriptedNsqd([script]) as nsqd:
        error = failure(world, nsqd, **options)
    assert isinstance(error, ConnectionLost)
    assert error.retriable
    if name == "tls":
        text = "during the TLS handshake|while switching to tls"
    pattern = f"(closed the connection|failed) (while )?({text})"
    assert re.search(pattern, str(error)), str(error)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("identify", "E_BAD_BODY IDENTIFY heartbeat interval (1) is invalid", BadBody),
        ("auth", "E_AUTH_FAILED AUTH failed", AuthFailed),
        ("sub", 'E_BAD_TOPIC SUB topic name "t" is not valid', BadTopic),
        ("sub", "E_SUB_FAILED SUB failed consumers for t:ch exceeds limit of 1", SubFailed),
    ],
)
def test_error_frames(world: World, name: str, text: str, kind: type[NSQError]) -> None:
    def refuse(connection: scripted.Connection, command: Command) -> None:
        connection.error(text)
        scripted.close()(connection)

    _, script, options = step_of(name, refuse)
    with ScriptedNsqd([script]) as nsqd:
        error = failure(world, nsqd, **options)
    assert type(error) is kind
    assert str(error) == text


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff" * 40, "frame size -1 is not within"),
        (b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\n\r\n", "this is an HTTP port"),
        (frame(7, b"what is this"), "frame type 7 is not known"),
        (message_frame(b"too early"), "sent a message before anybody asked for one"),
    ],
    ids=["garbage", "HTTP", "frame type", "message"],
)
def test_garbage(world: World, name: str, data: bytes, text: str) -> None:
    """The end is told at once: the peer stays connected and says no more."""
    _, script, options = step_of(name, lambda connection, command: connection.send(data))
    with ScriptedNsqd([script]) as nsqd:
        error = failure(world, nsqd, **options)
    assert isinstance(error, ProtocolError)
    assert text in str(error)


def test_garbage_behind_an_answer(world: World) -> None:
    """In the same segment as a good answer it belongs to the next step, and ends that at once."""

    def answer(connection: scripted.Connection, command: Command) -> None:
        connection.send(identify_answer() + b"\xff" * 40)

    with ScriptedNsqd([automatic(hooks={"IDENTIFY": answer, "SUB": nothing})]) as nsqd:
        error = failure(world, nsqd)
    assert isinstance(error, ProtocolError)
    assert "frame size -1" in str(error)


def test_answers_split_at_every_byte(world: World) -> None:
    def dripped(data: bytes) -> Hook:
        return lambda connection, command: scripted.drip(data, 0.0002)(connection)

    hooks = {
        "IDENTIFY": dripped(identify_answer(auth_required=True, max_rdy_count=77)),
        "AUTH": dripped(frame(RESPONSE, b'{"identity": "me", "permission_count": 1}')),
        "SUB": dripped(frame(RESPONSE, b"OK")),
    }
    with ScriptedNsqd([automatic(hooks=hooks)]) as nsqd:
        attempt, negotiated = run(world, nsqd, auth_secret="secret")
        assert negotiated.max_rdy_count == 77
        assert negotiated.auth is not None
        assert negotiated.auth["identity"] == "me"
        assert attempt.round_trip > 0
        assert [c.name for c in nsqd.commands] == ["IDENTIFY", "AUTH", "SUB"]


@pytest.mark.parametrize("together", [False, True], ids=["apart", "in one segment"])
def test_a_heartbeat_before_each_answer(world: World, together: bool) -> None:
    def late(data: bytes) -> Hook:
        def hook(connection: scripted.Connection, command: Command) -> None:
            if together:
                connection.send(HEARTBEAT + data)
                return
            connection.send(HEARTBEAT)
            # The client answers it while it waits for the other.
            assert connection.receive(10.0).name == "NOP"
            connection.send(data)

        return hook

    hooks = {
        "IDENTIFY": late(identify_answer(auth_required=True)),
        "AUTH": late(frame(RESPONSE, b'{"identity": "me"}')),
        "SUB": late(frame(RESPONSE, b"OK")),
    }
    with ScriptedNsqd([automatic(hooks=hooks)]) as nsqd:
        run(world, nsqd, auth_secret="secret")
        world.eventually(lambda: len(nsqd.commands) == 6)
        assert [c.name for c in nsqd.commands if c.name != "NOP"] == ["IDENTIFY", "AUTH", "SUB"]
        assert len(nsqd.received("NOP")) == 3


@pytest.mark.parametrize(
    ("option", "encode"),
    [
        ("snappy", lambda data: snappy.StreamCompressor().add_chunk(data)),
        ("deflate", deflated),
    ],
)
@pytest.mark.parametrize("cut", [None, 1, 5])
def test_the_next_layers_ok_in_the_segment_of_the_answer(
    world: World, option: str, encode: Callable[[bytes], bytes], cut: int | None
) -> None:
    """nsqd writes both without waiting (docs/protocol/handshake#upgrades); ``cut`` bytes come with
    the first."""

    def answer(connection: scripted.Connection, command: Command) -> None:
        layered = encode(frame(RESPONSE, b"OK"))
        connection.send(identify_answer(**{option: True}) + layered[:cut])
        if cut is not None:
            connection.owner.sleep(0.05)
            connection.send(layered[cut:])

    with ScriptedNsqd([automatic(hooks={"IDENTIFY": answer})]) as nsqd:
        _, negotiated = run(world, nsqd, subscribe=False, **{option: True})
    assert getattr(negotiated, option) is True


def test_bytes_behind_the_last_answer_are_kept(world: World) -> None:
    def answer(connection: scripted.Connection, command: Command) -> None:
        connection.send(frame(RESPONSE, b"OK") + HEARTBEAT)

    with ScriptedNsqd([automatic(hooks={"SUB": answer})]) as nsqd:
        attempt, _ = run(world, nsqd)
        world.eventually(lambda: nsqd.received("SUB"))
    assert list(attempt.replies) == [(RESPONSE, b"_heartbeat_")]


class Owner:
    """Notes what a connection tells."""

    def __init__(self) -> None:
        self.lost: list[Exception] = []

    def on_lost(self, connection: PublishingConnection, reason: Exception) -> None:
        self.lost.append(reason)


def connection_to(world: World, where: tuple[str, int], **options: Any) -> PublishingConnection:
    return PublishingConnection(
        Address(*where), ConnectionOptions(**options), choose(world.runtime), Owner()
    )


@pytest.mark.parametrize("name", [name for name in (*STEPS, *UPGRADES) if name != "sub"])
def test_close_ends_a_handshake_at_once(world: World, name: str) -> None:
    asked = threading.Event()
    _, script, options = step_of(name, lambda connection, command: asked.set())
    with ScriptedNsqd([script]) as nsqd:
        connection = connection_to(world, nsqd.address, connect_timeout=60, **options)
        task = world.spawn(connection.open)
        world.eventually(asked.is_set)
        world.sleep(0.02)
        assert not task.done
        connection.close()
        with pytest.raises(ConnectionLost):
            task.join(SLACK)


def test_close_before_the_dial(world: World) -> None:
    connection = connection_to(world, ("127.0.0.1", 1))
    connection.close()
    with pytest.raises(ClosedError, match=r"closed before 127\.0\.0\.1:1 was dialled"):
        connection.open()


def test_a_dial_that_hangs(world: World) -> None:
    with black_hole() as where:
        connection = connection_to(world, where, connect_timeout=0.2)
        started = connection._runtime.now()
        with pytest.raises(ConnectionLost, match=f"no connection to .*{where[1]} within 0.2 s"):
            connection.open()
        assert connection._runtime.now() - started < SLACK


def test_close_while_a_dial_is_under_way(world: World) -> None:
    """The stream that comes out of the dial is of no use any more: no handshake is tried."""
    with ScriptedNsqd() as nsqd:
        connection = connection_to(world, nsqd.address)
        runtime = connection._runtime
        plain = runtime.connect

        def close_and_connect(*args: Any) -> Any:
            connection.close()
            return plain(*args)

        runtime.connect = close_and_connect  # type: ignore[method-assign]
        with pytest.raises(ConnectionLost):
            connection.open()
    assert nsqd.commands == []


def test_nobody_listens(world: World) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        connection = connection_to(world, unused.getsockname())
        with pytest.raises(ConnectionLost, match=r"cannot connect to .*refused"):
            connection.open()
