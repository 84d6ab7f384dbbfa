"""Values of options in the form of the Go tools: durations, and options of go-nsq's consumer."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click

from gnsqsync.daemon.goflag import BadValue, parse_bool, parse_duration, parse_int


class Duration(click.FloatRange):
    """A type of click for seconds: a Go duration such as 1m30s, or a bare number."""

    name = "duration"

    def __init__(self, *, zero: bool) -> None:
        super().__init__(0, min_open=not zero)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = f"{value}s" if re.fullmatch(r"[0-9]+(\.[0-9]+)?", value) else value
        try:
            seconds = parse_duration(text)
        except BadValue:
            self.fail(f"{value!r} is not a duration such as 30s, 5m or 1h30m", param, ctx)
        return super().convert(seconds, param, ctx)


# go-nsq's name of a consumer's option -> the Reader's keyword, and the parser of the value.
_CONSUMER_OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "auth_secret": ("auth_secret", str),
    "client_id": ("client_id", str),
    "deflate": ("deflate", parse_bool),
    "deflate_level": ("deflate_level", parse_int),
    "dial_timeout": ("connect_timeout", parse_duration),
    "heartbeat_interval": ("heartbeat_interval", parse_duration),
    "hostname": ("hostname", str),
    "lookupd_poll_interval": ("lookupd_poll_interval", parse_duration),
    "low_rdy_idle_timeout": ("low_rdy_idle_timeout", parse_duration),
    "low_rdy_timeout": ("low_rdy_timeout", parse_duration),
    "msg_timeout": ("msg_timeout", parse_duration),
    "output_buffer_size": ("output_buffer_size", parse_int),
    "output_buffer_timeout": ("output_buffer_timeout", parse_duration),
    "rdy_redistribute_interval": ("rdy_redistribute_interval", parse_duration),
    "sample_rate": ("sample_rate", parse_int),
    "snappy": ("snappy", parse_bool),
    "tls_cert": ("tls_cert_file", str),
    "tls_insecure_skip_verify": ("tls_verify", lambda text: not parse_bool(text)),
    "tls_key": ("tls_key_file", str),
    "tls_root_ca_file": ("tls_ca_file", str),
    "tls_v1": ("tls", parse_bool),
    "user_agent": ("user_agent", str),
}


def consumer_options(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    """Return keywords of a Reader for go-nsq's ``name,value`` options; a callback of click."""
    found = {}
    for text in values:
        name, _, value = text.partition(",")
        known = _CONSUMER_OPTIONS.get(name.replace("-", "_"))
        if known is None:
            raise click.BadParameter(
                f"{name!r} is not known; there are {', '.join(_CONSUMER_OPTIONS)}"
            )
        keyword, read = known
        try:
            found[keyword] = read(value or "true")
        except BadValue:
            raise click.BadParameter(f"{text!r}: {value!r} cannot be read") from None
    return found
