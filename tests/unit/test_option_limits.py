"""Options of Reader, Writer and connections: docstring, signature, checks and commands agree.

A sentence of a docstring tells the range as ``0 to 3600`` or ``1 or more``; the first one counts.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any, NamedTuple

import click
import pytest

from gnsqsync import ConnectionOptions, Reader, Writer
from gnsqsync.cli.consume import consume
from gnsqsync.cli.pub import pub
from gnsqsync.errors import ConfigError
from gnsqsync.reader.options import FLOW_OPTIONS, ReaderOptions

_SENTENCE = re.compile(r"^    (\w+): (.+(?:\n        .*)*)", re.MULTILINE)
_RANGE = re.compile(r"([\d.,]*\d) (?:to ([\d.,]*\d)|or more)")
# Options that need another one beside them.
BESIDE: dict[str, dict[str, Any]] = {
    "max_deliveries": {"on_giving_up": "discard"},
    "max_age": {"on_expired": "discard"},
    "rate_burst": {"rate_limit": 1.0},
}
# Option -> "int" or "float", of all options that are numbers or None.
NUMBERS = {
    parameter.name: str(parameter.annotation).removesuffix(" | None")
    for owner in (Reader, Writer, ConnectionOptions)
    for parameter in inspect.signature(owner).parameters.values()
    if str(parameter.annotation).removesuffix(" | None") in ("int", "float")
}


class Limits(NamedTuple):
    """The least and the greatest value of an option; None without an upper bound."""

    low: float
    high: float | None


def told(owner: Any) -> dict[str, Limits]:
    """Return the options of the docstring that have a range."""
    found = {}
    for name, text in _SENTENCE.findall(inspect.getdoc(owner) or ""):
        match = _RANGE.search(" ".join(text.split()))
        if match and name in NUMBERS:
            low, high = (part and float(part.replace(",", "")) for part in match.groups())
            found[name] = Limits(low, high)
    return found


def reader(**options: Any) -> Reader:
    return Reader("t", "c", print, nsqd_tcp_addresses="h:1", **options)


def writer(**options: Any) -> Writer:
    return Writer(lookupd_http_addresses="h:1", **options)


OWNERS: dict[Any, Callable[..., object]] = {
    Reader: reader,
    Writer: writer,
    ConnectionOptions: ConnectionOptions,
}
TOLD = {
    f"{owner.__name__} {name}": (make, name, limits)
    for owner, make in OWNERS.items()
    for name, limits in told(owner).items()
}


@pytest.mark.parametrize("case", TOLD.values(), ids=TOLD)
def test_the_check_takes_the_range_that_the_docstring_tells(
    case: tuple[Callable[..., object], str, Limits],
) -> None:
    make, name, limits = case
    kind, step = (int, 1) if NUMBERS[name] == "int" else (float, 0.0005)
    beside = BESIDE.get(name, {})
    for bound, outward in zip(limits, (-step, step), strict=True):
        if bound is not None:
            make(**{name: kind(bound)}, **beside)
            with pytest.raises(ConfigError, match=f"^{name} is "):
                make(**{name: kind(bound) + outward}, **beside)


@pytest.mark.parametrize("owner", [ReaderOptions, ConnectionOptions])
def test_the_docstring_tells_each_range(owner: Any) -> None:
    documented = told(Reader if owner is ReaderOptions else owner)
    limited = {one.name for one in fields(owner) if "check" in one.metadata}
    assert limited
    assert limited <= documented.keys()


def test_the_signature_of_a_reader_has_the_defaults_of_its_options() -> None:
    signature = inspect.signature(Reader).parameters
    of_options = {one.name: one.default for one in fields(ReaderOptions)}
    assert {name: signature[name].default for name in FLOW_OPTIONS} == of_options


def test_a_reader_and_a_writer_have_equal_defaults() -> None:
    of_reader, of_writer = (inspect.signature(owner).parameters for owner in (Reader, Writer))
    shared = of_reader.keys() & of_writer.keys() - {"nsqd_tcp_addresses"}
    assert {"lookupd_poll_interval", "lookupd_poll_jitter", "headers"} <= shared
    for name in shared:
        assert of_reader[name].default == of_writer[name].default


def test_the_command_that_publishes_has_the_defaults_of_a_writer() -> None:
    signature = inspect.signature(Writer).parameters
    defaults = {option.name: option.default for option in pub.params}
    for name, option in (("timeout", "publish_timeout"), ("max_msg_size",) * 2, ("policy",) * 2):
        assert defaults[name] == signature[option].default


def test_the_command_line_has_the_defaults_and_ranges_of_a_reader() -> None:
    signature, documented = inspect.signature(Reader).parameters, told(Reader)
    compared = {option.name: option for option in consume.params if option.name in documented}
    assert set(compared) > {"max_attempts", "max_deliveries", "requeue_delay", "time_limit"}
    for name, option in compared.items():
        default = signature[str(name)].default
        assert isinstance(option, click.Option)
        if default is None:
            assert "[default: " in str(option.help)
        else:
            assert (option.default, option.show_default) == (default, True)
        if isinstance(option.type, click.IntRange):
            # The command refuses a consumer that takes no message.
            assert option.type.min == (documented[str(name)].low or int(name == "max_in_flight"))
