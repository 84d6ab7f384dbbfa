"""Sums of topics and channels over several nsqds, by nsqadmin's rules.

Knows the shapes, and changes the totals that it is given. Does not know the servers.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Any

from gnsqsync.admin.shapes import Shape
from gnsqsync.cluster.totals import COUNTS

__all__ = ["add_channel", "add_topic", "new_channel", "new_topic"]

_TOPIC = ("depth", "memory_depth", "backend_depth", "message_count")
_CHANNEL = ("depth", "memory_depth", "backend_depth", *COUNTS[1:])
_by_host = itemgetter("hostname")


def new_topic(name: str) -> Shape:
    """Return a total to which no topic was added yet."""
    return {
        "node": "",
        "hostname": "",
        "topic_name": name,
        **dict.fromkeys(_TOPIC, 0),
        "nodes": None,
        "channels": None,
        "paused": False,
        "e2e_processing_latency": None,
    }


def new_channel(address: str, topic_name: str, name: str) -> Shape:
    """Return a total to which no channel was added yet. Until then it shows ``address``."""
    return {
        "node": address,
        "hostname": "",
        "topic_name": topic_name,
        "channel_name": name,
        **dict.fromkeys(_CHANNEL, 0),
        "nodes": None,
        "clients": None,
        "paused": False,
        "e2e_processing_latency": None,
    }


def add_topic(total: Shape, one: Shape) -> None:
    """Add one nsqd's topic to ``total``.

    A channel that is new to the total becomes part of it unchanged, and further ones are added to
    it. The real nsqadmin does the same.
    """
    _add(total, one, _TOPIC)
    for channel in one["channels"] or ():
        same = [c for c in total["channels"] or () if c["channel_name"] == channel["channel_name"]]
        for known in same:
            add_channel(known, channel)
        if not same:
            total["channels"] = [*(total["channels"] or ()), channel]


def add_channel(total: Shape, one: Shape) -> None:
    """Add one nsqd's channel to ``total``."""
    _add(total, one, _CHANNEL)
    clients = [*(total["clients"] or ()), *(one["clients"] or ())]
    total["clients"] = sorted(clients, key=_by_host) or None


def _add(total: Shape, one: Shape, keys: tuple[str, ...]) -> None:
    total["node"] = "*"
    for key in keys:
        total[key] += one[key]
    total["paused"] = total["paused"] or one["paused"]
    total["nodes"] = sorted([*(total["nodes"] or ()), one], key=_by_host)
    if total["e2e_processing_latency"] is None:
        total["e2e_processing_latency"] = {
            "count": 0,
            "percentiles": None,
            "topic": total["topic_name"],
            "channel": total.get("channel_name", ""),
            "host": "*",
        }
    if one["e2e_processing_latency"] is not None:
        _add_latency(total["e2e_processing_latency"], one["e2e_processing_latency"])


def _add_latency(total: Shape, one: Shape) -> None:
    total["host"] = "*"
    total["count"] += one["count"]
    for each in one["percentiles"] or ():
        quantile = each.get("quantile", 0)
        merged: dict[str, Any] | None = None
        for known in total["percentiles"] or ():
            if known.get("quantile", 0) == quantile:
                merged = known
                break
        if merged is None:
            merged = {"average": 0, "count": 0, "max": 0, "min": 0, "quantile": quantile}
            total["percentiles"] = [*(total["percentiles"] or ()), merged]
        merged["max"] = max(each["max"], merged["max"])
        # This is not the minimum. The real nsqadmin compares the added maximum, too.
        merged["min"] = min(each["max"], merged["max"])
        merged["count"] += each["count"]
        share = each["count"] / merged["count"] if merged["count"] else 0
        average = merged["average"] + (each["average"] - merged["average"]) * share
        merged["average"] = average if merged["count"] else 0
