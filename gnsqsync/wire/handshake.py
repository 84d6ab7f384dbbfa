"""Handshake of a connection, from the magic bytes to one that can publish or receive.

A generator of steps. Knows the order of IDENTIFY, TLS, compression, AUTH and SUB, and that a
required feature must be there. Must not know sockets or time: its driver sends, receives and
stacks the layers.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from gnsqsync.errors import NegotiationFailed, ProtocolError, server_error
from gnsqsync.options import ConnectionOptions
from gnsqsync.wire import commands
from gnsqsync.wire.frames import FRAME_ERROR, Reply
from gnsqsync.wire.json_fields import Entry, scalar

__all__ = ["Negotiated", "Receive", "Send", "Step", "Upgrade", "handshake"]

# Upper bound in bytes of an answer to IDENTIFY or AUTH. Real ones have a few hundred.
_MOST_JSON = 64 * 1024


@dataclass(frozen=True, slots=True)
class Send:
    """Send these bytes through all layers that are on."""

    data: bytes = field(repr=False)  # it may hold the AUTH secret


@dataclass(frozen=True, slots=True)
class Receive:
    """Read until there is a reply, and send it into the generator.

    ``answer_to`` names the command ("IDENTIFY"), for the text of a timeout.
    """

    answer_to: str


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Put this layer on top of the others, and give it the bytes that the decoder has left over.

    For ``"tls"`` this includes the TLS handshake. ``level`` is the compression level of our own
    direction, for ``"deflate"`` only.
    """

    kind: Literal["tls", "snappy", "deflate"]
    level: int = 0


# Flags of an nsqd that offers the feature behind a field of its answer.
_STARTED = {
    "tls_v1": "with --tls-cert and --tls-key",
    "snappy": "without --snappy=false",
    "deflate": "without --deflate=false",
}

Step: TypeAlias = Send | Receive | Upgrade


@dataclass(frozen=True, slots=True, kw_only=True)
class Negotiated:
    """Answer of nsqd to IDENTIFY and AUTH (docs/protocol/handshake#identify-answer and
    docs/protocol/handshake#auth).

    Durations are in seconds. ``auth`` is the answer to AUTH, or None if AUTH was not sent.
    ``auth_ignored``: True if there is a secret that nsqd did not ask for, so it was not sent.
    """

    version: str
    max_rdy_count: int
    msg_timeout: float
    max_msg_timeout: float
    # True if this layer is on: ``tls``, ``snappy``, ``deflate``.
    tls: bool
    snappy: bool
    deflate: bool
    deflate_level: int
    sample_rate: int
    # True if nsqd asks for AUTH.
    auth_required: bool
    output_buffer_size: int
    output_buffer_timeout: float
    auth: dict[str, Any] | None = None
    auth_ignored: bool = False


def handshake(
    options: ConnectionOptions,
    *,
    topic: str | None = None,
    channel: str | None = None,
    server: str = "an unknown address",
) -> Generator[Step, Reply | None, Negotiated]:
    """Yield the steps that open a connection with these options, with SUB if ``topic`` is given.

    The driver sends a reply into it after a Receive, and None after the other steps. ``server``
    (host:port) is for error texts. Heartbeats may be among the replies. An auth secret that is a
    callable is called here, so the driver must hold no lock.

    Raises NegotiationFailed if nsqd declines what the options require, always before AUTH and SUB;
    ServerError for an error frame; ProtocolError for an answer that makes no sense.
    """
    nsqd = f"nsqd at {server}"
    yield Send(commands.MAGIC_V2 + commands.identify(commands.identify_body(options)))
    # While TLS or compression may start, nsqd throws away what it read ahead, or takes it for bytes
    # of the next layer. So no heartbeat is answered until then; nsqd counts IDENTIFY as a sign of
    # life (docs/protocol/handshake#upgrades and docs/protocol/timeouts#heartbeats).
    wants_layers = options.uses_tls or options.snappy or options.deflate
    answer = yield from _receive("IDENTIFY", nsqd, answer_heartbeats=not wants_layers)
    negotiated = _read_identify_answer(answer, options, nsqd)
    _check_required(negotiated, options, nsqd)

    if negotiated.tls:
        yield Upgrade("tls")
        yield from _receive_ok("the TLS upgrade", nsqd, answer_heartbeats=False)
    if negotiated.snappy:
        yield Upgrade("snappy")
        yield from _receive_ok("the Snappy upgrade", nsqd, answer_heartbeats=False)
    if negotiated.deflate:
        # nsqd's maximum bounds our direction, too. A higher level would only cost CPU.
        yield Upgrade("deflate", min(options.deflate_level, negotiated.deflate_level))
        yield from _receive_ok("the DEFLATE upgrade", nsqd, answer_heartbeats=False)

    if negotiated.auth_required:
        secret = options.secret()
        if secret is None:
            raise _secret_missing(nsqd)
        yield Send(commands.auth(secret))
        answer = yield from _receive("AUTH", nsqd)
        negotiated = replace(negotiated, auth=_read_json(answer, "AUTH", nsqd))
    elif options.auth_secret is not None:
        negotiated = replace(negotiated, auth_ignored=True)

    if topic is not None:
        yield Send(commands.sub(topic, channel or ""))
        yield from _receive_ok("SUB", nsqd)
    return negotiated


