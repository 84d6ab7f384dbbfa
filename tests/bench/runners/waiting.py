"""The order and the log of a consumer whose messages' waits are measured; imports no client."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

GOOD, POISON, HALF = b"good", b"poison", b"half"


@dataclass
class Order:
    """A consumer with its client's defaults, but for the ``requeue_delay`` in seconds if given.

    ``log``: the file that gets a line for each call of the handler. ``switch``: the handler fails
    while this file exists. ``together``: one consumer of all topics, with one slot.
    """

    log: str
    topics: list[str]
    channel: str = "waits"
    nsqds: list[str] = field(default_factory=list)
    lookupds: list[str] = field(default_factory=list)
    switch: str = ""
    together: bool = False
    requeue_delay: float | None = None


class Failure(Exception):
    """The error of a handler that was told to fail."""


def handler_of(order: Order) -> Callable[[str, bytes, int], None]:
    """Return a function of topic, body and attempts that notes the call, and fails as ordered."""
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(topic: str, body: bytes, attempts: int) -> None:
        now = time.time_ns()
        nsqd, number, published, kind = body.split()
        fails = (
            kind == POISON
            or (kind == HALF and zlib.crc32(b"%s/%d" % (number, attempts)) & 1 == 1)
            or (order.switch != "" and os.path.exists(order.switch))
        )
        line = b"%d %s %s %s %s %s %d %d\n"
        shown = (now, topic.encode(), nsqd, number, published, kind, attempts, not fails)
        os.write(log, line % shown)
        if fails:
            raise Failure("the handler was told to fail")

    return handle


def main(run: Callable[[Order], Any]) -> None:
    """Start what ``run`` makes of the order, and run until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    run(Order(**json.loads(sys.argv[1])))
