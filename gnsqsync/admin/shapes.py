"""Nodes, topics, channels and clients with the keys of nsqadmin's answers, in their order.

Knows the parsed JSON answers of nsqd and nsqlookupd. Does not know requests or sums.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from gnsqsync.admin.turns import in_turns
from gnsqsync.admin.upstream import Failed
from gnsqsync.cluster.totals import COUNTS

__all__ = [
    "Shape",
    "channel",
    "each",
    "latency",
    "node",
    "numbers",
    "objects",
    "strings",
    "topic",
    "value",
    "version",
]

Shape = dict[str, Any]

_T = TypeVar("_T")

_VERSION = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?"
)

# Lower bound of numbers that are refused: Go has no larger integers. Sums may be larger.
_TOO_LARGE = 2**64
# Upper bound of a version's characters, because int() refuses thousands of digits.
_LONGEST_VERSION = 100

_NODE = {"hostname": str, "broadcast_address": str, "tcp_port": int, "http_port": int}
# Upper bound of left-out entries of a list. More sentences would take more memory than the answer.
_MOST_WRONG = 1000
# Keys whose value is the name of an entry in sentences.
_NAMES = ("topic_name", "channel_name", "hostname", "client_id")
_CLIENT = {
    "in_flight_count": int,
    "ready_count": int,
    "finish_count": int,
    "requeue_count": int,
    "message_count": int,
    "sample_rate": int,
    "deflate": bool,
    "snappy": bool,
    "authed": bool,
    "auth_identity": str,
    "auth_identity_url": str,
    "tls": bool,
    "tls_cipher_suite": str,
    "tls_version": str,
    "tls_negotiated_protocol": str,
    "tls_negotiated_protocol_is_mutual": bool,
}


def value(entry: Shape, key: str, kind: type) -> Any:
    """Return a value of type ``kind``; if missing or null, "", 0, False or []. Raises Failed."""
    found = entry.get(key)
    if found is None:
        return kind()
    # isinstance would take a bool for an int.
    if type(found) is not kind:
        raise Failed(f"'{key}' is a {type(found).__name__}, not a {kind.__name__}")
    if isinstance(found, int) and abs(found) >= _TOO_LARGE:
        raise Failed(f"'{key}' is too large")
    return found


def numbers(entry: Shape, keys: Iterable[str]) -> list[int]:
    """Return the integers of these keys by the rules of ``value``, faster for many entries."""
    found: list[int] = []
    for key in keys:
        number: Any = entry.get(key)
        is_right = type(number) is int and -_TOO_LARGE < number < _TOO_LARGE
        found.append(number if is_right else value(entry, key, int))
    return found


def strings(entry: Shape, key: str, left_out: Callable[[str], object]) -> dict[int, str]:
    """Return the strings of a list by their places in it; {} if the list is missing.

    ``left_out`` gets a sentence for each other entry. Raise Failed if nothing is left.
    """
    items = value(entry, key, list)
    found = {place: item for place, item in enumerate(items) if type(item) is str}
    if items and not found:
        raise Failed(f"'{key}' has entries that are not strings")
    if len(items) - len(found) > _MOST_WRONG:
        raise Failed(f"more than {_MOST_WRONG} entries of '{key}' are not strings")
    for place, item in enumerate(items):
        if place not in found:
            left_out(f"entry {place} of '{key}' is left out: it is a {type(item).__name__}")
    return found


def objects(entry: Shape, key: str) -> list[Shape]:
    """Return a list of objects, [] if it is missing. Raises Failed."""
    found = value(entry, key, list)
    if not all(isinstance(item, dict) for item in found):
        raise Failed(f"'{key}' has entries that are not objects")
    return list(found)


def each(
    entry: Shape, key: str, make: Callable[[Shape], _T], left_out: Callable[[str], object]
) -> list[_T]:
    """Call ``make`` with each object of a list, and return the results.

    If ``make`` raises Failed, the entry is left out, and ``left_out`` gets a sentence about it.
    Raise Failed if nothing is left.
    """
    made: list[_T] = []
    wrong: list[tuple[Any, Failed]] = []
    for item in in_turns(value(entry, key, list)):
        try:
            if type(item) is not dict:
                raise Failed(f"'{key}' has entries that are not objects")
            made.append(make(item))
        except Failed as error:
            if len(wrong) == _MOST_WRONG:
                raise Failed(f"more than {_MOST_WRONG} entries of '{key}' cannot be read") from None
            wrong.append((item, error.with_traceback(None)))
    if wrong and not made:
        raise wrong[0][1]
    for item, reason in wrong:
        left_out(f"{_called(item)} of '{key}' is left out: {reason}")
    return made


def _called(item: Any) -> str:
    """Return the name of an entry for a sentence about it."""
    for key in _NAMES if type(item) is dict else ():
        if isinstance(item.get(key), str):
            return f"the entry {item[key]!r:.80}"
    return "an entry"


def version(text: str) -> tuple[Any, ...]:
    """Return a semantic version as a tuple to compare; that of 0.0.0 for any other text."""
    match = _VERSION.fullmatch(text) if len(text) <= _LONGEST_VERSION else None
    if match is None:
        return (0, 0, 0, (1,))
    before = [(0, int(p), "") if p.isdigit() else (1, 0, p) for p in (match[4] or "").split(".")]
    return (int(match[1]), int(match[2]), int(match[3]), (0, before) if match[4] else (1,))


def node(entry: Shape, topics: list[Shape]) -> Shape:
    """Return an nsqd from nsqlookupd's /nodes or /lookup, or from its own /info."""
    return {
        "remote_addresses": None,
        "remote_address": value(entry, "remote_address", str),
        **{key: value(entry, key, kind) for key, kind in _NODE.items()},
        "version": value(entry, "version", str),
        "topics": topics or None,
        "out_of_date": False,
    }