def _receive(
    command: str, nsqd: str, answer_heartbeats: bool = True
) -> Generator[Step, Reply | None, bytes]:
    while True:
        reply = yield Receive(command)
        if reply is None:
            raise TypeError("send the reply into the generator after a Receive")
        kind, data = reply
        if kind == FRAME_ERROR:
            raise server_error(data)
        if data != b"_heartbeat_":
            return data
        if answer_heartbeats:
            yield Send(commands.NOP)


def _receive_ok(
    command: str, nsqd: str, answer_heartbeats: bool = True
) -> Generator[Step, Reply | None, None]:
    data = yield from _receive(command, nsqd, answer_heartbeats)
    if data != b"OK":
        raise ProtocolError(f"{nsqd} answered {_shown(data)} to {command}; OK was due")


def _read_identify_answer(data: bytes, options: ConnectionOptions, nsqd: str) -> Negotiated:
    if data == b"OK":
        raise NegotiationFailed(
            f"{nsqd} answers OK to IDENTIFY, without the features it has: it is an"
            " nsqd from before feature negotiation, or not an nsqd; a newer one is needed"
        )
    answer = _read_json(data, "IDENTIFY", nsqd)
    try:
        return Negotiated(
            version=scalar(answer, "version", ""),
            # An old nsqd may leave out a field; nsqd's default then stands in.
            max_rdy_count=_count(answer, "max_rdy_count", 2500),
            msg_timeout=_seconds(answer, "msg_timeout", options.msg_timeout or 60.0),
            max_msg_timeout=_seconds(answer, "max_msg_timeout", 900.0),
            tls=scalar(answer, "tls_v1", False),
            snappy=scalar(answer, "snappy", False),
            deflate=scalar(answer, "deflate", False),
            deflate_level=_count(answer, "deflate_level", 6),
            sample_rate=_count(answer, "sample_rate", 0),
            auth_required=scalar(answer, "auth_required", False),
            output_buffer_size=_count(answer, "output_buffer_size", 16384),
            output_buffer_timeout=_seconds(answer, "output_buffer_timeout", 0.25),
        )
    except ProtocolError as error:
        raise ProtocolError(f"{nsqd} answered IDENTIFY: {error}") from None


def _count(answer: Entry, key: str, default: int) -> int:
    value = scalar(answer, key, default)
    if not 0 <= value < 2**63:
        raise ProtocolError(f"{key!r} is {value!r:.60} where an integer, 0 or more, was expected")
    return value


def _seconds(answer: Entry, key: str, default: float) -> float:
    return _count(answer, key, round(default * 1000)) / 1000


def _check_required(negotiated: Negotiated, options: ConnectionOptions, nsqd: str) -> None:
    for key, name, wanted, given in (
        ("tls_v1", "TLS", options.uses_tls, negotiated.tls),
        ("snappy", "Snappy", options.snappy, negotiated.snappy),
        ("deflate", "DEFLATE", options.deflate, negotiated.deflate),
    ):
        if wanted and not given:
            raise NegotiationFailed(
                f"{nsqd} does not offer {name} ({key} false in its answer); start it"
                f" {_STARTED[key]}, or leave {name.lower()} off"
            )
        if given and not wanted:
            raise ProtocolError(f"{nsqd} switched {name} on ({key} true) without being asked")
    if negotiated.auth_required and options.auth_secret is None:
        raise _secret_missing(nsqd)


def _secret_missing(nsqd: str) -> NegotiationFailed:
    return NegotiationFailed(f"{nsqd} requires AUTH and there is no secret; set auth_secret")


def _read_json(data: bytes, command: str, nsqd: str) -> dict[str, Any]:
    try:
        # A frame may have megabytes, and parsed JSON takes even more memory.
        answer = json.loads(data.decode()) if len(data) <= _MOST_JSON else None
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ProtocolError(f"{nsqd} answered {_shown(data)} to {command}; a JSON object was due")
    return answer


def _shown(data: bytes) -> str:
    return repr(data) if len(data) <= 100 else f"{data[:100]!r}... ({len(data)} bytes)"
