"""The process in which histories run: its clocks, its chance and its HTTP belong to the simulation.

``install()`` comes before the first import of gnsqsync. ``enter()`` makes a scheduler and a network
the ones that count; a process enters once, since each history has a process of its own. A test is
``entered()``: it leaves the process as it was.
"""

from __future__ import annotations

import gc
import io
import os
import random
import sys
import threading
import time
from _thread import get_ident
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from tests.simulation import points

if TYPE_CHECKING:
    from tests.simulation.network import Network, SimSocket
    from tests.simulation.scheduler import Scheduler

__all__ = ["enter", "entered", "install", "real_monotonic", "restart_fixed"]

real_monotonic = time.monotonic
_real_wall = time.time
_real_current_thread = threading.current_thread
_real_sleep = time.sleep
_real_getpid = os.getpid
_Random = random.Random


class _World:
    scheduler: Scheduler | None = None
    network: Network | None = None
    # Of the process that runs the history; a fork has another one.
    pid = 0
    thread = 0
    # Where os.urandom and Random() without a seed get theirs.
    chance = _Random(0)


def restart_fixed() -> None:
    """Run this program anew with a fixed seed of hashes, when it has none."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        environment = {**os.environ, "PYTHONHASHSEED": "0", "TZ": "UTC"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    time.tzset()


def install(changes: Iterable[points.Change] = ()) -> None:
    assert "gnsqsync.runtime" not in sys.modules, "gnsqsync was imported before the simulation"
    time.monotonic = _monotonic
    time.perf_counter = _monotonic
    time.time = _wall
    time.time_ns = _wall_ns
    time.monotonic_ns = _monotonic_ns
    time.sleep = _no_sleep
    random.Random = _SeededRandom  # type: ignore[misc]
    os.urandom = lambda size: _World.chance.randbytes(size)
    os.getpid = lambda: 4242 if _real_getpid() == _World.pid else 4243
    points.install(changes)
    _install_http()


def enter(scheduler: Scheduler, network: Network, seed: str) -> None:
    _World.scheduler = scheduler
    points.use(scheduler.strikes, scheduler.interrupt)
    _World.network = network
    _World.pid = _real_getpid()
    _World.thread = get_ident()
    _World.chance = _Random(f"chance {seed}")
    random.seed(f"module {seed}")
    # Collected where the history says so.
    gc.disable()


@contextmanager
def entered(scheduler: Scheduler, network: Network, seed: str) -> Iterator[None]:
    """Let a scheduler and a network count inside, for the code of the calling thread.

    gnsqsync is imported already, so there are no points between its lines.
    """
    from gnsqsync.http import transport, user_session
    from gnsqsync.reader import timings

    state, collects = random.getstate(), gc.isenabled()
    with ExitStack() as changes:
        for name, function in (
            ("monotonic", _monotonic),
            ("perf_counter", _monotonic),
            ("time", _wall),
            ("time_ns", _wall_ns),
            ("monotonic_ns", _monotonic_ns),
            ("sleep", _sleep),
        ):
            changes.enter_context(patch.object(time, name, function))
        changes.enter_context(patch.object(threading, "current_thread", _current_thread))
        changes.enter_context(patch.object(timings, "time", _wall))
        changes.enter_context(patch.object(random, "Random", _SeededRandom))
        sim_call, has_something = _sim_http()
        for module in (transport, user_session):
            changes.enter_context(patch.object(module, "Call", sim_call))
        changes.enter_context(patch("urllib3.util.wait.wait_for_socket", has_something))
        enter(scheduler, network, seed)
        try:
            yield
        finally:
            _World.scheduler = _World.network = None
            random.setstate(state)
            if collects:
                gc.enable()


def _monotonic() -> float:
    scheduler = _World.scheduler
    return real_monotonic() if scheduler is None or _is_foreign() else scheduler.monotonic()


def _wall() -> float:
    scheduler = _World.scheduler
    return _real_wall() if scheduler is None or _is_foreign() else scheduler.wall()


def _is_foreign() -> bool:
    """Return True in a thread that is no part of the simulation, as one of pytest-xdist."""
    return get_ident() != _World.thread


def _monotonic_ns() -> int:
    return int(_monotonic() * 1e9)


def _wall_ns() -> int:
    return int(_wall() * 1e9)


def _current_thread() -> Any:
    """Name the task that runs, for log lines and for tests that ask who called."""
    thread = _real_current_thread()
    scheduler = _World.scheduler
    if scheduler is None or scheduler.current is None or _is_foreign():
        return thread
    name = scheduler.current.name
    return SimpleNamespace(name=name, ident=thread.ident, daemon=thread.daemon)


def _sleep(seconds: float) -> None:
    """Let virtual time pass."""
    scheduler = _World.scheduler
    if scheduler is None or _is_foreign():
        _real_sleep(seconds)
    else:
        scheduler.park("its time", scheduler.now + seconds)


def _no_sleep(seconds: float) -> None:
    raise AssertionError("somebody sleeps past the simulation")


class _SeededRandom(_Random):
    def __init__(self, x: Any = None) -> None:
        super().__init__(_World.chance.random() if x is None else x)


# -- HTTP -----------------------------------------------------------------------------------------


class _File(io.RawIOBase):
    """What a response reads from."""

    def __init__(self, sock: SimHTTPSocket) -> None:
        self._sock = sock

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._sock.recv_into(buffer)


class SimHTTPSocket:
    """What urllib3 and http.client ask of a socket."""

    def __init__(self, sock: SimSocket) -> None:
        self._sock = sock
        self._timeout: float | None = None

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def gettimeout(self) -> float | None:
        return self._timeout

    def setsockopt(self, *args: Any) -> None:
        """There is nothing to set."""

    def recv_into(self, buffer: Any) -> int:
        self._sock.set_read_timeout(self._timeout)
        data = self._sock.recv(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._sock.send(view) :]
            if view and not self._sock.wait_writable(self._timeout):
                raise TimeoutError("timed out")

    def makefile(self, mode: str, *args: Any) -> Any:
        return io.BufferedReader(_File(self))

    def shutdown(self, how: int = 2) -> None:
        self._sock.shutdown()

    def close(self) -> None:
        self._sock.close()

    def fileno(self) -> int:
        return self._sock.fileno()

    @property
    def has_something(self) -> bool:
        end = self._sock.end
        return bool(end.received or end.has_eof or end.is_reset)


def _install_http() -> None:
    import urllib3.util.wait

    from gnsqsync.runtime import call

    call.Call, urllib3.util.wait.wait_for_socket = _sim_http()  # type: ignore[misc]


def _sim_http() -> tuple[Any, Any]:
    """Return the simulated ``Call``, and the ``wait_for_socket`` of urllib3."""
    from gnsqsync.addresses import Address
    from gnsqsync.runtime import call

    class SimCall(call.Call):
        """The dial and the cut of a request, on the simulated network."""

        def __init__(self) -> None:
            assert _World.network is not None
            super().__init__()
            self._sim_cutter = _World.network.cutter()
            self._sockets: list[SimHTTPSocket] = []

        def connect(self, address: Address, timeout: float | None) -> Any:
            assert _World.network is not None
            sock = SimHTTPSocket(
                _World.network.connect("client", address, self.left(timeout), self._sim_cutter)
            )
            sock.settimeout(timeout)
            self.hold(sock)
            return sock

        def hold(self, sock: Any) -> None:
            self._sockets.append(sock)
            if self.is_cut:
                self.cut()

        def end(self) -> None:
            self._sockets.clear()

        def cut(self) -> None:
            self.is_cut = True
            self._sim_cutter.cut()
            for sock in self._sockets:
                sock.shutdown()

    return SimCall, lambda sock, *args, **options: sock.has_something
