"""IDENTIFY: the JSON body by Go's rules, the ranges of its fields, and nsqd's answer.

The rules are in docs/protocol/handshake#identify-body and docs/protocol/handshake#identify-answer.
No I/O. Knows no other command.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gnsqsync.daemon.gojson import read_object
from gnsqsync.embedded.options import NsqdOptions

__all__ = ["Fatal", "Identification", "Settings", "negotiate"]

NSQ_VERSION = "1.3.0"
DEFAULT_HEARTBEAT = 30.0


class Fatal(Exception):
    """An error frame after which nsqd closes the connection; ``frame`` is its data."""

    def __init__(self, code: bytes, text: bytes) -> None:
        super().__init__(code, text)
        self.frame: bytes = code + b" " + text


_FIELDS = {
    "client_id": str,
    "hostname": str,
    "user_agent": str,
    "feature_negotiation": bool,
    "tls_v1": bool,
    "deflate": bool,
    "snappy": bool,
    "heartbeat_interval": int,
    "output_buffer_size": int,
    "output_buffer_timeout": int,
    "sample_rate": int,
    "deflate_level": int,
    "msg_timeout": int,
}


class Identification(NamedTuple):
    """The fields of an IDENTIFY body as the client sent them; absent ones are Go's zero."""

    client_id: str = ""
    hostname: str = ""
    user_agent: str = ""
    feature_negotiation: bool = False
    tls_v1: bool = False
    deflate: bool = False
    snappy: bool = False
    heartbeat_interval: int = 0
    output_buffer_size: int = 0
    output_buffer_timeout: int = 0
    sample_rate: int = 0
    deflate_level: int = 0
    msg_timeout: int = 0

    @classmethod
    def decode(cls, body: bytes) -> Identification:
        """Decode ``body``. Fatal if Go's decoder would refuse it."""
        try:
            found = cls(**read_object(body, _FIELDS))
            if not -(2**31) <= found.sample_rate < 2**31:
                raise ValueError("sample_rate is an int32")
        except ValueError:
            raise Fatal(b"E_BAD_BODY", b"IDENTIFY failed to decode JSON body") from None
        return found


class Settings:
    """The settings of a connection: defaults, or values of IDENTIFY. Seconds and bytes."""

    __slots__ = (
        "client_id",
        "heartbeat_interval",
        "hostname",
        "msg_timeout",
        "output_buffer_size",
        "output_buffer_timeout",
        "sample_rate",
        "user_agent",
    )

    def __init__(
        self, client_id: str, hostname: str, msg_timeout: float, output_buffer_timeout: float
    ) -> None:
        self.client_id: str = client_id
        self.hostname: str = hostname
        self.msg_timeout: float = msg_timeout
        self.output_buffer_timeout: float = output_buffer_timeout
        self.user_agent: str = ""
        # Seconds; 0 means no heartbeats.
        self.heartbeat_interval: float = DEFAULT_HEARTBEAT
        self.output_buffer_size: int = 16384
        self.sample_rate: int = 0

    def apply(self, asked: Identification, options: NsqdOptions) -> None:
        """Apply the values of IDENTIFY. Fatal for the first value out of range."""
        self.client_id = asked.client_id
        self.hostname = asked.hostname
        self.user_agent = asked.user_agent

        interval = asked.heartbeat_interval
        if interval == -1:
            self.heartbeat_interval = 0.0
        elif 1000 <= interval <= options.max_heartbeat_interval * 1000:
            self.heartbeat_interval = interval / 1000
        elif interval != 0:
            raise _invalid(b"heartbeat interval", interval)

        timeout = asked.output_buffer_timeout
        low, high = options.min_output_buffer_timeout, options.max_output_buffer_timeout
        if timeout == -1:
            self.output_buffer_timeout = 0.0
        elif timeout != 0:
            if not low * 1000 <= timeout <= high * 1000:
                raise _invalid(b"output buffer timeout", timeout)
            self.output_buffer_timeout = timeout / 1000

        size = asked.output_buffer_size
        if size == -1:
            self.output_buffer_size = 1
            self.output_buffer_timeout = 0.0
        elif 64 <= size <= options.max_output_buffer_size:
            self.output_buffer_size = size
        elif size != 0:
            raise _invalid(b"output buffer size", size)

        if not 0 <= asked.sample_rate <= 99:
            raise _invalid(b"sample rate", asked.sample_rate)
        self.sample_rate = asked.sample_rate

        timeout = asked.msg_timeout
        if 1000 <= timeout <= options.max_msg_timeout * 1000:
            self.msg_timeout = timeout / 1000
        elif timeout != 0:
            raise _invalid(b"msg timeout", timeout)


def _invalid(what: bytes, value: int) -> Fatal:
    return Fatal(b"E_BAD_BODY", b"IDENTIFY %s (%d) is invalid" % (what, value))


def negotiate(
    asked: Identification, settings: Settings, options: NsqdOptions, *, has_tls: bool
) -> dict[str, Any]:
    """Return the answer, 13 keys in nsqd's order. Fatal for deflate together with snappy."""
    deflate = options.deflate and asked.deflate
    snappy = options.snappy and asked.snappy
    if deflate and snappy:
        raise Fatal(b"E_IDENTIFY_FAILED", b"cannot enable both deflate and snappy compression")
    level = asked.deflate_level if deflate and asked.deflate_level > 0 else 6
    return {
        "max_rdy_count": options.max_rdy_count,
        "version": NSQ_VERSION,
        "max_msg_timeout": round(options.max_msg_timeout * 1000),
        "msg_timeout": round(settings.msg_timeout * 1000),
        "tls_v1": has_tls and asked.tls_v1,
        "deflate": deflate,
        "deflate_level": min(level, options.max_deflate_level),
        "max_deflate_level": options.max_deflate_level,
        "snappy": snappy,
        "sample_rate": settings.sample_rate,
        "auth_required": bool(options.auth_http_address),
        "output_buffer_size": settings.output_buffer_size,
        "output_buffer_timeout": round(settings.output_buffer_timeout * 1000),
    }
