"""Typed values out of parsed JSON: the right type, a default for what is missing, or ProtocolError.

Knows nothing of NSQ. Missing and null are alike: counters read as 0, lists as empty, so that
older and newer servers are understood.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gnsqsync.errors import ConfigError, ProtocolError

T = TypeVar("T")
Entry = Mapping[str, Any]
# As much of what is wrong with an entry as goes into logs: it quotes the entry, however long.
_MAX_WORDS = 200


def mapping(value: object, what: str) -> Entry:
    if not isinstance(value, dict):
        raise ProtocolError(f"{what} is {_kind(value)} where a JSON object was expected")
    return value


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def integer(entry: Entry, key: str, default: int = 0) -> int:
    value = entry.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise ProtocolError(f"{key!r} is {value!r:.60} where an integer was expected")
    return value


def number(entry: Entry, key: str) -> float:
    value = entry.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ProtocolError(f"{key!r} is {value!r:.60} where a number was expected")
    try:
        return float(value)
    except OverflowError:
        raise ProtocolError(f"{key!r} is too large for a number") from None


def string(entry: Entry, key: str) -> str:
    value = entry.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ProtocolError(f"{key!r} is {value!r:.60} where a string was expected")
    return value


def boolean(entry: Entry, key: str) -> bool:
    value = entry.get(key)
    if value is None:
        return False
    if not isinstance(value, bool):
        raise ProtocolError(f"{key!r} is {value!r:.60} where true or false was expected")
    return value


def items(entry: Entry, key: str) -> list[Any]:
    value = entry.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ProtocolError(f"{key!r} is {_kind(value)} where a list was expected")
    return value


def objects(entry: Entry, key: str, parse: Callable[[Entry], T]) -> tuple[T, ...]:
    return tuple(parse(mapping(item, f"an entry of {key!r}")) for item in items(entry, key))


def port(entry: Entry, key: str) -> int:
    value = integer(entry, key)
    if not 0 < value < 65536:
        raise ProtocolError(f"{key!r} is {value!r:.60}; a port is 1 to 65535")
    return value


def each_valid(
    entry: Entry, key: str, parse: Callable[[Any], T], skipped: Callable[[str], None]
) -> tuple[T, ...]:
    """The entries of a list that ``parse`` accepts; ``skipped`` is told of each other one.

    One nsqd that registered nonsense must not hide the others from a consumer.
    """
    found = []
    for item in items(entry, key):
        try:
            found.append(parse(item))
        except (ProtocolError, ConfigError) as error:
            skipped(f"an entry of {key!r} is left out: {str(error)[:_MAX_WORDS]}")
    return tuple(found)