def topic(
    entry: Shape, address: str, hostname: str, now: int, left_out: Callable[[str], object]
) -> Shape:
    """Return a topic of nsqd's /stats. ``now``: unix seconds, for the age of connections.

    ``left_out``: see ``each``.
    """
    depth, backend = value(entry, "depth", int), value(entry, "backend_depth", int)
    name = value(entry, "topic_name", str)
    channels = entry.get("channels")
    return {
        "node": address,
        "hostname": hostname,
        "topic_name": name,
        "depth": depth,
        "memory_depth": depth - backend,
        "backend_depth": backend,
        "message_count": value(entry, "message_count", int),
        "nodes": None,
        "channels": channels
        and each(
            entry,
            "channels",
            lambda item: channel(item, name, address, hostname, now, left_out),
            left_out,
        ),
        "paused": value(entry, "paused", bool),
        "e2e_processing_latency": latency(entry),
    }


def channel(
    entry: Shape,
    topic_name: str,
    address: str,
    hostname: str,
    now: int,
    left_out: Callable[[str], object],
) -> Shape:
    """Return a channel of nsqd's /stats."""
    depth, backend = value(entry, "depth", int), value(entry, "backend_depth", int)
    clients = None
    if entry.get("clients") is not None:
        clients = each(entry, "clients", lambda item: _client(item, address, now), left_out)
    return {
        "node": address,
        "hostname": hostname,
        "topic_name": topic_name,
        "channel_name": value(entry, "channel_name", str),
        "depth": depth,
        "memory_depth": depth - backend,
        "backend_depth": backend,
        **{key: value(entry, key, int) for key in COUNTS[1:]},
        "nodes": None,
        "clients": clients,
        "paused": value(entry, "paused", bool),
        "e2e_processing_latency": latency(entry),
    }


def _client(entry: Shape, address: str, now: int) -> Shape:
    since = value(entry, "connect_ts", int)
    names = ("remote_address", "version", "client_id", "hostname", "user_agent")
    return {
        "node": address,
        **{key: value(entry, key, str) for key in names},
        "connect_ts": since,
        "connected": (now - since) * 10**9,
        **{key: value(entry, key, kind) for key, kind in _CLIENT.items()},
    }


def latency(entry: Shape) -> Shape | None:
    """Return the end-to-end latency of a topic or channel on one nsqd, in ns; None if missing."""
    found = entry.get("e2e_processing_latency")
    if found is None:
        return None
    found = value(entry, "e2e_processing_latency", dict)
    count = value(found, "count", int)
    percentiles = None
    if found.get("percentiles") is not None:
        percentiles = [_percentile(item, count) for item in objects(found, "percentiles")]
    names = ("topic", "channel", "host")
    return {
        "count": count,
        "percentiles": percentiles,
        **{key: value(found, key, str) for key in names},
    }


def _percentile(entry: Shape, count: int) -> Shape:
    for key, number in entry.items():
        if type(number) not in (int, float):
            raise Failed(f"'{key}' of a percentile is a {type(number).__name__}, not a number")
        if type(number) is int and abs(number) >= _TOO_LARGE:
            raise Failed(f"'{key}' of a percentile is too large")
    own = entry.get("value", 0)
    return dict(sorted({**entry, "min": own, "max": own, "average": own, "count": count}.items()))
