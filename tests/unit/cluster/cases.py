"""Snapshots of clusters, made of a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gnsqsync.cluster.sight import Lookupd, Nsqd, Snapshot, Trial
from gnsqsync.http.lookupd_types import Node
from gnsqsync.http.nsqd_types import NsqdInfo, Stats

LOOKUPD = "http://10.0.0.1:4161"
SECOND = 1_000_000_000

Entry = dict[str, Any]


def consumer(rdy: int = 1, **values: Any) -> Entry:
    """Return a client in /stats."""
    given = {"hostname": "w1", "user_agent": "gnsqsync/1.0", "remote_address": "10.0.0.9:50000"}
    return {**given, "ready_count": rdy, **values}


def channel(*clients: Entry, name: str = "c", **values: Any) -> Entry:
    """Return a channel in /stats."""
    return {"channel_name": name, "clients": list(clients), "message_count": 100, **values}


def topic(*channels: Entry, name: str = "t", **values: Any) -> Entry:
    """Return a topic in /stats."""
    return {"topic_name": name, "channels": list(channels), "message_count": 100, **values}


def stats(topics: Sequence[Entry]) -> Stats:
    return Stats.parse({"version": "1.3.0", "health": "OK", "topics": list(topics)})


def node(host: str = "n1", **values: Any) -> Node:
    """Return the entry of an nsqd at an nsqlookupd, which lists the topic ``t``."""
    given = {"hostname": host, "broadcast_address": host, "tcp_port": 4150, "http_port": 4151}
    more = {"remote_address": "10.0.0.2:6000", "topics": ["t"], "tombstones": [False]}
    return Node.parse({**given, **more, **values})


def nsqd(*topics: Entry, before: Sequence[Entry] | None = None, **values: Any) -> Nsqd:
    """Return an nsqd in good order, registered at LOOKUPD. ``before``: as ``topics`` by default."""
    host: str = values.pop("host", "n1")
    known: dict[str, Any] = {
        "name": f"{host}:4150",
        "asked": f"{host}:4151",
        "info": NsqdInfo.parse({"version": "1.3.0", "broadcast_address": host, "tcp_port": 4150}),
        "before": stats(topics if before is None else before),
        "after": stats(topics),
        "limits": {"mem_queue_size": 10000, "msg_timeout": 60 * SECOND},
        "listed": {LOOKUPD: node(host)},
        "tcp": Trial(f"{host}:4150"),
        "http": Trial(f"{host}:4151"),
        "ahead": 0.2,
    }
    return Nsqd(**{**known, **values})


def lookupd(*nodes: Node, address: str = LOOKUPD, **values: Any) -> Lookupd:
    return Lookupd(address, **{"nodes": nodes, "version": "1.3.0", "ahead": 0.1, **values})


def cluster(*nsqds: Nsqd, lookupds: Sequence[Lookupd] | None = None, **values: Any) -> Snapshot:
    """Return a snapshot of nsqds and, by default, of an nsqlookupd that lists them."""
    if lookupds is None:
        lookupds = [lookupd(*(one.listed[LOOKUPD] for one in nsqds if LOOKUPD in one.listed))]
    return Snapshot(nsqds, tuple(lookupds), **{"seconds": 2.0, **values})
