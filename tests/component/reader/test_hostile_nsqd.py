"""An nsqd that sends what it was not allowed to, or does not read: memory and time stay bounded.

The client runs in a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from gnsqsync.connection.in_flight import MOST_BEYOND
from tests.component.conftest import address
from tests.support.interpreter import run_script
from tests.support.scripted import (
    RESPONSE,
    Connection,
    ScriptedNsqd,
    automatic,
    call,
    frame,
    message_frame,
)
from tests.support.worlds import World

pytestmark = [
    pytest.mark.reality("the client is a process of its own"),
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="the peak of memory is read from /proc"
    ),
]

MIB = 1024 * 1024
MAX_FRAME = 16 * MIB
# What the allocator and a busy machine add.
SLACK = 24 * MIB

CLIENT = """
import json, logging, os, pathlib, re, time
if WORLD == "patched":
    from gevent import monkey
    monkey.patch_all()
if WORLD == "gevent":
    from gevent import sleep
else:
    sleep = time.sleep
from gnsqsync import Observer, Reader, Writer

logging.getLogger("gnsqsync").addHandler(logging.NullHandler())

def memory(kind):
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(kind + r":\\s+(\\d+)", status)[1]) * 1024

class Losses(Observer):
    reasons = []
    def lost(self, nsqd_address, reason):
        self.reasons.append(f"{type(reason).__name__}: {reason}")

def stuck(message):
    sleep(3600)

def detached(message):
    message.detach()
    jobs.append(message)

jobs = []
runtime = None if WORLD == "patched" else WORLD
"""

END = """
began = memory("VmRSS")
thing = make()
deadline = time.monotonic() + 60
while CLOSES and not Losses.reasons and time.monotonic() < deadline:
    sleep(0.1)
# A greenlet that sleeps may get its turn late.
deadline = time.monotonic() + SECONDS
while time.monotonic() < deadline:
    sleep(0.1)
print(json.dumps([memory("VmHWM") - began, Losses.reasons]), flush=True)
# Handlers that are stuck would hold up an orderly end.
os._exit(0)
"""


def grown(
    world: World, nsqd: ScriptedNsqd, make: str, seconds: float = 1.0, closes: bool = False
) -> tuple[int, Any]:
    """What the client took in bytes, at most, and why it lost connections.

    ``make``: statements that make it and have it connect. ``closes``: wait for the first loss.
    """
    begin = f"WORLD, SECONDS, CLOSES = {world.name!r}, {seconds}, {closes}"
    begin += f"; ADDRESS = {address(nsqd)!r}"
    out = run_script(begin, CLIENT, f"def make():\n    {make}", END, timeout=90)
    memory, reasons = json.loads(out.splitlines()[-1])
    return memory, reasons


def reader(handler: str, max_in_flight: int) -> str:
    return (
        f"reader = Reader('t', 'ch', {handler}, nsqd_tcp_addresses=ADDRESS, runtime=runtime,"
        f" observer=Losses(), max_in_flight={max_in_flight}); reader.start(block=False);"
        " return reader"
    )


def flood(next_frames: Callable[[], bytes], until: str = "RDY") -> ScriptedNsqd:
    """An nsqd that sends these and reads nothing any more, on each connection."""

    def step(connection: Connection) -> None:
        while True:
            connection.send(next_frames())

    return ScriptedNsqd([automatic(until=until), call(step)])


def endless(size: int) -> Callable[[], bytes]:
    bodies = bytes(size)
    at_a_time = max(1, 65536 // (size + 34))
    return lambda: b"".join([message_frame(bodies) for _ in range(at_a_time)])


@pytest.mark.parametrize(
    ("size", "handler"),
    [(10, "stuck"), (100, "detached"), (500_000, "stuck"), (500_000, "None")],
)
def test_an_nsqd_that_ignores_rdy_is_closed_at_a_ceiling(
    world: World, size: int, handler: str
) -> None:
    make = reader(handler, 1)
    if handler == "None":
        make = make.replace("return reader", "lists = reader.batches(1, 0.1); return lists")
    with flood(endless(size)) as nsqd:
        memory, reasons = grown(world, nsqd, make, closes=True)
        # Closed, and dialled again after pauses that grow: 0.5 s, 1 s, 2 s, each moved by chance.
        assert 1 <= len(reasons) <= len(nsqd.connections) <= 4
    assert all(reason.startswith("ProtocolError") for reason in reasons), reasons
    assert "allowed 1 unanswered messages" in reasons[0]
    # What the guide says: RDY times the largest frame, and what may be on its way.
    limit = 1 * MAX_FRAME + MOST_BEYOND
    # What was detached is the user's, and is orphaned here; each connection may leave as much.
    copies = len(reasons) + 1 if handler == "detached" else 1
    assert memory < copies * limit + SLACK, f"{memory / MIB:.0f} MiB"


def test_one_id_again_and_again_takes_the_memory_of_one(world: World) -> None:
    body = bytes(500_000)
    with flood(lambda: message_frame(body, id=b"0123456789abcdef", attempts=2)) as nsqd:
        memory, reasons = grown(world, nsqd, reader("stuck", 1))
    assert reasons == []
    assert memory < SLACK, f"{memory / MIB:.0f} MiB"


@pytest.mark.parametrize(
    "make",
    [
        reader("stuck", 1),
        "writer = Writer(ADDRESS, runtime=runtime); writer.connect(); return writer",
    ],
    ids=["reader", "writer"],
)
def test_endless_heartbeats_grow_no_memory(world: World, make: str) -> None:
    heartbeats = frame(RESPONSE, b"_heartbeat_") * 4096
    until = "RDY" if "Reader" in make else "IDENTIFY"
    with flood(lambda: heartbeats, until) as nsqd:
        memory, _ = grown(world, nsqd, make)
    assert memory < 8 * MIB, f"{memory / MIB:.0f} MiB"
