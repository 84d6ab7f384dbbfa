"""The beginning of scripts that use Reader and Writer in a process of their own, in any world."""

from __future__ import annotations

from tests.support.servers import Server

WORLDS = ("threads", "gevent", "patched")


def prelude(world: str, server: Server, topic: str) -> str:
    """Return source with the imports of scripts, and variables for world, nsqd and topic."""
    lines = []
    if world == "patched":
        lines += ["import gevent.monkey", "gevent.monkey.patch_all()"]
    lines += [
        "import os, signal, sys, threading, time",
        "from gnsqsync import Reader, Requeue, Writer",
        "from gnsqsync.errors import ClosedError, ConfigError, NotSent, OutcomeUnknown",
        "from tests.support.forking import Child, Nsqd, in_child",
        "from tests.support.world import World",
        f"world = World({world!r})",
        "runtime = world.runtime",
        f"nsqd = Nsqd('http://%s:%d' % {server.http_address!r})",
        f"address = '%s:%d' % {server.tcp_address!r}",
        f"topic = {topic!r}",
        "me = topic + '-client'",
    ]
    return "\n".join(lines)
