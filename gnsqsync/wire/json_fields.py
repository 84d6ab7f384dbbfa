"""Typed values from a server's JSON: a value of the right type, a default, or ProtocolError.

Must not know NSQ. A missing value and null are alike: counters read as 0 and lists as empty, so
that older and newer servers are understood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar, cast

from gnsqsync.errors import ConfigError, ProtocolError

T = TypeVar("T")
S = TypeVar("S", str, int, bool)
Entry = Mapping[str, Any]
# Characters of an error text that go into logs. The text quotes an entry, which may be long.
_MAX_WORDS = 200
# Upper bound of entries of a list that may be left out. A longer list is not from NSQ.
_MOST_WRONG = 1000
# Absolute value that no 64 bit integer has.
_TOO_LARGE = 2**64
# Keys whose value names an entry in the log.
_NAMES = ("topic_name", "channel_name", "client_id")
# Words for the type of a value in error texts.
_EXPECTED: Final[dict[type, str]] = {str: "a string", int: "an integer", bool: "true or false"}
# Defaults by the annotation of a field, which is text if annotations are not evaluated.
_DEFAULTS: Final[dict[Any, Any]] = {"str": "", "int": 0, "bool": False}


def mapping(value: object, what: str) -> Entry:
    if not isinstance(value, dict):
        raise ProtocolError(f"{what} is {_kind(value)} where a JSON object was expected")
    return value


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def scalar(entry: Entry, key: str, default: S) -> S:
    """Return a value of the type of ``default``, which also stands in for a missing value."""
    value: S | None = entry.get(key)
    if value is None:
        return default
    if type(value) is not type(default):
        raise ProtocolError(
            f"{key!r} is {value!r:.60} where {_EXPECTED[type(default)]} was expected"
        )
    if type(value) is int and not -_TOO_LARGE < value < _TOO_LARGE:
        raise ProtocolError(f"{key!r} is {value!r:.60} where an integer of 64 bits was expected")
    if type(value) is str and not value.isascii():
        _check_characters(key, value)
    return value


def _check_characters(key: str, text: str) -> None:
    """Raise ProtocolError for half a pair of surrogates, which no page or terminal can show."""
    try:
        text.encode()
    except UnicodeEncodeError:
        shown = f"{text!r:.60}"
        raise ProtocolError(f"{key!r} is {shown} where whole characters were expected") from None


def integer(entry: Entry, key: str) -> int:
    return scalar(entry, key, 0)


def read(cls: type[T], entry: Entry, **given: Any) -> T:
    """Return a dataclass object. Its str, int and bool fields are read from the keys of their
    names; ``given`` has the other fields, and those that are read in another way."""
    for field in fields(cast("Any", cls)):
        if field.name not in given:
            given[field.name] = scalar(entry, field.name, _DEFAULTS[field.type])
    return cls(**given)


def number(entry: Entry, key: str) -> float:
    value = entry.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ProtocolError(f"{key!r} is {value!r:.60} where a number was expected")
    try:
        return float(value)
    except OverflowError:
        raise ProtocolError(f"{key!r} is too large for a number") from None


def items(entry: Entry, key: str) -> list[Any]:
    value = entry.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ProtocolError(f"{key!r} is {_kind(value)} where a list was expected")
    return value


def objects(entry: Entry, key: str, parse: Callable[[Entry], T]) -> tuple[T, ...]:
    return tuple(parse(mapping(item, f"an entry of {key!r}")) for item in items(entry, key))


def sound(
    entry: Entry, key: str, parse: Callable[[Entry], T], skipped: Callable[[str], None] | None
) -> tuple[T, ...]:
    """Return the objects of a list that ``parse`` accepts. Call ``skipped`` for each other one.

    Raises ProtocolError if ``parse`` accepts none, or if ``skipped`` is None and one is wrong.
    """
    if skipped is None:
        return objects(entry, key, parse)
    wrong: list[str] = []
    found = each_valid(
        entry, key, lambda item: parse(mapping(item, f"an entry of {key!r}")), wrong.append
    )
    if wrong and not found:
        return objects(entry, key, parse)
    for text in wrong:
        skipped(text)
    return found


def port(entry: Entry, key: str) -> int:
    value = integer(entry, key)
    if not 0 < value < 65536:
        raise ProtocolError(f"{key!r} is {value!r:.60}; a port is 1 to 65535")
    return value


def _called(item: Any) -> str:
    """Return the name of an entry in a sentence about it."""
    for key in _NAMES if isinstance(item, dict) else ():
        if isinstance(item.get(key), str):
            return f"the entry {item[key]!r:.80}"
    return "an entry"


def each_valid(
    entry: Entry, key: str, parse: Callable[[Any], T], skipped: Callable[[str], None]
) -> tuple[T, ...]:
    """Return the entries of a list that ``parse`` accepts. Call ``skipped`` for each other one.

    A single nsqd that registered nonsense must not hide the others from a consumer.
    """
    found = []
    wrong = 0
    for item in items(entry, key):
        try:
            found.append(parse(item))
        except (ProtocolError, ConfigError) as error:
            wrong += 1
            if wrong > _MOST_WRONG:
                # A sentence for each would take more memory than the answer.
                raise ProtocolError(
                    f"more than {_MOST_WRONG} entries of {key!r} cannot be read"
                ) from None
            skipped(f"{_called(item)} of {key!r} is left out: {str(error)[:_MAX_WORDS]}")
    return tuple(found)
