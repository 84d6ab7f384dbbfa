"""The check that no test leaves a thread, greenlet, socket or child process behind.

Knows how to list them. The owners of things that the whole session shares tell them apart.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.waiting import LIMIT

# Seconds for daemons that were told to stop, and for children that were killed.
GRACE = LIMIT
# Seconds after which the garbage of a test is collected, if something is left.
_UNCOLLECTED = 0.1

_greenlets: weakref.WeakSet[Any] = weakref.WeakSet()
_watching_greenlets = False


class Alive(NamedTuple):
    """The threads, greenlets, sockets and child processes at one moment."""

    threads: set[Any]
    greenlets: set[Any]
    sockets: set[str]
    children: set[int]

    def __sub__(self, other: Any) -> Alive:
        return Alive(*(mine - theirs for mine, theirs in zip(self, other, strict=True)))

    def __bool__(self) -> bool:
        return any(self[:])

    def texts(self) -> list[str]:
        return [
            *(f"thread {thread.name}" for thread in self.threads),
            *(f"greenlet {greenlet!r}" for greenlet in self.greenlets),
            *(f"socket {name}, {_ends(name)}" for name in self.sockets),
            *(f"child process {pid}: {_command(pid)}" for pid in self.children),
        ]


def alive() -> Alive:
    """Return the threads, greenlets, sockets and child processes of this process."""
    # A dummy thread stands for a native thread of gevent's pool that has logged a line.
    threads = {
        thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)
    }
    return Alive(threads, _live_greenlets(), _sockets(), _children())


def _live_greenlets() -> set[Any]:
    global _watching_greenlets
    if "gevent" not in sys.modules:
        return set()
    from gevent import Greenlet

    if not _watching_greenlets:
        # The test that loads gevent may have started greenlets before the watch began.
        _watching_greenlets = True
        Greenlet.add_spawn_callback(_greenlets.add)
        # isinstance would evaluate lazy objects, such as Django's settings.
        _greenlets.update(thing for thing in gc.get_objects() if issubclass(type(thing), Greenlet))
    return {greenlet for greenlet in _greenlets if greenlet.started and not greenlet.ready()}


def descriptors() -> dict[str, str]:
    """Return the open files of this process by descriptor."""
    names = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            names[number] = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # This is the descriptor of the listing itself.
    return names


def _sockets() -> set[str]:
    return {f"{n} {name}" for n, name in descriptors().items() if name.startswith("socket:")}


def _ends(name: str) -> str:
    """Return both addresses of a socket, for the one who looks for its owner."""
    try:
        with socket.socket(fileno=os.dup(int(name.split()[0]))) as sock:
            return f"{sock.getsockname()} to {sock.getpeername()}"
    except OSError as error:
        return f"without two ends: {error}"


def _children() -> set[int]:
    pids: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        try:
            pids.update(map(int, (task / "children").read_text().split()))
        except OSError:
            continue  # The thread has ended.
    return pids


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return "gone"
    return words.replace(b"\0", b" ").decode(errors="replace").strip() or "ended, not waited for"


# Functions that return the part of the leftovers that outlives a test on purpose.
keepers: list[Callable[[Alive], Alive]] = []


def _unkept(left: Alive) -> Alive:
    for kept in keepers:
        left = left - kept(left)
    return left


def _pause() -> None:
    """Sleep 10 ms, in which the greenlets of this thread run, too."""
    if "gevent" in sys.modules:
        import gevent
        from gevent._hub_local import get_hub_if_exists

        if get_hub_if_exists() is not None:
            gevent.sleep(0.01)
            return
    time.sleep(0.01)


def _shared(request: pytest.FixtureRequest) -> Alive:
    """Return the things that this test was the first to ask for, and that the session keeps."""
    children: set[int] = set()
    if "server_pool" in request.fixturenames:
        pool = request.getfixturevalue("server_pool")
        children = {s.process.pid for s in pool._servers.values() if s.process is not None}
    return Alive(set(), set(), set(), children)


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves a thread, greenlet, socket or child process behind."""
    if "waiting_rows" in request.fixturenames:
        # Rows of the conformance suite wait side by side, with sockets and servers of their own.
        # They test servers, and run no code of the client.
        yield
        return
    before = alive()
    yield
    began = time.monotonic()
    is_collected = False
    while left := _unkept(alive() - before - _shared(request)):
        waited = time.monotonic() - began
        if waited > GRACE:
            pytest.fail("left behind: " + ", ".join(left.texts()), pytrace=False)
        if waited > _UNCOLLECTED and not is_collected:
            # requests leaves some connections to the garbage collector, which comes at any time. A
            # socket of ours that waits for it is a ResourceWarning, which fails the test.
            gc.collect()
            is_collected = True
        _pause()
